/* The page of one job at the service: job.js draws the page, and events update it. */
import { jobActions } from "./actions.js";
import { api, follow, Unreachable } from "./api.js";
import { PHASES } from "./chart.js";
import { crumbs, noteError, problemPage, saveBlob, waiting, workButton } from "./dialogs.js";
import { debounce, el, put } from "./dom.js";
import { hasEnded, isView, renderJob } from "./job.js";
import { bucketLink, jobPath, partLink, shardLink } from "./links.js";
import { logCard } from "./log.js";
import { scheduleName } from "./schedule_words.js";
import { maySubmit } from "./session.js";
import { viewRecords } from "./view.js";

const POINTS_MAX = 240;
const TURNS = new Set(["state", "started", "phase", "end"]);
const REDRAW_MS = 100;
const AGAIN_MS = 2000;
const SETTLE_MS = 250; // events come in groups; the page is loaded once after each group

export const jobView = async (root, { name: jobId, query, signal }) => {
  put(root, waiting("Loading the job …"));
  const live = new LiveJob(root, jobId, signal);
  await live.refresh();
  live.view?.places.get(query.get("part"))?.scrollIntoView();
};

class LiveJob {
  constructor(root, jobId, signal) {
    Object.assign(this, { root, jobId, signal, view: null, following: false });
    this.actions = el("div.buttons");
    this.log = logCard(jobId, signal);
    this.files = el("div.wide-part.buttons");
    this.place = el("div");
    this.said = el("p.sr", { role: "status" });
    this.live = newLive();
    this.settle = debounce(SETTLE_MS, () => this.refresh());
    this.redraw = debounce(REDRAW_MS, () => !signal.aborted && this.view && this.show());
  }

  /** Load the whole page, show it, and follow the job unless the job is over. */
  async refresh() {
    try {
      this.page = await api.get(jobPath(this.jobId, "/page"), null, this.signal);
    } catch (error) {
      if (this.signal.aborted || (error instanceof Unreachable && this.view)) return;
      put(this.root, problemPage(error));
      const again = () => !this.signal.aborted && this.refresh();
      if (error instanceof Unreachable) setTimeout(again, AGAIN_MS);
      return;
    }
    if (this.signal.aborted) return;
    this.show();
    if (!hasEnded(this.page.job)) this.follow();
  }

  show() {
    const { page } = this;
    const now = hasEnded(page.job) ? page : withLive(page, this.live);
    if (this.view) this.view.update(now);
    else {
      const bucket = outputBucket(page.job);
      this.view = renderJob(this.place, now, {
        actions: this.actions,
        log: this.log.element,
        after: this.files,
        partLink: (key) => partLink(this.jobId, key),
        shardLink: bucket ? (name) => shardLink(bucket, name) : undefined,
        scheduleName,
        records: (job) => (this.records ||= viewRecords(job, this.signal)),
      });
      const back = crumbs(["Jobs", "#/jobs"]);
      put(this.root, back, this.place, this.said);
    }
    document.title = `${page.title || this.jobId} · dsort`;
    this.showState(page.job);
  }

  showState(job) {
    const state = job.stopping ? "stopping" : job.state;
    if (this.state === state) return;
    if (this.state) this.said.textContent = `The job is ${state}.`;
    this.state = state;
    put(
      this.actions,
      nextSteps(job, (key) => this.done(key)),
    );
    put(this.files, files(job));
    if (state === "failed") this.log.open();
  }

  async done(key) {
    if (key === "delete") location.hash = "#/jobs";
    else if (key !== "retry") await this.refresh();
  }

  async follow() {
    if (this.following) return;
    this.following = true;
    this.live = newLive();
    const hear = (kind, data) => {
      this.live.take(kind, data);
      if (kind !== "progress") this.log.changed();
      if (TURNS.has(kind)) this.settle();
      else this.redraw();
    };
    try {
      await follow(jobPath(this.jobId, "/events"), hear, this.signal);
    } catch (error) {
      if (!this.signal.aborted) noteError(error);
    } finally {
      this.following = false;
    }
  }
}

/** The bucket that a job writes to; "" if there are several. */
const outputBucket = (job) => (/, /.test(job.output_uri || "") ? "" : job.output_uri || "");

/* The state that follows from all events so far. The service sends events from the first on, so no
   event is missing. */
