"use strict";
/* Errors, as a box: of the service's page, and of the report that is one file. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;

  /** What an error says, in the terms of where it is shown: those of the command line in a report
      that is one file; the service's page puts its own here. */
  dsort.ownTerms = (text) => text;

  const say = (text) => dsort.withCode(dsort.ownTerms(text));

  /** An error: what, and what would help. `wanted`: somebody asked for it. */
  dsort.problemBox = (problem, wanted = false) =>
    el(
      "div",
      { class: wanted ? "problem wanted" : "problem", role: "group", "aria-label": "error" },
      el("strong", null, problem.title || "Failed"),
      el("p", { class: "detail" }, say(problem.detail)),
      problem.hint && el("p", { class: "hint" }, say(problem.hint)),
      (problem.problems || []).length > 1 &&
        el(
          "ul",
          null,
          problem.problems.map((each) =>
            el(
              "li",
              null,
              each.path && [el("code", null, each.path), ": "],
              say(each.message),
              each.hint && [" ", el("span", { class: "hint" }, say(each.hint))],
            ),
          ),
        ),
    );
})();
