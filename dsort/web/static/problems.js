/* Boxes with errors, for the service's page and for the report that is one file. */
import { el, withCode } from "./dom.js";

/** `own` adapts the text of an error to its place: a report that is one file keeps the words of the
    command line; the service's page replaces the function. */
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

/** A box with an error and its hint. `wanted`: the reader's action caused the error; `titled`: the
    box has the error's title. */
export const problemBox = (problem, { wanted = false, titled = true } = {}) =>
  el(
    "div.problem",
    { role: "group", "aria-label": "error", data: wanted ? { wanted: "yes" } : {} },
    titled && el("strong", problem.title || "Failed"),
    el("p.detail", worded(problem.detail)),
    problem.hint && el("p.hint", worded(problem.hint)),
    (problem.problems || []).length > 1 && el("ul", problem.problems.map(oneOfSeveral)),
  );