function newLive() {
  const live = {};
  const begin = () =>
    Object.assign(live, { progress: null, timeline: [], warnings: [], phases: [], before_s: 0 });
  begin();
  live.take = (kind, data) => {
    if (kind === "state" && data.state === "running") begin();
    if (kind === "phase") {
      live.before_s += data.elapsed_s || 0;
      live.phases.push({ ...data, seconds: data.elapsed_s });
    }
    if (kind === "warning") live.warnings.push(data);
    if (kind !== "progress") return;
    live.progress = data;
    live.timeline.push([
      live.before_s + data.elapsed_s,
      data.phase,
      data.bytes_done,
      data.bytes_per_s,
    ]);
    if (live.timeline.length > 2 * POINTS_MAX)
      live.timeline = live.timeline.filter((_, i) => i % 2 === 0);
  };
  return live;
}

/** Whether the progress of the events is newer than that of the page. The service sends events from
    the first on, so for a moment they are older than the page. */
function isNewer(progress, known) {
  if (!progress || !known) return Boolean(progress);
  const [at, knownAt] = [progress, known].map(({ phase }) => PHASES.indexOf(phase));
  return at === knownAt ? progress.elapsed_s >= known.elapsed_s : at > knownAt;
}

function withLive(page, live) {
  const known = new Set((page.warnings || []).map((warning) => `${warning.kind} ${warning.text}`));
  const warnings = live.warnings.filter((warning) => !known.has(`${warning.kind} ${warning.text}`));
  const timeline =
    live.timeline.length > (page.timeline || []).length ? live.timeline : page.timeline;
  const phases = live.phases.length > (page.phases || []).length ? live.phases : page.phases;
  const job =
    page.job.state === "running" && isNewer(live.progress, page.job.progress)
      ? { ...page.job, phase: live.progress.phase, progress: withRest(live.progress) }
      : page.job;
  return { ...page, job, phases, timeline, warnings: [...(page.warnings || []), ...warnings] };
}

/** Adds to the progress of an event the completed share and the remaining time. */
function withRest(progress) {
  const { bytes_total: total, bytes_done: done, bytes_per_s: rate } = progress;
  const share =
    progress.share ??
    (total
      ? done / total
      : progress.shards_total
        ? progress.shards_done / progress.shards_total
        : null);
  const left = progress.left_s ?? (rate > 0 && total > done ? (total - done) / rate : null);
  return { ...progress, share, left_s: left };
}

/** Buttons for the next steps. The most likely step is first, and stands out. */
function nextSteps(job, done) {
  const from = `?from=${encodeURIComponent(job.job_id)}`;
  const link = (href, words, kind = "") => el("a", { class: `button ${kind}`, href }, words);
  const buttons = jobActions(job, done, true);
  const bucket = outputBucket(job);
  const wrote = job.kind === "run" && job.state === "finished" && bucket;
  const planned = job.kind === "plan" && job.state === "finished";
  return [
    wrote &&
      (isView(job)
        ? link(partLink(job.job_id, "view"), "Look at the records", "primary")
        : link(bucketLink(bucket), "Look at the data", "primary")),
    maySubmit() && planned && link(`#/submit${from}`, "Submit it", "primary"),
    buttons.filter((button) => button.dataset.action !== "delete"),
    maySubmit() && !planned && link(`#/submit${from}`, "Submit another like it"),
    maySubmit() && link(`#/schedules${from}`, "Schedule it"),
    buttons.filter((button) => button.dataset.action === "delete"),
  ];
}

/** The files of a job: a download needs the token's header, which a plain link cannot send. */
function files(job) {
  const save = (name, rest, file, type) => {
    const run = async () => {
      const text = await api.text(jobPath(job.job_id, rest));
      saveBlob(new Blob([text], { type }), `${job.job_id}-${file}`);
    };
    return workButton(name, run, { "aria-label": `Save the ${name}` });
  };
  const wrote = job.kind === "run" && job.state === "finished";
  return [
    el("span.quiet", "Save:"),
    wrote && save("manifest", "/manifest", "manifest.json", "application/json"),
    hasEnded(job) && save("report", "/report", "report.json", "application/json"),
    save("log", "/log", "log.txt", "text/plain"),
  ];
}
