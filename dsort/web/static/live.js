"use strict";
/* The page of one job while the service has it: what job.js draws, kept up to date by events. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const POINTS_MAX = 240;
  const TURNS = new Set(["state", "started", "phase", "end"]);
  const REDRAW_MS = 100;
  const AGAIN_MS = 2000;
  const LOG_MS = 500;
  const LINES_MAX = 20000;
  const SETTLE_MS = 250; // events come in bunches; the page is asked for once after them

  dsort.views = dsort.views || {};

  dsort.views.job = async (root, { name: jobId, query, signal }) => {
    dsort.put(root, dsort.waiting("Asking for the job …"));
    const live = new LiveJob(root, jobId, signal);
    await live.refresh();
    live.view?.places.get(query.get("part"))?.scrollIntoView();
  };

  class LiveJob {
    constructor(root, jobId, signal) {
      Object.assign(this, { root, jobId, signal, view: null, following: false });
      this.actions = el("div", { class: "buttons" });
      this.log = logCard(jobId, signal);
      this.links = el("div", { class: "wide-part buttons downloads" });
      this.place = el("div");
      this.said = el("p", { class: "sr", role: "status" });
      this.live = newLive();
      this.settle = debounce(SETTLE_MS, () => this.refresh());
      this.redraw = debounce(REDRAW_MS, () => !signal.aborted && this.view && this.show());
    }

    /** Ask for the whole page, show it, and follow the job unless it is over. */
    async refresh() {
      try {
        this.page = await dsort.api.get(dsort.jobPath(this.jobId, "/page"), null, this.signal);
      } catch (error) {
        if (this.signal.aborted || (error instanceof dsort.Unreachable && this.view)) return;
        dsort.put(this.root, dsort.problemPage(error));
        const again = () => !this.signal.aborted && this.refresh();
        if (error instanceof dsort.Unreachable) setTimeout(again, AGAIN_MS);
        return;
      }
      if (this.signal.aborted) return;
      this.show();
      if (!dsort.ended(this.page.job)) this.follow();
    }

    show() {
      const { page } = this;
      const now = dsort.ended(page.job) ? page : withLive(page, this.live);
      if (this.view) this.view.update(now);
      else {
        const partLink = (key) => dsort.partLink(this.jobId, key);
        const bucket = outputBucket(page.job);
        const shardLink = bucket ? (name) => dsort.shardLink(bucket, name) : undefined;
        const { actions, links: after } = this;
        const parts = { actions, log: this.log.element, after, partLink, shardLink };
        this.view = dsort.renderJob(this.place, now, parts);
        const back = el("p", { class: "crumbs" }, el("a", { href: "#/jobs" }, "← Jobs"));
        dsort.put(this.root, back, this.place, this.said);
      }
      document.title = `${page.title || this.jobId} · dsort`;
      this.showState(page.job);
    }

    showState(job) {
      const state = job.stopping ? "stopping" : job.state;
      if (this.state === state) return;
      if (this.state) this.said.textContent = `The job is ${state}.`;
      this.state = state;
      dsort.put(
        this.actions,
        dsort.jobActions(job, (key) => this.done(key)),
      );
      dsort.put(this.links, links(job));
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
        await dsort.follow(dsort.jobPath(this.jobId, "/events"), hear, this.signal);
      } catch (error) {
        if (!this.signal.aborted) dsort.noteError(error);
      } finally {
        this.following = false;
      }
    }
  }

  /** The bucket that a job writes to; "" if there are several. */
  const outputBucket = (job) => (/, /.test(job.output_uri || "") ? "" : job.output_uri || "");

  /* What the events have told so far. They are told from the beginning, so nothing is missing. */
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

  /** Events are told from the beginning: for a moment they are behind what the page knows. */
  function isNewer(progress, known) {
    if (!progress || !known) return Boolean(progress);
    const [at, knownAt] = [progress, known].map(({ phase }) => dsort.PHASES.indexOf(phase));
    return at === knownAt ? progress.elapsed_s >= known.elapsed_s : at > knownAt;
  }

  function withLive(page, live) {
    const known = new Set(
      (page.warnings || []).map((warning) => `${warning.kind} ${warning.text}`),
    );
    const warnings = live.warnings.filter(
      (warning) => !known.has(`${warning.kind} ${warning.text}`),
    );
    const timeline =
      live.timeline.length > (page.timeline || []).length ? live.timeline : page.timeline;
    const phases = live.phases.length > (page.phases || []).length ? live.phases : page.phases;
    const job =
      page.job.state === "running" && isNewer(live.progress, page.job.progress)
        ? { ...page.job, phase: live.progress.phase, progress: withRest(live.progress) }
        : page.job;
    return { ...page, job, phases, timeline, warnings: [...(page.warnings || []), ...warnings] };
  }

  /** An event says what is done; how far that is, and how long it still takes, follows. */
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

  function debounce(ms, call) {
    let timer = 0;
    return () => {
      timer ||= setTimeout(() => {
        timer = 0;
        call();
      }, ms);
    };
  }

  /** What may be made of a job, and its files: downloads need the token's header, which a plain
      link cannot send. */
  function links(job) {
    const save = (name, rest, file, type) => {
      const onclick = async () => {
        try {
          const text = await dsort.api.text(dsort.jobPath(job.job_id, rest));
          const url = URL.createObjectURL(new Blob([text], { type }));
          el("a", { href: url, download: `${job.job_id}-${file}` }).click();
          URL.revokeObjectURL(url);
        } catch (error) {
          dsort.noteError(error);
        }
      };
      return el("button", { type: "button", "aria-label": `Save the ${name}`, onclick }, name);
    };
    const from = `?from=${encodeURIComponent(job.job_id)}`;
    const wrote = job.kind === "run" && job.state === "finished";
    return [
      dsort.maySubmit() &&
        el("a", { class: "button", href: `#/submit${from}` }, "Submit another like it"),
      dsort.maySubmit() && el("a", { class: "button", href: `#/schedules${from}` }, "Schedule it"),
      wrote &&
        outputBucket(job) &&
        el("a", { class: "button", href: dsort.bucketLink(outputBucket(job)) }, "Look at the data"),
      el("span", { class: "quiet" }, "Save:"),
      wrote && save("manifest", "/manifest", "manifest.json", "application/json"),
      dsort.ended(job) && save("report", "/report", "report.json", "application/json"),
      save("log", "/log", "log.txt", "text/plain"),
    ];
  }

  /* The log: what is new is asked for, and added at the end. */
  function logCard(jobId, signal) {
    const text = el("pre", { class: "text log", tabindex: 0, "aria-label": "log" });
    const follows = el("input", { type: "checkbox", checked: true });
    const search = el("input", {
      type: "search",
      placeholder: "Part of a line",
      "aria-label": "Only lines of the log with this in them",
      autocomplete: "off",
      spellcheck: "false",
    });
    const said = el("span", { class: "quiet", role: "status" });
    const details = el(
      "details",
      null,
      el(
        "summary",
        null,
        el("h2", { id: "part-log" }, "Log"),
        el("span", null, "what happened, and what the job's process wrote"),
      ),
      el(
        "div",
        { class: "bar-above" },
        search,
        el("label", { class: "check" }, follows, "Follow the end"),
        said,
      ),
      text,
    );
    let [lines, after, asking] = [[], 0, false];
    const fits = (line) => line.toLowerCase().includes(search.value.trim().toLowerCase());
    const draw = (from = 0) => {
      if (!from) text.textContent = "";
      text.append(lines.slice(from).filter(fits).join(""));
      if (!lines.length) text.textContent = "Nothing so far.";
      said.textContent = search.value ? dsort.count(lines.filter(fits).length, "line") : "";
      if (follows.checked) text.scrollTop = text.scrollHeight;
    };
    const load = async () => {
      if (asking) return; // the next event asks again
      asking = true;
      try {
        const path = `${dsort.jobPath(jobId, "/log")}?after=${after}`;
        const [more, last] = await dsort.api.textAndHeader(path, "Dsort-Last-Event", signal);
        const from = lines.length;
        lines = lines.concat(more.match(/.*\n/g) || []).slice(-LINES_MAX);
        after = Number(last) || after;
        if (more || !from) draw(lines.length < LINES_MAX ? from : 0);
      } catch (error) {
        if (error.problem) said.textContent = error.message;
      } finally {
        asking = false;
      }
    };
    search.addEventListener("input", () => draw());
    follows.addEventListener("change", () => draw());
    details.addEventListener("toggle", () => details.open && load());
    const changed = debounce(LOG_MS, () => details.open && !signal.aborted && load());
    const element = el(
      "section",
      { class: "card part-log", "aria-labelledby": "part-log" },
      details,
    );
    return { element, changed, open: () => (details.open = true) };
  }
})();
