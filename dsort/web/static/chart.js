/* Drawings of numbers over time and side by side: throughput, phases. Inline SVG, no libraries. */
import { el, figureTable, foldedTable, numberCell, onSize, svg } from "./dom.js";
import { bytesText, durationText, numberText, rateText } from "./format.js";

export const PHASES = ["resolve", "extract", "plan", "create", "commit"];
const MOVING = new Set(["extract", "create"]); // other phases move too little payload for a rate
const phaseClass = (phase) => `phase-${PHASES.includes(phase) ? phase : "other"}`;

/** About `wanted` round numbers from 0 to `top`: of bytes, or multiples of `steps`. */
export function ticks(top, wanted, steps) {
  if (!(top > 0)) return [0];
  const rough = top / wanted;
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(top) / Math.log(1024)));
  const power = 10 ** Math.floor(Math.log10(rough / unit)) * unit;
  const sizes = steps || [1, 2, 2.5, 5, 10].map((base) => base * power);
  const step = sizes.find((size) => size >= rough) || Math.ceil(rough / 86400) * 86400;
  const found = [];
  for (let at = 0; at <= top * 1.0001; at += step) found.push(at);
  return found;
}

export const SECONDS = [
  0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200,
  14400, 28800, 43200, 86400,
];

export function clock(seconds) {
  if (seconds === 0) return "0";
  if (seconds < 0.0995) return durationText(seconds);
  if (seconds < 60) return `${Number(seconds.toFixed(2))} s`;
  if (seconds < 3600) return seconds % 60 ? durationText(seconds) : `${seconds / 60} min`;
  return seconds % 3600 ? durationText(seconds) : `${seconds / 3600} h`;
}

/** For the share USUAL of the time, rates are at most the usual rate. A rate over SPIKE times the
    usual rate is a spike. */
const [USUAL, SPIKE, HEADROOM] = [0.9, 2, 1.4];

/** The points of a timeline, with times that only grow. Times in `timeline` may begin anew with a
    phase. */
function steady(timeline) {
  const points = [];
  let offset = 0;
  let last = 0;
  for (const [elapsed, phase, bytesDone, rate] of timeline) {
    if (offset + elapsed < last) offset = last; // counted from the start of a phase
    last = offset + elapsed;
    points.push({ at: last, phase, bytes: bytesDone, rate: Number.isFinite(rate) ? rate : 0 });
  }
  return points;
}

/** The mean rate over the time in which bytes moved. */
function meanWhileMoving(points) {
  let [bytes, seconds, before] = [0, 0, 0];
  for (const { at, rate } of points) {
    if (rate > 0) {
      bytes += rate * (at - before);
      seconds += at - before;
    }
    before = at;
  }
  return seconds > 0 ? bytes / seconds : 0;
}

/** The rate at which the axis ends: the highest rate; or a little over the usual rate, if the
    highest is a spike that would press all other rates down to the axis. */
function topOf(points) {
  const lasting = points
    .map(({ at, rate }, i) => ({ rate, seconds: at - (i ? points[i - 1].at : 0) }))
    .filter(({ rate, seconds }) => rate > 0 && seconds > 0)
    .sort((a, b) => a.rate - b.rate);
  const highest = lasting.length ? lasting[lasting.length - 1].rate : 1;
  let left = USUAL * lasting.reduce((sum, { seconds }) => sum + seconds, 0);
  const usual = lasting.find(({ seconds }) => (left -= seconds) <= 0)?.rate ?? highest;
  return highest > SPIKE * usual ? HEADROOM * usual : highest;
}

function bands(points) {
  const found = [];
  for (const point of points) {
    const current = found[found.length - 1];
    if (current && current.phase === point.phase) current.to = point.at;
    else found.push({ phase: point.phase, from: current ? current.to : 0, to: point.at });
  }
  return found;
}

