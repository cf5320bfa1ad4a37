/* The data page: buckets that jobs use, buckets that the token may read, and the shards of a
   bucket. */
import { api } from "./api.js";
import { crumbs, labelledField, noteError, searchInput, textInput, waiting } from "./dialogs.js";
import { el, figureTable, numberCell, put, tableHead } from "./dom.js";
import { whenItRests } from "./editor.js";
import { bytesText, countText, numberText, stateChip, timeAgo } from "./format.js";
import { bucketLink, bucketsOf, dataPath, jobLink, shardLink, shortBucket } from "./links.js";
import { showShard } from "./records.js";
import { randomRecords } from "./samples.js";
import { scheduleName } from "./schedule_words.js";

const REST_MS = 250;
const PAGE = 100;
const USED_AT_FIRST = 10;
const JOBS = 200; // the newest jobs, whose buckets count as in use
const WANTED = 10; // random records, from SHARDS_DRAWN shards
const SHARDS_DRAWN = 5;

/** The buckets of jobs and schedules, the last used first: [[uri, {read, written, job, schedules}]]. */
function inUse(jobs, schedules) {
  const found = new Map();
  const use = (uri) => {
    const fresh = { read: false, written: false, job: null, schedules: [] };
    if (!found.has(uri)) found.set(uri, fresh);
    return found.get(uri);
  };
  const see = (each, more) => {
    for (const uri of bucketsOf(each.input_uri)) Object.assign(use(uri), { read: true });
    for (const uri of bucketsOf(each.output_uri)) Object.assign(use(uri), { written: true });
    const all = [...bucketsOf(each.input_uri), ...bucketsOf(each.output_uri)];
    for (const uri of new Set(all)) more(use(uri));
  };
  for (const job of jobs) see(job, (of) => (of.job ??= job));
  for (const schedule of schedules) see(schedule, (of) => of.schedules.push(schedule.name));
  return [...found];
}

function useRow([uri, { read, written, job, schedules }]) {
  const name = shortBucket(uri);
  const path = name !== uri && el("small.path", uri);
  const uses = [read && el("span.label", "read"), written && el("span.label", "written")];
  return el(
    "tr",
    { data: { bucket: uri } },
    el("th", { scope: "row" }, el("a", { href: bucketLink(uri) }, name), path),
    el("td", uses),
    el(
      "td",
      job && [stateChip(job), " "],
      job && el("a", { href: jobLink(job.job_id) }, job.description || job.job_id),
    ),
    el("td.num", timeAgo(job?.created_at)),
    el(
      "td",
      schedules.map((each) => [scheduleName(each), " "]),
    ),
  );
}

/** The first buckets in use, and a button for the rest. */
function usedCard(used) {
  const heads = ["Bucket", "Use", "Last job", ["Submitted", "num"], "Schedules"];
  const card = el("div.card");
  const draw = (most) => {
    const rows = used.slice(0, most).map(useRow);
    const all = { type: "button", onclick: () => draw(used.length) };
    put(
      card,
      el("h2", "In use by jobs and schedules"),
      figureTable("Buckets in use", heads, rows, "in-use stacked"),
      most < used.length && el("p.more", el("button", all, `Show all ${numberText(used.length)}`)),
    );
  };
  draw(USED_AT_FIRST);
  return card;
}

export const dataView = async (root, { signal }) => {
  put(root, waiting("Loading the buckets …"));
  const [{ buckets }, { jobs }, { schedules }] = await Promise.all([
    api.get("/v1/listings", null, signal),
    api.get("/v1/jobs", { limit: JOBS }, signal),
    api.get("/v1/schedules", null, signal),
  ]);
  const address = textInput("bucket", { required: true, placeholder: "s3://training-data/train" });
  const open = (event) => {
    event.preventDefault();
    location.hash = bucketLink(address.value.trim());
  };
  const used = inUse(jobs, schedules);
  put(
    root,
    el("div.page-head", el("h1", "Data")),
    el(
      "form.card.open-bucket",
      { onsubmit: open },
      labelledField("Open a bucket, named as in a spec", address),
      el("button", { type: "submit" }, "Open"),
    ),
    used.length > 0 && usedCard(used),
    el(
      "section.card",
      { "aria-label": "buckets" },
      el("h2", "Buckets that this token may read"),
      buckets.length
        ? el("ul.buckets", buckets.map(bucketItem))
        : el("p.quiet", "No bucket is known by name: open a bucket by its address."),
    ),
  );
};

