"use strict";
/* The page of one schedule, and what may be done with schedules. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const LOOK_MS = 5000;

  dsort.views = dsort.views || {};
  dsort.schedulePath = (name, rest = "") => `/v1/schedules/${encodeURIComponent(name)}${rest}`;
  dsort.scheduleLink = (name) => `#/schedules/${encodeURIComponent(name)}`;

  /** Buttons for what may be done with `schedule`; `done(key)` is called after each. */
  dsort.scheduleActions = (schedule, done, whole) => {
    if (!dsort.mayChange(schedule.owner)) return [];
    const act = (key, name, work, danger) =>
      dsort.actionButton({ key, name, of: schedule.name, danger, work, done });
    const post = (rest, words) => async () => {
      dsort.note(words(await dsort.api.post(dsort.schedulePath(schedule.name, rest))));
      return true;
    };
    const remove = async () => {
      const answer = await dsort.ask({
        title: `Remove the schedule ${schedule.name}?`,
        text: "Its history goes; jobs that it made, and their output, stay.",
        yes: "Remove it",
        danger: true,
      });
      if (!answer) return false;
      await dsort.api.remove(dsort.schedulePath(schedule.name));
      dsort.note(`Removed the schedule ${schedule.name}.`);
      return true;
    };
    return [
      act(
        "run-now",
        "Run now",
        post("/run-now", (run) =>
          run.job_id
            ? `Submitted ${run.job_id}.`
            : `${schedule.name} is ${run.outcome}${run.reason ? `: ${run.reason}` : ""}.`,
        ),
      ),
      schedule.paused
        ? act(
            "resume",
            "Resume",
            post("/resume", (resumed) =>
              resumed.due_now
                ? `${schedule.name} is resumed. It missed a run, which is due now.`
                : `${schedule.name} is resumed.`,
            ),
          )
        : act(
            "pause",
            "Pause",
            post("/pause", () => `${schedule.name} is paused.`),
          ),
      whole &&
        el("a", { class: "button", href: `${dsort.scheduleLink(schedule.name)}?edit=1` }, "Change"),
      act("delete", "Remove", remove, true),
    ];
  };

  const RUN_HEADS = ["Due", "Result", "Job", "Reason"];

  /** A moment by the clock of the schedule, and by that of the reader. */
  const clockOf = (schedule, time) =>
    el(
      "time",
      { datetime: time, title: `${dsort.localTime(time)} here` },
      dsort.inZone(time, schedule.timezone),
    );

  function runsTable(schedule, runs) {
    if (!runs.length) return el("p", { class: "quiet" }, "It has not run yet.");
    const line = (run) =>
      el(
        "tr",
        null,
        el(
          "th",
          { scope: "row" },
          clockOf(schedule, run.due_at),
          run.by_hand && el("span", { class: "label" }, "by hand"),
        ),
        el("td", null, dsort.outcome(run)),
        el(
          "td",
          null,
          run.job_id && el("a", { href: dsort.jobLink(run.job_id) }, el("code", null, run.job_id)),
          run.removed_at &&
            el("small", { class: "quiet" }, " output removed ", dsort.when(run.removed_at)),
        ),
        el("td", { class: "quiet whole" }, dsort.ownTerms(run.reason || run.job_error)),
      );
    return el(
      "div",
      { class: "scroll" },
      el(
        "table",
        { class: "figures runs cards" },
        el(
          "caption",
          { class: "sr" },
          `Runs of this schedule, newest first, by the clock of ${schedule.timezone}`,
        ),
        el(
          "thead",
          null,
          el(
            "tr",
            null,
            RUN_HEADS.map((head) => el("th", { scope: "col" }, head)),
          ),
        ),
        el("tbody", null, runs.map(line)),
      ),
    );
  }

  dsort.views.schedule = async (root, { name, query, signal }) => {
    dsort.put(root, dsort.waiting("Asking for the schedule …"));
    const body = el("div", { class: "job" });
    let drawn = "";
    const draw = async () => {
      const [schedule, { runs }] = await Promise.all([
        dsort.api.get(dsort.schedulePath(name), null, signal),
        dsort.api.get(dsort.schedulePath(name, "/runs"), null, signal),
      ]);
      const signature = JSON.stringify([schedule, runs, Math.floor(Date.now() / 60000)]);
      if (signal.aborted || signature === drawn) return;
      drawn = signature;
      const done = (key) => (key === "delete" ? (location.hash = "#/schedules") : draw());
      dsort.put(
        body,
        scheduleHead(schedule, done),
        scheduleFacts(schedule),
        scheduleNext(schedule),
        el(
          "section",
          { class: "card wide-part" },
          el("h2", null, "Runs"),
          runsTable(schedule, runs),
          el(
            "p",
            { class: "more" },
            el(
              "a",
              { href: `#/jobs?schedule=${encodeURIComponent(name)}` },
              "All jobs of this schedule",
            ),
          ),
        ),
        el(
          "section",
          { class: "card wide-part" },
          el("h2", null, "Spec"),
          el("pre", { class: "text", tabindex: 0 }, dsort.specText(schedule.spec)),
        ),
      );
      if (!root.contains(body))
        dsort.put(
          root,
          el("p", { class: "crumbs" }, el("a", { href: "#/schedules" }, "← Schedules")),
          body,
        );
      document.title = `${name} · dsort`;
    };
    if (query.get("edit") && dsort.maySubmit()) {
      const from = await dsort.api.get(dsort.schedulePath(name), null, signal);
      const back = () => (location.hash = dsort.scheduleLink(name));
      dsort.scheduleForm(root, { from, replaces: name, signal, cancel: back, saved: back });
      return;
    }
    await draw();
    dsort.every(
      LOOK_MS,
      () =>
        draw().catch(
          (error) =>
            !signal.aborted &&
            !(error instanceof dsort.Unreachable) &&
            dsort.put(root, dsort.problemPage(error)),
        ),
      signal,
    );
  };

  function scheduleHead(schedule, done) {
    return el(
      "header",
      { class: "job-head wide-part" },
      el(
        "div",
        { class: "line" },
        el("h1", null, schedule.name),
        schedule.paused && el("span", { class: "chip state-stopped" }, "paused"),
        el("div", { class: "actions" }, dsort.scheduleActions(schedule, done, true)),
      ),
      schedule.description && el("p", { class: "where" }, schedule.description),
      el(
        "p",
        { class: "labels" },
        (schedule.labels || []).map((label) => el("span", { class: "label" }, label)),
      ),
    );
  }

  const CATCH_UP = {
    none: "nothing is made up",
    last: "the last missed run is made up",
  };
  const OVERLAP = {
    skip: "skipped while an earlier job runs",
    replace: "stops the earlier job",
  };

  const hookWords = (hook) =>
    hook
      ? [hook.webhook && `calls ${hook.webhook}`, hook.command && `runs ${hook.command}`]
          .filter(Boolean)
          .join(", ")
      : "";

  function scheduleFacts(schedule) {
    const fact = (name, value) =>
      value !== null &&
      value !== undefined &&
      value !== "" && [el("dt", null, name), el("dd", null, value)];
    return el(
      "section",
      { class: "card" },
      el("h2", null, "About this schedule"),
      el(
        "dl",
        { class: "facts" },
        fact("When", [
          dsort.whenInWords(schedule),
          schedule.cron && [" ", el("code", { class: "cron" }, schedule.cron)],
        ]),
        fact("Time zone", schedule.timezone),
        fact("From", schedule.start_at && clockOf(schedule, schedule.start_at)),
        fact("Until", schedule.end_at && clockOf(schedule, schedule.end_at)),
        fact("Missed runs", CATCH_UP[schedule.catch_up]),
        fact("Overlap", OVERLAP[schedule.overlap]),
        fact(
          "Keeps",
          schedule.retain ? dsort.count(schedule.retain, "newest result") : "all results",
        ),
        fact(
          "Latest pointer",
          schedule.latest === true
            ? "latest.json"
            : schedule.latest
              ? `${schedule.latest}/latest.json`
              : "none",
        ),
        fact("On success", hookWords(schedule.on_success)),
        fact("On failure", hookWords(schedule.on_failure)),
        fact("Priority", schedule.priority),
        fact("Owner", schedule.owner),
        fact(
          "Jobs made",
          Number.isFinite(schedule.run_count) ? dsort.number(schedule.run_count) : null,
        ),
      ),
    );
  }

  const scheduleNext = (schedule) =>
    el(
      "section",
      { class: "card" },
      el("h2", null, "Next runs"),
      dsort.nextTimes(schedule, 5),
      el("p", { class: "more quiet" }, `by the clock of ${schedule.timezone}`),
      schedule.next_seed !== null &&
        schedule.next_seed !== undefined &&
        el("p", { class: "quiet" }, "seed of the next one: ", el("code", null, `${schedule.next_seed}`)),
    );
})();
