"use strict";
/* What a job would do: a plan is a job that writes nothing; it is waited for, and then shown. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const PARTS = ["error", "progress", "tiles", "mixing", "warnings", "outputs", "shards"];
  const NOTHING_YET = {
    title: "",
    phases: [],
    timeline: [],
    inputs: {},
    shards: { total: 0, rows: [] },
    warnings: [],
    mixing: null,
  };

  /** Show the plan `job` in `place` once it is there, and how far it is until then. */
  dsort.showPlan = async (job, place, signal) => {
    const body = el("div");
    const link = el("a", { href: dsort.jobLink(job.job_id) }, job.job_id);
    dsort.put(place, el("h2", { class: "plan-title" }, "Plan ", link), body);
    let now = job;
    const drawing = dsort.renderJob(body, { ...NOTHING_YET, job }, { parts: PARTS });
    place.scrollIntoView({ block: "start", behavior: "smooth" });
    const hear = (kind, data) => {
      if (kind === "progress") now = { ...now, state: "running", progress: data };
      else if (kind === "state") now = { ...now, state: data.state };
      else return;
      drawing.update({ ...NOTHING_YET, job: now });
    };
    if (!dsort.ended(job)) await dsort.follow(dsort.jobPath(job.job_id, "/events"), hear, signal);
    if (signal.aborted) return;
    drawing.update(await dsort.api.get(dsort.jobPath(job.job_id, "/page"), null, signal));
  };
})();
