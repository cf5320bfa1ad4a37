"use strict";
/* One job from its JobPage document: dsort.renderJob(element, page, options). Knows no server, so
   the same code draws the page of the service and the report that is one file. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const ENDED = new Set(["finished", "failed", "stopped"]);

  dsort.ended = (job) => ENDED.has(job.state);

  /** How long a job took, or takes so far, in seconds; null where nobody knows. */
  dsort.jobSeconds = (page) => {
    const { started_at: from, ended_at: to } = page.job;
    if (from) return Math.max(0, dsort.secondsBetween(from, to));
    const phases = page.phases || page.job.phases || [];
    return phases.length ? phases.reduce((sum, phase) => sum + phase.seconds, 0) : null;
  };

  /** "3 of 19 shards · 120 MiB/s · about 5 s left", as far as it is known. */
  dsort.progressWords = (progress) => {
    if (!progress) return "";
    const parts = [];
    if (progress.shards_total)
      parts.push(
        `${dsort.number(progress.shards_done)} of ${dsort.count(progress.shards_total, "shard")}`,
      );
    else if (progress.shards_done) parts.push(dsort.count(progress.shards_done, "shard"));
    if (Number.isFinite(progress.bytes_per_s) && progress.bytes_per_s > 0)
      parts.push(dsort.rate(progress.bytes_per_s));
    if (Number.isFinite(progress.left_s))
      parts.push(`about ${dsort.duration(progress.left_s)} left`);
    return parts.join(" · ");
  };

  /** How far the phase is, 0..1, or null. */
  dsort.progressShare = (progress) => {
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

  /* Each part: its key, what of the page it shows (drawn again only if that changes), and how. */
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
      head,
    ],
    [
      "error",
      (page) => page.job.error,
      ({ job }) => job.error && dsort.problemBox(job.error, job.state === "stopped"),
    ],
    ["progress", (page) => [page.job.state, page.job.progress], progress],
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
      tiles,
    ],
    ["warnings", (page) => page.warnings, warnings],
    ["log", () => true, (_, options) => options.log],
    ["mixing", (page) => [page.mixing, page.job.state], mixing],
    ["phases", dsort.allPhases, phases],
    ["throughput", (page) => page.timeline, throughput],
    ["outputs", (page) => page.job.result?.outputs, outputs],
    ["shards", (page) => page.shards, shards],
    [
      "facts",
      (page) =>
        [page.job, page.job.result].map((value) => value && { ...value, progress: 0, phases: 0 }),
      facts,
    ],
    ["spec", (page) => page.job.spec, spec],
  ];

  /** Draw `page` into `element`; gives back {update(page), parts}. `options.actions`: an element
      with buttons beside the title; `options.log`: an element with the log; `options.after`:
      elements that come last; `options.parts`: the keys of those to draw, if not all;
      `options.partLink(key)`: the address of a part; `options.shardLink(name)`: that of a shard of
      the output. */
  dsort.renderJob = (element, page, options = {}) => {
    const parts = PARTS.filter(([key]) => !options.parts || options.parts.includes(key));
    const places = new Map(parts.map(([key]) => [key, el("div", { class: `place place-${key}` })]));
    const drawn = new Map();
    const update = (now) => {
      for (const [key, select, draw] of parts) {
        const signature = JSON.stringify(select(now)) || "null";
        if (drawn.get(key) === signature) continue;
        drawn.set(key, signature);
        const node = draw(now, options);
        dsort.redraw(places.get(key), node);
        places.get(key).hidden = !node;
      }
    };
    element.replaceChildren(
      el("article", { class: "job" }, [...places.values()], options.after || []),
    );
    update(page);
    return { update, places };
  };

  function head(page, options) {
    const { job } = page;
    const where = job.input_uri || job.output_uri;
    return el(
      "header",
      { class: "job-head" },
      el(
        "div",
        { class: "line" },
        el("h1", null, page.title || job.description || job.job_id),
        dsort.stateChip(job),
        job.kind === "plan" && el("span", { class: "chip" }, "plan only"),
        options.actions && el("div", { class: "actions" }, options.actions),
      ),
      where &&
        el(
          "p",
          { class: "where" },
          el("code", null, job.input_uri),
          el("span", { class: "quiet", "aria-label": "to" }, " → "),
          el("code", null, job.output_uri),
        ),
      (job.labels || []).length > 0 &&
        el(
          "p",
          { class: "labels" },
          job.labels.map((label) => el("span", { class: "label" }, label)),
        ),
      job.state === "queued" &&
        Number.isFinite(job.queue_position) &&
        el(
          "p",
          { class: "quiet" },
          job.queue_position > 1
            ? `Number ${dsort.number(job.queue_position)} in the queue.`
            : "Next in the queue.",
        ),
    );
  }

  function progress(page) {
    const { job } = page;
    if (job.state !== "running") return null;
    const now = job.progress;
    const name = (now && now.phase) || job.phase || "starting";
    return el(
      "section",
      { class: "card now", "aria-label": "progress" },
      el(
        "ol",
        { class: "steps" },
        dsort.PHASES.map((phase) => {
          const [at, here] = [dsort.PHASES.indexOf(phase), dsort.PHASES.indexOf(name)];
          const state = at < here ? "done" : at === here ? "here" : "ahead";
          return el(
            "li",
            { class: state, "aria-current": state === "here" ? "step" : null },
            phase,
          );
        }),
      ),
      dsort.progressBar(dsort.progressShare(now), `${name} of this job`),
      el("p", { class: "num words" }, el("span", null, dsort.progressWords(now) || `${name} …`)),
    );
  }

  function tiles(page, options) {
    const { job } = page;
    const result = job.result || {};
    const inputs = page.inputs || {};
    const seconds = dsort.jobSeconds(page);
    const bytes =
      result.file_bytes ||
      (page.shards.total && page.shards.rows.length === page.shards.total
        ? page.shards.rows.reduce((sum, row) => sum + row[2], 0)
        : 0);
    const tile = (name, value, more) =>
      value &&
      el("div", null, el("dt", null, name), el("dd", null, value, more && el("small", null, more)));
    const over = dsort.ended(job);
    const all = [
      tile(
        "Records",
        Number.isFinite(result.records) && dsort.number(result.records),
        Number.isFinite(result.members) && dsort.count(result.members, "member"),
      ),
      tile(
        "Input",
        inputs.total
          ? dsort.count(inputs.total, "shard")
          : Number.isFinite(result.input_shards) && dsort.count(result.input_shards, "shard"),
        inputs.bytes ? dsort.bytes(inputs.bytes) : "",
      ),
      tile(
        job.kind === "plan" ? "Would write" : "Output",
        page.shards.total ? dsort.count(page.shards.total, "shard") : "",
        bytes ? dsort.bytes(bytes) : "",
      ),
      tile("Time", over && seconds !== null && dsort.duration(seconds)),
      isShuffle(page) &&
        page.mixing &&
        tile("Mixing", ...dsort.mixingTile(page.mixing, options.partLink?.("mixing"))),
      kindOf(page) && !isShuffle(page) && tile("Order", ORDERS[kindOf(page)] || kindOf(page)),
      tile("Data moves", MOVEMENTS[result.move], result.move_reason),
      tile(
        "Memory",
        Number.isFinite(result.memory_bytes) && dsort.bytes(result.memory_bytes),
        Number.isFinite(result.scratch_bytes) && `${dsort.bytes(result.scratch_bytes)} of scratch`,
      ),
    ].filter(Boolean);
    return all.length > 0 && el("dl", { class: "tiles" }, all);
  }

  /** The kind of the algorithm, or "" where nobody knows. */
  const kindOf = (page) => page.job.spec?.algorithm?.kind || "";
  const isShuffle = (page) => kindOf(page) === "shuffle";
  const ORDERS = { none: "as it came in", alphanumeric: "by record key", content: "by content" };
  const MOVEMENTS = { map: "directly", spill: "through scratch" };

  /** Where records went: of no interest if they were to stay in their order. */
  function mixing(page) {
    if (kindOf(page) === "none") return null;
    if (page.mixing && (page.mixing.cells || isShuffle(page))) {
      const title = isShuffle(page) ? "Is it a shuffle?" : "Where records went";
      return section("mixing", title, dsort.mixing(page.mixing, isShuffle(page)));
    }
    if (page.job.state !== "finished" || !isShuffle(page)) return null;
    return section(
      "mixing",
      "Is it a shuffle?",
      el(
        "p",
        { class: "quiet" },
        "There is no picture of this job: its result does not say which record went where.",
      ),
    );
  }

  function phases(page) {
    const all = dsort.allPhases(page);
    return all.length > 0 && section("phases", "Phases", dsort.phaseBar(all));
  }

  function throughput(page) {
    return (
      (page.timeline || []).length > 1 &&
      section("throughput", "Throughput", dsort.throughputChart(page.timeline))
    );
  }

  function warnings(page) {
    const all = page.warnings || [];
    if (!all.length) return null;
    return section(
      "warnings",
      `Warnings (${dsort.number(all.length)})`,
      el(
        "ul",
        { class: "warnings" },
        all.map((warning) => {
          const samples = warning.samples || [];
          return el(
            "li",
            null,
            el("strong", null, (warning.kind || "note").replaceAll("_", " ")),
            Number.isFinite(warning.count) &&
              el("span", { class: "num" }, ` × ${dsort.number(warning.count)}`),
            warning.text && el("p", null, warning.text),
            samples.length > 0 &&
              el(
                "p",
                { class: "samples" },
                samples.map((sample) => el("code", null, sample)),
                warning.count > samples.length && el("span", { class: "quiet" }, "…"),
              ),
          );
        }),
      ),
    );
  }

  /** What each of several outputs gets. */
  function outputs(page) {
    const all = page.job.result?.outputs || [];
    if (!all.length) return null;
    const heads = ["Output", "Shards", "Records", "Share", "Size", "A shard, on average"];
    const records = all.reduce((sum, each) => sum + each.records, 0);
    const number = (text) => el("td", { class: "num" }, text);
    const row = (each) =>
      el(
        "tr",
        null,
        el("th", { scope: "row" }, each.name),
        number(dsort.number(each.shards)),
        number(dsort.number(each.records)),
        number(records ? `${((100 * each.records) / records).toFixed(1)} %` : "–"),
        number(dsort.bytes(each.file_bytes)),
        number(each.shards ? dsort.bytes(each.file_bytes / each.shards) : "–"),
      );
    const head = (name, i) => el("th", { scope: "col", class: i ? "num" : "" }, name);
    const table = el(
      "table",
      { class: "figures" },
      el("caption", { class: "sr" }, "Outputs: shards, records and bytes of each"),
      el("thead", null, el("tr", null, heads.map(head))),
      el("tbody", null, all.map(row)),
    );
    const box = { class: "scroll", tabindex: 0, role: "region", "aria-label": "outputs" };
    return section("outputs", "Outputs", el("div", box, table));
  }

  function shards(page, options) {
    if (!page.shards.rows.length) return null;
    const linkOf = page.job.kind === "plan" ? undefined : options.shardLink;
    const title = page.job.kind === "plan" ? "Output shards as planned" : "Output shards";
    return section(
      "shards",
      `${title} (${dsort.number(page.shards.total)})`,
      dsort.shards(page.shards, linkOf),
    );
  }

  function facts(page) {
    const { job } = page;
    const result = job.result || {};
    const row = (name, value) =>
      value !== null &&
      value !== undefined &&
      value !== "" && [el("dt", null, name), el("dd", null, value)];
    const moment = (time) =>
      time && [
        el("span", { class: "num" }, dsort.localTime(time)),
        el("span", { class: "quiet" }, " (", dsort.when(time), ")"),
      ];
    return section(
      "facts",
      "About this job",
      el(
        "dl",
        { class: "facts" },
        row("Job", el("code", null, job.job_id)),
        row("Description", job.description),
        row("Owner", job.owner),
        row("Stopped because", job.stop_reason),
        row("Schedule", job.schedule),
        row("Due", moment(job.due_at)),
        row("Submitted", moment(job.created_at)),
        row("Started", moment(job.started_at)),
        row("Ended", moment(job.ended_at)),
        row("Priority", job.priority),
        row("Attempt", job.attempt > 1 ? dsort.number(job.attempt) : null),
        row("Host", job.host),
        row("Workers", result.workers),
        row("Algorithm", result.algorithm || kindOf(page)),
        row("Seed", result.seed && el("code", null, result.seed)),
        row("Manifest", result.manifest_name && el("code", null, result.manifest_name)),
        row("Exit code", job.exit_code),
      ),
    );
  }

  function spec(page) {
    if (!page.job.spec) return null;
    const text = el("pre", { class: "text", tabindex: 0 }, dsort.specText(page.job.spec));
    return section(
      "spec",
      "Spec",
      el("p", { class: "quiet" }, "With every default and the seed: it can be run again as it is."),
      text,
    );
  }
})();
