/* Questions and short messages: dialogs, fields of forms, notes in the corner. */
import { el, withCode } from "./dom.js";
import { ownTerms, problemBox } from "./problems.js";

const NOTE_MS = 7000;

/** An input with its label, and what describes it: a line of help, a place for what is wrong. */
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

/** Show `dialog` above all else; it goes from the page once it is closed. */
export const showDialog = (dialog) => {
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
};

/** Ask with a modal dialog. Answers null if it was dismissed, else what `fields` hold:
    {name: text}. `danger`: what is answered "yes" to cannot be undone. */
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

/** A short message in the corner; it goes by itself, errors stay until they are closed. */
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

/** Tell of an error of a request. */
export const noteError = (error) => {
  if (error.name === "AbortError") return;
  if (!error.problem) throw error;
  const { detail, hint } = error.problem;
  const words = [detail || error.message, hint].filter(Boolean).map(ownTerms);
  notify(words.join(" → "), "error");
};

/** A line about something that is being fetched, or a problem instead of a page. */
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

/** A button that does `work()`; it cannot be pressed meanwhile, and errors are shown. */
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

/** Where a page is: links to what it is in. */
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
