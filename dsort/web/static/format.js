/* Numbers, times and states as people read them. */
import { el } from "./dom.js";

/** A spec for readers: fields without a value are left out. */
export const specText = (spec) => JSON.stringify(spec, (_, value) => value ?? undefined, 2);

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** 1536 is "1.5 KiB". */
export const bytesText = (count) => {
  if (!Number.isFinite(count)) return "–";
  let power = 0;
  let amount = Math.abs(count);
  while (amount >= 1023.95 && power < UNITS.length - 1) {
    amount /= 1024;
    power += 1;
  }
  const digits = power === 0 || amount >= 100 || Number.isInteger(amount) ? 0 : 1;
  return `${count < 0 ? "-" : ""}${amount.toFixed(digits)} ${UNITS[power]}`;
};

export const rateText = (bytesPerSecond) =>
  Number.isFinite(bytesPerSecond) ? `${bytesText(bytesPerSecond)}/s` : "–";

const two = (value) => String(value).padStart(2, "0");
const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 1234567 is "1,234,567". */
export const numberText = (value) => (Number.isFinite(value) ? plain.format(value) : "–");

/** "1 shard", "2 shards". */
export const countText = (value, word, words) =>
  `${numberText(value)} ${value === 1 ? word : words || `${word}s`}`;

/** Seconds as "0.4 s", "12 s", "3 min 05 s", "2 h 10 min", "3 d 4 h". */
export const durationText = (seconds) => {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400)
    return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
};

const milliseconds = (time) => (typeof time === "number" ? time * 1000 : Date.parse(time));

/** Seconds from one RFC 3339 time to another (or to now). */
export const secondsBetween = (from, to) =>
  (to ? milliseconds(to) : Date.now()) / 1000 - milliseconds(from) / 1000;

/** "just now", "5 min ago", "in 3 h". */
export const agoText = (time) => {
  if (!time) return "–";
  const seconds = secondsBetween(time);
  const size = Math.abs(seconds);
  if (size < 5) return "just now";
  let words;
  if (size < 60) words = `${Math.floor(size)} s`;
  else if (size < 3600) words = `${Math.floor(size / 60)} min`;
  else if (size < 86400) words = `${Math.floor(size / 3600)} h`;
  else words = countText(Math.floor(size / 86400), "day");
  return seconds >= 0 ? `${words} ago` : `in ${words}`;
};

/** A time in the reader's time zone: "2026-11-20 17:05:31". */
export const localTime = (time) => {
  const at = new Date(milliseconds(time));
  if (Number.isNaN(at.getTime())) return "–";
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${date} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
};

/** A <time> that shows how long ago the time was; its title has the time itself. */
export const timeAgo = (time) =>
  time
    ? el(
        "time",
        { datetime: new Date(milliseconds(time)).toISOString(), title: localTime(time) },
        agoText(time),
      )
    : el("span.quiet", "–");

const MARKS = {
  queued: "○",
  running: "◐",
  stopping: "◐",
  finished: "✓",
  failed: "✕",
  stopped: "■",
};

/** A state as mark, word and colour: never as colour alone. */
export const stateChip = (job) => {
  const state = job.state === "running" && job.stopping ? "stopping" : job.state;
  return el(
    "span",
    { class: `chip state-${state}`, data: { state } },
    el("span.mark", { "aria-hidden": "true" }, MARKS[state] || "·"),
    state,
  );
};

/** A progress bar; `share` is 0..1, or null if the share is unknown. */
export const progressBar = (share, label) => {
  const known = Number.isFinite(share);
  const percent = known ? Math.max(0, Math.min(100, share * 100)) : 0;
  return el(
    "div",
    {
      class: known ? "bar" : "bar unknown",
      role: "progressbar",
      "aria-label": label || "progress",
      "aria-valuemin": 0,
      "aria-valuemax": 100,
      "aria-valuenow": known ? Math.round(percent) : null,
      "aria-valuetext": known ? `${Math.floor(percent)} %` : "not known yet",
    },
    el("span", { style: { width: known ? `${percent}%` : "" } }),
  );
};
