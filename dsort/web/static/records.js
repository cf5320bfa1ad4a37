/* The list of the records of one shard, and one of the records. */
import { api } from "./api.js";
import { crumbs, noteError, searchInput, waiting } from "./dialogs.js";
import { el, figureTable, numberCell, put } from "./dom.js";
import { whenItRests } from "./editor.js";
import { bytesText, countText, numberText } from "./format.js";
import { bucketLink, dataPath, shardLink } from "./links.js";
import { recordCard } from "./members.js";
import { problemBox } from "./problems.js";
import { randomRecords } from "./samples.js";

const REST_MS = 250;
const PAGE = 50;
const WANTED = 10;
const MEMBERS_NAMED = 6;
const HEADS = [["Number", "num"], "Key", "Members", ["Size", "num"]];

/** Show a shard in `root`. If the query has `record`, show this record, too. */
export const showShard = async (root, { bucket, shard, query, signal }) => {
  const list = new RecordList(root, bucket, shard, signal);
  await list.look();
  const number = query.get("record");
  if (number !== null) await list.show(Number(number));
};

class RecordList {
  constructor(root, bucket, shard, signal) {
    Object.assign(this, { bucket, shard, signal, first: 0, text: "", earlier: [] });
    const table = figureTable("records of the shard", HEADS, [], "record-list");
    this.body = table.querySelector("tbody");
    this.said = el("span.quiet", { role: "status" });
    this.search = searchInput("Part of a key", "Only records whose keys contain this");
    const find = (text) => this.move({ text, first: 0, earlier: [] });
    const soon = whenItRests(REST_MS, find, signal);
    this.search.addEventListener("input", () => soon(this.search.value.trim()));
    this.pager = el("nav.pager", { "aria-label": "more records" });
    this.one = el("div.one", { "aria-live": "polite" });
    const draw = async (seed) => {
      const { records } = await this.samples({ random: WANTED, seed });
      return records.map((record) => [record, shard]);
    };
    const drawn = randomRecords({ bucket, draw, signal });
    put(
      root,
      crumbs(["Data", "#/data"], [bucket, bucketLink(bucket)]),
      el("div.page-head", el("h1", shard), drawn.button),
      drawn.place,
      this.one,
      el("search.filters", this.search, this.said),
      el("section.card", { "aria-label": "records" }, table, this.pager),
    );
  }

  samples(query) {
    return api.get(dataPath("samples", this.bucket, this.shard), query, this.signal);
  }

  move(to) {
    Object.assign(this, to);
    return this.look().catch(noteError);
  }

  async look() {
    const { first, text } = this;
    this.said.textContent = "Looking …";
    const path = dataPath("records", this.bucket, this.shard);
    const page = await api.get(path, { first, text, limit: PAGE }, this.signal);
    if (first !== this.first || text !== this.text) return;
    put(
      this.body,
      page.records.map((record) => this.row(record)),
    );
    const whole = countText(page.total, "record");
    this.said.textContent = text && !page.records.length ? `None of ${whole}.` : whole;
    const next = page.next_number;
    const back = () => this.move({ first: this.earlier.pop() });
    const on = () => this.move({ first: next, earlier: [...this.earlier, first] });
    this.pager.hidden = next === null && !this.earlier.length;
    put(
      this.pager,
      el("button", { type: "button", disabled: !this.earlier.length, onclick: back }, "← Before"),
      el("button", { type: "button", disabled: next === null, onclick: on }, "Next →"),
    );
  }

  row(record) {
    const { number, key, members } = record;
    const open = (event) => {
      event.preventDefault();
      this.show(number).catch(noteError);
    };
    const href = shardLink(this.bucket, this.shard, { record: number });
    const left = record.members_total - Math.min(members.length, MEMBERS_NAMED);
    const label = ({ name, extension, size_bytes: size }) =>
      el("span.label", { title: name }, `${extension || name} ${bytesText(size)}`);
    return el(
      "tr",
      { data: { record: number } },
      numberCell(numberText(number)),
      el("th", { scope: "row" }, el("a", { href, onclick: open }, key || "(empty)")),
      el(
        "td",
        members.slice(0, MEMBERS_NAMED).map(label),
        left > 0 && el("span.quiet", `and ${numberText(left)} more`),
      ),
      numberCell(bytesText(record.size_bytes)),
    );
  }

  /** Show one record above the list. */
  async show(number) {
    const { bucket, shard } = this;
    history.replaceState(null, "", shardLink(bucket, shard, { record: number }));
    put(this.one, waiting("Loading the record …"));
    try {
      const { records, total } = await this.samples({ number });
      const step = (to, words) => {
        const onclick = () => this.show(to).catch(noteError);
        const none = to < 0 || to >= total;
        return el("button.small", { type: "button", disabled: none, onclick }, words);
      };
      const steps = el("span.buttons", step(number - 1, "← Before"), step(number + 1, "Next →"));
      const card = recordCard(records[0], { bucket, shard }, steps);
      put(this.one, el("section.card", { "aria-label": "record" }, card));
      this.one.scrollIntoView({ block: "nearest" });
    } catch (error) {
      if (!error.problem) throw error;
      put(this.one, problemBox(error.problem));
    }
  }
}
