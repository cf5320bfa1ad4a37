"use strict";
/* What data there is: buckets, the shards of one, and some of its records at random. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const REST_MS = 250;
  const PAGE = 100;
  const WANTED = 10; // random records, from so many shards:
  const SHARDS_DRAWN = 5;

  dsort.views = dsort.views || {};

  dsort.bucketLink = (bucket) => `#/data/${encodeURIComponent(bucket)}`;
  dsort.shardLink = (bucket, shard, more = {}) =>
    `${dsort.bucketLink(bucket)}?${new URLSearchParams({ shard, ...more })}`;

  dsort.views.data = async (root, { signal }) => {
    dsort.put(root, dsort.waiting("Asking for the buckets …"));
    const { buckets: names } = await dsort.api.get("/v1/listings", null, signal);
    const address = el("input", {
      type: "text",
      name: "bucket",
      required: true,
      spellcheck: "false",
      autocomplete: "off",
      placeholder: "s3://training-data/train",
    });
    const open = (event) => {
      event.preventDefault();
      location.hash = dsort.bucketLink(address.value.trim());
    };
    dsort.put(
      root,
      el("div", { class: "page-head" }, el("h1", null, "Data")),
      el(
        "form",
        { class: "card open-bucket", onsubmit: open },
        dsort.field("Open a bucket", address, "as a spec names it"),
        el("button", { type: "submit" }, "Open"),
      ),
      el(
        "section",
        { class: "card", "aria-label": "buckets" },
        el("h2", null, "Buckets that this token may read"),
        names.length
          ? el(
              "ul",
              { class: "buckets" },
              names.map((name) => el("li", null, el("a", { href: dsort.bucketLink(name) }, name))),
            )
          : note("None is known by name: open one by its address."),
      ),
    );
  };

  const note = (text) => el("p", { class: "quiet" }, text);

  dsort.views.bucket = async (root, { name: bucket, query, signal }) => {
    const shard = query.get("shard");
    if (shard) return dsort.showShard(root, { bucket, shard, query, signal });
    const list = new ShardList(bucket, query.get("text") || "", signal);
    list.put(root);
    await list.look();
  };

  class ShardList {
    constructor(bucket, text, signal) {
      Object.assign(this, { bucket, text, signal, cursor: "" });
      this.body = el("tbody");
      this.table = el(
        "table",
        { class: "figures shard-list", hidden: true },
        el("caption", { class: "sr" }, "Shards"),
        el(
          "thead",
          null,
          el(
            "tr",
            null,
            el("th", { scope: "col" }, "Shard"),
            el("th", { scope: "col", class: "num" }, "Size"),
            el("th", { scope: "col", class: "num" }, "Records"),
          ),
        ),
        this.body,
      );
      this.said = el("p", { class: "quiet", role: "status" });
      this.more = el("button", { type: "button", hidden: true }, "More shards");
      this.more.addEventListener("click", () => this.look().catch(dsort.noteError));
      this.search = el("input", {
        type: "search",
        placeholder: "Part of a name",
        "aria-label": "Only shards with this in their names",
        autocomplete: "off",
        spellcheck: "false",
        value: text,
      });
      const soon = dsort.whenItRests(REST_MS, (wanted) => this.find(wanted), signal);
      this.search.addEventListener("input", () => soon(this.search.value.trim()));
      this.drawn = dsort.randomRecords({ bucket, draw: (seed) => this.draw(seed), signal });
    }

    put(root) {
      dsort.put(
        root,
        dsort.crumbs([["Data", "#/data"]]),
        el("div", { class: "page-head" }, el("h1", null, this.bucket), this.drawn.button),
        this.drawn.place,
        el("search", { class: "filters" }, this.search, this.said),
        el("section", { class: "card", "aria-label": "shards" }, this.table, this.more),
      );
    }

    find(text) {
      Object.assign(this, { text, cursor: "" });
      this.body.replaceChildren();
      const query = text ? `?${new URLSearchParams({ text })}` : "";
      history.replaceState(null, "", `${dsort.bucketLink(this.bucket)}${query}`);
      return this.look().catch(dsort.noteError);
    }

    async look() {
      const { text, cursor, bucket } = this;
      this.said.textContent = "Looking …";
      const wanted = { text, cursor, limit: PAGE };
      const page = await dsort.api.get(dsort.dataPath("shards", bucket), wanted, this.signal);
      if (text !== this.text || cursor !== this.cursor) return;
      this.body.append(...page.shards.map((shard) => this.row(shard)));
      this.cursor = page.next_cursor || "";
      this.more.hidden = !this.cursor;
      const count = this.body.children.length;
      this.table.hidden = count === 0;
      const rest = this.cursor ? " so far" : "";
      this.said.textContent = count || rest ? `${dsort.count(count, "shard")}${rest}` : "No shards.";
    }

    row({ name, size_bytes: size, records }) {
      return el(
        "tr",
        { data: { shard: name } },
        el("th", { scope: "row" }, el("a", { href: dsort.shardLink(this.bucket, name) }, name)),
        el("td", { class: "num" }, dsort.bytes(size)),
        el("td", { class: "num" }, records === null ? "–" : dsort.number(records)),
      );
    }

    /** Some records of some shards. */
    async draw(seed) {
      const { bucket, signal } = this;
      const asked = { random: SHARDS_DRAWN, seed };
      const { shards } = await dsort.api.get(dsort.dataPath("shards", bucket), asked, signal);
      const each = Math.ceil(WANTED / Math.max(shards.length, 1));
      const found = [];
      for (const { name } of shards) {
        const path = dsort.dataPath("samples", bucket, name);
        const { records } = await dsort.api.get(path, { random: each, seed }, signal);
        found.push(...records.map((record) => [record, name]));
      }
      return found.slice(0, WANTED);
    }
  }

  /** Where a page is: links to what it is in. */
  dsort.crumbs = (links) =>
    el(
      "nav",
      { class: "crumbs", "aria-label": "where this is" },
      links.map(([name, href], i) => [i > 0 && " / ", el("a", { href }, i ? name : `← ${name}`)]),
    );

  /** `{button, place}`: ten random records, others each time. `draw(seed)` gives [[record, shard]]. */
  dsort.randomRecords = ({ bucket, draw, signal }) => {
    const place = el("div", { class: "drawn", "aria-live": "polite" });
    const run = async () => {
      button.disabled = true;
      dsort.put(place, dsort.waiting("Drawing records …"));
      try {
        const found = await draw(String(Math.random()).slice(2, 12));
        dsort.put(
          place,
          el(
            "section",
            { class: "card", "aria-label": "random records" },
            el("h2", null, dsort.count(found.length, "random record")),
            el(
              "div",
              { class: "records" },
              found.map(([record, shard]) => dsort.recordCard(record, { bucket, shard })),
            ),
          ),
        );
      } catch (error) {
        if (signal.aborted) return;
        dsort.put(place, error.problem ? dsort.problemBox(error.problem) : null);
        if (!error.problem) throw error;
      } finally {
        button.disabled = false;
        button.textContent = "Ten others";
      }
    };
    const button = el("button", { type: "button", onclick: run }, "Ten random records");
    return { button, place };
  };
})();
