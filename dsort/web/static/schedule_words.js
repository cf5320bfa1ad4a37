/* The times and results of a schedule, in words. */
import { el } from "./dom.js";
import { agoText, localTime, stateChip, timeAgo } from "./format.js";
import { jobLink, scheduleLink } from "./links.js";

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const SHORT = DAYS.map((day) => day.slice(0, 3).toLowerCase());
const MONTHS =
  "January February March April May June July August September October November December".split(
    " ",
  );

/** The times of a schedule; a simple cron expression is put into words. */
export const whenInWords = ({ cron, every }) => {
  if (every) return `every ${every}`;
  if (!cron) return "never by itself";
  const [minute, hour, day, month, weekday] = cron.split(/\s+/);
  const plainTime = /^\d+$/.test(minute) && /^\d+$/.test(hour);
  const time = plainTime ? `at ${hour.padStart(2, "0")}:${minute.padStart(2, "0")}` : "";
  const [anyDay, anyMonth] = [day === "*", month === "*"];
  const dayName = (text) =>
    DAYS[/^\d$/.test(text) ? Number(text) % 7 : SHORT.indexOf(text.slice(0, 3).toLowerCase())];
  if (anyDay && anyMonth && weekday === "*") {
    if (plainTime) return `every day ${time}`;
    if (hour === "*" && /^\d+$/.test(minute)) return `every hour at :${minute.padStart(2, "0")}`;
    if (hour === "*" && /^\*\/\d+$/.test(minute)) return `every ${minute.slice(2)} minutes`;
    if (/^\d+$/.test(minute) && /^\*\/\d+$/.test(hour))
      return `every ${hour.slice(2)} hours at :${minute.padStart(2, "0")}`;
  }
  if (plainTime && anyDay && anyMonth && weekday) {
    const days = weekday.split(",").map((part) => part.split("-").map(dayName));
    if (days.flat().every(Boolean))
      return `${days.map((part) => part.join(" to ")).join(", ")} ${time}`;
  }
  if (plainTime && /^\d+$/.test(day) && weekday === "*") {
    if (anyMonth) return `on day ${day} of every month ${time}`;
    if (/^\d+$/.test(month) && MONTHS[month - 1])
      return `every ${MONTHS[month - 1]} ${day} ${time}`;
  }
  return "by its cron expression";
};

/** The name of a schedule: a link with a mark that no state has. */
export const scheduleName = (name) =>
  el(
    "a.schedule-name",
    { href: scheduleLink(name), title: `schedule ${name}` },
    el("span", { "aria-hidden": "true" }, "↻ "),
    name,
  );

/** When a schedule runs, with the expression and the time zone. */
export const scheduleWhen = (schedule) => [
  el("span", whenInWords(schedule)),
  el("small", schedule.cron && el("code", schedule.cron), schedule.timezone),
];

/** Whether a schedule fires by itself. */
export const pausedChip = ({ paused }) => {
  const mark = el("span.mark", { "aria-hidden": "true" }, paused ? "‖" : "●");
  return el(
    "span",
    { class: `chip schedule-${paused ? "paused" : "on"}` },
    mark,
    paused ? "paused" : "on",
  );
};

/** The next times, in the schedule's time zone, each with the time until then. */
export const nextTimes = (schedule, most) => {
  if (schedule.paused) return el("span.quiet", "none while the schedule is paused");
  const times = (schedule.next_times || []).slice(0, most);
  if (!times.length) return el("span.quiet", "never again");
  return el(
    "ol.times",
    times.map((time) =>
      el(
        "li.num",
        el(
          "time",
          { datetime: time, title: `${localTime(time)} here` },
          inZone(time, schedule.timezone),
        ),
        el("span.quiet", ` ${agoText(time)}`),
      ),
    ),
  );
};

/** A moment by the clock of a time zone. */
export const inZone = (time, timeZone) => {
  try {
    const format = new Intl.DateTimeFormat("sv-SE", {
      timeZone,
      year: "numeric",
      month: "2-digit",
      day: "2-digit",
      hour: "2-digit",
      minute: "2-digit",
    });
    const part = Object.fromEntries(
      format.formatToParts(new Date(time)).map(({ type, value }) => [type, value]),
    );
    const day = new Intl.DateTimeFormat("en", { timeZone, weekday: "short" }).format(
      new Date(time),
    );
    return `${day} ${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}`;
  } catch {
    return localTime(time); // a zone that this browser lacks
  }
};

const MARKS = { submitted: "✓", waiting: "○", skipped: "–", refused: "✕" };

/** The result of a due time: the state of its job, or the outcome without a job. */
export const outcomeChip = (run) => {
  if (run.job_state) {
    const chip = stateChip({ state: run.job_state });
    if (run.job_error) chip.title = run.job_error;
    return chip;
  }
  return el(
    "span",
    { class: `chip outcome-${run.outcome}`, title: run.reason },
    el("span.mark", { "aria-hidden": "true" }, MARKS[run.outcome] || "·"),
    run.outcome,
  );
};

/** The last run of a schedule: its result, and its job. */
export const lastRun = (run) => {
  if (!run) return el("span.quiet", "none yet");
  return [
    outcomeChip(run),
    el(
      "small",
      run.job_id
        ? el("a", { href: jobLink(run.job_id) }, timeAgo(run.fired_at || run.due_at))
        : timeAgo(run.fired_at || run.due_at),
    ),
  ];
};
