/* A text field for specs, with line numbers, and problems marked at their lines. */
import { searchInput } from "./dialogs.js";
import { el } from "./dom.js";
import { ownTerms } from "./problems.js";

export const isJson = (text) => /^\s*[{[]/.test(text);

/** The line (from 0) on which the field with the dotted path is, or null. The text may be
    incomplete, so the search is for names, without a parser. */
export const lineOfField = (text, path) => {
  const lines = text.split("\n");
  let at = 0;
  let found = null;
  for (const part of path.split(/[.[\]]+/).filter((each) => each && !/^\d+$/.test(each))) {
    const name = part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const key = new RegExp(`(^|[\\s{,"'-])["']?${name}["']?\\s*:`);
    const next = lines.findIndex((line, i) => i >= at && key.test(line));
    if (next < 0) break;
    found = at = next;
  }
  return found;
};

/* The line of a problem: the line of its field, or the line at which the parser stopped. */
function lineOf(text, problem) {
  if (problem.path) return lineOfField(text, problem.path);
  const [, line] = /\bline (\d+), column \d+/.exec(problem.message) || [];
  return line && line <= text.split("\n").length ? line - 1 : null;
}

/** The name of the field on the line of `offset`, or "". */
export const fieldAt = (text, offset) => {
  const line = text.slice(text.lastIndexOf("\n", offset - 1) + 1).split("\n")[0];
  const match = /^[\s{,-]*["']?([A-Za-z_]+)["']?\s*:/.exec(line);
  return match ? match[1] : "";
};

/** `{element, area, set(text), mark(problems), goTo(line)}`; `onchange(text)` while typing,
    `oncaret(field)`. */
export const specEditor = ({ id, label, value = "", describedby, onchange, oncaret }) => {
  const area = el("textarea", {
    id,
    "aria-label": label,
    "aria-describedby": describedby,
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "off",
    wrap: "off",
  });
  const gutter = el("div.gutter", { "aria-hidden": "true" });
  const wrong = new Set();
  const number = () => {
    const count = area.value.split("\n").length;
    gutter.replaceChildren(
      ...Array.from({ length: count }, (_, i) =>
        el("span", { class: wrong.has(i) ? "wrong" : "" }, i + 1),
      ),
    );
    gutter.scrollTop = area.scrollTop;
  };
  area.addEventListener("input", () => {
    number();
    onchange(area.value);
  });
  area.addEventListener("scroll", () => (gutter.scrollTop = area.scrollTop));
  const caret = () => oncaret && oncaret(fieldAt(area.value, area.selectionStart));
  area.addEventListener("keyup", caret);
  area.addEventListener("click", caret);

  const editor = { element: el("div.editor", gutter, area), area };
  editor.set = (text) => {
    area.value = text;
    wrong.clear();
    number();
  };
  editor.mark = (problems) => {
    wrong.clear();
    for (const problem of problems) {
      const line = lineOf(area.value, problem);
      if (line !== null) wrong.add(line);
    }
    area.setAttribute("aria-invalid", String(problems.length > 0));
    number();
  };
  editor.goTo = (line) => {
    const before = area.value.split("\n").slice(0, line);
    const start = before.join("\n").length + (line ? 1 : 0);
    area.focus();
    area.setSelectionRange(start, start + area.value.split("\n")[line].length);
    area.scrollTop = Math.max(0, line * 20 - area.clientHeight / 2);
    caret();
  };
  editor.set(value);
  return editor;
};

/** Problems of a spec as a list; each leads to its line of `editor`. */
export const problemItems = (editor, problems) =>
  problems.map((problem) => {
    const line = lineOf(editor.area.value, problem);
    return el(
      "li",
      problem.path && [el("code", problem.path), ": "],
      ownTerms(problem.message),
      line !== null &&
        el(
          "button",
          {
            type: "button",
            "aria-label": `Go to line ${line + 1}`,
            onclick: () => editor.goTo(line),
          },
          `line ${line + 1}`,
        ),
      problem.hint && el("span.hint", ownTerms(problem.hint)),
    );
  });

/** The problems in an error: all problems of a spec, or the error itself as one problem. */
export const problemsOf = (error) => {
  const { problem } = error;
  if (problem.problems && problem.problems.length) return problem.problems;
  return [{ path: "", message: problem.detail || problem.title, hint: problem.hint }];
};

/** Call `check(text, signal)` when typing has paused for `ms`. A newer text aborts the earlier
    check. */
export const whenItRests = (ms, check, leave) => {
  let timer = 0;
  let running = null;
  return (text) => {
    clearTimeout(timer);
    running?.abort();
    timer = setTimeout(async () => {
      if (leave.aborted) return;
      running = new AbortController();
      const { signal } = running;
      try {
        await check(text, signal);
      } catch (error) {
        if (error.name !== "AbortError" && !signal.aborted) throw error;
      }
    }, ms);
  };
};

/** The descriptions of a spec's fields, from the JSON Schema: a list with a search, with the field
    of the caret's line on top. */
export const fieldHelp = (schema) => {
  const fields = fieldsOf(schema, schema, "");
  const items = fields.map((field) => ({ field, element: helpItem(field) }));
  const list = el(
    "div.help",
    items.map((item) => item.element),
  );
  const search = searchInput("Find a field", "Find a field");
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    for (const { field, element } of items)
      element.hidden =
        Boolean(wanted) && !`${field.path} ${field.description}`.toLowerCase().includes(wanted);
  });
  const show = (name) => {
    const item = items.find(({ field }) => field.name === name);
    for (const { element } of items) element.classList.remove("now");
    if (!item || search.value) return;
    for (const { element } of items) element.open = element === item.element;
    item.element.classList.add("now");
    list.scrollTop = item.element.offsetTop - list.offsetTop;
  };
  return { element: el("div", search, list), show };
};

function fieldsOf(schema, root, before) {
  const found = [];
  for (const [name, given] of Object.entries(schema.properties || {})) {
    const choices = [given, ...(given.anyOf || []), ...(given.allOf || [])].map((each) =>
      each.$ref ? { ...root.$defs[each.$ref.split("/").pop()], ...each } : each,
    );
    const types = [...new Set(choices.flatMap((each) => each.enum || each.type || []))].filter(
      (type) => type !== "null",
    );
    const example = (given.examples || []).map((each) => JSON.stringify(each)).join(" or ");
    found.push({
      name,
      path: before + name,
      types,
      default: given.default,
      example,
      required: (schema.required || []).includes(name),
      description: given.description || choices.map((each) => each.description).find(Boolean) || "",
    });
    const inner = choices.find((each) => each.properties && each.title);
    if (inner && !before) found.push(...fieldsOf(inner, root, `${name}.`));
  }
  return found;
}

function helpItem(field) {
  const preset =
    field.default !== undefined && field.default !== null && typeof field.default !== "object"
      ? `default ${JSON.stringify(field.default)}`
      : "";
  const facts = [field.types.join(" | "), field.required ? "required" : preset]
    .filter(Boolean)
    .join(" · ");
  return el(
    "details",
    el("summary", el("code", field.path), el("span.quiet", facts)),
    el("p", field.description),
    field.example && el("p.quiet", "For example ", el("code", field.example)),
  );
}
