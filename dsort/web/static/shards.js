/* Output shards: the spread of their sizes, and the figures of each shard. And the figures of a
   view. */
import { el, foldedTable, numberCell, svg } from "./dom.js";
import { bytesText, countText, numberText } from "./format.js";

const SHARDS_AT_FIRST = 12;
const COLUMNS = ["Shard", "Records", "Size"];
const HISTOGRAM = { width: 380, height: 134, left: 30, bottom: 34, top: 8 };

/** The spread of sizes and of numbers of records, and the table of all shards. `linkOf(name)`: the
    address of a shard's records, or null. */
export const shardFigures = (shardsOf, linkOf = () => null) => {
  const spreads = [
    spread("Size", shardsOf.sizes, bytesText, shardsOf.total),
    spread("Records", shardsOf.records, numberText, shardsOf.total),
  ];
  return el("div.shards-part", el("div.spreads", spreads), shardTable(shardsOf, linkOf));
};

/** `values`: {smallest, median, largest, counts}, or null if they are unknown. */
function spread(title, values, show, total) {
  if (!values) return null;
  const { smallest, median, largest, counts } = values;
  const known = counts.reduce((sum, count) => sum + count, 0);
  const of = known < total ? `of the first ${numberText(known)}: ` : "";
  const words =
    smallest === largest
      ? `${of}${known > 1 ? `all ${numberText(known)} have ` : ""}${show(smallest)}`
      : `${of}${show(smallest)} to ${show(largest)}, median ${show(median)}`;
  return el(
    "figure.spread",
    el("h3", `${title} of shards`),
    counts.length > 1 && histogram(title, counts, show(smallest), show(largest)),
    el("figcaption.quiet.num", words),
    counts.length > 1 && spreadTable(title, values, show),
  );
}

/** The figures of the bars, as a table. */
function spreadTable(title, { smallest, largest, counts }, show) {
  const edge = (i) => show(smallest + (i * (largest - smallest)) / counts.length);
  const row = (count, i) =>
    el(
      "tr",
      el("th.num", { scope: "row" }, `${edge(i)} – ${edge(i + 1)}`),
      numberCell(numberText(count)),
    );
  const heads = [title, "Shards"].map((name) => [name, "num"]);
  const name = `${title} of shards`;
  return foldedTable(`${name} as a table`, name, heads, () => counts.map(row));
}

/** Bars of `counts` over an axis whose ends are the texts `from` and `to`. The figures are in the
    table. */
function histogram(title, counts, from, to) {
  const { width, height, left, bottom, top } = HISTOGRAM;
  const [most, ground, wide] = [Math.max(...counts), height - bottom, width - left];
  const step = wide / counts.length;
  const y = (count) => ground - (count / most) * (ground - top);
  const bars = counts.map((count, i) => {
    const tall = count ? Math.max(2, ground - y(count)) : 0;
    const place = { x: left + i * step + 0.5, y: ground - tall, width: step - 1, height: tall };
    return svg("rect", place, svg("title", countText(count, "shard")));
  });
  const text = (x, at, anchor, words) => svg("text", { x, y: at, "text-anchor": anchor }, words);
  const ticks = [...new Set([0, Math.ceil(most / 2), most])];
  return svg(
    "svg.histogram",
    { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    ticks.map((count) => [
      svg("line.grid", { x1: left, x2: width, y1: y(count), y2: y(count) }),
      text(left - 5, y(count) + 4, "end", numberText(count)),
    ]),
    bars,
    svg("line", { x1: left, x2: width, y1: ground, y2: ground }),
    text(left, ground + 13, "start", from),
    text(width, ground + 13, "end", to),
    text(
      left + wide / 2,
      height - 4,
      "middle",
      `${title.toLowerCase()} of a shard; upwards: shards`,
    ),
  );
}

/** A table of shards that sorts by its columns. */
function shardTable(shardsOf, linkOf) {
  const { rows, total } = shardsOf;
  let [by, down, shown] = [null, false, SHARDS_AT_FIRST];
  const body = el("tbody");
  const more = el("p.more");
  const heads = COLUMNS.map((name, column) => {
    const sort = () => {
      down = by === column ? !down : column > 0;
      by = column;
      draw();
    };
    const button = el("button.plain", { type: "button", onclick: sort }, name);
    return el("th", { scope: "col", class: column ? "num" : "" }, button);
  });
  const most = [1, 2].map((column) => Math.max(1, ...rows.map((row) => row[column] || 0)));
  const compare = (a, b) => (a[by] < b[by] ? -1 : a[by] > b[by] ? 1 : 0) * (down ? -1 : 1);
  const draw = () => {
    heads.forEach((head, column) => {
      if (column === by) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const ordered = by === null ? rows : [...rows].sort(compare);
    const seen = ordered.slice(0, shown);
    body.replaceChildren(...seen.map((row) => shardRow(row, most, linkOf(row[0]))));
    more.replaceChildren();
    if (shown < rows.length) {
      const all = () => {
        shown = rows.length;
        draw();
      };
      more.append(
        el("button", { type: "button", onclick: all }, `Show all ${numberText(rows.length)}`),
      );
    } else if (rows.length < total) {
      const words = `The first ${numberText(rows.length)} of ${numberText(total)}; `;
      more.append(el("span.quiet", words, "the manifest has all."));
    }
  };
  draw();
  const above = () => el("td", { "aria-hidden": "true" });
  const head = el("tr", heads[0], heads[1], above(), heads[2], above());
  const caption = el("caption.sr", "Output shards");
  const table = el("table.figures.shards", caption, el("thead", head), body);
  return el("div", el("div.scroll", table), more);
}

function shardRow([name, records, bytes], [mostRecords, mostBytes], href) {
  const gauge = (share) =>
    el("td.gauge", { "aria-hidden": "true" }, el("span", { style: { width: `${100 * share}%` } }));
  return el(
    "tr",
    el("th", { scope: "row" }, href ? el("a", { href }, name) : el("code", name)),
    numberCell(numberText(records)),
    gauge((records || 0) / mostRecords),
    numberCell(bytesText(bytes)),
    gauge((bytes || 0) / mostBytes),
  );
}

/** The figures of a view, and of its inputs. */
export function viewFacts({ job, inputs, shards }) {
  const result = job.result || {};
  const row = (name, value, more) => [
    el("dt", name),
    el("dd.num", value, el("span.quiet", ` ${more}`)),
  ];
  const sources = (job.input_uri || "").split(", ").map((uri) => el("div", el("code", uri)));
  const inputBytes = inputs.bytes ? `, ${bytesText(inputs.bytes)}` : "";
  return el(
    "dl.facts",
    row("Records", numberText(result.records), ""),
    row("Points to", bytesText(result.payload_bytes), "of members"),
    row("Index", bytesText(result.file_bytes), `in ${countText(shards.total, "file")}`),
    row(
      "Sources",
      sources,
      `${countText(inputs.total || result.input_shards, "shard")}${inputBytes}`,
    ),
  );
}