/** Throughput over time: `timeline` is [[elapsed_s, phase, bytes_done, bytes_per_s], ...]. */
export const throughputChart = (timeline) => {
  const points = steady(timeline);
  if (points.length < 2 || points[points.length - 1].at <= 0) {
    return el("p.quiet", "The job was too short for a curve.");
  }
  if (points.every((point) => !point.rate)) return el("p.quiet", "No bytes have moved yet.");
  const peak = Math.max(...points.map((point) => point.rate), 1);
  const end = points[points.length - 1].at;
  const top = topOf(points);
  const mean = meanWhileMoving(points);
  const words =
    `Up to ${rateText(peak)}, ${rateText(mean)} on average while bytes moved; ` +
    `${durationText(end)} in all.`;
  const box = el("div.chart-box");
  const readout = el("p.readout.quiet", words);
  onSize(box, (width, tall) =>
    box.replaceChildren(drawThroughput(points, { width, tall, top, end, words, readout })),
  );
  return el("figure.chart", box, el("figcaption", readout), throughputTable(points));
};

/** The figures of the curve as a table. */
function throughputTable(points) {
  const row = (point) =>
    el(
      "tr",
      el("th.num", { scope: "row" }, durationText(point.at)),
      el("td", point.phase),
      numberCell(bytesText(point.bytes)),
      numberCell(rateText(point.rate)),
    );
  const heads = [["Time", "num"], "Phase", ["Done", "num"], ["Rate", "num"]];
  return foldedTable("Throughput as a table", "Throughput", heads, () => points.map(row));
}

const HEIGHT_MIN = 160;
const EDGE = { left: 68, right: 10, top: 10, bottom: 24 };

function drawThroughput(points, { width, tall, top, end, words, readout }) {
  const height = Math.max(tall, HEIGHT_MIN);
  const x = (at) => EDGE.left + (at / end) * (width - EDGE.left - EDGE.right);
  const y = (rate) =>
    height -
    EDGE.bottom -
    (Math.min(rate, top * 1.05) / (top * 1.05)) * (height - EDGE.top - EDGE.bottom);
  // A sample has the rate since the sample before, so the curve has steps and no slopes.
  const step = ({ at, rate }) => `V${y(rate).toFixed(1)}H${x(at).toFixed(1)}`;
  const curve = `M${x(points[0].at).toFixed(1)} ${y(0)}${points.slice(1).map(step).join("")}`;
  const area = `${curve}V${y(0)}Z`;
  const marker = svg(
    "g.marker",
    { visibility: "hidden" },
    svg("line", { y1: EDGE.top, y2: y(0) }),
    svg("circle", { r: 3.5 }),
  );
  const show = (event) => {
    const at = ((event.offsetX - EDGE.left) / (width - EDGE.left - EDGE.right)) * end;
    const near = points.find((point) => point.at >= at) || points[points.length - 1];
    marker.setAttribute("visibility", "visible");
    marker.setAttribute("transform", `translate(${x(near.at)} 0)`);
    marker.lastChild.setAttribute("cy", y(near.rate));
    readout.textContent = `${durationText(near.at)}: ${near.phase}, ${rateText(near.rate)}`;
  };
  const hide = () => {
    marker.setAttribute("visibility", "hidden");
    readout.textContent = words;
  };
  return svg(
    "svg",
    {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": `Throughput over time. ${words}`,
      onpointermove: show,
      onpointerleave: hide,
    },
    phaseBands(points, x, y(0)),
    rateAxis(ticks(top, 4), y, width),
    timeAxis(ticks(end, Math.max(2, Math.floor(width / 110)), SECONDS), x, width, height),
    svg("path.area", { d: area }),
    svg("path.curve", { d: curve }),
    spike(points, { x, top, width }),
    marker,
  );
}

/** Shows the height of a spike that the axis cuts off. */
function spike(points, { x, top, width }) {
  const highest = points.reduce((a, b) => (b.rate > a.rate ? b : a));
  if (highest.rate <= top * 1.05) return null;
  const right = x(highest.at) > width / 2;
  const at = { x: x(highest.at) + (right ? -8 : 6), y: EDGE.top + 10 };
  const words = `↑ ${rateText(highest.rate)}`;
  return svg("text.spike", { ...at, "text-anchor": right ? "end" : "start" }, words);
}

