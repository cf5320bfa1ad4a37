"use strict";
/* Write a spec, see at once what is wrong with it, look at its plan, submit it. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const REST_MS = 300;
  const DRAFT = "dsort-draft";

  dsort.views = dsort.views || {};

  dsort.views.submit = async (root, { query, signal }) => {
    dsort.put(root, dsort.waiting("Asking for the fields of a spec …"));
    const asked = [dsort.api.get("/v1/schema", null, signal), firstText(query)];
    const [schema, text] = await Promise.all(asked);
    const form = new SubmitForm(schema, signal);
    form.put(root);
    form.set(text);
  };

  const typeOf = (text) => (dsort.isJson(text) ? "application/json" : "application/yaml");

  async function firstText(query) {
    const from = query.get("from");
    if (!from) return sessionStorage.getItem(DRAFT) || dsort.EXAMPLES[0][1];
    const job = await dsort.api.get(dsort.jobPath(from));
    return `${dsort.specText(job.spec)}\n`;
  }

  class SubmitForm {
    constructor(schema, signal) {
      this.signal = signal;
      this.help = dsort.fieldHelp(schema);
      this.editor = dsort.specEditor({
        id: "spec",
        label: "Spec, JSON or YAML",
        describedby: "spec-state",
        onchange: (text) => this.changed(text),
        oncaret: this.help.show,
      });
      this.status = el("span", { class: "state", role: "status", id: "spec-state" });
      this.problems = el("ul", { class: "problems", "aria-label": "problems of the spec" });
      this.whole = el("pre", {
        class: "text",
        tabindex: 0,
        "aria-label": "spec with every default",
      });
      this.options = optionFields();
      this.plan = el("div", { class: "preview", "aria-live": "polite" });
      this.preview = this.button("Preview the plan", () => this.showPlan());
      this.submit = this.button("Submit", () => this.send(), "primary");
      this.checkSoon = dsort.whenItRests(REST_MS, (text, stop) => this.check(text, stop), signal);
    }

    put(root) {
      const card = (label, ...content) =>
        el("section", { class: "card", "aria-label": label }, content);
      const details = el(
        "details",
        null,
        el("summary", null, "The spec with every default"),
        this.whole,
      );
      const examples = exampleChoice((text) => this.set(text, true));
      dsort.put(
        root,
        el("div", { class: "page-head" }, el("h1", null, "Submit a job")),
        !dsort.maySubmit() &&
          el(
            "p",
            { class: "quiet" },
            "This token may look, but not submit: specs can be checked here all the same.",
          ),
        el(
          "div",
          { class: "submit" },
          el(
            "div",
            { class: "column" },
            card(
              "spec",
              el("div", { class: "bar-above" }, examples, this.status),
              this.editor.element,
              this.problems,
              details,
            ),
            card(
              "options",
              this.options.element,
              el("div", { class: "buttons submit-buttons" }, this.submit, this.preview),
            ),
          ),
          card("help", el("h2", null, "Fields of a spec"), this.help.element),
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
          else dsort.noteError(error);
        } finally {
          button.disabled = !this.valid;
        }
      };
      const button = el("button", { type: "button", class: kind, onclick: run }, name);
      return button;
    }

    /** Put `text` into the editor; `focus`: and the caret at its beginning. */
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
      this.tell(null, "Checking …"); // what is there now has not been looked at
      this.checkSoon(text);
    }

    /** `valid`: true, false, or null while nobody knows. */
    tell(valid, words, items) {
      this.valid = valid && dsort.maySubmit();
      this.status.className = `state ${valid ? "ok" : valid === false ? "not-ok" : "quiet"}`;
      this.status.textContent = words;
      this.preview.disabled = this.submit.disabled = !this.valid;
      if (items) dsort.put(this.problems, items);
    }

    async check(text, stop) {
      try {
        const options = { type: typeOf(text), signal: stop };
        const answer = await dsort.api.sendText("POST", "/v1/validate", text, options);
        const warnings = answer.warnings || [];
        const words = warnings.length
          ? `✓ Valid, with ${dsort.count(warnings.length, "warning")}`
          : "✓ Valid";
        this.editor.mark([]);
        this.tell(
          true,
          words,
          warnings.map((warning) => el("li", { class: "soft" }, warning)),
        );
        this.whole.textContent = dsort.specText(answer.spec);
      } catch (error) {
        if (stop.aborted) return;
        if (!error.problem) throw error;
        this.refused(error);
      }
    }

    refused(error) {
      const found = dsort.problemsOf(error);
      this.editor.mark(found);
      const items = dsort.problemItems(this.editor, found);
      this.tell(false, `✕ ${dsort.count(found.length, "problem")}`, items);
      this.whole.textContent = "";
    }

    post(more, key) {
      const text = this.editor.area.value;
      const query = { ...this.options.read(), ...more };
      const options = { type: typeOf(text), query, headers: { "Idempotency-Key": key } };
      return dsort.api.sendText("POST", "/v1/jobs", text, options);
    }

    async showPlan() {
      dsort.put(this.plan, dsort.waiting("Waiting for the plan …"));
      const job = await this.post({ dry_run: "1" }, newKey()); // inputs may have changed since
      await dsort.showPlan(job, this.plan, this.signal);
    }

    async send() {
      const job = await this.post({}, this.key); // pressed twice, it is one job
      sessionStorage.removeItem(DRAFT);
      dsort.note(`Submitted as ${job.job_id}.`);
      location.hash = dsort.jobLink(job.job_id);
    }
  }

  function exampleChoice(chosen) {
    const choice = el(
      "select",
      { "aria-label": "Start from an example" },
      el("option", { value: "" }, "Start from an example …"),
      dsort.EXAMPLES.map(([name], i) => el("option", { value: i }, name)),
    );
    choice.addEventListener("change", () => {
      if (choice.value !== "") chosen(dsort.EXAMPLES[Number(choice.value)][1]);
      choice.value = "";
    });
    return choice;
  }

  function optionFields() {
    const input = (name, more) =>
      el("input", { type: "text", name, autocomplete: "off", spellcheck: "false", ...more });
    const priority = input("priority", {
      type: "number",
      value: 0,
      min: -1000,
      max: 1000,
      step: 1,
    });
    const labels = input("labels", { placeholder: "team-a, nightly" });
    const description = input("description", { placeholder: "as the spec says", maxlength: 2000 });
    const read = () => ({
      priority: Number(priority.value) || "",
      label: [...new Set(labels.value.split(/[\s,]+/).filter(Boolean))],
      description: description.value.trim(),
    });
    const element = el(
      "div",
      { class: "grid-form" },
      dsort.field("Priority", priority, "higher goes first"),
      dsort.field("Labels", labels, "to find it by"),
      dsort.field("Description", description),
    );
    return { read, element };
  }

  function newKey() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }
})();
