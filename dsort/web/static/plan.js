/* The plan of a job. A plan is a job that writes nothing: the page waits for its end, then shows
   its report. */
import { api, follow } from "./api.js";
import { el, put } from "./dom.js";
import { hasEnded, renderJob } from "./job.js";
import { jobLink, jobPath } from "./links.js";

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

/** Show the plan `job` in `place` when it has ended, and its progress until then. */
export const showPlan = async (job, place, signal) => {
  const body = el("div");
  const link = el("a", { href: jobLink(job.job_id) }, job.job_id);
  put(place, el("h2.plan-title", "Plan ", link), body);
  let now = job;
  const drawing = renderJob(body, { ...NOTHING_YET, job }, { parts: PARTS });
  place.scrollIntoView({ block: "start", behavior: "smooth" });
  const hear = (kind, data) => {
    if (kind === "progress") now = { ...now, state: "running", progress: data };
    else if (kind === "state") now = { ...now, state: data.state };
    else return;
    drawing.update({ ...NOTHING_YET, job: now });
  };
  if (!hasEnded(job)) await follow(jobPath(job.job_id, "/events"), hear, signal);
  if (signal.aborted) return;
  drawing.update(await api.get(jobPath(job.job_id, "/page"), null, signal));
};
