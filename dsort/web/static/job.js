/* Draws one job: renderJob(element, page, options), where page is the answer of
   /v1/jobs/ID/page. This file sends no requests, so it also draws the report that is one file. */
import { allPhases, phaseBar, PHASES, throughputChart } from "./chart.js";
import { el, figureTable, numberCell, redraw } from "./dom.js";
import {
  bytesText,
  countText,
  durationText,
  localTime,
  numberText,
  progressBar,
  rateText,
  secondsBetween,
  specText,
  stateChip,
  timeAgo,
} from "./format.js";
import { mixingFigure, mixingTile } from "./heatmap.js";
import { problemBox } from "./problems.js";
import { shardFigures, viewFacts } from "./shards.js";

const ENDED = new Set(["finished", "failed", "stopped"]);

export const hasEnded = (job) => ENDED.has(job.state);

/** Whether a job writes a view: ranges of its inputs in place of shards. */
export const isView = (job) => job.spec?.output === "view";

/** How long a job took, or takes so far, in seconds; null if the time is unknown. */
export const jobSeconds = (page) => {
  const { started_at: from, ended_at: to } = page.job;
  if (from) return Math.max(0, secondsBetween(from, to));
  const phases = page.phases || page.job.phases || [];
  return phases.length ? phases.reduce((sum, phase) => sum + phase.seconds, 0) : null;
};

/** "3 of 19 shards · 120 MiB/s · about 5 s left", as far as it is known. */
export const progressWords = (progress) => {
  if (!progress) return "";
  const parts = [];
  if (progress.shards_total)
    parts.push(
      `${numberText(progress.shards_done)} of ${countText(progress.shards_total, "shard")}`,
    );
  else if (progress.shards_done) parts.push(countText(progress.shards_done, "shard"));
  if (Number.isFinite(progress.bytes_per_s) && progress.bytes_per_s > 0)
    parts.push(rateText(progress.bytes_per_s));
  if (Number.isFinite(progress.left_s)) parts.push(`about ${durationText(progress.left_s)} left`);
  return parts.join(" · ");
};

/** How far the phase is, 0..1, or null. */
export const progressShare = (progress) => {
  if (!progress) return null;
  if (Number.isFinite(progress.share)) return progress.share;
  if (progress.bytes_total) return progress.bytes_done / progress.bytes_total;
  return progress.shards_total ? progress.shards_done / progress.shards_total : null;
};

const section = (key, title, ...content) =>
  el(
    "section",
    { class: `card part-${key}`, "aria-labelledby": `part-${key}` },
    el("h2", { id: `part-${key}` }, title),
    content,
  );

/* Each part of the page: its key, the values that it shows (the part is drawn again only if they
   change), and the function that draws it. */
const PARTS = [
  [
    "head",
    (page) => [
      page.title,
      page.job.state,
      page.job.stopping,
      page.job.kind,
      page.job.input_uri,
      page.job.output_uri,
      page.job.labels,
      page.job.queue_position,
      page.job.description,
    ],
    headPart,
  ],
  [
    "error",
    (page) => page.job.error,
    ({ job }) => job.error && problemBox(job.error, { wanted: job.state === "stopped" }),
  ],
  ["progress", (page) => [page.job.state, page.job.progress], progressPart],
  [
    "tiles",
    (page) => [
      page.job.state,
      page.job.result,
      page.inputs,
      page.shards.total,
      page.job.progress,
      page.job.ended_at,
      page.mixing,
    ],
    tilesPart,
  ],
  ["warnings", (page) => page.warnings, warningsPart],
  ["view", (page) => [page.job.state, page.job.result, page.inputs], viewPart],
  ["log", () => true, (_, options) => options.log],
  ["mixing", (page) => [page.mixing, page.job.state], mixingPart],
  ["phases", allPhases, phasesPart],
  ["throughput", (page) => page.timeline, throughputPart],
  ["outputs", (page) => page.job.result?.outputs, outputsPart],
  ["shards", (page) => page.shards, shardsPart],
  [
    "facts",
    (page) =>
      [page.job, page.job.result].map((value) => value && { ...value, progress: 0, phases: 0 }),
    factsPart,
  ],
  ["spec", (page) => page.job.spec, specPart],
];

/** Draw `page` into `element`; gives back {update(page), parts}. `options.actions`: an element
    with buttons beside the title; `options.log`: an element with the log; `options.after`:
    elements that come last; `options.parts`: the keys of the parts to draw, if not all;
    `options.partLink(key)`: the address of a part; `options.shardLink(name)`: the address of an
    output shard; `options.records(job)`: an element with the records of a view. */
