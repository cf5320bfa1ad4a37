/* The columns of the list of jobs, and the sort by each column. */
import { el } from "./dom.js";
import { secondsBetween } from "./format.js";

/** How long a job took, or takes so far, in seconds; null before it runs. */
export const listSeconds = ({ state, started_at: from, ended_at: to }) =>
  from && (to || state === "running") ? Math.max(0, secondsBetween(from, to)) : null;

/** {bytes, records} of a job's input, as far as its phases have reported them. */
export const jobSize = (job) => {
  const told = Object.fromEntries((job.phases || []).map((phase) => [phase.phase, phase]));
  const { resolve, extract } = told;
  return { bytes: resolve?.bytes || extract?.bytes || null, records: extract?.records || null };
};

const byText = (key) => (a, b) => key(a).localeCompare(key(b), "en", { numeric: true });
const byNumber = (key) => (a, b) => (key(a) ?? -1) - (key(b) ?? -1);
const STATES = ["running", "queued", "failed", "stopped", "finished"];

/* Columns: name, class of the cells, and comparison; `down`: the first sort has the greatest on
   top. */
const COLUMNS = [
  { name: "Job", key: "job", compare: byText((job) => job.description || job.job_id) },
  { name: "State", key: "state", compare: byNumber((job) => STATES.indexOf(job.state)) },
  { name: "Datasets", key: "data", compare: byText((job) => job.input_uri + job.output_uri) },
  { name: "Size", key: "size", down: true, compare: byNumber((job) => jobSize(job).bytes) },
  { name: "Time", key: "time", down: true, compare: byNumber(listSeconds) },
  { name: "Owner", key: "owner", compare: byText((job) => job.owner || "") },
  { name: "Submitted", key: "age", down: true, compare: byText((job) => job.created_at || "") },
  { name: "Actions" },
];

/** Jobs in the order of `sort`: a column's key, with "-" before it for the greatest first;
    otherwise newest first, as received. */
export const sortedJobs = (jobs, sort) => {
  const column = COLUMNS.find(({ key }) => key && key === sort.replace("-", ""));
  if (!column) return jobs;
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...jobs].sort((a, b) => sign * column.compare(a, b));
};

/** The head of the list: {element, draw(sort)}; `sortBy(sort)` is called when the reader chooses a
    sort. */
export const jobHeads = (sortBy) => {
  let current = "";
  const next = ({ key, down }) => {
    const turns = down ? [`-${key}`, key, ""] : [key, `-${key}`, ""];
    return turns[(turns.indexOf(current) + 1) % turns.length];
  };
  const heads = COLUMNS.map((column) => {
    const { key, name } = column;
    const onclick = () => sortBy(next(column));
    const content = key ? el("button", { type: "button", class: "plain", onclick }, name) : name;
    const kind = key ? (["size", "time"].includes(key) ? "num" : "") : "sr-head";
    return el("th", { scope: "col", class: kind }, content);
  });
  const draw = (sort) => {
    current = sort;
    COLUMNS.forEach(({ key }, i) => {
      if (key && sort.replace("-", "") === key)
        heads[i].setAttribute("aria-sort", sort.startsWith("-") ? "descending" : "ascending");
      else heads[i].removeAttribute("aria-sort");
    });
  };
  return { element: el("thead", el("tr", heads)), draw };
};
