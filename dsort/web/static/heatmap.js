/* The picture of mixing: how many records of each input shard each output shard has, before and
   after, in the cells that the test compares. The colour of a cell is the distance of its count
   from an even spread, so an even shuffle has almost no colour. */
import { el, foldedTable, isDark, numberCell, onTheme } from "./dom.js";
import { countText, numberText } from "./format.js";

// Colours from far too few records to far too many: nearly all readers can distinguish orange from
// blue. An expected count has the colour of the card.
const RAMPS = {
  dark: ["#ffb066", "#c97a34", "#6e4a2b", "#22272c", "#28566a", "#3f9dbf", "#8adcf7"],
  light: ["#8f3f00", "#d07a2d", "#f0c79b", "#f3f5f6", "#a9cfdd", "#3a88a8", "#0c4a63"],
};
const CHANCE = 3; // standard deviations: by chance, nearly all cells have less
/* `half`: the deviation with half of the colour; `power`: how steeply the colour rises. CALM, if
   chance explains the deviations, colours almost no cell; KEEN shows small deviations of many
   cells. */
const CALM = { half: 5, power: 4 };
const KEEN = { half: 2, power: 2 };
const shadesOf = (mixing) => (mixing.verdict === "uneven" ? KEEN : CALM);

const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

function colourAt(position, ramp) {
  const scaled = Math.max(0, Math.min(1, position)) * (ramp.length - 1);
  const low = Math.min(ramp.length - 2, Math.floor(scaled));
  const [from, to] = [channels(ramp[low]), channels(ramp[low + 1])];
  return from.map((value, i) => value + (to[i] - value) * (scaled - low));
}

/** The position of a deviation on the scale of colours: 0.5 for no deviation, 0 and 1 for the
    largest. */
const positionOf = (deviation, { half, power }) => {
  const size = (Math.abs(deviation) / half) ** power;
  return 0.5 + 0.5 * Math.sign(deviation) * (size === Infinity ? 1 : size / (1 + size));
};

function paint(canvas, positions) {
  const ramp = RAMPS[isDark() ? "dark" : "light"];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  positions.forEach((position, i) => image.data.set([...colourAt(position, ramp), 255], i * 4));
  context.putImageData(image, 0, 0);
}