const phaseBands = (points, x, y) =>
  bands(points).map(({ phase, from, to }) => {
    const width = Math.max(1, x(to) - x(from));
    return svg("rect", { class: `band ${phaseClass(phase)}`, x: x(from), y, width, height: 4 });
  });

const rateAxis = (all, y, width) =>
  all.map((tick) => [
    svg("line.grid", { x1: EDGE.left, x2: width - EDGE.right, y1: y(tick), y2: y(tick) }),
    svg(
      "text",
      { x: EDGE.left - 8, y: y(tick) + 4, "text-anchor": "end" },
      tick ? rateText(tick) : "0",
    ),
  ]);

const timeAxis = (all, x, width, height) =>
  all.map((tick) => {
    const anchor = tick === 0 ? "start" : x(tick) > width - 30 ? "end" : "middle";
    return svg("text", { x: x(tick), y: height - 5, "text-anchor": anchor }, clock(tick));
  });

/** The phases that are over, and the figures so far of the phase that runs, or in which the job
    ended. */
export const allPhases = (page) => {
  const { job, timeline } = page;
  const over = page.phases || [];
  const last = job.state !== "finished" && timeline?.length && timeline[timeline.length - 1][1];
  const name = job.state === "running" ? job.progress?.phase || job.phase : last;
  if (!name || over.some(({ phase }) => phase === name)) return over;
  return [...over, job.state === "running" ? sofar(job.progress, name) : cutOff(timeline, name)];
};

const sofar = (progress, phase) => ({
  phase,
  seconds: progress?.elapsed_s || 0,
  shards: progress?.shards_done,
  records: progress?.records_done,
  bytes: progress?.bytes_done,
  mark: ["◐", "running"],
});

/** The figures that the timeline has of a phase in which a job ended. */
function cutOff(timeline, phase) {
  const begin = timeline.findIndex((sample) => sample[1] === phase);
  const [from, last] = [timeline[Math.max(0, begin - 1)], timeline[timeline.length - 1]];
  return { phase, seconds: last[0] - from[0], bytes: last[2], mark: ["■", "ended here"] };
}

/** Phases as one bar in proportion to their seconds, with the figures in a table under it;
    `mark`: [sign, word] of a phase that is not finished. */
export const phaseBar = (phases) => {
  const total = phases.reduce((sum, phase) => sum + phase.seconds, 0);
  const share = (phase) => (total > 0 ? (100 * phase.seconds) / total : 0);
  const bar = el(
    "div.stack",
    { "aria-hidden": "true" },
    phases.map((phase) =>
      el("span", {
        class: phaseClass(phase.phase),
        style: { flexGrow: String(Math.max(share(phase), 0.4)) },
        title: `${phase.phase}: ${durationText(phase.seconds)}`,
      }),
    ),
  );
  const amount = (value, show) =>
    numberCell(Number.isFinite(value) && value > 0 ? show(value) : "–");
  const row = (phase) =>
    el(
      "tr",
      el(
        "th",
        { scope: "row" },
        el("span", { class: `swatch ${phaseClass(phase.phase)}` }),
        phase.phase,
        phase.mark && el("span.phase-mark", { "aria-hidden": "true" }, ` ${phase.mark[0]}`),
        phase.mark && el("span.sr", phase.mark[1]),
      ),
      numberCell(durationText(phase.seconds)),
      numberCell(`${Math.round(share(phase))} %`),
      amount(phase.shards, numberText),
      amount(phase.records, numberText),
      amount(phase.bytes, bytesText),
      amount(MOVING.has(phase.phase) ? phase.bytes / phase.seconds : null, rateText),
    );
  const numbers = ["Time", "Share", "Shards", "Records", "Bytes", "Rate"];
  const heads = ["Phase", ...numbers.map((name) => [name, "num"])];
  const caption = "Phases: time, share, shards, records and bytes of each";
  return el("div.phases", bar, figureTable(caption, heads, phases.map(row)));
};
