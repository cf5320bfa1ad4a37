/* The list of jobs, kept up to date. */
import { jobActions } from "./actions.js";
import { api, every, Unreachable } from "./api.js";
import { waiting } from "./dialogs.js";
import { el, put } from "./dom.js";
import { jobFilters } from "./filters.js";
import {
  agoText,
  bytesText,
  countText,
  durationText,
  numberText,
  progressBar,
  stateChip,
  timeAgo,
} from "./format.js";
import { progressShare, progressWords } from "./job.js";
import { jobHeads, jobSize, listSeconds, sortedJobs } from "./job_columns.js";
import { bucketsOf, jobLink, partLink, shortBucket } from "./links.js";
import { ownTerms, problemBox } from "./problems.js";
import { scheduleName } from "./schedule_words.js";
import { maySubmit, session } from "./session.js";

const LOOK_MS = 2000;
const PAGE = 50;
const TOO_MANY = 429;

export const jobsView = (root, { query, signal }) => {
  const list = new JobList(query, signal);
  list.put(root);
  return every(LOOK_MS, () => list.look(), signal);
};

class JobList {
  constructor(query, signal) {
    this.signal = signal;
    this.filter = { state: "", owner: "", label: "", text: "", kind: "", schedule: "" };
    Object.assign(this.filter, { cursor: "" }, Object.fromEntries(query));
    this.sort = this.filter.sort || "";
    delete this.filter.sort; // the service always returns the newest first
    this.heads = jobHeads((sort) => this.sortBy(sort));
    this.newer = []; // cursors of the newer pages, for the way back
    this.rows = new Map();
    this.body = el("tbody");
    this.table = el(
      "table.jobs.cards",
      { hidden: true },
      el("caption.sr", "Jobs, newest first"),
      this.heads.element,
      this.body,
    );
    this.said = el("p.sr", { role: "status" });
    this.empty = el("div.empty", waiting("Loading the jobs …"));
    this.pager = el("nav.pager", { "aria-label": "more jobs" });
    this.bar = jobFilters(this.filter, (change) => this.change(change));
  }

  put(root) {
    put(
      root,
      el(
        "div.page-head",
        el("h1", "Jobs"),
        maySubmit() && el("a.button.primary", { href: "#/submit" }, "Submit a job"),
      ),
      this.bar.element,
      el("div.card.list", this.table, this.empty),
      this.pager,
      this.said,
    );
  }

  /** Load the jobs, and show them. */
  async look() {
    if (document.querySelector("dialog[open]")) return; // the dialog's row stays in its place
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    const wanted = { ...this.filter, limit: PAGE };
    try {
      const page = await api.get("/v1/jobs", wanted, asking.signal);
      if (!this.signal.aborted && asking === this.asking) this.draw(page);
    } catch (error) {
      if (this.signal.aborted || error.name === "AbortError") return;
      if (error instanceof Unreachable || error.problem?.status === TOO_MANY) return;
      if (!error.problem) throw error;
      put(this.empty, problemBox(error.problem));
    }
  }

  /** Change the filter, and load the jobs. The address has the filter, too. */
  change(change) {
    if (!("cursor" in change)) this.newer.length = 0;
    Object.assign(this.filter, { cursor: "" }, change);
    this.address();
    this.bar.draw();
    return this.look();
  }

  /** Sort the jobs of this page anew. */
  sortBy(sort) {
    this.sort = sort;
    this.address();
    this.draw(this.page);
  }

  address() {
    const all = { ...this.filter, sort: this.sort };
    const kept = Object.entries(all).filter(([, value]) => value);
    const query = kept.length ? `?${new URLSearchParams(kept)}` : "";
    history.replaceState(null, "", `#/jobs${query}`);
  }

  draw(page) {
    this.page = page;
    const { next_cursor: next } = page;
    const jobs = sortedJobs(page.jobs, this.sort);
    this.heads.draw(this.sort);
    const news = [];
    const shown = new Set(jobs.map((job) => job.job_id));
    for (const [jobId, row] of this.rows) {
      if (shown.has(jobId)) continue;
      row.element.remove();
      this.rows.delete(jobId);
    }
    jobs.forEach((job, place) => {
      const row = this.rowOf(job);
      if (row.state !== job.state) news.push(`${job.description || job.job_id} is ${job.state}`);
      row.state = job.state;
      fillRow(row, job, () => this.look());
      const there = this.body.children[place];
      if (there !== row.element) this.body.insertBefore(row.element, there || null);
    });
    if (news.length) this.said.textContent = news.join(", ");
    this.table.hidden = jobs.length === 0;
    put(this.empty, jobs.length === 0 && this.nothing());
    this.drawPager(next);
  }

