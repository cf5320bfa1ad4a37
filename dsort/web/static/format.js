"use strict";
/* Elements, and numbers as people read them. Everything of the page hangs on one object, `dsort`.
   Text gets into the document only as text: names, descriptions, warnings come from strangers. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const SVG = "http://www.w3.org/2000/svg";

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "style") Object.assign(element.style, value);
      else if (name === "data") Object.assign(element.dataset, value);
      else element.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined && child !== false && child !== "") {
        element.append(child instanceof Node ? child : String(child));
      }
    }
    return element;
  }

  /** An HTML element: `el("a", {href: "#/jobs", onclick: f}, "text", element, [more])`. */
  const el = (dsort.el = (tag, attributes, ...children) =>
    fill(document.createElement(tag), attributes, children));

  /** The same for SVG. */
  dsort.svg = (tag, attributes, ...children) =>
    fill(document.createElementNS(SVG, tag), attributes, children);

  /** The head of a table of these columns; that of the actions is for the ear only. */
  dsort.tableHead = (names) => {
    const head = (name) =>
      el("th", { scope: "col", class: name === "Actions" ? "sr-head" : "" }, name);
    return el("thead", null, el("tr", null, names.map(head)));
  };

  /** Put these children, and nothing else, into `element`. */
  dsort.put = (element, ...children) => {
    element.replaceChildren();
    return fill(element, null, children);
  };

  const FOCUSABLE = "a[href], button, input, summary, [tabindex]";

  /** Put `node`, or nothing, into `place`; what was opened there stays open, and focus stays. */
  dsort.redraw = (place, node) => {
    const open = [...place.querySelectorAll("details")].map((details) => details.open);
    const focus = [...place.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
    place.replaceChildren(...(node ? [node] : []));
    place.querySelectorAll("details").forEach((details, i) => (details.open = Boolean(open[i])));
    if (focus >= 0) place.querySelectorAll(FOCUSABLE)[focus]?.focus({ preventScroll: true });
  };

  /** Text with what stands in backticks as code. */
  dsort.withCode = (text) =>
    String(text ?? "")
      .split(/`([^`\n]+)`/)
      .map((part, i) => (i % 2 ? el("code", null, part) : part));

  /** A spec for readers: fields that say nothing are left out. */
  dsort.specText = (spec) => JSON.stringify(spec, (_, value) => value ?? undefined, 2);

  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

  /** 1536 is "1.5 KiB". */
  dsort.bytes = (count) => {
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

  dsort.rate = (bytesPerSecond) =>
    Number.isFinite(bytesPerSecond) ? `${dsort.bytes(bytesPerSecond)}/s` : "–";

  const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

  /** 1234567 is "1,234,567". */
  dsort.number = (value) => (Number.isFinite(value) ? plain.format(value) : "–");

  /** "1 shard", "2 shards". */
  dsort.count = (value, word, words) =>
    `${dsort.number(value)} ${value === 1 ? word : words || `${word}s`}`;

  /** Seconds as "0.4 s", "12 s", "3 min 05 s", "2 h 10 min", "3 d 4 h". */
  dsort.duration = (seconds) => {
    if (!Number.isFinite(seconds)) return "–";
    if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds);
    const two = (value) => String(value).padStart(2, "0");
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    if (whole < 86400)
      return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
    return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
  };

  const milliseconds = (time) => (typeof time === "number" ? time * 1000 : Date.parse(time));

  /** Seconds from one RFC 3339 time to another (or to now). */
  dsort.secondsBetween = (from, to) =>
    (to ? milliseconds(to) : Date.now()) / 1000 - milliseconds(from) / 1000;

  /** "just now", "5 min ago", "in 3 h". */
  dsort.ago = (time) => {
    if (!time) return "–";
    const seconds = dsort.secondsBetween(time);
    const size = Math.abs(seconds);
    if (size < 5) return "just now";
    let words;
    if (size < 60) words = `${Math.floor(size)} s`;
    else if (size < 3600) words = `${Math.floor(size / 60)} min`;
    else if (size < 86400) words = `${Math.floor(size / 3600)} h`;
    else words = dsort.count(Math.floor(size / 86400), "day");
    return seconds >= 0 ? `${words} ago` : `in ${words}`;
  };

  const two = (value) => String(value).padStart(2, "0");

  /** A time where the reader is: "2026-11-20 17:05:31". */
  dsort.localTime = (time) => {
    const at = new Date(milliseconds(time));
    if (Number.isNaN(at.getTime())) return "–";
    const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    return `${date} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  };

  /** A <time> that says how long ago, and when, if asked. */
  dsort.when = (time) =>
    time
      ? dsort.el(
          "time",
          { datetime: new Date(milliseconds(time)).toISOString(), title: dsort.localTime(time) },
          dsort.ago(time),
        )
      : dsort.el("span", { class: "quiet" }, "–");

  const MARKS = {
    queued: "○",
    running: "◐",
    stopping: "◐",
    finished: "✓",
    failed: "✕",
    stopped: "■",
  };

  /** A state as mark, word and colour: never as colour alone. */
  dsort.stateChip = (job) => {
    const state = job.state === "running" && job.stopping ? "stopping" : job.state;
    return dsort.el(
      "span",
      { class: `chip state-${state}`, data: { state } },
      dsort.el("span", { class: "mark", "aria-hidden": "true" }, MARKS[state] || "·"),
      state,
    );
  };

  /** A progress bar; `share` is 0..1, or null where it is not known. */
  dsort.progressBar = (share, label) => {
    const known = Number.isFinite(share);
    const percent = known ? Math.max(0, Math.min(100, share * 100)) : 0;
    return dsort.el(
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
      dsort.el("span", { style: { width: known ? `${percent}%` : "" } }),
    );
  };

  /** Whether the page is dark now: as chosen, else as the system is. */
  dsort.isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  };

  /** Call `redraw` whenever light becomes dark or dark light, while `element` is in the page. */
  dsort.onTheme = (element, redraw) => {
    const media = window.matchMedia("(prefers-color-scheme: dark)");
    const changed = () => {
      if (element.isConnected) redraw();
      else {
        media.removeEventListener("change", changed);
        document.removeEventListener("dsort-theme", changed);
      }
    };
    media.addEventListener("change", changed);
    document.addEventListener("dsort-theme", changed);
  };

  /** Call `draw(width)` with the width that `element` has, now and whenever it changes. */
  dsort.onWidth = (element, draw) => {
    let last = 0;
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width > 0 && width !== last) draw((last = width));
    }).observe(element);
  };
})();
