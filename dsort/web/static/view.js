/* The records of a view, page by page, each with its places in input shards. */
import { api } from "./api.js";
import { noteError } from "./dialogs.js";
import { el, figureTable, numberCell, put, redraw } from "./dom.js";
import { bytesText, countText, numberText } from "./format.js";
import { bucketsOf, resultPath, shardLink } from "./links.js";
import { problemBox } from "./problems.js";

const PAGE = 10;
const MEMBERS_NAMED = 6;
const HEADS = [["Position", "num"], "Key", "Members", "Where"];

/** An element with the records of the view that `job` has written. */
export const viewRecords = (job, signal) => {
  const list = new ViewRecords(job, signal);
  list.move({ first: 0 });
  return list.element;
};

class ViewRecords {
  constructor(job, signal) {
    Object.assign(this, { job, signal, first: 0, earlier: [] });
    this.buckets = bucketsOf(job.input_uri);
    this.said = el("p.quiet.num", { role: "status" }, "Loading …");
    this.body = el("div");
    const title = el("h3", "In the order of the view");
    this.element = el("div.view-records", title, this.said, this.body);
  }

  async move(to) {
    Object.assign(this, to);
    const { first } = this;
    try {
      const query = { from: first, limit: PAGE };
      const page = await api.get(resultPath(this.job.job_id, "/records"), query, this.signal);
      if (first === this.first) this.show(page);
    } catch (error) {
      if (this.signal.aborted) return;
      put(this.said);
      if (error.problem) put(this.body, problemBox(error.problem));
      else noteError(error);
    }
  }

  show({ records, total, next_position: next }) {
    const { first } = this;
    const rows = records.map((record) => this.row(record));
    const back = () => this.move({ first: this.earlier.pop() });
    const on = () => this.move({ first: next, earlier: [...this.earlier, first] });
    const range = `${numberText(first + 1)} to ${numberText(first + records.length)}`;
    put(this.said, rows.length ? `${range} of ${countText(total, "record")}` : "None.");
    redraw(
      this.body,
      el(
        "div",
        rows.length > 0 && figureTable("records of the view", HEADS, rows, "stacked"),
        (next !== null || this.earlier.length > 0) &&
          el(
            "nav.pager",
            { "aria-label": "more records" },
            button("← Before", back, !this.earlier.length),
            button("Next →", on, next === null),
          ),
      ),
    );
  }

  row({ position, key, ranges, ranges_total: total }) {
    const label = ({ member, bytes }) => {
      const extension = key && member.startsWith(`${key}.`) ? member.slice(key.length) : member;
      return el("span.label", { title: member }, `${extension} ${bytesText(bytes)}`);
    };
    const left = total - Math.min(ranges.length, MEMBERS_NAMED);
    return el(
      "tr",
      { data: { position } },
      numberCell(numberText(position)),
      el("th", { scope: "row" }, el("code", key || "(empty)")),
      el(
        "td",
        ranges.slice(0, MEMBERS_NAMED).map(label),
        left > 0 && el("span.quiet", `and ${numberText(left)} more`),
      ),
      el("td", placesOf(ranges).map((place) => this.place(place))),
    );
  }

  /** A shard, and the offset of the record's first byte in the shard. */
  place({ shard, offset }) {
    const uri = decoded(shard);
    const bucket = this.buckets.find((each) => uri.startsWith(`${decoded(each)}/`));
    const name = bucket ? uri.slice(decoded(bucket).length + 1) : shard;
    return el(
      "div",
      bucket ? el("a", { href: shardLink(bucket, name) }, name) : el("code", name),
      el("span.quiet.num", ` byte ${numberText(offset)}`),
    );
  }
}

/** A URI without %20 and the like; unchanged if the decoded URI is no UTF-8. */
const decoded = (uri) => {
  try {
    return decodeURIComponent(uri);
  } catch {
    return uri;
  }
};

const button = (words, onclick, disabled) =>
  el("button", { type: "button", disabled, onclick }, words);

/** The first range in each shard. */
function placesOf(ranges) {
  const found = new Map();
  for (const range of ranges)
    if (range.shard && !found.has(range.shard)) found.set(range.shard, range);
  return [...found.values()];
}
