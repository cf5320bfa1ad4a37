"use strict";
/* The list of named transforms. Admins add them from the command line, or by REST. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const HEADS = ["Transform", "Steps", "Added"];

  dsort.views = dsort.views || {};

  dsort.views.transforms = async (root, { signal }) => {
    const body = el("tbody");
    const table = el(
      "table",
      { class: "transforms cards", hidden: true },
      el("caption", { class: "sr" }, "Transforms"),
      dsort.tableHead(HEADS),
      body,
    );
    const empty = el("div", { class: "empty" }, dsort.waiting("Asking for the transforms …"));
    const older = el("button", { type: "button", hidden: true }, "Older ones");
    dsort.put(
      root,
      el("div", { class: "page-head" }, el("h1", null, "Transforms")),
      el("div", { class: "card list" }, table, empty),
      el("div", { class: "pager" }, older),
    );
    let cursor = "";
    const look = async () => {
      const page = await dsort.api.get("/v1/transforms", { limit: 50, cursor }, signal);
      body.append(...page.transforms.map((each) => row(each, signal)));
      cursor = page.next_cursor;
      older.hidden = !cursor;
      table.hidden = body.children.length === 0;
      dsort.put(empty, table.hidden && el("p", null, "No transforms yet."));
    };
    older.addEventListener("click", () => look().catch(dsort.noteError));
    await look();
  };

  function row(transform, signal) {
    const use = `${transform.name}@${transform.version}`;
    const code = transform.runs_code && el("span", { class: "label" }, "runs code");
    const steps = el("pre", null);
    const whole = el("details", null, el("summary", null, transform.kinds.join(", ")), steps);
    whole.addEventListener("toggle", async () => {
      if (!whole.open || steps.textContent) return;
      try {
        const path = `/v1/transforms/${encodeURIComponent(use)}`;
        const found = await dsort.api.get(path, null, signal);
        steps.textContent = dsort.specText(found.transform);
      } catch (error) {
        if (!signal.aborted) dsort.noteError(error);
      }
    });
    return el(
      "tr",
      { data: { transform: use } },
      el("th", { scope: "row" }, use, " ", code),
      el("td", { class: "whole" }, whole),
      el("td", null, dsort.when(transform.created_at), el("small", null, transform.created_by)),
    );
  }
})();
