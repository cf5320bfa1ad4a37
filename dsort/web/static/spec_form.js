"use strict";
/* A spec as a form, made of its JSON Schema. The form holds no spec of its own: each change is
   written into the text, and what is wrong is said at the field. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const GROUPS = [
    ["What goes in", true, ["description", "input_bck", "input_format", "input_extension"]],
    ["Order", true, ["algorithm"]],
    [
      "What comes out",
      true,
      [
        "output_bck",
        "output_format",
        "output_extension",
        "output_shard_size",
        "output_shard_records",
        "output_shard_count",
        "outputs",
        "split",
        "index",
      ],
    ],
    ["Changes to records", false, ["transform", "deduplicate"]],
    [
      "Where something is odd",
      false,
      [
        "missing_shards",
        "corrupt_shards",
        "incomplete_shards",
        "concatenated_shards",
        "duplicate_keys",
        "stray_members",
        "unsafe_names",
        "require",
      ],
    ],
    ["A map of keys to outputs", false, ["ekm", "ekm_file", "ekm_file_sep", "ekm_default"]],
    ["Safety", false, ["verify", "overwrite", "remove_stale", "lineage"]],
  ];
  const HELP_MAX = 160;
  const REST = "Everything else";
  const UNFOLDED = new Set(["algorithm", "input_format"]); // their fields have fields of their own
  const BESIDE = new Set(["dry_run", "Config"]); // a button does it; AIStore's

  /** `{element, set(spec), mark(problems), goTo(path)}`; `onchange(spec)` for each change;
      `onfield(name)` when a field gets the focus. */
  dsort.specForm = ({ schema, onchange, onfield }) => {
    const form = new SpecForm(schema, onchange, onfield);
    return form;
  };

  class SpecForm {
    constructor(schema, onchange, onfield) {
      Object.assign(this, { schema, onchange, onfield, spec: {} });
      this.fields = new Map(); // by dotted path
      this.element = el("div", { class: "spec-form" }, this.groups());
    }

    groups() {
      const known = new Set(GROUPS.flatMap(([, , names]) => names));
      const { properties } = this.schema;
      const rest = Object.keys(properties).filter((name) => !known.has(name) && !BESIDE.has(name));
      return [...GROUPS, [REST, false, rest]].map(([title, open, names]) =>
        el(
          "details",
          { class: "group", open },
          el("summary", null, el("h3", null, title)),
          el(
            "div",
            { class: "grid-form" },
            names
              .filter((name) => properties[name])
              .map((name) => this.field([name], properties[name])),
          ),
        ),
      );
    }

    field(path, given) {
      const shapes = shapesOf(given, this.schema);
      const inner = shapes.find((shape) => shape.properties);
      if (path.length === 1 && UNFOLDED.has(path[0]) && inner) {
        const parts = Object.entries(inner.properties);
        return el(
          "fieldset",
          { class: "whole grid-form" },
          el("legend", null, path[0]),
          parts.map(([name, each]) => this.field([...path, name], each)),
        );
      }
      const key = path.join(".");
      const input = inputFor(shapes, given, `form-${path.join("-")}`);
      const wrong = el("small", { class: "wrong", id: `${input.id}-wrong`, role: "alert" });
      const heard = input.tagName === "SELECT" ? "change" : "input";
      const field = { path, input, wrong, shapes, folded: input.tagName === "TEXTAREA" };
      field.kinds = /^Of ([^:]+):/.exec(given.description || "")?.[1] || "";
      input.addEventListener(heard, () => this.changed(field));
      input.addEventListener("focus", () => this.onfield(path[0]));
      this.fields.set(key, field);
      const help = brief(given.description || shapes.map((each) => each.description).find(Boolean));
      const whole = dsort.field(path[path.length - 1], input, help, wrong);
      if (field.folded) whole.classList.add("whole");
      field.element = whole;
      return whole;
    }

    /** Hide what the algorithm does not ask for: its fields say of which kind they are. */
    drawKinds() {
      const { spec, fields, schema } = this;
      const preset = schema.$defs.Algorithm?.properties.kind.default;
      const kind = valueAt(spec, ["algorithm", "kind"]) || preset || "";
      for (const { path, kinds, input, element } of fields.values()) {
        if (path[0] === "algorithm" && kinds)
          element.hidden = !kinds.includes(kind) && input.value === "";
      }
    }

    /** Show this spec. */
    set(spec) {
      this.spec = structuredClone(spec);
      for (const field of this.fields.values()) {
        write(field, valueAt(this.spec, field.path));
        say(field, "");
        if (field.input.value !== "") field.input.closest("details").open = true;
      }
      this.drawKinds();
    }

    changed(field) {
      const found = read(field);
      say(field, found.wrong || "");
      if (found.wrong) return;
      put(this.spec, field.path, found.value);
      this.drawKinds();
      this.onchange(this.spec);
    }

    /** Say at each field what is wrong with it. */
    mark(problems) {
      const said = new Map();
      for (const problem of problems) {
        const field = this.at(problem.path);
        if (!field) continue;
        const words = [problem.message, problem.hint].filter(Boolean).map(dsort.ownTerms);
        said.set(field, [said.get(field), words.join(" → ")].filter(Boolean).join("; "));
      }
      for (const field of this.fields.values())
        say(field, said.get(field) || read(field).wrong || ""); // what cannot be read was not sent
    }

    /** The field that a problem is about: the nearest that there is. */
    at(path) {
      const parts = String(path || "").split(/[.[\]]+/).filter(Boolean);
      for (let count = parts.length; count; count -= 1) {
        const found = this.fields.get(parts.slice(0, count).join("."));
        if (found) return found;
      }
      const first = [...this.fields.values()].find((field) => field.path[0] === parts[0]);
      return first || null;
    }

    /** Bring the field of a problem into view. */
    goTo(path) {
      const field = this.at(path);
      if (!field) return;
      field.element.hidden = false;
      field.input.closest("details").open = true;
      field.input.focus();
    }
  }

  function shapesOf(given, root) {
    const all = [given, ...(given.anyOf || []), ...(given.allOf || [])];
    return all.map((each) =>
      each.$ref ? { ...root.$defs[each.$ref.split("/").pop()], ...each } : each,
    );
  }

  /** The first sentence. */
  function brief(text) {
    const [first] = (text || "").split(/(?<=[^.]{5}\.) (?=[A-Z])/);
    return first.length > HELP_MAX ? `${first.slice(0, HELP_MAX)}…` : first;
  }

  const typesOf = (shapes) => new Set(shapes.map((shape) => shape.type).filter(Boolean));

  function inputFor(shapes, given, id) {
    const types = typesOf(shapes);
    const choices = shapes.flatMap((shape) => shape.enum || []).filter((each) => each !== null);
    const preset = given.default;
    const words = preset === undefined || preset === null || typeof preset === "object" ? "" : preset;
    const example = (given.examples || [])[0];
    if (choices.length && !types.has("array")) return choice(id, choices, words);
    if (types.has("boolean") && !types.has("string")) return choice(id, ["true", "false"], words);
    const fields = shapes.some((shape) => shape.properties || shape.type === "object");
    const number = types.has("integer") && !types.has("string") && !fields;
    const plain = types.has("string") || types.has("integer");
    const shown = words === "" && example !== undefined ? example : words;
    const placeholder = typeof shown === "object" ? JSON.stringify(shown) : String(shown);
    const more = { id, name: id, placeholder, autocomplete: "off", spellcheck: "false" };
    if (plain) return el("input", { type: number ? "number" : "text", ...more });
    return el("textarea", { rows: 2, class: "json", ...more });
  }

  const choice = (id, choices, preset) =>
    el(
      "select",
      { id, name: id },
      el("option", { value: "" }, preset === "" ? "–" : `– (${preset})`),
      choices.map((each) => el("option", { value: each }, String(each))),
    );

  /** What a field says: {value}, undefined where it is empty, or {wrong}. */
  function read({ input, shapes, folded }) {
    const text = input.value.trim();
    const types = typesOf(shapes);
    if (text === "") return { value: undefined };
    if (folded && shapes.some((shape) => shape.enum?.includes(text))) return { value: text };
    if (folded || /^[[{]/.test(text)) {
      try {
        return { value: JSON.parse(text) };
      } catch {
        if (!types.has("string")) return { wrong: "This is to be JSON." };
      }
    }
    if (types.has("boolean") && (text === "true" || text === "false"))
      return { value: text === "true" };
    if (types.has("integer") && /^-?\d{1,15}$/.test(text)) return { value: Number(text) };
    return { value: text };
  }

  function write({ input }, value) {
    const text = value === undefined || value === null ? "" : value;
    input.value = typeof text === "object" ? JSON.stringify(text) : String(text);
    if (input.tagName === "SELECT" && input.value !== String(text)) input.value = "";
  }

  function say({ input, wrong }, words) {
    wrong.textContent = words;
    if (words) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
    input.closest(".field")?.classList.toggle("bad-field", Boolean(words));
  }

  /** A short form of a part, `input_format: "a-{0..9}"`, stands for its first field. */
  function valueAt(spec, [name, part]) {
    const value = spec[name];
    if (part === undefined) return value;
    if (typeof value === "string")
      return part === "template" || part === "kind" ? value : undefined;
    return value?.[part];
  }

  function put(spec, [name, part], value) {
    if (part === undefined) {
      if (value === undefined) delete spec[name];
      else spec[name] = value;
      return;
    }
    const old = spec[name];
    const short = typeof old === "string" && { [name === "algorithm" ? "kind" : "template"]: old };
    const now = { ...(short || old || {}), [part]: value };
    if (value === undefined) delete now[part];
    if (Object.keys(now).length) spec[name] = now;
    else delete spec[name];
  }
})();
