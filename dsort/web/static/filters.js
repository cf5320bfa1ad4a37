/* The filters of the list of jobs. */
import { searchInput } from "./dialogs.js";
import { el, put } from "./dom.js";
import { scheduleName } from "./schedule_words.js";

const REST_MS = 250;
const STATES = ["", "queued", "running", "finished", "failed", "stopped"];
const FIELDS = [
  ["text", "Id or description", "Jobs whose id begins with this, or whose description contains it"],
  ["owner", "Owner", "Only jobs of this owner"],
  ["label", "Label", "Only jobs with this label"],
];

/** The bar of filters: {element, draw()}. `changed({name: value})` is called for each change. */
export const jobFilters = (filter, changed) => {
  const states = STATES.map((state) =>
    el(
      "button",
      { type: "button", data: { state }, onclick: () => changed({ state }) },
      state || "all",
    ),
  );
  const inputs = FIELDS.map(([name, label, help]) => textFilter(name, label, help, changed));
  const plans = el("input", { type: "checkbox", name: "plans" });
  plans.addEventListener("change", () => changed({ kind: plans.checked ? "" : "run" }));
  const schedule = el("span.filter-schedule");
  const draw = () => {
    for (const button of states) {
      button.setAttribute("aria-pressed", String(filter.state === button.dataset.state));
    }
    for (const input of inputs) {
      if (document.activeElement !== input) input.value = filter[input.name];
    }
    plans.checked = filter.kind !== "run";
    schedule.hidden = !filter.schedule;
    put(
      schedule,
      "of ",
      filter.schedule && scheduleName(filter.schedule),
      removing("jobs of all schedules", () => changed({ schedule: "" })),
    );
  };
  draw();
  const segments = el("div.segments", { role: "group", "aria-label": "state" }, states);
  const check = el("label.check", plans, "Show plans");
  return { draw, element: el("search.filters", segments, inputs, check, schedule) };
};

function textFilter(name, label, help, changed) {
  let timer = 0;
  const input = searchInput(label, help, { name });
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => changed({ [name]: input.value.trim() }), REST_MS);
  });
  return input;
}

const removing = (label, onclick) =>
  el("button", { type: "button", class: "plain", "aria-label": label, onclick }, "✕");