export const renderJob = (element, page, options = {}) => {
  const parts = PARTS.filter(([key]) => !options.parts || options.parts.includes(key));
  const places = new Map(parts.map(([key]) => [key, el("div", { class: `place place-${key}` })]));
  const drawn = new Map();
  const update = (now) => {
    for (const [key, select, draw] of parts) {
      const signature = JSON.stringify(select(now)) || "null";
      if (drawn.get(key) === signature) continue;
      drawn.set(key, signature);
      const node = draw(now, options);
      redraw(places.get(key), node);
      places.get(key).hidden = !node;
    }
  };
  element.replaceChildren(el("article.job", [...places.values()], options.after || []));
  update(page);
  return { update, places };
};

function headPart(page, options) {
  const { job } = page;
  const where = job.input_uri || job.output_uri;
  return el(
    "header.job-head",
    el(
      "div.line",
      el("h1", page.title || job.description || job.job_id),
      stateChip(job),
      job.kind === "plan" && el("span.chip", "plan only"),
      options.actions && el("div.actions", options.actions),
    ),
    where &&
      el(
        "p.where",
        el("code", job.input_uri),
        el("span.quiet", { "aria-label": "to" }, " → "),
        el("code", job.output_uri),
      ),
    (job.labels || []).length > 0 &&
      el(
        "p.labels",
        job.labels.map((label) => el("span.label", label)),
      ),
    job.state === "queued" &&
      Number.isFinite(job.queue_position) &&
      el(
        "p.quiet",
        job.queue_position > 1
          ? `Number ${numberText(job.queue_position)} in the queue.`
          : "Next in the queue.",
      ),
  );
}

function progressPart(page) {
  const { job } = page;
  if (job.state !== "running") return null;
  const now = job.progress;
  const name = (now && now.phase) || job.phase || "starting";
  return el(
    "section.card.now",
    { "aria-label": "progress" },
    el(
      "ol.steps",
      PHASES.map((phase) => {
        const [at, here] = [PHASES.indexOf(phase), PHASES.indexOf(name)];
        const state = at < here ? "done" : at === here ? "here" : "ahead";
        return el("li", { class: state, "aria-current": state === "here" ? "step" : null }, phase);
      }),
    ),
    progressBar(progressShare(now), `${name} of this job`),
    el("p.num.words", el("span", progressWords(now) || `${name} …`)),
  );
}

function tilesPart(page, options) {
  const { job } = page;
  const result = job.result || {};
  const inputs = page.inputs || {};
  const seconds = jobSeconds(page);
  const bytes =
    result.file_bytes ||
    (page.shards.total && page.shards.rows.length === page.shards.total
      ? page.shards.rows.reduce((sum, row) => sum + row[2], 0)
      : 0);
  const tile = (name, value, more) =>
    value && el("div", el("dt", name), el("dd", value, more && el("small", more)));
  const over = hasEnded(job);
  const all = [
    tile(
      "Records",
      Number.isFinite(result.records) && numberText(result.records),
      Number.isFinite(result.members) && countText(result.members, "member"),
    ),
    tile(
      "Input",
      inputs.total
        ? countText(inputs.total, "shard")
        : Number.isFinite(result.input_shards) && countText(result.input_shards, "shard"),
      inputs.bytes ? bytesText(inputs.bytes) : "",
    ),
    tile(
      job.kind === "plan" ? "Would write" : isView(job) ? "View" : "Output",
      page.shards.total ? countText(page.shards.total, isView(job) ? "file" : "shard") : "",
      bytes ? bytesText(bytes) : "",
    ),
    tile("Time", over && seconds !== null && durationText(seconds)),
    isShuffle(page) &&
      page.mixing &&
      tile("Mixing", ...mixingTile(page.mixing, options.partLink?.("mixing"))),
    kindOf(page) && !isShuffle(page) && tile("Order", ORDERS[kindOf(page)] || kindOf(page)),
    tile("Data moves", MOVEMENTS[result.move], result.move_reason),
    tile(
      "Memory",
      Number.isFinite(result.memory_bytes) && bytesText(result.memory_bytes),
      Number.isFinite(result.scratch_bytes) && `${bytesText(result.scratch_bytes)} of scratch`,
    ),
  ].filter(Boolean);
  return all.length > 1 && el("dl.tiles", all); // a single tile is shown among the facts
}

/** The kind of the algorithm, or "" if it is unknown. */
const kindOf = (page) => page.job.spec?.algorithm?.kind || "";
const isShuffle = (page) => kindOf(page) === "shuffle";
const ORDERS = { none: "as it came in", alphanumeric: "by record key", content: "by content" };
const MOVEMENTS = { map: "directly", spill: "through scratch" };

