"use strict";
/* The records of one shard: listed, and one of them shown. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const REST_MS = 250;
  const PAGE = 50;
  const WANTED = 10;
  const MEMBERS_NAMED = 6;

  /** Show a shard in `root`; with `record` in the query that record, too. */
  dsort.showShard = async (root, { bucket, shard, query, signal }) => {
    const list = new RecordList(root, bucket, shard, signal);
    await list.look();
    const number = query.get("record");
    if (number !== null) await list.show(Number(number));
  };

  class RecordList {
    constructor(root, bucket, shard, signal) {
      Object.assign(this, { bucket, shard, signal, first: 0, text: "", earlier: [] });
      this.body = el("tbody");
      this.said = el("span", { class: "quiet", role: "status" });
      this.search = el("input", {
        type: "search",
        placeholder: "Part of a key",
        "aria-label": "Only records with this in their keys",
        autocomplete: "off",
        spellcheck: "false",
      });
      const find = (text) => this.move({ text, first: 0, earlier: [] });
      const soon = dsort.whenItRests(REST_MS, find, signal);
      this.search.addEventListener("input", () => soon(this.search.value.trim()));
      this.pager = el("nav", { class: "pager", "aria-label": "more records" });
      this.one = el("div", { class: "one", "aria-live": "polite" });
      const draw = async (seed) => {
        const { records } = await this.samples({ random: WANTED, seed });
        return records.map((record) => [record, shard]);
      };
      this.drawn = dsort.randomRecords({ bucket, draw, signal });
      this.put(root);
    }

    put(root) {
      const { bucket, shard } = this;
      dsort.put(
        root,
        dsort.crumbs([
          ["Data", "#/data"],
          [bucket, dsort.bucketLink(bucket)],
        ]),
        el("div", { class: "page-head" }, el("h1", null, shard), this.drawn.button),
        this.drawn.place,
        this.one,
        el("search", { class: "filters" }, this.search, this.said),
        el(
          "section",
          { class: "card", "aria-label": "records" },
          el(
            "div",
            { class: "scroll", tabindex: 0, role: "region", "aria-label": "records of the shard" },
            el(
              "table",
              { class: "figures record-list" },
              el("caption", { class: "sr" }, "Records"),
              el(
                "thead",
                null,
                el(
                  "tr",
                  null,
                  el("th", { scope: "col", class: "num" }, "Number"),
                  el("th", { scope: "col" }, "Key"),
                  el("th", { scope: "col" }, "Members"),
                  el("th", { scope: "col", class: "num" }, "Size"),
                ),
              ),
              this.body,
            ),
          ),
          this.pager,
        ),
      );
    }

    samples(query) {
      return dsort.api.get(dsort.dataPath("samples", this.bucket, this.shard), query, this.signal);
    }

    move(to) {
      Object.assign(this, to);
      return this.look().catch(dsort.noteError);
    }

    async look() {
      const { first, text } = this;
      this.said.textContent = "Looking …";
      const path = dsort.dataPath("records", this.bucket, this.shard);
      const page = await dsort.api.get(path, { first, text, limit: PAGE }, this.signal);
      if (first !== this.first || text !== this.text) return;
      dsort.put(
        this.body,
        page.records.map((record) => this.row(record)),
      );
      const whole = dsort.count(page.total, "record");
      this.said.textContent = text && !page.records.length ? `None of ${whole}.` : whole;
      const next = page.next_number;
      const back = () => this.move({ first: this.earlier.pop() });
      const on = () => this.move({ first: next, earlier: [...this.earlier, first] });
      const none = { type: "button", disabled: !this.earlier.length, onclick: back };
      this.pager.hidden = next === null && !this.earlier.length;
      dsort.put(
        this.pager,
        el("button", none, "← Before"),
        el("button", { type: "button", disabled: next === null, onclick: on }, "Next →"),
      );
    }

    row(record) {
      const { number, key, members } = record;
      const open = (event) => {
        event.preventDefault();
        this.show(number).catch(dsort.noteError);
      };
      const href = dsort.shardLink(this.bucket, this.shard, { record: number });
      const left = record.members_total - Math.min(members.length, MEMBERS_NAMED);
      return el(
        "tr",
        { data: { record: number } },
        el("td", { class: "num" }, dsort.number(number)),
        el("th", { scope: "row" }, el("a", { href, onclick: open }, key || "(empty)")),
        el(
          "td",
          null,
          members
            .slice(0, MEMBERS_NAMED)
            .map((each) =>
              el(
                "span",
                { class: "label", title: each.name },
                `${each.extension || each.name} ${dsort.bytes(each.size_bytes)}`,
              ),
            ),
          left > 0 && el("span", { class: "quiet" }, `and ${dsort.number(left)} more`),
        ),
        el("td", { class: "num" }, dsort.bytes(record.size_bytes)),
      );
    }

    /** Show one record above the list. */
    async show(number) {
      const { bucket, shard } = this;
      history.replaceState(null, "", dsort.shardLink(bucket, shard, { record: number }));
      dsort.put(this.one, dsort.waiting("Asking for the record …"));
      try {
        const { records, total } = await this.samples({ number });
        const step = (to, words) =>
          el(
            "button",
            {
              type: "button",
              class: "small",
              disabled: to < 0 || to >= total,
              onclick: () => this.show(to).catch(dsort.noteError),
            },
            words,
          );
        const buttons = el(
          "span",
          { class: "buttons" },
          step(number - 1, "← Before"),
          step(number + 1, "Next →"),
        );
        dsort.put(
          this.one,
          el(
            "section",
            { class: "card", "aria-label": "record" },
            dsort.recordCard(records[0], { bucket, shard }, buttons),
          ),
        );
        this.one.scrollIntoView({ block: "nearest" });
      } catch (error) {
        if (!error.problem) throw error;
        dsort.put(this.one, dsort.problemBox(error.problem));
      }
    }
  }
})();
