/* The page of one schedule, and the actions of schedules. */
import { actionButton } from "./actions.js";
import { api, every, Unreachable } from "./api.js";
import { ask, crumbs, notify, problemPage, waiting } from "./dialogs.js";
import { el, figureTable, numberCell, put } from "./dom.js";
import { countText, durationText, localTime, numberText, specText, timeAgo } from "./format.js";
import { listSeconds } from "./job_columns.js";
import { jobLink, scheduleLink, schedulePath } from "./links.js";
import { ownTerms } from "./problems.js";
import { scheduleForm } from "./schedule_form.js";
import { inZone, nextTimes, outcomeChip, pausedChip, whenInWords } from "./schedule_words.js";
import { mayChange, maySubmit } from "./session.js";
import { durationTrend } from "./trend.js";

const LOOK_MS = 5000;
const RUNS = 50;

/** Buttons for the actions that `schedule` allows. `done(key)` is called after each action. */
export const scheduleActions = (schedule, done, whole) => {
  if (!mayChange(schedule.owner)) return [];
  const act = (key, name, work) => actionButton({ key, name, of: schedule.name, work, done });
  const post = (rest, words) => async () => {
    notify(words(await api.post(schedulePath(schedule.name, rest))));
    return true;
  };
  const remove = async () => {
    const answer = await ask({
      title: `Remove the schedule ${schedule.name}?`,
      text: "Its history is removed. The jobs that it made, and their outputs, stay.",
      yes: "Remove it",
      danger: true,
    });
    if (!answer) return false;
    await api.remove(schedulePath(schedule.name));
    notify(`Removed the schedule ${schedule.name}.`);
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
    whole && el("a.button", { href: `${scheduleLink(schedule.name)}?edit=1` }, "Change"),
    act("delete", "Remove", remove),
  ];
};

const HEADS = ["Due", "Result", "Job", ["Took", "num"], "Reason"];

/** A moment in the schedule's time zone; the title has it in the reader's time zone. */
const clockOf = (schedule, time) =>
  el("time", { datetime: time, title: `${localTime(time)} here` }, inZone(time, schedule.timezone));

/** Runs, each with the state and the seconds of its job, as far as they are known. */
function withJobs(runs, jobs) {
  const known = new Map(jobs.map((job) => [job.job_id, job]));
  return runs.map((run) => {
    const job = known.get(run.job_id);
    return { ...run, state: job?.state || run.job_state, seconds: job ? listSeconds(job) : null };
  });
}

function runRow(schedule, run) {
  const { by_hand: byHand, due_at: due, job_id: jobId, removed_at: removed } = run;
  return el(
    "tr",
    el("th", { scope: "row" }, clockOf(schedule, due), byHand && el("span.label", "by hand")),
    el("td", outcomeChip(run)),
    el(
      "td",
      jobId && el("a", { href: jobLink(jobId) }, el("code", jobId)),
      removed && el("small.quiet", " output removed ", timeAgo(removed)),
    ),
    numberCell(Number.isFinite(run.seconds) ? durationText(run.seconds) : "–"),
    el("td.quiet", ownTerms(run.reason || run.job_error)),
  );
}

function runsCard(schedule, runs) {
  const { name, timezone } = schedule;
  const caption = `Runs of this schedule, newest first, by the clock of ${timezone}`;
  const rows = runs.map((run) => runRow(schedule, run));
  const all = el("a", { href: `#/jobs?schedule=${encodeURIComponent(name)}` }, "All its jobs");
  return el(
    "section.card.wide-part",
    el("h2", "Runs"),
    durationTrend(runs),
    runs.length
      ? figureTable(caption, HEADS, rows, "runs stacked")
      : el("p.quiet", "The schedule has not run yet."),
    el("p.more", all),
  );
}

export const scheduleView = async (root, { name, query, signal }) => {
  put(root, waiting("Loading the schedule …"));
  if (query.get("edit") && maySubmit()) {
    const from = await api.get(schedulePath(name), null, signal);
    const back = () => (location.hash = scheduleLink(name));
    const place = el("div");
    put(
      root,
      crumbs(["Schedules", "#/schedules"], [name, scheduleLink(name)]),
      el("div.page-head", el("h1", name)),
      place,
    );
    scheduleForm(place, { from, replaces: name, signal, cancel: back, saved: back });
    return;
  }
  const body = el("div.job");
  let drawn = "";
  const draw = async () => {
    const [schedule, { runs }, { jobs }] = await Promise.all([
      api.get(schedulePath(name), null, signal),
      api.get(schedulePath(name, "/runs"), { limit: RUNS }, signal),
      api.get("/v1/jobs", { schedule: name, limit: RUNS }, signal),
    ]);
    const all = withJobs(runs, jobs);
    const signature = JSON.stringify([schedule, all, Math.floor(Date.now() / 60000)]);
    if (signal.aborted || signature === drawn) return;
    drawn = signature;
    const done = (key) => (key === "delete" ? (location.hash = "#/schedules") : draw());
    put(
      body,
      scheduleHead(schedule, done),
      scheduleFacts(schedule),
      scheduleNext(schedule),
      runsCard(schedule, all),
      el(
        "section.card.wide-part",
        el("h2", "Spec"),
        el("pre.text", { tabindex: 0 }, specText(schedule.spec)),
      ),
    );
    if (!root.contains(body)) put(root, crumbs(["Schedules", "#/schedules"]), body);
    document.title = `${name} · dsort`;
  };
  await draw();
  const again = () =>
    draw().catch((error) => {
      if (!signal.aborted && !(error instanceof Unreachable)) put(root, problemPage(error));
    });
  every(LOOK_MS, again, signal);
};

function scheduleHead(schedule, done) {
  const labels = (schedule.labels || []).map((label) => el("span.label", label));
  return el(
    "header.job-head.wide-part",
    el(
      "div.line",
      el("h1", schedule.name),
      pausedChip(schedule),
      el("div.actions", scheduleActions(schedule, done, true)),
    ),
    schedule.description && el("p.where", schedule.description),
    labels.length > 0 && el("p.labels", labels),
  );
}

const CATCH_UP = {
  none: "missed runs get no job",
  last: "the last missed run gets a job",
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
    value !== null && value !== undefined && value !== "" && [el("dt", name), el("dd", value)];
  return el(
    "section.card",
    el("h2", "About this schedule"),
    el(
      "dl.facts",
      fact("When", [whenInWords(schedule), schedule.cron && [" ", el("code.cron", schedule.cron)]]),
      fact("Time zone", schedule.timezone),
      fact("From", schedule.start_at && clockOf(schedule, schedule.start_at)),
      fact("Until", schedule.end_at && clockOf(schedule, schedule.end_at)),
      fact("Missed runs", CATCH_UP[schedule.catch_up]),
      fact("Overlap", OVERLAP[schedule.overlap]),
      fact("Keeps", schedule.retain ? countText(schedule.retain, "newest result") : "all results"),
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
        Number.isFinite(schedule.run_count) ? numberText(schedule.run_count) : null,
      ),
    ),
  );
}

const scheduleNext = (schedule) =>
  el(
    "section.card",
    el("h2", "Next runs"),
    nextTimes(schedule, 5),
    el("p.more.quiet", `by the clock of ${schedule.timezone}`),
    schedule.next_seed !== null &&
      schedule.next_seed !== undefined &&
      el("p.quiet", "seed of the next run: ", el("code", `${schedule.next_seed}`)),
  );