const bucketItem = (name) => el("li", el("a", { href: bucketLink(name) }, name));

export const bucketView = async (root, { name: bucket, query, signal }) => {
  const shard = query.get("shard");
  if (shard) return showShard(root, { bucket, shard, query, signal });
  return new ShardList(root, bucket, query.get("text") || "", signal).look();
};

class ShardList {
  constructor(root, bucket, text, signal) {
    Object.assign(this, { bucket, text, signal, cursor: "" });
    this.body = el("tbody");
    this.table = el(
      "table.figures.shard-list",
      { hidden: true },
      el("caption.sr", "Shards"),
      tableHead(["Shard", ["Size", "num"], ["Records", "num"]]),
      this.body,
    );
    this.said = el("p.quiet", { role: "status" });
    this.more = el("button", { type: "button", hidden: true }, "More shards");
    this.more.addEventListener("click", () => this.look().catch(noteError));
    const label = "Only shards whose names contain this";
    this.search = searchInput("Part of a name", label, { value: text });
    const soon = whenItRests(REST_MS, (wanted) => this.find(wanted), signal);
    this.search.addEventListener("input", () => soon(this.search.value.trim()));
    const drawn = randomRecords({ bucket, draw: (seed) => this.draw(seed), signal });
    const short = shortBucket(bucket);
    put(
      root,
      crumbs(["Data", "#/data"]),
      el("div.page-head", el("h1", short), drawn.button),
      short !== bucket && el("p.where", el("code", bucket)),
      drawn.place,
      el("search.filters", this.search, this.said),
      el("section.card", { "aria-label": "shards" }, this.table, this.more),
    );
  }

  find(text) {
    Object.assign(this, { text, cursor: "" });
    this.body.replaceChildren();
    const query = text ? `?${new URLSearchParams({ text })}` : "";
    history.replaceState(null, "", `${bucketLink(this.bucket)}${query}`);
    return this.look().catch(noteError);
  }

  async look() {
    const { text, cursor, bucket } = this;
    this.said.textContent = "Looking …";
    const page = await api.get(
      dataPath("shards", bucket),
      { text, cursor, limit: PAGE },
      this.signal,
    );
    if (text !== this.text || cursor !== this.cursor) return;
    this.body.append(...page.shards.map((shard) => this.row(shard)));
    this.cursor = page.next_cursor || "";
    this.more.hidden = !this.cursor;
    const count = this.body.children.length;
    this.table.hidden = count === 0;
    const rest = this.cursor ? " so far" : "";
    this.said.textContent = count || rest ? `${countText(count, "shard")}${rest}` : "No shards.";
  }

  row({ name, size_bytes: size, records }) {
    return el(
      "tr",
      { data: { shard: name } },
      el("th", { scope: "row" }, el("a", { href: shardLink(this.bucket, name) }, name)),
      numberCell(bytesText(size)),
      numberCell(records === null ? "–" : numberText(records)),
    );
  }

  /** Some records of some shards. */
  async draw(seed) {
    const { bucket, signal } = this;
    const asked = { random: SHARDS_DRAWN, seed };
    const { shards } = await api.get(dataPath("shards", bucket), asked, signal);
    const each = Math.ceil(WANTED / Math.max(shards.length, 1));
    const found = [];
    for (const { name } of shards) {
      const path = dataPath("samples", bucket, name);
      const { records } = await api.get(path, { random: each, seed }, signal);
      found.push(...records.map((record) => [record, name]));
    }
    return found.slice(0, WANTED);
  }
}
