"use strict";
/* Two jobs side by side: what their specs have different, phases, throughput, mixing. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const CHOICES = 100;

  dsort.views = dsort.views || {};

  dsort.compareLink = (a, b) => `#/compare?${new URLSearchParams(b ? { a, b } : { a })}`;

  dsort.views.compare = async (root, { query, signal }) => {
    dsort.put(root, dsort.waiting("Asking for the jobs …"));
    const [a, b] = [query.get("a"), query.get("b")];
    const page = (jobId) =>
      jobId ? dsort.api.get(dsort.jobPath(jobId, "/page"), null, signal) : null;
    const asked = [page(a), page(b), dsort.api.get("/v1/jobs", { limit: CHOICES, kind: "run" }, signal)];
    const [left, right, { jobs }] = await Promise.all(asked);
    const body = left && right ? both(left, right) : null;
    dsort.put(
      root,
      dsort.crumbs([["Jobs", "#/jobs"]]),
      el("div", { class: "page-head" }, el("h1", null, "Compare two jobs")),
      chooser(jobs, [left, right], [a, b]),
      body,
    );
  };

  const nameOf = (job) => job.description || job.job_id;

  function chooser(jobs, pages, chosen) {
    const now = [...chosen];
    const choice = (i) => {
      const known = pages[i] && !jobs.some((job) => job.job_id === chosen[i]) ? [pages[i].job] : [];
      const select = el(
        "select",
        { name: i ? "b" : "a" },
        !chosen[i] && el("option", { value: "" }, "Choose a job …"),
        [...known, ...jobs].map((job) =>
          el(
            "option",
            { value: job.job_id, selected: job.job_id === chosen[i] },
            `${nameOf(job)} (${job.state}, ${dsort.ago(job.created_at)})`,
          ),
        ),
      );
      select.addEventListener("change", () => {
        now[i] = select.value;
        location.hash = dsort.compareLink(now[0] || now[1], now[0] && now[1]);
      });
      const link = chosen[i] && el("a", { href: dsort.jobLink(chosen[i]) }, "its page");
      return el("div", null, dsort.field(`Job ${"AB"[i]}`, select), link);
    };
    return el("section", { class: "card two", "aria-label": "jobs" }, choice(0), choice(1));
  }

  function both(left, right) {
    const pair = [left, right];
    return el(
      "div",
      { class: "compare" },
      card("Figures", figures(pair)),
      card("What the specs have different", specs(pair)),
      card("Phases", phases(pair)),
      card("Throughput", throughput(pair)),
      card("Mixing", mixing(pair)),
    );
  }

  const card = (title, content) =>
    el("section", { class: "card", "aria-label": title }, el("h2", null, title), content);

  const table = (caption, heads, rows) => dsort.figures(caption, heads, rows, [1, 2, 3], "");

  const row = (name, ...cells) =>
    el(
      "tr",
      null,
      el("th", { scope: "row" }, name),
      cells.map((cell) => el("td", { class: "num" }, cell)),
    );

  /** How many times A is B, as far as both are known. */
  const times = (a, b) => (a > 0 && Number.isFinite(b) ? `${(b / a).toFixed(2)} ×` : "–");

  function figures([left, right]) {
    const of = (page) => {
      const result = page.job.result || {};
      const seconds = dsort.jobSeconds(page);
      const bytes = result.file_bytes;
      return {
        Records: [result.records, dsort.number],
        "Input shards": [page.inputs?.total ?? result.input_shards, dsort.number],
        "Output shards": [page.shards.total || undefined, dsort.number],
        "Output bytes": [bytes, dsort.bytes],
        Time: [seconds ?? undefined, dsort.duration],
        "Bytes a second": [bytes && seconds ? bytes / seconds : undefined, dsort.rate],
        Workers: [result.workers, dsort.number],
        Memory: [result.memory_bytes, dsort.bytes],
        Warnings: [(page.warnings || []).length, dsort.number],
      };
    };
    const [a, b] = [of(left), of(right)];
    const show = ([value, words]) => (Number.isFinite(value) ? words(value) : "–");
    const words = (page) => [
      page.job.state,
      { map: "directly", range: "by range", spill: "through scratch" }[page.job.result?.move] || "–",
    ];
    const [stateA, moveA] = words(left);
    const [stateB, moveB] = words(right);
    return table("Figures of both jobs", ["", "A", "B", "B to A"], [
      row("State", stateA, stateB, ""),
      row("Data moves", moveA, moveB, ""),
      Object.keys(a).map((name) => row(name, show(a[name]), show(b[name]), times(a[name][0], b[name][0]))),
    ].flat());
  }

  /** {dotted path: text} of all that a spec says. */
  function flat(value, path = "", found = new Map()) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      for (const [name, each] of Object.entries(value)) flat(each, path ? `${path}.${name}` : name, found);
    } else if (value !== null && value !== undefined) found.set(path, JSON.stringify(value));
    return found;
  }

  function specs([left, right]) {
    const [a, b] = [flat(left.job.spec), flat(right.job.spec)];
    const paths = [...new Set([...a.keys(), ...b.keys()])];
    const apart = paths.filter((path) => a.get(path) !== b.get(path)).sort();
    const same = dsort.count(paths.length - apart.length, "field");
    if (!apart.length) return el("p", null, `Nothing: all ${same} say the same.`);
    const cell = (text) => el("td", null, text === undefined ? "–" : el("code", null, text));
    const lines = apart.map((path) =>
      el(
        "tr",
        { data: { path } },
        el("th", { scope: "row" }, el("code", null, path)),
        cell(a.get(path)),
        cell(b.get(path)),
      ),
    );
    return [
      el(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "fields that differ" },
        el(
          "table",
          { class: "figures diff" },
          el("caption", { class: "sr" }, "Fields of the specs that differ"),
          dsort.tableHead(["Field", "A", "B"]),
          el("tbody", null, lines),
        ),
      ),
      el("p", { class: "quiet" }, `${same} more say the same.`),
    ];
  }

  function phases(pair) {
    const [a, b] = pair.map((page) => new Map(dsort.allPhases(page).map((each) => [each.phase, each])));
    const names = dsort.PHASES.filter((name) => a.has(name) || b.has(name));
    if (!names.length) return el("p", { class: "quiet" }, "Neither has begun.");
    const sum = (all) => [...all.values()].reduce((total, each) => total + each.seconds, 0);
    const longest = Math.max(sum(a), sum(b));
    const bar = (all, name) =>
      el(
        "div",
        { class: "bar-line", "aria-hidden": "true" },
        el("span", { class: "quiet" }, name),
        el(
          "div",
          { class: "stack" },
          [...all.values()].map((each) =>
            el("span", {
              class: `phase-${dsort.PHASES.includes(each.phase) ? each.phase : "other"}`,
              style: { flexGrow: String(each.seconds / longest) },
              title: `${each.phase}: ${dsort.duration(each.seconds)}`,
            }),
          ),
          el("span", { class: "rest", style: { flexGrow: String(1 - sum(all) / longest) } }),
        ),
      );
    const seconds = (all, name) => all.get(name)?.seconds;
    const show = (value) => (Number.isFinite(value) ? dsort.duration(value) : "–");
    const lines = names.map((name) =>
      row(
        [el("span", { class: `swatch phase-${name}` }), name],
        show(seconds(a, name)),
        show(seconds(b, name)),
        times(seconds(a, name), seconds(b, name)),
      ),
    );
    const whole = row("all", show(sum(a)), show(sum(b)), times(sum(a), sum(b)));
    return [
      bar(a, "A"),
      bar(b, "B"),
      table("Seconds of each phase", ["Phase", "A", "B", "B to A"], [...lines, whole]),
    ];
  }

  function throughput(pair) {
    const scale = dsort.throughputScale(pair.map((page) => page.timeline || []));
    return el(
      "div",
      { class: "two" },
      pair.map((page, i) =>
        el(
          "div",
          null,
          el("h3", null, `Job ${"AB"[i]}`),
          (page.timeline || []).length > 1
            ? dsort.throughputChart(page.timeline, scale)
            : el("p", { class: "quiet" }, "Nothing is known of it."),
        ),
      ),
    );
  }

  function mixing([left, right]) {
    const of = ({ mixing: found }) => {
      if (!found) return ["–", "–"];
      const number = (value) => (Number.isFinite(value) ? value.toLocaleString("en") : "–");
      return [dsort.mixingTile(found)[0], number(found.p_value)];
    };
    const [a, b] = [of(left), of(right)];
    const names = ["Verdict", "p"];
    return [
      table("Mixing of both jobs", ["", "A", "B"], names.map((name, i) => row(name, a[i], b[i]))),
      el("p", { class: "quiet" }, "The pages of the jobs have the pictures."),
    ];
  }
})();
