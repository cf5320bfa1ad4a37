"use strict";
/* Output shards: how their sizes are spread, and the figures of each. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el, svg } = dsort;
  const SHARDS_AT_FIRST = 12;
  const COLUMNS = [
    ["Shard", 0],
    ["Records", 1],
    ["Size", 2],
  ];

  const HISTOGRAM = { width: 360, height: 116, bottom: 18 };

  /** How sizes and numbers of records are spread, and the table of all. */
  dsort.shards = (shardsOf) => {
    const spreads = [
      spread("Size", shardsOf.sizes, dsort.bytes, shardsOf.total),
      spread("Records", shardsOf.records, dsort.number, shardsOf.total),
    ];
    return el(
      "div",
      { class: "shards-part" },
      el("div", { class: "spreads" }, spreads),
      shardTable(shardsOf),
    );
  };

  /** `values`: {smallest, median, largest, counts}, or null where nobody knows. */
  function spread(title, values, show, total) {
    if (!values) return null;
    const { smallest, median, largest, counts } = values;
    const known = counts.reduce((sum, count) => sum + count, 0);
    const of = known < total ? `of the first ${dsort.number(known)}: ` : "";
    const words =
      smallest === largest
        ? `${of}${known > 1 ? `all ${dsort.number(known)} have ` : ""}${show(smallest)}`
        : `${of}${show(smallest)} to ${show(largest)}, median ${show(median)}`;
    return el(
      "figure",
      { class: "spread" },
      el("h3", null, `${title} of shards`),
      counts.length > 1 && histogram(counts, show(smallest), show(largest)),
      el("figcaption", { class: "quiet num" }, words),
    );
  }

  /** Bars of `counts` over an axis from one word to another. The figures are in the table. */
  function histogram(counts, from, to) {
    const { width, height, bottom } = HISTOGRAM;
    const [most, ground] = [Math.max(...counts), height - bottom];
    const step = width / counts.length;
    const bars = counts.map((count, i) => {
      const tall = count ? Math.max(2, (count / most) * (ground - 16)) : 0;
      const place = { x: i * step + 0.5, y: ground - tall, width: step - 1, height: tall };
      return svg("rect", place, svg("title", null, dsort.count(count, "shard")));
    });
    const at = counts.indexOf(most) * step + step / 2;
    const anchor = at < 40 ? "start" : at > width - 40 ? "end" : "middle";
    const edge = anchor === "start" ? 0 : anchor === "end" ? width : at;
    return svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", class: "histogram" },
      bars,
      svg("line", { x1: 0, x2: width, y1: ground, y2: ground }),
      svg("text", { x: edge, y: 10, "text-anchor": anchor }, dsort.count(most, "shard")),
      svg("text", { x: 0, y: height - 4 }, from),
      svg("text", { x: width, y: height - 4, "text-anchor": "end" }, to),
    );
  }

  /** A table that sorts by its columns. */
  function shardTable(shardsOf) {
    const rows = shardsOf.rows;
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
      body.replaceChildren(...ordered.slice(0, shown).map(shardRow));
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
      el("thead", null, el("tr", null, heads)),
      body,
    );
    return el("div", null, el("div", { class: "scroll" }, table), more);
  }

  function shardRow([name, records, bytes]) {
    return el(
      "tr",
      null,
      el("th", { scope: "row" }, el("code", null, name)),
      el("td", { class: "num" }, dsort.number(records)),
      el("td", { class: "num" }, dsort.bytes(bytes)),
    );
  }
})();
