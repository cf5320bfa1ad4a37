"use strict";
/* What is stored and may go: leftovers of dead jobs, results that schedules remove, room on disks. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const NUMBERS = [2, 3, 4];

  dsort.showStorage = async (place, query, signal) => {
    dsort.put(place, dsort.waiting("Asking …"));
    const [storage, buckets] = await Promise.all([
      dsort.api.get("/v1/storage", null, signal),
      dsort.api.get("/v1/buckets", null, signal),
    ]);
    dsort.put(
      place,
      card("Room", disks(storage.disks)),
      card("What schedules keep", schedules(storage.schedules)),
      card("What dead jobs left", garbage(buckets.map(dsort.bucketOf), query, signal)),
    );
  };

  const card = (title, ...content) =>
    el("section", { class: "card", "aria-label": title }, el("h2", null, title), content);
  const number = (text) => el("td", { class: "num" }, text);

  function disks(all) {
    const row = (disk) => {
      const used = 1 - disk.free_bytes / disk.total_bytes;
      return el(
        "tr",
        null,
        el("th", { scope: "row" }, disk.what, el("small", { class: "path" }, disk.path)),
        el("td", { class: "meter" }, dsort.progressBar(used, `used of the disk with ${disk.what}`)),
        number(`${Math.round(used * 100)} %`),
        number(dsort.bytes(disk.free_bytes)),
        number(dsort.bytes(disk.total_bytes)),
      );
    };
    const heads = ["Directory", "Used", "Used, %", "Free", "Size"];
    return dsort.figures("Room on disks", heads, all.map(row), NUMBERS);
  }

  function schedules(all) {
    if (!all.length) return el("p", { class: "quiet" }, "There are no schedules.");
    const row = (each) => {
      const going = each.results.filter((result) => result.goes_next);
      const list = (results) =>
        results.map((result) => [el("a", { href: dsort.jobLink(result.job_id) }, result.job_id), " "]);
      return el(
        "tr",
        { data: { schedule: each.schedule } },
        el("th", { scope: "row" }, el("a", { href: dsort.scheduleLink(each.schedule) }, each.schedule)),
        el("td", null, el("code", null, each.output_bucket)),
        number(each.retain ? dsort.count(each.retain, "newest result") : "all results"),
        number(dsort.number(each.results.length)),
        el("td", null, going.length ? list(going) : "nothing"),
      );
    };
    const heads = ["Schedule", "Bucket", "Keeps", "Has", "Goes when the next run has finished"];
    return dsort.figures("What schedules keep", heads, all.map(row), [2, 3]);
  }

  function garbage(buckets, query, signal) {
    const input = el("input", {
      type: "text",
      name: "garbage-bucket",
      list: "known-buckets",
      required: true,
      spellcheck: "false",
      autocomplete: "off",
      value: query.get("bucket") || "",
    });
    const known = el(
      "datalist",
      { id: "known-buckets" },
      buckets.map((each) => el("option", { value: each })),
    );
    const place = el("div", { "aria-live": "polite" });
    const look = async () => {
      const bucket = input.value.trim();
      dsort.put(place, dsort.waiting("Looking …"));
      try {
        const path = `/v1/garbage/${encodeURIComponent(bucket)}`;
        const { garbage: found } = await dsort.api.get(path, null, signal);
        dsort.put(place, left(found, bucket));
      } catch (error) {
        if (signal.aborted) return;
        if (!error.problem) throw error;
        dsort.put(place, dsort.problemBox(error.problem));
      }
    };
    const submit = (event) => {
      event.preventDefault();
      look();
    };
    if (input.value) look();
    return [
      el(
        "form",
        { class: "open-bucket", onsubmit: submit },
        dsort.field("Bucket", input, "as a spec names it"),
        known,
        el("button", { type: "submit" }, "Look"),
      ),
      place,
    ];
  }

  function left(found, bucket) {
    if (!found.length) return el("p", { class: "quiet" }, "Nothing.");
    const row = (each) =>
      el(
        "tr",
        { class: each.is_old ? "" : "quiet" },
        el("th", { scope: "row" }, each.what, el("small", { class: "path" }, each.where)),
        el("td", null, each.kind),
        number(dsort.number(each.objects)),
        number(dsort.bytes(each.size_bytes)),
        number(dsort.duration(each.age_s)),
        el("td", null, each.is_old ? "yes" : "not yet: it is younger than a day"),
        el("td", null, each.resumable ? `yes: dsort resume ${each.job_id}` : "no"),
      );
    const old = found.filter((each) => each.is_old);
    const bytes = old.reduce((sum, each) => sum + each.size_bytes, 0);
    const heads = ["What", "Kind", "Files", "Size", "Age", "Would go", "Can go on"];
    return [
      dsort.figures("What dead jobs left", heads, found.map(row), NUMBERS),
      el(
        "p",
        { class: "quiet" },
        dsort.withCode(
          `Old enough to go: ${dsort.count(old.length, "thing")}, ${dsort.bytes(bytes)}. ` +
            `Nothing is removed here: the command \`dsort gc ${bucket}\` does that.`,
        ),
      ),
    ];
  }
})();
