/* Questions and short messages: dialogs, fields of forms, notes in the corner. */
import { el, withCode } from "./dom.js";
import { ownTerms, problemBox } from "./problems.js";

const NOTE_MS = 7000;

/** An input with its label, and its descriptions: a line of help, and a place for the problem. */
export const labelledField = (label, input, help, wrong) => {
  input.id ||= `field-${input.name}`;
  const about = help && el("small", { id: `${input.id}-help` }, help);
  const described = [about, wrong].filter(Boolean).map(({ id }) => id);
  if (described.length) input.setAttribute("aria-describedby", described.join(" "));
  return el("div.field", el("label", { for: input.id }, label), input, about, wrong);
};

/** A field for text that no browser completes. */
export const textInput = (name, more) =>
  el("input", { type: "text", name, autocomplete: "off", spellcheck: "false", ...more });

/** A field that narrows a list. */
export const searchInput = (placeholder, label, more) =>
  textInput(null, { type: "search", placeholder, "aria-label": label, ...more });

/** Show `dialog` above the page. When the dialog is closed, it is removed from the page. */
export const showDialog = (dialog) => {
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
};

/** Ask with a modal dialog. Resolves to null if the reader dismissed the dialog, else to the texts
    of `fields`: {name: text}. `danger`: after "yes", the action cannot be undone. */
export const ask = ({ title, text, fields = [], yes = "OK", danger = false, no = "Cancel" }) =>
  new Promise((resolve) => {
    let answer = null;
    const inputs = fields.map(({ name, type = "text", required, max }) =>
      textInput(name, { type, required, maxlength: max }),
    );
    const submit = (event) => {
      event.preventDefault();
      answer = Object.fromEntries(fields.map(({ name }, i) => [name, inputs[i].value.trim()]));
      dialog.close();
    };
    const dialog = el(
      "dialog",
      { "aria-labelledby": "dialog-title" },
      el(
        "form",
        { onsubmit: submit },
        el("h2", { id: "dialog-title" }, title),
        text && el("p", withCode(text)),
        fields.map(({ label }, i) => labelledField(label, inputs[i])),
        el(
          "div.buttons",
          el("button", { type: "button", onclick: () => dialog.close() }, no),
          el("button", { type: "submit", class: danger ? "danger" : "primary" }, yes),
        ),
      ),
    );
    dialog.addEventListener("close", () => resolve(answer));
    showDialog(dialog);
  });

/** A short message in the corner. It disappears after a time; errors stay until they are closed. */
export const notify = (text, kind = "info") => {
  const close = { type: "button", class: "plain", "aria-label": "close" };
  const note = el(
    "div",
    { class: `note note-${kind}` },
    el("p", text),
    el("button", { ...close, onclick: () => note.remove() }, "✕"),
  );
  document.getElementById("notes").append(note);
  if (kind !== "error") setTimeout(() => note.remove(), NOTE_MS);
};

/** Show the error of a request in the corner. */
export const noteError = (error) => {
  if (error.name === "AbortError") return;
  if (!error.problem) throw error;
  const { detail, hint } = error.problem;
  const words = [detail || error.message, hint].filter(Boolean).map(ownTerms);
  notify(words.join(" → "), "error");
};

/** `waiting`: a line about something that is being loaded. `problemPage`: a problem in place of a
    page. */
export const waiting = (text) => el("p.quiet.waiting", { role: "status" }, text);
export const problemPage = (error) => {
  if (!error.problem) throw error;
  return el(
    "div.lonely",
    el("h1", error.problem.title || "Failed"),
    problemBox(error.problem, { titled: false }),
    el("p", el("a", { href: "#/jobs" }, "All jobs")),
  );
};

/** A button that does `work()`, is disabled meanwhile, and shows errors. */
export const workButton = (name, work, more = {}) => {
  const run = async () => {
    button.disabled = true;
    try {
      await work();
    } catch (error) {
      noteError(error);
    } finally {
      button.disabled = false;
    }
  };
  const button = el("button", { type: "button", ...more, onclick: run }, name);
  return button;
};

/** The place of a page: links to the pages above it. */
export const crumbs = (...links) =>
  el(
    "nav.crumbs",
    { "aria-label": "where this is" },
    links.map(([name, href], i) => [i > 0 && " / ", el("a", { href }, i ? name : `← ${name}`)]),
  );

/** Save a blob as a file of this name. */
export const saveBlob = (blob, name) => {
  const url = URL.createObjectURL(blob);
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
};

let reachable = true;

/** Show whether the service answers. */
export const showConnection = (answers) => {
  if (answers === reachable) return;
  reachable = answers;
  const chip = document.getElementById("connection");
  chip.hidden = answers;
  chip.textContent = answers ? "" : "No answer, trying again";
};
