"use strict";
/* Questions and short messages: confirm, sign in, notes in the corner. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const NOTE_MS = 7000;

  /** An input with its label, and what describes it: a line of help, a place for what is wrong. */
  dsort.field = (label, input, help, wrong) => {
    const described = [];
    input.id ||= `field-${input.name}`;
    const about = help && el("small", { id: `${input.id}-help` }, help);
    for (const each of [about, wrong]) if (each) described.push(each.id);
    if (described.length) input.setAttribute("aria-describedby", described.join(" "));
    return el(
      "div",
      { class: "field" },
      el("label", { for: input.id }, label),
      input,
      about,
      wrong,
    );
  };

  /** Ask with a modal dialog. Answers null if it was dismissed, else what `fields` hold:
      {name: text}. */
  dsort.ask = ({ title, text, fields = [], yes = "OK", danger = false, no = "Cancel" }) =>
    new Promise((resolve) => {
      let answer = null;
      const inputs = fields.map((field) =>
        el("input", {
          name: field.name,
          type: field.type || "text",
          autocomplete: "off",
          spellcheck: "false",
          required: field.required,
          maxlength: field.max,
        }),
      );
      const submit = (event) => {
        event.preventDefault();
        answer = Object.fromEntries(fields.map((field, i) => [field.name, inputs[i].value.trim()]));
        dialog.close();
      };
      const dialog = el(
        "dialog",
        { "aria-labelledby": "dialog-title" },
        el(
          "form",
          { onsubmit: submit },
          el("h2", { id: "dialog-title" }, title),
          text && el("p", null, dsort.withCode(text)),
          fields.map((field, i) => dsort.field(field.label, inputs[i])),
          el(
            "div",
            { class: "buttons" },
            no && el("button", { type: "button", onclick: () => dialog.close() }, no),
            el("button", { type: "submit", class: danger ? "danger" : "primary" }, yes),
          ),
        ),
      );
      dialog.addEventListener("close", () => {
        dialog.remove();
        resolve(answer);
      });
      document.body.append(dialog);
      dialog.showModal();
    });

  let asking = null; // one dialog, however many requests were refused at once
  let declined = false; // then nothing asks again until the reader wants to sign in

  /** Ask for the token; true if one was given. `wanted`: the reader asked for the dialog. */
  dsort.askToken = (hadOne, wanted = false) => {
    if (declined && !wanted) return Promise.resolve(false);
    asking ??= dsort
      .ask({
        title: "Sign in",
        text:
          (hadOne ? "The service does not know this token, or it has expired. " : "") +
          "This service asks for a token, as `dsort token add` gives it. " +
          "It is kept for this tab only.",
        fields: [{ name: "token", label: "Token", type: "password", required: true }],
        yes: "Sign in",
      })
      .then(async (answer) => {
        asking = null;
        declined = !answer;
        if (declined) return false;
        dsort.setToken(answer.token);
        await dsort.learnWho();
        return true;
      });
    return asking;
  };

  /** A short message in the corner; it goes by itself, errors stay until they are closed. */
  dsort.note = (text, kind = "info") => {
    const note = el(
      "div",
      { class: `note note-${kind}` },
      el("p", null, text),
      el(
        "button",
        { type: "button", class: "plain", "aria-label": "close", onclick: () => note.remove() },
        "✕",
      ),
    );
    document.getElementById("notes").append(note);
    if (kind !== "error") setTimeout(() => note.remove(), NOTE_MS);
  };

  /** Tell of an error of a request. */
  dsort.noteError = (error) => {
    if (error.name === "AbortError") return;
    if (!error.problem) throw error;
    const { detail, hint } = error.problem;
    const words = [detail || error.message, hint].filter(Boolean).map(dsort.ownTerms);
    dsort.note(words.join(" → "), "error");
  };

  /** A line about something that is being fetched, or a problem instead of a page. */
  dsort.waiting = (text) => el("p", { class: "quiet waiting", role: "status" }, text);
  dsort.problemPage = (error) => {
    if (!error.problem) throw error;
    return el(
      "div",
      { class: "lonely" },
      dsort.problemBox(error.problem),
      el("p", null, el("a", { href: "#/jobs" }, "All jobs")),
    );
  };

  let reachable = true;

  /** Show whether the service answers. */
  dsort.showConnection = (answers) => {
    if (answers === reachable) return;
    reachable = answers;
    const chip = document.getElementById("connection");
    chip.hidden = answers;
    chip.textContent = answers ? "" : "No answer, trying again";
  };
})();
