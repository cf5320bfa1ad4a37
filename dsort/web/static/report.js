"use strict";
/* The report of one job, as one file: the document is in the page itself. */
(() => {
  const page = JSON.parse(document.getElementById("job-page").textContent);
  document.title = `${page.title || page.job.job_id} · dsort`;
  const partLink = (key) => `#part-${key}`;
  window.dsort.renderJob(document.getElementById("report"), page, { partLink });
})();
