"use strict";
/* Output shards with their sizes. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const SHARDS_AT_FIRST = 20;
  const COLUMNS = [
    ["Shard", 0],
    ["Records", 1],
    ["Size", 2],
  ];

  /** Output shards: a table that sorts by its columns, with a bar for each size. */
  dsort.shardTable = (shardsOf) => {
    const rows = shardsOf.rows;
    const largest = Math.max(1, ...rows.map((row) => row[2] || 0));
    let [by, down, shown] = [null, false, SHARDS_AT_FIRST];
    const body = el("tbody");
    const more = el("p", { class: "more" });
    const heads = COLUMNS.map(([name, column]) => {
      const sort = () => {
        down = by === column ? !down : column > 0;
        by = column;
        draw();
      };
      return el(
        "th",
        { scope: "col", class: column ? "num" : "" },
        el("button", { type: "button", class: "plain", onclick: sort }, name),
      );
    });
    const compare = (a, b) => (a[by] < b[by] ? -1 : a[by] > b[by] ? 1 : 0) * (down ? -1 : 1);
    const draw = () => {
      heads.forEach((head, i) => {
        if (COLUMNS[i][1] === by) head.setAttribute("aria-sort", down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      const ordered = by === null ? rows : [...rows].sort(compare);
      body.replaceChildren(...ordered.slice(0, shown).map((row) => shardRow(row, largest)));
      more.replaceChildren();
      if (shown < rows.length) {
        const all = () => {
          shown = rows.length;
          draw();
        };
        more.append(
          el("button", { type: "button", onclick: all }, `Show all ${dsort.number(rows.length)}`),
        );
      }
      if (rows.length < shardsOf.total && shown >= rows.length) {
        more.append(
          el(
            "span",
            { class: "quiet" },
            `The first ${dsort.number(rows.length)} of ${dsort.number(shardsOf.total)}; ` +
              "the manifest has them all.",
          ),
        );
      }
    };
    draw();
    const table = el(
      "table",
      { class: "figures shards" },
      el("caption", { class: "sr" }, "Output shards"),
      el(
        "thead",
        null,
        el(
          "tr",
          null,
          heads,
          el("th", { scope: "col", class: "wide" }, el("span", { class: "sr" }, "Size as a bar")),
        ),
      ),
      body,
    );
    return el("div", null, el("div", { class: "scroll" }, table), more);
  };

  function shardRow([name, records, bytes], largest) {
    return el(
      "tr",
      null,
      el("th", { scope: "row" }, el("code", null, name)),
      el("td", { class: "num" }, dsort.number(records)),
      el("td", { class: "num" }, dsort.bytes(bytes)),
      el(
        "td",
        { class: "wide", "aria-hidden": "true" },
        el("span", { class: "size-bar", style: { width: `${(100 * (bytes || 0)) / largest}%` } }),
      ),
    );
  }
})();
