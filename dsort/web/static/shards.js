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

  const HISTOGRAM = { width: 360, height: 134, left: 26, bottom: 34, top: 8 };

  /** How sizes and numbers of records are spread, and the table of all. `linkOf(name)`: where a
      shard can be looked into, if anywhere. */
  dsort.shards = (shardsOf, linkOf = () => null) => {
    const spreads = [
      spread("Size", shardsOf.sizes, dsort.bytes, shardsOf.total),
      spread("Records", shardsOf.records, dsort.number, shardsOf.total),
    ];
    return el(
      "div",
      { class: "shards-part" },
      el("div", { class: "spreads" }, spreads),
      shardTable(shardsOf, linkOf),
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
      counts.length > 1 && histogram(title, counts, show(smallest), show(largest)),
      el("figcaption", { class: "quiet num" }, words),
      counts.length > 1 && asTable(title, values, show),
    );
  }

  /** The bars as figures. */
  function asTable(title, { smallest, largest, counts }, show) {
    const edge = (i) => show(smallest + (i * (largest - smallest)) / counts.length);
    const row = (count, i) =>
      el(
        "tr",
        null,
        el("th", { scope: "row", class: "num" }, `${edge(i)} – ${edge(i + 1)}`),
        el("td", { class: "num" }, dsort.number(count)),
      );
    const head = (name) => el("th", { scope: "col", class: "num" }, name);
    const box = { class: "scroll tall", tabindex: 0, role: "region", "aria-label": `${title} of shards` };
    return el(
      "details",
      null,
      el("summary", null, `${title} of shards as a table`),
      el(
        "div",
        box,
        el(
          "table",
          { class: "figures" },
          el("caption", { class: "sr" }, `How many shards have which ${title.toLowerCase()}`),
          el("thead", null, el("tr", null, [title, "Shards"].map(head))),
          el("tbody", null, counts.map(row)),
        ),
      ),
    );
  }

  /** Bars of `counts` over an axis from one word to another. The figures are in the table. */
  function histogram(title, counts, from, to) {
    const { width, height, left, bottom, top } = HISTOGRAM;
    const [most, ground, wide] = [Math.max(...counts), height - bottom, width - left];
    const step = wide / counts.length;
    const y = (count) => ground - (count / most) * (ground - top);
    const bars = counts.map((count, i) => {
      const tall = count ? Math.max(2, ground - y(count)) : 0;
      const place = { x: left + i * step + 0.5, y: ground - tall, width: step - 1, height: tall };
      return svg("rect", place, svg("title", null, dsort.count(count, "shard")));
    });
    const ticks = [...new Set([0, Math.ceil(most / 2), most])];
    return svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", class: "histogram" },
      ticks.map((count) => [
        svg("line", { class: "grid", x1: left, x2: width, y1: y(count), y2: y(count) }),
        svg("text", { x: left - 5, y: y(count) + 4, "text-anchor": "end" }, dsort.number(count)),
      ]),
      bars,
      svg("line", { x1: left, x2: width, y1: ground, y2: ground }),
      svg("text", { x: left, y: ground + 13 }, from),
      svg("text", { x: width, y: ground + 13, "text-anchor": "end" }, to),
      svg(
        "text",
        { x: left + wide / 2, y: height - 4, "text-anchor": "middle" },
        `${title.toLowerCase()} of a shard; upwards: shards`,
      ),
    );
  }

  /** A table that sorts by its columns. */
  function shardTable(shardsOf, linkOf) {
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
      body.replaceChildren(...ordered.slice(0, shown).map((row) => shardRow(row, linkOf(row[0]))));
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

  function shardRow([name, records, bytes], href) {
    return el(
      "tr",
      null,
      el("th", { scope: "row" }, href ? el("a", { href }, name) : el("code", null, name)),
      el("td", { class: "num" }, dsort.number(records)),
      el("td", { class: "num" }, dsort.bytes(bytes)),
    );
  }
})();