function painted(canvas, positions) {
  const draw = () => paint(canvas, positions);
  draw();
  onTheme(canvas, draw);
  return canvas;
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

/** The count of each cell in an even spread of its row and column. */
function expectedOf(counts) {
  const rows = counts.map(sum);
  const columns = counts[0].map((_, c) => sum(counts.map((row) => row[c])));
  const total = sum(rows);
  return rows.map((row) => columns.map((column) => (row * column) / total));
}

const span = ([first, last]) =>
  first >= last ? numberText(first) : `${numberText(first)}–${numberText(last)}`;

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/* One picture: `counts` by input (rows) and output (columns). The cell under the pointer, or under
   the cursor of the arrow keys, is described. */
class Picture {
  constructor(title, counts, mixing, words) {
    Object.assign(this, { title, counts, mixing, words, at: null });
    [this.rows, this.columns] = [counts.length, counts[0].length];
    this.expected = expectedOf(counts);
    this.deviations = counts.map((row, r) =>
      row.map((count, c) => (count - this.expected[r][c]) / Math.sqrt(this.expected[r][c])),
    );
    const shades = shadesOf(mixing);
    const positions = this.deviations.flat().map((each) => positionOf(each, shades));
    this.canvas = painted(el("canvas", { width: this.columns, height: this.rows }), positions);
    this.cursor = el("span.cursor", { hidden: true });
    this.readout = el("p.readout.quiet", { "aria-live": "polite" }, words);
  }

  element() {
    const { title, mixing } = this;
    const size = `${this.rows} by ${this.columns} cells`;
    const what = `${title}. ${size}: input shards down, output shards across.`;
    const box = el(
      "div.map",
      {
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
      "figure.heat",
      el("h3", title),
      el("div.axes", down, box, across),
      el("figcaption", this.readout),
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
    const { inputs, outputs } = this.mixing.cells;
    const expected = this.expected[row][column].toFixed(1);
    this.readout.textContent =
      `input ${span(inputs[row])} → output ${span(outputs[column])}: ` +
      `${countText(this.counts[row][column], "record")}, ${expected} expected: ` +
      inWords(this.deviations[row][column]);
  }

  hide() {
    this.at = null;
    this.cursor.hidden = true;
    this.readout.textContent = this.words;
  }
}

function inWords(deviation) {
  if (Math.abs(deviation) < CHANCE) return "what chance makes";
  return deviation < 0 ? "fewer than chance makes" : "more than chance makes";
}

function axis(direction, name, shards) {
  return el(
    "div",
    { class: `axis ${direction}`, "aria-hidden": "true" },
    el("span", "0"),
    el("span.name", name),
    el("span", shards > 1 ? numberText(shards - 1) : ""),
  );
}

function scale(shades) {
  const ticks = [
    [-Infinity, "far fewer"],
    [-shades.half, `−${shades.half} σ`],
    [0, "as expected"],
    [shades.half, `+${shades.half} σ`],
    [Infinity, "far more"],
  ];
  const steps = Array.from({ length: 128 }, (_, i) => i / 127);
  return el(
    "div.scale",
    el("span.quiet", "records, against what an even spread has"),
    el(
      "div.ramp",
      painted(el("canvas", { width: steps.length, height: 1, "aria-hidden": "true" }), steps),
      el(
        "ol",
        ticks.map(([deviation, words]) =>
          el("li", { style: { left: `${100 * positionOf(deviation, shades)}%` } }, words),
        ),
      ),
    ),
  );
}

function countsTable(title, caption, counts, { inputs, outputs }) {
  const heads = ["input \\ output", ...outputs.map((each) => [span(each), "num"])];
  const row = (line, r) =>
    el(
      "tr",
      el("th.num", { scope: "row" }, span(inputs[r])),
      line.map((count) => numberCell(numberText(count))),
    );
  return foldedTable(`Counts as a table: ${title}`, caption, heads, () => counts.map(row));
}

const VERDICTS = {
  even: ["✓", "Evenly mixed", "even"],
  uneven: ["≠", "Not evenly mixed", "uneven"],
  too_few: ["?", "Too few records or shards to tell", "too few to tell"],
};

const P_MIN = 0.001; // as in dsort/order/mixing.py

const chance = (p) =>
  p < 1e-6 ? "p < 0.000001" : `p = ${p >= 0.001 ? p.toFixed(3) : p.toFixed(6)}`;

const verdictOf = (mixing) => VERDICTS[mixing.verdict] || ["·", mixing.verdict, mixing.verdict];

/** For the strip of figures: the verdict in a word, and the figure behind the verdict. `link`: the
    address of the picture. */
export const mixingTile = (mixing, link) => {
  const [mark, , word] = verdictOf(mixing);
  const figure = mixing.degrees_of_freedom && Number.isFinite(mixing.p_value);
  return [
    el(
      link ? "a" : "span",
      { class: `verdict-word verdict-${mixing.verdict}`, href: link },
      el("span.mark", { "aria-hidden": "true" }, mark),
      word,
    ),
    figure ? chance(mixing.p_value) : "",
  ];
};

/** Before and after side by side. `isShuffle`: the job is a shuffle, so the figure has a verdict,
    with the p value and its limit. */
export const mixingFigure = (mixing, isShuffle) => {
  const [mark, verdict] = verdictOf(mixing);
  const figure = mixing.degrees_of_freedom > 0 && Number.isFinite(mixing.p_value);
  const { cells } = mixing;
  return el(
    "div.mixing",
    { data: { verdict: mixing.verdict } },
    isShuffle &&
      el(
        "div",
        { class: `verdict verdict-${mixing.verdict}` },
        el("strong", el("span.mark", { "aria-hidden": "true" }, mark), verdict),
        figure && el("p.quiet.num", `${chance(mixing.p_value)} (uneven: p < ${P_MIN})`),
      ),
    cells &&
      el(
        "div.pair",
        new Picture("Before", cells.before, mixing, "As the records were read.").element(),
        new Picture("After", cells.counts, mixing, "As the records were written.").element(),
      ),
    cells && scale(shadesOf(mixing)),
    cells &&
      el(
        "div.counts",
        countsTable("before", "Before: counts", cells.before, cells),
        countsTable("after", "After: counts", cells.counts, cells),
      ),
  );
};
