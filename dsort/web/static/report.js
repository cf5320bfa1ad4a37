/* The report of one job, as one file: the document is in the page itself. */
import { fromJson } from "./dom.js";
import { renderJob } from "./job.js";

const page = fromJson(document.getElementById("job-page").textContent);
document.title = `${page.title || page.job.job_id} · dsort`;
renderJob(document.getElementById("report"), page, { partLink: (key) => `#part-${key}` });