  rowOf(job) {
    if (!this.rows.has(job.job_id)) {
      const element = el("tr", { data: { job: job.job_id } });
      this.rows.set(job.job_id, { element, state: job.state, drawn: "" });
    }
    return this.rows.get(job.job_id);
  }

  drawPager(next) {
    const { cursor } = this.filter;
    const drawn = `${cursor} ${next} ${this.sort}`;
    if (this.pager.dataset.drawn === drawn) return; // the focus stays
    this.pager.dataset.drawn = drawn;
    this.pager.hidden = !cursor && !next;
    const back = () => this.change({ cursor: this.newer.pop() || "" });
    const on = () => {
      this.newer.push(cursor);
      return this.change({ cursor: next });
    };
    put(
      this.pager,
      el("button", { type: "button", disabled: !cursor, onclick: back }, "← Newer"),
      this.sort && el("span.quiet", "Sorted among the jobs of this page."),
      el("button", { type: "button", disabled: !next, onclick: on }, "Older →"),
    );
  }

  nothing() {
    if (Object.values(this.filter).some(Boolean)) {
      const none = Object.fromEntries(Object.keys(this.filter).map((name) => [name, ""]));
      const all = () => this.change(none);
      return el(
        "p",
        "No jobs fit this filter. ",
        el("button", { type: "button", onclick: all }, "Show all"),
      );
    }
    return el(
      "p",
      "No jobs yet. ",
      maySubmit() && el("a", { href: "#/submit" }, "Submit the first one"),
    );
  }
}

/* A row is drawn again only if its job has changed, so that focus and selection stay. */
function fillRow(row, job, look) {
  const seconds = listSeconds(job);
  const time = Number.isFinite(seconds) ? durationText(seconds) : "–";
  const drawn = JSON.stringify([job, time, agoText(job.created_at), session.who?.role]);
  if (row.drawn === drawn) return;
  row.drawn = drawn;
  const here = document.activeElement;
  const focused = row.element.contains(here) ? here.dataset.action : null;
  const { bytes, records } = jobSize(job);
  put(
    row.element,
    el("th", { scope: "row", class: "what" }, whatJob(job)),
    el("td.state", stateChip(job), el("small", aside(job))),
    el("td.how-far", datasets(job), howFar(job)),
    el(
      "td",
      { class: Number.isFinite(bytes) ? "num size" : "num size unknown" },
      Number.isFinite(bytes) ? bytesText(bytes) : "–",
      records > 0 && el("small", countText(records, "record")),
    ),
    el("td", { class: seconds === null ? "num time unknown" : "num time" }, time),
    el("td.owner", job.owner, job.schedule && el("small", scheduleName(job.schedule))),
    el("td.age", timeAgo(job.created_at)),
    el("td.act", el("div.buttons", jobActions(job, look))),
  );
  if (focused) row.element.querySelector(`[data-action="${focused}"]`)?.focus();
}

const aside = (job) => [
  job.kind === "plan" && "plan only ",
  job.warning_count > 0 &&
    el("a", { href: partLink(job.job_id, "warnings") }, countText(job.warning_count, "warning")),
];

function whatJob(job) {
  const labels = (job.labels || []).map((label) => el("span.label", label));
  return [
    el("a", { href: jobLink(job.job_id), data: { action: "open" } }, job.description || job.job_id),
    el("small", job.description && el("code", job.job_id), labels),
  ];
}

/** Input and output bucket, each by the end of its address: the beginnings are often equal. */
const datasets = (job) =>
  el(
    "span.datasets",
    { title: `${job.input_uri} → ${job.output_uri}` },
    el("code", shortAddress(job.input_uri)),
    el("span.quiet", { "aria-label": "to" }, " → "),
    el("code", shortAddress(job.output_uri)),
  );

const shortAddress = (uris) => bucketsOf(uris).map(shortBucket).join(", ") || "–";

function howFar(job) {
  if (job.state === "queued") {
    const { queue_position: place } = job;
    const words = place > 1 ? `number ${numberText(place)} in the queue` : "next in the queue";
    return el("small", words);
  }
  if (job.state === "running") {
    const phase = (job.progress && job.progress.phase) || job.phase || "starting";
    const words = progressWords(job.progress);
    return [
      progressBar(progressShare(job.progress), `${phase} of ${job.description || job.job_id}`),
      el("small.num", el("b", phase), words && ` · ${words}`),
    ];
  }
  const why = job.state === "failed" && job.error ? ownTerms(job.error.detail) : "";
  return why && el("small.why", { title: why }, why);
}
