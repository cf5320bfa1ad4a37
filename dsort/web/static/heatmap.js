"use strict";
/* The picture that says whether a shuffle is one: how many records each output shard has of each
   input shard, before and after. Colour is the share of what an even spread would put there, so
   that both pictures have one scale and even is its middle. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;

  // Lightness only rises (dark) or only falls (light), so that the
  // order survives grey and colour-blindness.
  const RAMPS = {
    dark: [
      "#2b0a3d",
      "#472a7a",
      "#3e4989",
      "#31688e",
      "#26828e",
      "#1f9e89",
      "#35b779",
      "#6ece58",
      "#b5de2b",
      "#fde725",
    ],
    light: [
      "#fdfcec",
      "#eaf1b0",
      "#c3e195",
      "#8fce85",
      "#55b588",
      "#2f988e",
      "#2f768e",
      "#3a548b",
      "#443176",
      "#3b0a4f",
    ],
  };
  const TICKS = [
    [0, "none"],
    [0.5, "½"],
    [1, "even"],
    [2, "2×"],
    [4, "4×"],
    [Infinity, "all"],
  ];

  const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

  function colourAt(position, ramp) {
    const scaled = Math.max(0, Math.min(1, position)) * (ramp.length - 1);
    const low = Math.min(ramp.length - 2, Math.floor(scaled));
    const [from, to] = [channels(ramp[low]), channels(ramp[low + 1])];
    return from.map((value, i) => value + (to[i] - value) * (scaled - low));
  }

  /** Where a multiple of the even share lies: 0 at 0, its middle at 1, the end far off. */
  const positionOf = (ratio) => (ratio === Infinity ? 1 : ratio / (1 + ratio));

  function paint(canvas, positions) {
    const ramp = RAMPS[dsort.isDark() ? "dark" : "light"];
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    positions.forEach((position, i) => image.data.set([...colourAt(position, ramp), 255], i * 4));
    context.putImageData(image, 0, 0);
  }

  function painted(canvas, positions) {
    const redraw = () => paint(canvas, positions);
    redraw();
    dsort.onTheme(canvas, redraw);
    return canvas;
  }

  /** Each cell's count as a multiple of what an even spread of its row and column would be. */
  function ratios(counts) {
    const rows = counts.map((row) => row.reduce((sum, count) => sum + count, 0));
    const columns = counts[0].map((_, c) => counts.reduce((sum, row) => sum + row[c], 0));
    const total = rows.reduce((sum, count) => sum + count, 0);
    return counts.map((row, r) =>
      row.map((count, c) => (rows[r] && columns[c] ? (count * total) / (rows[r] * columns[c]) : 0)),
    );
  }

  /** Which input shards, counted from 0, are in bin `bin`: shard s is in floor(s * bins / all). */
  function inputsOf(bin, bins, shards) {
    const first = Math.ceil((bin * shards) / bins);
    return span(first, Math.ceil(((bin + 1) * shards) / bins) - 1);
  }

  /** Which output shards are in bin `bin`: all bins are as wide, but for the last. */
  function outputsOf(bin, mixing) {
    const width = mixing.output_bin_shards;
    return span(bin * width, Math.min(mixing.output_shards, (bin + 1) * width) - 1);
  }

  const span = (first, last) =>
    first >= last ? dsort.number(first) : `${dsort.number(first)}–${dsort.number(last)}`;

  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  /* One picture: `counts` by input bin (rows) and output bin (columns). A cell is told of when the
     pointer is on it, or arrow keys have led there. */
  class Picture {
    constructor(title, counts, mixing, words) {
      Object.assign(this, { title, counts, mixing, words, at: null });
      [this.rows, this.columns] = [counts.length, counts[0].length];
      this.shares = ratios(counts);
      const positions = this.shares.flat().map(positionOf);
      this.canvas = painted(el("canvas", { width: this.columns, height: this.rows }), positions);
      this.cursor = el("span", { class: "cursor", hidden: true });
      this.readout = el("p", { class: "readout quiet", "aria-live": "polite" }, words);
    }

    element() {
      const { title, mixing } = this;
      const size = `${this.rows} by ${this.columns} cells`;
      const what = `${title}. ${size}: input shards down, output shards across.`;
      const box = el(
        "div",
        {
          class: "map",
          tabindex: 0,
          role: "application",
          "aria-roledescription": "heat map",
          "aria-label": `${what} ${this.words} Arrow keys go through the cells.`,
          onpointermove: (event) => this.point(event),
          onpointerleave: () => this.hide(),
          onblur: () => this.hide(),
          onkeydown: (event) => this.step(event),
        },
        this.canvas,
        this.cursor,
      );
      const [down, across] = [
        axis("down", "input shard", mixing.input_shards),
        axis("across", "output shard", mixing.output_shards),
      ];
      return el(
        "figure",
        { class: "heat" },
        el("h3", null, title),
        el("div", { class: "axes" }, down, box, across),
        el("figcaption", null, this.readout),
      );
    }

    point(event) {
      const place = this.canvas.getBoundingClientRect();
      const row = ((event.clientY - place.top) / place.height) * this.rows;
      const column = ((event.clientX - place.left) / place.width) * this.columns;
      this.show(Math.floor(row), Math.floor(column));
    }

    step(event) {
      const step = STEPS[event.key];
      if (!step) return;
      event.preventDefault();
      if (this.at) this.show(this.at[0] + step[0], this.at[1] + step[1]);
      else this.show(0, 0);
    }

    show(wantedRow, wantedColumn) {
      const row = Math.max(0, Math.min(this.rows - 1, wantedRow));
      const column = Math.max(0, Math.min(this.columns - 1, wantedColumn));
      this.at = [row, column];
      this.cursor.hidden = false;
      Object.assign(this.cursor.style, {
        left: `${(100 * column) / this.columns}%`,
        top: `${(100 * row) / this.rows}%`,
        width: `${100 / this.columns}%`,
        height: `${100 / this.rows}%`,
      });
      const input = inputsOf(row, this.rows, this.mixing.input_shards);
      const output = outputsOf(column, this.mixing);
      const share = this.shares[row][column];
      const times = share === 0 ? "none of" : `${share.toFixed(share < 10 ? 2 : 0)}×`;
      this.readout.textContent =
        `input ${input} → output ${output}: ` +
        `${dsort.count(this.counts[row][column], "record")}, ${times} the even share`;
    }

    hide() {
      this.at = null;
      this.cursor.hidden = true;
      this.readout.textContent = this.words;
    }
  }

  function axis(direction, name, shards) {
    return el(
      "div",
      { class: `axis ${direction}`, "aria-hidden": "true" },
      el("span", null, "0"),
      el("span", { class: "name" }, name),
      el("span", null, shards > 1 ? dsort.number(shards - 1) : ""),
    );
  }

  function scale() {
    const steps = Array.from({ length: 128 }, (_, i) => i / 127);
    return el(
      "div",
      { class: "scale" },
      el("span", { class: "quiet" }, "records, as a multiple of the even share"),
      el(
        "div",
        { class: "ramp" },
        painted(el("canvas", { width: steps.length, height: 1, "aria-hidden": "true" }), steps),
        el(
          "ol",
          null,
          TICKS.map(([ratio, words]) =>
            el("li", { style: { left: `${100 * positionOf(ratio)}%` } }, words),
          ),
        ),
      ),
    );
  }

  function asTable(title, counts, mixing) {
    const details = el("details", null, el("summary", null, `Counts as a table: ${title}`));
    details.addEventListener(
      "toggle",
      () => {
        const head = counts[0].map((_, c) =>
          el("th", { scope: "col", class: "num" }, outputsOf(c, mixing)),
        );
        const rows = counts.map((row, r) =>
          el(
            "tr",
            null,
            el(
              "th",
              { scope: "row", class: "num" },
              inputsOf(r, counts.length, mixing.input_shards),
            ),
            row.map((count) => el("td", { class: "num" }, dsort.number(count))),
          ),
        );
        const corner = el("th", { scope: "col" }, "input \\ output");
        const table = el(
          "table",
          { class: "figures" },
          el(
            "caption",
            { class: "sr" },
            `${title}: records by input shard (rows) and output shard (columns)`,
          ),
          el("thead", null, el("tr", null, corner, head)),
          el("tbody", null, rows),
        );
        details.append(
          el(
            "div",
            { class: "scroll tall", tabindex: 0, role: "region", "aria-label": `${title}: counts` },
            table,
          ),
        );
      },
      { once: true },
    );
    return details;
  }

  const VERDICTS = {
    even: ["✓", "Evenly mixed"],
    uneven: ["≠", "Not evenly mixed"],
    too_few: ["?", "Too few records to tell"],
  };

  const chance = (p) =>
    p < 1e-6 ? "p < 0.000001" : `p = ${p >= 0.001 ? p.toFixed(3) : p.toFixed(6)}`;

  /** Before and after side by side, with the statistic in words under them. */
  dsort.mixing = (mixing) => {
    const [mark, verdict] = VERDICTS[mixing.verdict] || ["·", mixing.verdict];
    const usable = (counts) => Array.isArray(counts) && counts.length && counts[0].length;
    const figures = [
      Number.isFinite(mixing.chi2) &&
        `χ² = ${mixing.chi2.toLocaleString("en", { maximumFractionDigits: 1 })}`,
      Number.isFinite(mixing.degrees_of_freedom) &&
        `${dsort.count(mixing.degrees_of_freedom, "degree")} of freedom`,
      Number.isFinite(mixing.p_value) && chance(mixing.p_value),
    ].filter(Boolean);
    return el(
      "div",
      { class: "mixing", data: { verdict: mixing.verdict } },
      el(
        "div",
        { class: "pair" },
        usable(mixing.before) &&
          new Picture("Before", mixing.before, mixing, "As the records came in.").element(),
        usable(mixing.counts) &&
          new Picture("After", mixing.counts, mixing, "As they were written.").element(),
      ),
      scale(),
      el(
        "div",
        { class: `verdict verdict-${mixing.verdict}` },
        el("strong", null, el("span", { class: "mark", "aria-hidden": "true" }, mark), verdict),
        el("p", { class: "words" }, mixing.words),
        el("p", { class: "quiet num" }, figures.join(" · ")),
      ),
      el(
        "div",
        { class: "counts" },
        usable(mixing.before) && asTable("before", mixing.before, mixing),
        usable(mixing.counts) && asTable("after", mixing.counts, mixing),
      ),
    );
  };
})();
