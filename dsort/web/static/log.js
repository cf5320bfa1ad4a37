/* The log of a job: new lines are loaded, and added at the end. */
import { api } from "./api.js";
import { searchInput } from "./dialogs.js";
import { debounce, el } from "./dom.js";
import { countText } from "./format.js";
import { jobPath } from "./links.js";

const LOG_MS = 500;
const LINES_MAX = 20000;

/** {element, changed(), open()}: `changed` is called when there may be new lines. */
export const logCard = (jobId, signal) => {
  const text = el("pre.text.log", { tabindex: 0, "aria-label": "log" });
  const follows = el("input", { type: "checkbox", checked: true });
  const search = searchInput("Part of a line", "Only lines of the log that contain this");
  const said = el("span.quiet", { role: "status" });
  const details = el(
    "details",
    el(
      "summary",
      el("h2", { id: "part-log" }, "Log"),
      el("span", "events, and the lines that the job's process wrote"),
    ),
    el("div.bar-above", search, el("label.check", follows, "Follow the end"), said),
    text,
  );
  let [lines, after, asking] = [[], 0, false];
  const fits = (line) => line.toLowerCase().includes(search.value.trim().toLowerCase());
  const draw = (from = 0) => {
    if (!from) text.textContent = "";
    text.append(lines.slice(from).filter(fits).join(""));
    if (!lines.length) text.textContent = "Nothing so far.";
    said.textContent = search.value ? countText(lines.filter(fits).length, "line") : "";
    if (follows.checked) text.scrollTop = text.scrollHeight;
  };
  const load = async () => {
    if (asking) return; // the next event loads again
    asking = true;
    try {
      const path = `${jobPath(jobId, "/log")}?after=${after}`;
      const [more, last] = await api.textAndHeader(path, "Dsort-Last-Event", signal);
      const from = lines.length;
      lines = lines.concat(more.match(/.*\n/g) || []).slice(-LINES_MAX);
      after = Number(last) || after;
      if (more || !from) draw(lines.length < LINES_MAX ? from : 0);
    } catch (error) {
      if (error.problem) said.textContent = error.message;
    } finally {
      asking = false;
    }
  };
  search.addEventListener("input", () => draw());
  follows.addEventListener("change", () => draw());
  details.addEventListener("toggle", () => details.open && load());
  const changed = debounce(LOG_MS, () => details.open && !signal.aborted && load());
  const element = el("section.card.part-log", { "aria-labelledby": "part-log" }, details);
  return { element, changed, open: () => (details.open = true) };
};
