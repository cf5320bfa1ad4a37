"use strict";
/* Drawings of numbers over time and side by side: throughput, phases. Inline SVG, no libraries. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el, svg } = dsort;

  dsort.PHASES = ["resolve", "extract", "plan", "create", "commit"];
  const MOVING = new Set(["extract", "create"]); // the others move no payload worth a rate
  const phaseClass = (phase) => `phase-${dsort.PHASES.includes(phase) ? phase : "other"}`;

  /** Round numbers from 0 to `top`, about `wanted` of them: of bytes, or multiples of `steps`. */
  function ticks(top, wanted, steps) {
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

  const SECONDS = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200,
    14400, 28800, 43200, 86400,
  ];

  function clock(seconds) {
    if (seconds === 0) return "0";
    if (seconds < 0.0995) return dsort.duration(seconds);
    if (seconds < 60) return `${Number(seconds.toFixed(1))} s`;
    if (seconds < 3600) return seconds % 60 ? dsort.duration(seconds) : `${seconds / 60} min`;
    return seconds % 3600 ? dsort.duration(seconds) : `${seconds / 3600} h`;
  }

  /** A rate that is SPIKE times what it is in USUAL of the time is a spike. */
  const [USUAL, SPIKE, HEADROOM] = [0.9, 2, 1.4];

  /** Points of a timeline with times that only grow, whatever they were counted from. */
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

  /** Bytes a second over the time in which there were any. */
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

  /** The rate at which the axis ends: the highest, or a little over the usual ones where the
      highest lasts so short that all others would lie on the ground. */
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
  dsort.throughputChart = (timeline) => {
    const points = steady(timeline);
    if (points.length < 2 || points[points.length - 1].at <= 0) {
      return el("p", { class: "quiet" }, "Too short to draw: the job took no time worth a curve.");
    }
    if (points.every((point) => !point.rate))
      return el("p", { class: "quiet" }, "No bytes have moved yet.");
    const peak = Math.max(...points.map((point) => point.rate), 1);
    const end = points[points.length - 1].at;
    const top = topOf(points);
    const mean = meanWhileMoving(points);
    const words =
      `Up to ${dsort.rate(peak)}, ${dsort.rate(mean)} on average while bytes moved; ` +
      `${dsort.duration(end)} in all.`;
    const box = el("div", { class: "chart-box" });
    const readout = el("p", { class: "readout quiet" }, words);
    dsort.onWidth(box, (width) =>
      box.replaceChildren(drawThroughput(points, { width, top, end, words, readout })),
    );
    return el(
      "figure",
      { class: "chart" },
      box,
      el("figcaption", null, readout, phaseLegend(bands(points))),
      asTable(points),
    );
  };

  /** The same figures for who does not see the curve. */
  function asTable(points) {
    const details = el("details", null, el("summary", null, "Throughput as a table"));
    const fill = () => {
      const cell = (text) => el("td", { class: "num" }, text);
      const rows = points.map((point) =>
        el(
          "tr",
          null,
          el("th", { scope: "row", class: "num" }, dsort.duration(point.at)),
          el("td", null, point.phase),
          cell(dsort.bytes(point.bytes)),
          cell(dsort.rate(point.rate)),
        ),
      );
      const heads = ["Time", "Phase", "Done", "Rate"].map((head) =>
        el("th", { scope: "col", class: head === "Phase" ? "" : "num" }, head),
      );
      const caption = el("caption", { class: "sr" }, "Throughput: bytes a second over time");
      const parts = [caption, el("thead", null, el("tr", null, heads)), el("tbody", null, rows)];
      const box = { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Throughput" };
      details.append(el("div", box, el("table", { class: "figures" }, parts)));
    };
    details.addEventListener("toggle", fill, { once: true });
    return details;
  }

  const EDGE = { left: 68, right: 10, top: 10, bottom: 24 };

  function drawThroughput(points, { width, top, end, words, readout }) {
    const height = width < 500 ? 160 : 200;
    const x = (at) => EDGE.left + (at / end) * (width - EDGE.left - EDGE.right);
    const y = (rate) =>
      height -
      EDGE.bottom -
      (Math.min(rate, top * 1.05) / (top * 1.05)) * (height - EDGE.top - EDGE.bottom);
    // A sample tells the rate since the one before it: a step, no slope.
    const step = ({ at, rate }) => `V${y(rate).toFixed(1)}H${x(at).toFixed(1)}`;
    const curve = `M${x(points[0].at).toFixed(1)} ${y(0)}${points.slice(1).map(step).join("")}`;
    const area = `${curve}V${y(0)}Z`;
    const marker = svg(
      "g",
      { class: "marker", visibility: "hidden" },
      svg("line", { y1: EDGE.top, y2: y(0) }),
      svg("circle", { r: 3.5 }),
    );
    const show = (event) => {
      const at = ((event.offsetX - EDGE.left) / (width - EDGE.left - EDGE.right)) * end;
      const near = points.find((point) => point.at >= at) || points[points.length - 1];
      marker.setAttribute("visibility", "visible");
      marker.setAttribute("transform", `translate(${x(near.at)} 0)`);
      marker.lastChild.setAttribute("cy", y(near.rate));
      readout.textContent = `${dsort.duration(near.at)}: ${near.phase}, ${dsort.rate(near.rate)}`;
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
      svg("path", { class: "area", d: area }),
      svg("path", { class: "curve", d: curve }),
      spike(points, { x, top, width }),
      marker,
    );
  }

  /** Says how high a spike is that the axis cuts off. */
  function spike(points, { x, top, width }) {
    const highest = points.reduce((a, b) => (b.rate > a.rate ? b : a));
    if (highest.rate <= top * 1.05) return null;
    const right = x(highest.at) > width / 2;
    const at = { x: x(highest.at) + (right ? -8 : 6), y: EDGE.top + 10 };
    const words = `↑ ${dsort.rate(highest.rate)}`;
    return svg("text", { class: "spike", ...at, "text-anchor": right ? "end" : "start" }, words);
  }

  const phaseBands = (points, x, y) =>
    bands(points).map(({ phase, from, to }) => {
      const width = Math.max(1, x(to) - x(from));
      return svg("rect", { class: `band ${phaseClass(phase)}`, x: x(from), y, width, height: 4 });
    });

  const rateAxis = (all, y, width) =>
    all.map((tick) => [
      svg("line", {
        class: "grid",
        x1: EDGE.left,
        x2: width - EDGE.right,
        y1: y(tick),
        y2: y(tick),
      }),
      svg(
        "text",
        { x: EDGE.left - 8, y: y(tick) + 4, "text-anchor": "end" },
        tick ? dsort.rate(tick) : "0",
      ),
    ]);

  const timeAxis = (all, x, width, height) =>
    all.map((tick) => {
      const anchor = tick === 0 ? "start" : x(tick) > width - 30 ? "end" : "middle";
      return svg("text", { x: x(tick), y: height - 5, "text-anchor": anchor }, clock(tick));
    });

  function phaseLegend(found) {
    const names = [...new Set(found.map((band) => band.phase))];
    return el(
      "ul",
      { class: "legend" },
      names.map((name) =>
        el("li", null, el("span", { class: `swatch ${phaseClass(name)}` }), name),
      ),
    );
  }

  /** The phases that are over, and as far as it has come the one that runs, or in which the job
      ended. */
  dsort.allPhases = (page) => {
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

  /** What the timeline tells of a phase that a job did not come through. */
  function cutOff(timeline, phase) {
    const begin = timeline.findIndex((sample) => sample[1] === phase);
    const [from, last] = [timeline[Math.max(0, begin - 1)], timeline[timeline.length - 1]];
    return { phase, seconds: last[0] - from[0], bytes: last[2], mark: ["■", "ended here"] };
  }

  /** Phases as one bar in proportion to their seconds, with the figures in a table under it;
      `mark`: [sign, word] of one that is not through. */
  dsort.phaseBar = (phases) => {
    const total = phases.reduce((sum, phase) => sum + phase.seconds, 0);
    const share = (phase) => (total > 0 ? (100 * phase.seconds) / total : 0);
    const bar = el(
      "div",
      { class: "stack", "aria-hidden": "true" },
      phases.map((phase) =>
        el("span", {
          class: phaseClass(phase.phase),
          style: { flexGrow: String(Math.max(share(phase), 0.4)) },
          title: `${phase.phase}: ${dsort.duration(phase.seconds)}`,
        }),
      ),
    );
    const amount = (value, show) => (Number.isFinite(value) && value > 0 ? show(value) : "–");
    const table = el(
      "table",
      { class: "figures" },
      el("caption", { class: "sr" }, "Phases: time, share, shards, records and bytes of each"),
      el(
        "thead",
        null,
        el(
          "tr",
          null,
          ["Phase", "Time", "Share", "Shards", "Records", "Bytes", "Rate"].map((head, i) =>
            el("th", { scope: "col", class: i ? "num" : "" }, head),
          ),
        ),
      ),
      el(
        "tbody",
        null,
        phases.map((phase) =>
          el(
            "tr",
            null,
            el(
              "th",
              { scope: "row" },
              el("span", { class: `swatch ${phaseClass(phase.phase)}` }),
              phase.phase,
              phase.mark &&
                el("span", { class: "phase-mark", "aria-hidden": "true" }, ` ${phase.mark[0]}`),
              phase.mark && el("span", { class: "sr" }, phase.mark[1]),
            ),
            el("td", { class: "num" }, dsort.duration(phase.seconds)),
            el("td", { class: "num" }, `${Math.round(share(phase))} %`),
            el("td", { class: "num" }, amount(phase.shards, dsort.number)),
            el("td", { class: "num" }, amount(phase.records, dsort.number)),
            el("td", { class: "num" }, amount(phase.bytes, dsort.bytes)),
            el(
              "td",
              { class: "num" },
              MOVING.has(phase.phase) ? amount(phase.bytes / phase.seconds, dsort.rate) : "–",
            ),
          ),
        ),
      ),
    );
    return el("div", { class: "phases" }, bar, el("div", { class: "scroll" }, table));
  };
})();
