"use strict";
/* What a reader may do with a job: stop, resume, retry, remove. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;

  /** Whether whoever looks may change what `owner` owns. */
  dsort.mayChange = (owner) => {
    const who = dsort.who;
    return (
      Boolean(who) && (who.role === "admin" || (who.role === "submitter" && who.name === owner))
    );
  };
  dsort.maySubmit = () => Boolean(dsort.who) && dsort.who.role !== "viewer";

  const ACTIONS = [
    {
      key: "stop",
      name: "Stop",
      danger: true,
      fits: (job) => !dsort.ended(job) && !job.stopping,
      may: (job) => dsort.mayChange(job.owner),
      run: stop,
    },
    {
      key: "resume",
      name: "Resume",
      fits: (job) => job.kind === "run" && (job.state === "failed" || job.state === "stopped"),
      may: (job) => dsort.mayChange(job.owner),
      run: resume,
    },
    {
      key: "retry",
      name: "Run again",
      fits: (job) => job.kind === "run" && dsort.ended(job),
      may: () => dsort.maySubmit(),
      run: retry,
    },
    {
      key: "delete",
      name: "Remove",
      danger: true,
      fits: (job) => dsort.ended(job),
      may: (job) => dsort.mayChange(job.owner),
      run: remove,
    },
  ];

  const name = (job) => job.description || job.job_id;

  async function stop(job) {
    const running = job.state === "running";
    const answer = await dsort.ask({
      title: running ? "Stop this job?" : "Take this job out of the queue?",
      text:
        name(job) +
        (running ? ": nothing of its output will be left, and its input stays as it is." : ""),
      fields: [{ name: "reason", label: "Reason (goes into the audit trail)", max: 500 }],
      yes: "Stop the job",
      no: "Let it run",
      danger: true,
    });
    if (!answer) return false;
    await dsort.api.post(dsort.jobPath(job.job_id, "/stop"), { reason: answer.reason });
    dsort.note(`Stopping ${name(job)}.`);
    return true;
  }

  async function resume(job) {
    await dsort.api.post(dsort.jobPath(job.job_id, "/resume"));
    dsort.note(`${name(job)} is resumed.`);
    return true;
  }

  async function retry(job) {
    const again = await dsort.api.post(dsort.jobPath(job.job_id, "/retry"));
    dsort.note(`Submitted again as ${again.job_id}, with the same spec and seed.`);
    location.hash = dsort.jobLink(again.job_id);
    return true;
  }

  async function remove(job) {
    const answer = await dsort.ask({
      title: "Remove this job from the list?",
      text: `${name(job)}: its history goes. The shards it wrote stay where they are.`,
      yes: "Remove it",
      danger: true,
    });
    if (!answer) return false;
    await dsort.api.remove(dsort.jobPath(job.job_id));
    dsort.note(`Removed ${name(job)}.`);
    return true;
  }

  /** A button that does `work()` and then `done(key)`, unless that was called off (false). */
  dsort.actionButton = ({ key, name, of, danger, work, done }) => {
    const run = async () => {
      button.disabled = true;
      try {
        if (await work()) await done(key);
      } catch (error) {
        dsort.noteError(error);
      } finally {
        button.disabled = false;
      }
    };
    const button = el(
      "button",
      {
        type: "button",
        class: danger ? "danger" : "",
        data: { action: key },
        "aria-label": `${name}: ${of}`,
        onclick: run,
      },
      name,
    );
    return button;
  };

  /** Buttons for what may be done with `job`; `done(key)` is called after each. */
  dsort.jobActions = (job, done) =>
    ACTIONS.filter((action) => action.fits(job) && action.may(job)).map((action) =>
      dsort.actionButton({ ...action, of: name(job), work: () => action.run(job), done }),
    );
})();
