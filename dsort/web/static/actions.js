/* The actions of a job: stop, resume, retry, remove. */
import { api } from "./api.js";
import { ask, notify, workButton } from "./dialogs.js";
import { hasEnded } from "./job.js";
import { jobLink, jobPath } from "./links.js";
import { mayChange, maySubmit } from "./session.js";

const ACTIONS = [
  {
    key: "resume",
    name: "Resume",
    next: true,
    fits: (job) => job.kind === "run" && (job.state === "failed" || job.state === "stopped"),
    may: (job) => mayChange(job.owner),
    run: resume,
  },
  {
    key: "retry",
    name: "Run again",
    fits: (job) => job.kind === "run" && hasEnded(job),
    may: () => maySubmit(),
    run: retry,
  },
  {
    key: "stop",
    name: "Stop",
    fits: (job) => !hasEnded(job) && !job.stopping,
    may: (job) => mayChange(job.owner),
    run: stop,
  },
  {
    key: "delete",
    name: "Remove",
    fits: (job) => hasEnded(job),
    may: (job) => mayChange(job.owner),
    run: remove,
  },
];

const nameOf = (job) => job.description || job.job_id;

async function stop(job) {
  const running = job.state === "running";
  const answer = await ask({
    title: running ? "Stop this job?" : "Take this job out of the queue?",
    text:
      nameOf(job) +
      (running ? ": its unfinished output is removed, and its input stays as it is." : ""),
    fields: [{ name: "reason", label: "Reason (goes into the audit trail)", max: 500 }],
    yes: "Stop the job",
    no: "Let it run",
    danger: true,
  });
  if (!answer) return false;
  await api.post(jobPath(job.job_id, "/stop"), { reason: answer.reason });
  notify(`Stopping ${nameOf(job)}.`);
  return true;
}

async function resume(job) {
  await api.post(jobPath(job.job_id, "/resume"));
  notify(`${nameOf(job)} is resumed.`);
  return true;
}

async function retry(job) {
  const again = await api.post(jobPath(job.job_id, "/retry"));
  notify(`Submitted again as ${again.job_id}, with the same spec and seed.`);
  location.hash = jobLink(again.job_id);
  return true;
}

async function remove(job) {
  const answer = await ask({
    title: "Remove this job from the list?",
    text: `${nameOf(job)}: its history is removed. Its output shards stay where they are.`,
    yes: "Remove it",
    danger: true,
  });
  if (!answer) return false;
  await api.remove(jobPath(job.job_id));
  notify(`Removed ${nameOf(job)}.`);
  return true;
}

/** A button that does `work()` and then `done(key)`, unless `work()` returned false, because the
    reader cancelled it. */
export const actionButton = ({ key, name, of, primary, work, done }) =>
  workButton(name, async () => (await work()) && done(key), {
    class: primary ? "primary" : null,
    data: { action: key },
    "aria-label": `${name}: ${of}`,
  });

/** Buttons for the actions that `job` allows. `done(key)` is called after each action. `whole`: on
    the page of the job, where the most likely button stands out. */
export const jobActions = (job, done, whole = false) =>
  ACTIONS.filter((action) => action.fits(job) && action.may(job)).map(({ key, name, next, run }) =>
    actionButton({
      key,
      name,
      of: nameOf(job),
      primary: whole && next,
      work: () => run(job),
      done,
    }),
  );
