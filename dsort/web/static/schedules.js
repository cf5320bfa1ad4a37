"use strict";
/* The list of schedules. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const LOOK_MS = 5000;
  const MINUTE_MS = 60000;
  const HEADS = ["Schedule", "When", "Next runs", "Last run", "Actions"];

  dsort.views = dsort.views || {};

  dsort.views.schedules = async (root, { query, signal }) => {
    const list = new ScheduleList(signal);
    list.put(root);
    const from = query.get("from");
    if (from && dsort.maySubmit()) {
      const job = await dsort.api.get(dsort.jobPath(from), null, signal);
      list.add({ spec: withFreshSeed(job.spec), labels: job.labels });
    }
    await dsort.every(LOOK_MS, () => list.look(), signal);
  };

  /** A job's own seed would give the same order each time. */
  function withFreshSeed(spec) {
    if (!spec.algorithm || spec.algorithm.kind !== "shuffle") return spec;
    return { ...spec, algorithm: { ...spec.algorithm, seed: "{{run_id}}" } };
  }

  class ScheduleList {
    constructor(signal) {
      this.signal = signal;
      this.body = el("tbody");
      this.table = el(
        "table",
        { class: "schedules cards", hidden: true },
        el("caption", { class: "sr" }, "Schedules"),
        dsort.tableHead(HEADS),
        this.body,
      );
      this.empty = el("div", { class: "empty" }, dsort.waiting("Asking for the schedules …"));
      this.form = el("div");
      const add = () => this.add({});
      this.opener = el(
        "button",
        { type: "button", class: "primary", onclick: add },
        "Add a schedule",
      );
    }

    put(root) {
      const opener = dsort.maySubmit() && this.opener;
      dsort.put(
        root,
        el("div", { class: "page-head" }, el("h1", null, "Schedules"), opener),
        this.form,
        el("div", { class: "card list" }, this.table, this.empty),
      );
    }

    /** Show the form for a new one, beginning with what `from` says. */
    add(from) {
      this.opener.hidden = true;
      const cancel = () => {
        dsort.put(this.form);
        this.opener.hidden = false;
        this.opener.focus();
      };
      const saved = (name) => (location.hash = dsort.scheduleLink(name));
      dsort.scheduleForm(this.form, { from, signal: this.signal, cancel, saved });
    }

    /** Ask for the schedules, and show them. */
    async look() {
      try {
        const { schedules } = await dsort.api.get("/v1/schedules", null, this.signal);
        if (!this.signal.aborted) this.draw(schedules);
      } catch (error) {
        if (this.signal.aborted || error instanceof dsort.Unreachable) return;
        dsort.put(this.empty, dsort.problemPage(error));
      }
    }

    draw(schedules) {
      const drawn = JSON.stringify([schedules, Math.floor(Date.now() / MINUTE_MS)]);
      if (this.drawn === drawn) return; // focus and selection stay
      this.drawn = drawn;
      const { schedule, action } = this.focused();
      dsort.put(
        this.body,
        schedules.map((each) => row(each, () => this.look())),
      );
      const again = [...this.body.children].find((line) => line.dataset.schedule === schedule);
      again?.querySelector(`[data-action="${action}"]`)?.focus();
      this.table.hidden = schedules.length === 0;
      dsort.put(this.empty, schedules.length === 0 && el("p", null, "No schedules yet."));
    }

    /** The schedule and the action that have the focus, if any have. */
    focused() {
      const here = document.activeElement;
      if (!this.body.contains(here)) return {};
      return { ...here.closest("tr").dataset, ...here.dataset };
    }
  }

  function row(schedule, look) {
    const labels = (schedule.labels || []).map((label) => el("span", { class: "label" }, label));
    return el(
      "tr",
      { data: { schedule: schedule.name } },
      el(
        "th",
        { scope: "row" },
        el("a", { href: dsort.scheduleLink(schedule.name) }, schedule.name),
        el("small", null, schedule.description),
        el("small", null, schedule.owner, " ", labels),
      ),
      el("td", null, dsort.scheduleWhen(schedule)),
      el("td", { class: "whole" }, dsort.nextTimes(schedule, 3)),
      el("td", { class: "last" }, dsort.lastRun(schedule.last_run)),
      el(
        "td",
        { class: "act" },
        el("div", { class: "buttons" }, dsort.scheduleActions(schedule, look)),
      ),
    );
  }
})();