/** The picture of mixing; none if the job keeps the order of records. */
function mixingPart(page) {
  if (kindOf(page) === "none") return null;
  if (page.mixing && (page.mixing.cells || isShuffle(page))) {
    const title = isShuffle(page) ? "Is it a shuffle?" : "Where records went";
    return section("mixing", title, mixingFigure(page.mixing, isShuffle(page)));
  }
  if (page.job.state !== "finished" || !isShuffle(page)) return null;
  return section(
    "mixing",
    "Is it a shuffle?",
    el(
      "p.quiet",
      "This job has no picture: its result does not record where each record went.",
    ),
  );
}

function phasesPart(page) {
  const all = allPhases(page);
  return all.length > 0 && section("phases", "Phases", phaseBar(all));
}

function throughputPart(page) {
  return (
    (page.timeline || []).length > 1 &&
    section("throughput", "Throughput", throughputChart(page.timeline))
  );
}

function warningsPart(page) {
  const all = page.warnings || [];
  if (!all.length) return null;
  return section(
    "warnings",
    `Warnings (${numberText(all.length)})`,
    el(
      "ul.warnings",
      all.map((warning) => {
        const samples = warning.samples || [];
        return el(
          "li",
          el("strong", (warning.kind || "note").replaceAll("_", " ")),
          Number.isFinite(warning.count) && el("span.num", ` × ${numberText(warning.count)}`),
          warning.text && el("p", warning.text),
          samples.length > 0 &&
            el(
              "p.samples-line",
              samples.map((sample) => el("code", sample)),
              warning.count > samples.length && el("span.quiet", "…"),
            ),
        );
      }),
    ),
  );
}

function viewPart(page, { records }) {
  const { job } = page;
  if (!isView(job) || job.kind !== "run" || job.state !== "finished") return null;
  return section("view", "View", viewFacts(page), records?.(job));
}

/** The records and shards of each of several outputs. */
function outputsPart(page) {
  const all = page.job.result?.outputs || [];
  if (!all.length) return null;
  const records = all.reduce((sum, each) => sum + each.records, 0);
  const row = (each) =>
    el(
      "tr",
      el("th", { scope: "row" }, each.name),
      numberCell(numberText(each.shards)),
      numberCell(numberText(each.records)),
      numberCell(records ? `${((100 * each.records) / records).toFixed(1)} %` : "–"),
      numberCell(bytesText(each.file_bytes)),
      numberCell(each.shards ? bytesText(each.file_bytes / each.shards) : "–"),
    );
  const numbers = ["Shards", "Records", "Share", "Size", "A shard, on average"];
  const heads = ["Output", ...numbers.map((name) => [name, "num"])];
  return section("outputs", "Outputs", figureTable("outputs", heads, all.map(row)));
}

function shardsPart(page, options) {
  if (!page.shards.rows.length) return null;
  const [isPlan, inView] = [page.job.kind === "plan", isView(page.job)];
  const title = isPlan ? "Output shards as planned" : inView ? "Files of the view" : "Output shards";
  const shown = inView ? { ...page.shards, sizes: null, records: null } : page.shards;
  return section(
    "shards",
    `${title} (${numberText(page.shards.total)})`,
    shardFigures(shown, isPlan || inView ? undefined : options.shardLink),
  );
}

function factsPart(page, { scheduleName = (name) => name }) {
  const { job } = page;
  const seconds = jobSeconds(page);
  const result = job.result || {};
  const row = (name, value) =>
    value !== null && value !== undefined && value !== "" && [el("dt", name), el("dd", value)];
  const moment = (time) =>
    time && [el("span.num", localTime(time)), el("span.quiet", " (", timeAgo(time), ")")];
  return section(
    "facts",
    "About this job",
    el(
      "dl.facts",
      row("Job", el("code", job.job_id)),
      row("Description", job.description),
      row("Owner", job.owner),
      row("Stopped because", job.stop_reason),
      row("Schedule", job.schedule && scheduleName(job.schedule)),
      row("Due", moment(job.due_at)),
      row("Submitted", moment(job.created_at)),
      row("Started", moment(job.started_at)),
      row("Ended", moment(job.ended_at)),
      row("Took", hasEnded(job) && seconds !== null ? durationText(seconds) : null),
      row("Priority", job.priority),
      row("Attempt", job.attempt > 1 ? numberText(job.attempt) : null),
      row("Host", job.host),
      row("Workers", result.workers),
      row("Algorithm", result.algorithm || kindOf(page)),
      row("Seed", result.seed && el("code", result.seed)),
      row("Manifest", result.manifest_name && el("code", result.manifest_name)),
      row("Exit code", job.exit_code),
    ),
  );
}

function specPart(page) {
  if (!page.job.spec) return null;
  const text = el("pre.text", { tabindex: 0 }, specText(page.job.spec));
  return section(
    "spec",
    "Spec",
    el("p.quiet", "With every default and the seed: it can be run again as it is."),
    text,
  );
}
