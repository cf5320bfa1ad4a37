/* The list of schedules. */
import { api, every, Unreachable } from "./api.js";
import { waiting } from "./dialogs.js";
import { el, put, tableHead } from "./dom.js";
import { jobPath, scheduleLink } from "./links.js";
import { problemBox } from "./problems.js";
import { scheduleActions } from "./schedule.js";
import { scheduleForm } from "./schedule_form.js";
import { lastRun, nextTimes, pausedChip, scheduleName, scheduleWhen } from "./schedule_words.js";
import { maySubmit } from "./session.js";

const LOOK_MS = 5000;
const MINUTE_MS = 60000;
const HEADS = ["Schedule", "State", "When", "Next runs", "Last run", ["Actions", "sr-head"]];

export const schedulesView = async (root, { query, signal }) => {
  const list = new ScheduleList(signal);
  list.put(root);
  const from = query.get("from");
  if (from && maySubmit()) {
    const job = await api.get(jobPath(from), null, signal);
    list.add({ spec: withFreshSeed(job.spec), labels: job.labels });
  }
  await every(LOOK_MS, () => list.look(), signal);
};

/** A shuffle gets a new seed for each run, because the job's own seed would repeat its order. */
function withFreshSeed(spec) {
  if (!spec.algorithm || spec.algorithm.kind !== "shuffle") return spec;
  return { ...spec, algorithm: { ...spec.algorithm, seed: "{{run_id}}" } };
}

class ScheduleList {
  constructor(signal) {
    this.signal = signal;
    this.body = el("tbody");
    this.table = el(
      "table.schedules.cards",
      { hidden: true },
      el("caption.sr", "Schedules"),
      tableHead(HEADS),
      this.body,
    );
    this.empty = el("div.empty", waiting("Loading the schedules …"));
    this.form = el("div");
    const add = () => this.add({});
    this.opener = el("button.primary", { type: "button", onclick: add }, "Add a schedule");
  }

  put(root) {
    const opener = maySubmit() && this.opener;
    put(
      root,
      el("div.page-head", el("h1", "Schedules"), opener),
      this.form,
      el("div.card.list", this.table, this.empty),
    );
  }

  /** Show the form for a new schedule, which begins with the definition `from`. */
  add(from) {
    this.opener.hidden = true;
    const cancel = () => {
      put(this.form);
      this.opener.hidden = false;
      this.opener.focus();
    };
    const saved = (name) => (location.hash = scheduleLink(name));
    scheduleForm(this.form, { from, signal: this.signal, cancel, saved });
  }

  /** Load the schedules, and show them. */
  async look() {
    try {
      const { schedules } = await api.get("/v1/schedules", null, this.signal);
      if (!this.signal.aborted) this.draw(schedules);
    } catch (error) {
      if (this.signal.aborted || error instanceof Unreachable) return;
      if (!error.problem) throw error;
      put(this.empty, problemBox(error.problem));
    }
  }

  draw(schedules) {
    const drawn = JSON.stringify([schedules, Math.floor(Date.now() / MINUTE_MS)]);
    if (this.drawn === drawn) return; // focus and selection stay
    this.drawn = drawn;
    const { schedule, action } = this.focused();
    put(
      this.body,
      schedules.map((each) => row(each, () => this.look())),
    );
    const again = [...this.body.children].find((line) => line.dataset.schedule === schedule);
    again?.querySelector(`[data-action="${action}"]`)?.focus();
    this.table.hidden = schedules.length === 0;
    put(this.empty, schedules.length === 0 && el("p", "No schedules yet."));
  }

  /** The schedule and the action that have the focus, if any have. */
  focused() {
    const here = document.activeElement;
    if (!this.body.contains(here)) return {};
    return { ...here.closest("tr").dataset, ...here.dataset };
  }
}

function row(schedule, look) {
  const labels = (schedule.labels || []).map((label) => el("span.label", label));
  return el(
    "tr",
    { data: { schedule: schedule.name } },
    el(
      "th",
      { scope: "row" },
      scheduleName(schedule.name),
      el("small", schedule.description),
      el("small", schedule.owner, " ", labels),
    ),
    el("td", pausedChip(schedule)),
    el("td", scheduleWhen(schedule)),
    el("td.whole", nextTimes(schedule, 3)),
    el("td.last", lastRun(schedule.last_run)),
    el("td.act", el("div.buttons", scheduleActions(schedule, look))),
  );
}
