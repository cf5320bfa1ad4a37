/* The page for a spec: write it, see its problems at once, look at its plan, submit it. */
import { api } from "./api.js";
import { labelledField, noteError, notify, textInput, waiting } from "./dialogs.js";
import { el, put } from "./dom.js";
import { fieldHelp, isJson, problemItems, problemsOf, specEditor, whenItRests } from "./editor.js";
import { countText, specText } from "./format.js";
import { EXAMPLES } from "./examples.js";
import { jobLink, jobPath } from "./links.js";
import { showPlan } from "./plan.js";
import { maySubmit } from "./session.js";

const REST_MS = 300;
const DRAFT = "dsort-draft";

export const submitView = async (root, { query, signal }) => {
  put(root, waiting("Loading the fields of a spec …"));
  const asked = [api.get("/v1/schema", null, signal), firstText(query)];
  const [schema, text] = await Promise.all(asked);
  const form = new SubmitForm(schema, signal);
  form.put(root);
  form.set(text);
};

const typeOf = (text) => (isJson(text) ? "application/json" : "application/yaml");

async function firstText(query) {
  const from = query.get("from");
  if (!from) return sessionStorage.getItem(DRAFT) || EXAMPLES[0][1];
  const job = await api.get(jobPath(from));
  return `${specText(job.spec)}\n`;
}

class SubmitForm {
  constructor(schema, signal) {
    this.signal = signal;
    this.help = fieldHelp(schema);
    this.editor = specEditor({
      id: "spec",
      label: "Spec, JSON or YAML",
      describedby: "spec-state",
      onchange: (text) => this.changed(text),
      oncaret: this.help.show,
    });
    this.status = el("span.state", { role: "status", id: "spec-state" });
    this.problems = el("ul.problems", { "aria-label": "problems of the spec" });
    this.whole = el("pre.text", { tabindex: 0, "aria-label": "spec with every default" });
    this.options = optionFields();
    this.plan = el("div.preview", { "aria-live": "polite" });
    this.preview = this.button("Preview the plan", () => this.showPlan());
    this.submit = this.button("Submit", () => this.send(), "primary");
    this.checkSoon = whenItRests(REST_MS, (text, stop) => this.check(text, stop), signal);
  }

  put(root) {
    const card = (label, ...content) => el("section.card", { "aria-label": label }, content);
    const details = el("details", el("summary", "The spec with every default"), this.whole);
    const examples = exampleChoice((text) => this.set(text, true));
    put(
      root,
      el("div.page-head", el("h1", "Submit a job")),
      !maySubmit() &&
        el(
          "p.quiet",
          "This token may not submit jobs. The page checks specs all the same.",
        ),
      el(
        "div.submit",
        el(
          "div.column",
          card(
            "spec",
            el("div.bar-above", examples, this.status),
            this.editor.element,
            this.problems,
            details,
          ),
          card("options", this.options.element, el("div.buttons", this.submit, this.preview)),
        ),
        card("help", el("h2", "Fields of a spec"), this.help.element),
      ),
      this.plan,
    );
  }

  button(name, work, kind = "") {
    const run = async () => {
      button.disabled = true;
      try {
        await work();
      } catch (error) {
        if (!error.problem) throw error;
        if (error.problem.problems && error.problem.problems.length) this.refused(error);
        else noteError(error);
      } finally {
        button.disabled = !this.valid;
      }
    };
    const button = el("button", { type: "button", class: kind, onclick: run }, name);
    return button;
  }

  /** Put `text` into the editor. `focus`: also put the caret at the beginning of the text. */
  set(text, focus = false) {
    this.editor.set(text);
    this.changed(text);
    if (!focus) return;
    this.editor.area.focus();
    this.editor.area.setSelectionRange(0, 0);
  }

  changed(text) {
    sessionStorage.setItem(DRAFT, text);
    this.key = newKey();
    this.tell(null, "Checking …"); // the present text is not checked yet
    this.checkSoon(text);
  }

  /** `valid`: true, false, or null before the check has ended. */
  tell(valid, words, items) {
    this.valid = valid && maySubmit();
    this.status.className = `state ${valid ? "ok" : valid === false ? "not-ok" : "quiet"}`;
    this.status.textContent = words;
    this.preview.disabled = this.submit.disabled = !this.valid;
    if (items) put(this.problems, items);
  }

  async check(text, stop) {
    try {
      const options = { type: typeOf(text), signal: stop };
      const answer = await api.sendText("POST", "/v1/validate", text, options);
      const warnings = answer.warnings || [];
      const words = warnings.length
        ? `✓ Valid, with ${countText(warnings.length, "warning")}`
        : "✓ Valid";
      this.editor.mark([]);
      this.tell(
        true,
        words,
        warnings.map((warning) => el("li.soft", warning)),
      );
      this.whole.textContent = specText(answer.spec);
    } catch (error) {
      if (stop.aborted) return;
      if (!error.problem) throw error;
      this.refused(error);
    }
  }

  refused(error) {
    const found = problemsOf(error);
    this.editor.mark(found);
    const items = problemItems(this.editor, found);
    this.tell(false, `✕ ${countText(found.length, "problem")}`, items);
    this.whole.textContent = "";
  }

  post(more, key) {
    const text = this.editor.area.value;
    const query = { ...this.options.read(), ...more };
    const options = { type: typeOf(text), query, headers: { "Idempotency-Key": key } };
    return api.sendText("POST", "/v1/jobs", text, options);
  }

  async showPlan() {
    put(this.plan, waiting("Waiting for the plan …"));
    const job = await this.post({ dry_run: "1" }, newKey()); // new inputs, new plan
    await showPlan(job, this.plan, this.signal);
  }

  async send() {
    const job = await this.post({}, this.key); // the same key, so that two clicks make one job
    sessionStorage.removeItem(DRAFT);
    notify(`Submitted as ${job.job_id}.`);
    location.hash = jobLink(job.job_id);
  }
}

function exampleChoice(chosen) {
  const choice = el(
    "select",
    { "aria-label": "Start from an example" },
    el("option", { value: "" }, "Start from an example …"),
    EXAMPLES.map(([name], i) => el("option", { value: i }, name)),
  );
  choice.addEventListener("change", () => {
    if (choice.value !== "") chosen(EXAMPLES[Number(choice.value)][1]);
    choice.value = "";
  });
  return choice;
}

function optionFields() {
  const range = { type: "number", value: 0, min: -1000, max: 1000, step: 1 };
  const priority = textInput("priority", range);
  const labels = textInput("labels", { placeholder: "team-a, nightly" });
  const about = { placeholder: "as the spec says", maxlength: 2000 };
  const description = textInput("description", about);
  const read = () => ({
    priority: Number(priority.value) || "",
    label: [...new Set(labels.value.split(/[\s,]+/).filter(Boolean))],
    description: description.value.trim(),
  });
  const element = el(
    "div.grid-form",
    labelledField("Priority", priority, "higher goes first"),
    labelledField("Labels", labels, "to find it by"),
    labelledField("Description", description),
  );
  return { read, element };
}

function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
