"use strict";
/* What narrows the list of jobs. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const REST_MS = 250;
  const STATES = ["", "queued", "running", "finished", "failed", "stopped"];
  const FIELDS = [
    [
      "text",
      "Id or description",
      "Only jobs whose id begins with this, or whose description has it",
    ],
    ["owner", "Owner", "Only jobs of this owner"],
    ["label", "Label", "Only jobs with this label"],
  ];

  /** The bar of filters: {element, draw()}. `changed({name: value})` is called for each change. */
  dsort.jobFilters = (filter, changed) => {
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
    const schedule = el("span", { class: "chip" });
    const draw = () => {
      for (const button of states) {
        button.setAttribute("aria-pressed", String(filter.state === button.dataset.state));
      }
      for (const input of inputs) {
        if (document.activeElement !== input) input.value = filter[input.name];
      }
      plans.checked = filter.kind !== "run";
      schedule.hidden = !filter.schedule;
      dsort.put(
        schedule,
        `schedule ${filter.schedule}`,
        removing("jobs of all schedules", () => changed({ schedule: "" })),
      );
    };
    draw();
    const segments = el("div", { class: "segments", role: "group", "aria-label": "state" }, states);
    const check = el("label", { class: "check" }, plans, "Show plans");
    return { draw, element: el("search", { class: "filters" }, segments, inputs, check, schedule) };
  };

  function textFilter(name, label, help, changed) {
    let timer = 0;
    const input = el("input", {
      type: "search",
      name,
      placeholder: label,
      "aria-label": help,
      autocomplete: "off",
      spellcheck: "false",
    });
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => changed({ [name]: input.value.trim() }), REST_MS);
    });
    return input;
  }

  const removing = (label, onclick) =>
    el("button", { type: "button", class: "plain", "aria-label": label, onclick }, "✕");
})();
