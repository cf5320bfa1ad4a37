/* The form that makes or changes a schedule. */
import { api } from "./api.js";
import { labelledField, notify, textInput } from "./dialogs.js";
import { el, put } from "./dom.js";
import { problemItems, problemsOf, specEditor, whenItRests } from "./editor.js";
import { specText } from "./format.js";
import { schedulePath } from "./links.js";
import { nextTimes } from "./schedule_words.js";

const SPEC = `input_bck: samples
output_bck: nightly
output_format: "{{date}}/shuffled-%06d"
output_shard_size: 64MB
algorithm:
  kind: shuffle
  seed: "{{run_id}}"
`;
const PLACEHOLDERS =
  "In names, prefixes, seed and description, {{date}} is the date of the run, {{run_id}} its " +
  "due time, and {{epoch}} the number of earlier jobs.";
const CATCH_UP = { none: "make no job", last: "make a job for the last run" };
const OVERLAP = {
  skip: "skip the new job",
  replace: "stop the earlier job",
};
const TIMING = ["cron", "every", "timezone", "start_at", "end_at"];
const REST_MS = 300;
const FIELDS = [
  ["name", "Name", { placeholder: "nightly-shuffle" }],
  [
    "cron",
    "Cron expression",
    { placeholder: "0 2 * * *" },
    "minute, hour, day, month, day of the week; or:",
  ],
  ["every", "Every", { placeholder: "6h, 1d, 90m" }, "instead of a cron expression"],
  ["timezone", "Time zone", { list: "zones" }],
  ["catch_up", "Runs that were missed", CATCH_UP],
  ["overlap", "While an earlier job runs", OVERLAP],
  [
    "retain",
    "Results to keep",
    { inputmode: "numeric", placeholder: "all" },
    "older outputs of this schedule are removed; inputs never",
  ],
  ["latest", "Prefix of latest.json", { placeholder: "beside the output" }, "“no” for none"],
  ["start_at", "Not before", { placeholder: "2026-12-01T00:00" }],
  ["end_at", "Not after", { placeholder: "never" }],
  ["priority", "Priority", { inputmode: "numeric" }],
  ["labels", "Labels", { placeholder: "nightly, team-a" }],
  ["description", "Description", {}],
];

/** Draw the form into `place`. `from`: the definition to begin with; `replaces`: the name of the
    schedule that is changed; `saved(name)` and `cancel()` are called at the end. */
export const scheduleForm = (place, options) => new ScheduleForm(options).put(place);

/** A definition as the fields show it. */
function shownValues(from) {
  const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const latest = from.latest ?? true;
  return {
    ...from,
    cron: from.cron ?? (from.every ? "" : "0 2 * * *"),
    timezone: from.timezone || here || "UTC",
    catch_up: from.catch_up || "last",
    overlap: from.overlap || "skip",
    latest: latest === true ? "" : latest || "no",
    priority: from.priority ?? 0,
    labels: (from.labels || []).join(", "),
  };
}

/* JSON is YAML, too, so the fields and a spec in JSON or YAML make one YAML document. */
function asYaml(definition, spec) {
  const lines = spec.trimEnd().replaceAll("\t", "  ").split("\n");
  const fields = Object.entries(definition).map(
    ([name, value]) => `${name}: ${JSON.stringify(value)}`,
  );
  return `${["spec:", ...lines.map((line) => `  ${line}`), ...fields].join("\n")}\n`;
}

/* A problem of the spec with the path and line that it has in the editor, where the spec is not
   below `spec:` and not indented. */
function ofSpec(problem) {
  const message = problem.message.replace(
    /\bline (\d+), column (\d+)/,
    (_, line, column) => `line ${line - 1}, column ${Math.max(1, column - 2)}`,
  );
  return { ...problem, message, path: (problem.path || "").replace(/^spec\.?/, "") };
}

class ScheduleForm {
  constructor({ from, replaces, signal, saved, cancel }) {
    Object.assign(this, { from, replaces, signal, saved, cancel });
    const values = shownValues(from);
    this.inputs = {};
    this.wrong = {};
    this.fields = FIELDS.map(([name, label, kind, help]) => {
      this.inputs[name] = this.input(name, kind, values[name]);
      this.wrong[name] = el("span.wrong", { id: `wrong-${name}` });
      this.inputs[name].addEventListener("input", () => this.tell(name, ""));
      return labelledField(label, this.inputs[name], help, this.wrong[name]);
    });
    this.paused = el("input", { type: "checkbox", name: "paused" });
    this.paused.checked = Boolean(from.paused);
    this.editor = specEditor({
      id: "schedule-spec",
      label: "Spec of its jobs, JSON or YAML",
      onchange: () => {},
    });
    this.editor.set(from.spec ? `${specText(from.spec)}\n` : SPEC);
    this.rest = el("ul.problems", { role: "alert" });
    this.coming = el("div", { "aria-live": "polite" });
    this.look = whenItRests(REST_MS, (_, wanted) => this.showNext(wanted), this.signal);
    for (const name of TIMING) this.inputs[name].addEventListener("input", () => this.look());
    this.oneOf("cron", "every");
    this.oneOf("every", "cron");
  }

