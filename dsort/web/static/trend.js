/* A chart of the time that the runs of a schedule took, the oldest first. */
import { clock, SECONDS, ticks } from "./chart.js";
import { el, onSize, svg } from "./dom.js";
import { countText, durationText, localTime } from "./format.js";

const HEIGHT = 150;
const EDGE = { left: 62, right: 8, top: 10, bottom: 22 };
const WIDEST = 80;

/** `runs`: [{due_at, state, seconds}], the newest first. Runs without seconds are left out. */
export const durationTrend = (runs) => {
  const shown = runs.filter(({ seconds }) => Number.isFinite(seconds)).reverse();
  if (shown.length < 2) return null;
  const ordered = shown.map(({ seconds }) => seconds).sort((a, b) => a - b);
  const median = ordered[Math.floor(ordered.length / 2)];
  const last = shown[shown.length - 1].seconds;
  const words =
    `${countText(shown.length, "run")}: ${durationText(ordered[0])} to ` +
    `${durationText(ordered[ordered.length - 1])}, median ${durationText(median)}; ` +
    `the last one took ${durationText(last)}.`;
  const box = el("div.chart-box.trend");
  onSize(box, (width) => box.replaceChildren(drawn(shown, median, width, words)));
  return el("figure.chart", box, el("figcaption.quiet", words));
};

function drawn(runs, median, width, words) {
  const top = Math.max(...runs.map(({ seconds }) => seconds), 1e-3);
  const ground = HEIGHT - EDGE.bottom;
  const y = (seconds) => ground - (seconds / top) * (ground - EDGE.top);
  const step = Math.min(WIDEST, (width - EDGE.left - EDGE.right) / runs.length);
  const bars = runs.map(({ due_at: due, state, seconds }, i) => {
    const tall = Math.max(2, ground - y(seconds));
    const place = { x: EDGE.left + i * step + 1, y: ground - tall, height: tall };
    const title = svg("title", `${localTime(due)}: ${state}, ${durationText(seconds)}`);
    return svg("rect", { class: `run-${state}`, ...place, width: Math.max(1, step - 2) }, title);
  });
  const end = EDGE.left + runs.length * step;
  const level = (kind, seconds) =>
    svg("line", { class: kind, x1: EDGE.left, x2: end, y1: y(seconds), y2: y(seconds) });
  const axis = ticks(top, 3, SECONDS).map((seconds) => [
    level("grid", seconds),
    svg("text", { x: EDGE.left - 8, y: y(seconds) + 4, "text-anchor": "end" }, clock(seconds)),
  ]);
  const day = (run, x, anchor) =>
    svg("text", { x, y: HEIGHT - 5, "text-anchor": anchor }, localTime(run.due_at).slice(5, 16));
  const wide = end - EDGE.left > 200;
  return svg(
    "svg",
    {
      width,
      height: HEIGHT,
      viewBox: `0 0 ${width} ${HEIGHT}`,
      role: "img",
      "aria-label": `How long runs took. ${words}`,
    },
    axis,
    bars,
    level("median", median),
    day(runs[0], EDGE.left, "start"),
    wide && day(runs[runs.length - 1], end, "end"),
  );
}
