"use strict";
/* When a schedule runs and with what result, in words. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
  const SHORT = DAYS.map((day) => day.slice(0, 3).toLowerCase());
  const MONTHS =
    "January February March April May June July August September October November December".split(
      " ",
    );

  /** When a schedule runs, in words where its cron expression is a plain one. */
  dsort.whenInWords = ({ cron, every }) => {
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

  /** The same, with the expression and the time zone. */
  dsort.scheduleWhen = (schedule) => [
    el("span", null, dsort.whenInWords(schedule)),
    el("small", null, schedule.cron && el("code", null, schedule.cron), schedule.timezone),
  ];

  /** The next times, where the schedule's clock is and as how far away they are. */
  dsort.nextTimes = (schedule, most) => {
    if (schedule.paused) return el("span", { class: "chip state-stopped" }, "paused");
    const times = (schedule.next_times || []).slice(0, most);
    if (!times.length) return el("span", { class: "quiet" }, "never again");
    return el(
      "ol",
      { class: "times" },
      times.map((time) =>
        el(
          "li",
          { class: "num" },
          el(
            "time",
            { datetime: time, title: `${dsort.localTime(time)} here` },
            dsort.inZone(time, schedule.timezone),
          ),
          el("span", { class: "quiet" }, ` ${dsort.ago(time)}`),
        ),
      ),
    );
  };

  /** A moment by the clock of a time zone. */
  dsort.inZone = (time, timeZone) => {
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
      return dsort.localTime(time); // a zone that this browser does not know
    }
  };

  const MARKS = { submitted: "✓", waiting: "○", skipped: "–", refused: "✕" };

  /** The result of a due time: how its job is, where it has one. */
  dsort.outcome = (run) => {
    if (run.job_state) {
      const chip = dsort.stateChip({ state: run.job_state });
      if (run.job_error) chip.title = run.job_error;
      return chip;
    }
    return el(
      "span",
      { class: `chip outcome-${run.outcome}`, title: run.reason },
      el("span", { class: "mark", "aria-hidden": "true" }, MARKS[run.outcome] || "·"),
      run.outcome,
    );
  };

  /** The last run of a schedule: its result, and its job. */
  dsort.lastRun = (run) => {
    if (!run) return el("span", { class: "quiet" }, "none yet");
    return [
      dsort.outcome(run),
      el(
        "small",
        null,
        run.job_id
          ? el("a", { href: dsort.jobLink(run.job_id) }, dsort.when(run.fired_at || run.due_at))
          : dsort.when(run.fired_at || run.due_at),
      ),
    ];
  };
})();