  input(name, kind, value) {
    if (kind === CATCH_UP || kind === OVERLAP) {
      const option = ([key, words]) => el("option", { value: key, selected: key === value }, words);
      return el("select", { name }, Object.entries(kind).map(option));
    }
    const readonly = name === "name" && Boolean(this.replaces);
    return textInput(name, { value: value ?? "", readonly, ...kind });
  }

  /** Show a problem beside its field; the text disappears when the reader changes the field. */
  tell(name, words) {
    this.wrong[name].textContent = words;
    this.wrong[name].parentElement.classList.toggle("bad-field", Boolean(words));
  }

  /* A schedule has either `cron` or `every`: a text in one field empties the other. */
  oneOf(written, other) {
    this.inputs[written].addEventListener("input", () => {
      if (this.value(written)) this.inputs[other].value = "";
    });
  }

  put(place) {
    const zones = Intl.supportedValuesOf ? Intl.supportedValuesOf("timeZone") : [];
    const title = this.replaces ? "Change the schedule" : "A new schedule";
    put(
      place,
      el(
        "form.card.schedule-form",
        { onsubmit: (event) => this.save(event), novalidate: true, "aria-label": title },
        el("h2", title),
        el(
          "datalist",
          { id: "zones" },
          ["UTC", ...zones].map((zone) => el("option", { value: zone })),
        ),
        el(
          "div.grid-form",
          this.fields,
          el("div.field.next-times", el("span", "Next runs"), this.coming),
          el("label.check", this.paused, "Paused"),
          el(
            "div.field.whole",
            el("span", "Spec of its jobs (JSON or YAML)"),
            el("small", PLACEHOLDERS),
            this.editor.element,
            this.rest,
          ),
        ),
        el(
          "div.buttons",
          el("button", { type: "submit", class: "primary" }, this.replaces ? "Save" : "Add"),
          el("button", { type: "button", onclick: this.cancel }, "Cancel"),
        ),
      ),
    );
    this.inputs[this.replaces ? "cron" : "name"].focus();
    this.look();
  }

  /** Show when the schedule would be due. Errors are shown only when the schedule is saved. */
  async showNext(signal) {
    let shown = el("span.quiet", "–");
    try {
      const asked = { type: "application/json", signal };
      const path = schedulePath("next-times");
      shown = nextTimes(await api.sendText("POST", path, JSON.stringify(this.timing()), asked), 5);
    } catch (error) {
      if (!error.problem) throw error;
    }
    if (!signal.aborted) put(this.coming, shown);
  }

  timing() {
    const given = TIMING.map((name) => [name, this.value(name)]).filter(([, text]) => text);
    return Object.fromEntries(given);
  }

  value(name) {
    return this.inputs[name].value.trim();
  }

  /** The definition without its spec. The service checks it. */
  read() {
    const latest = this.value("latest");
    const definition = {
      name: this.value("name"),
      timezone: this.value("timezone") || "UTC",
      catch_up: this.value("catch_up"),
      overlap: this.value("overlap"),
      paused: this.paused.checked,
      labels: this.value("labels")
        .split(/[\s,]+/)
        .filter(Boolean),
      latest: latest === "no" ? false : latest || true,
    };
    for (const name of ["on_success", "on_failure"]) {
      if (this.from[name]) definition[name] = this.from[name]; // fields that the form does not show
    }
    for (const name of ["cron", "every", "start_at", "end_at", "description"]) {
      if (this.value(name)) definition[name] = this.value(name);
    }
    for (const name of ["retain", "priority"]) {
      const text = this.value(name);
      if (text) definition[name] = /^-?\d+$/.test(text) ? Number(text) : text;
    }
    return definition;
  }

  async save(event) {
    event.preventDefault();
    const definition = this.read();
    const text = asYaml(definition, this.editor.area.value);
    const [method, path] = this.replaces
      ? ["PUT", schedulePath(this.replaces)]
      : ["POST", "/v1/schedules"];
    try {
      const answer = await api.sendText(method, path, text, { type: "application/yaml" });
      for (const warning of answer.warnings || []) notify(warning);
    } catch (error) {
      if (!error.problem) throw error;
      if (!this.signal.aborted) this.show(problemsOf(error));
      return;
    }
    notify(this.replaces ? `Changed ${definition.name}.` : `Added ${definition.name}.`);
    this.saved(definition.name);
  }

  /** Show each problem beside its field, and problems of the spec at their lines. */
  show(problems) {
    const rest = [];
    const found = {};
    for (const problem of problems) {
      const [name] = (problem.path || "").split(/[.[]/);
      const words = problem.hint ? `${problem.message} (${problem.hint})` : problem.message;
      if (name in this.wrong) found[name] = [...(found[name] || []), words];
      else rest.push(ofSpec(problem));
    }
    for (const name of Object.keys(this.wrong)) this.tell(name, (found[name] || []).join(" "));
    this.editor.mark(rest);
    put(this.rest, problemItems(this.editor, rest));
    Object.keys(found)
      .slice(0, 1)
      .forEach((name) => this.inputs[name].focus());
  }
}
