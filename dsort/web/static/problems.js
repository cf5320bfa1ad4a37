/* Errors, as a box: of the service's page, and of the report that is one file. */
import { el, withCode } from "./dom.js";

/** What an error says, in the terms of where it is shown: those of the command line in a report
    that is one file; the service's page puts its own here. */
export const terms = { own: (text) => text };
export const ownTerms = (text) => terms.own(text);

const worded = (text) => withCode(ownTerms(text));

const oneOfSeveral = (each) =>
  el(
    "li",
    each.path && [el("code", each.path), ": "],
    worded(each.message),
    each.hint && [" ", el("span.hint", worded(each.hint))],
  );

/** An error: what, and what would help. `wanted`: a reader asked for it; `titled`: its title stands
    in the box. */
export const problemBox = (problem, { wanted = false, titled = true } = {}) =>
  el(
    "div.problem",
    { role: "group", "aria-label": "error", data: wanted ? { wanted: "yes" } : {} },
    titled && el("strong", problem.title || "Failed"),
    el("p.detail", worded(problem.detail)),
    problem.hint && el("p.hint", worded(problem.hint)),
    (problem.problems || []).length > 1 && el("ul", problem.problems.map(oneOfSeveral)),
  );
