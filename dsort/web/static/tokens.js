"use strict";
/* Tokens, for admins. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const DAY_S = 86400;

  dsort.views = dsort.views || {};

  dsort.views.tokens = async (root, { signal }) => {
    const place = el("div");
    dsort.put(root, el("div", { class: "page-head" }, el("h1", null, "Tokens")), place);
    await tokens(place, signal);
  };

  /** A table of figures; `right`: the columns of numbers. On a phone each row is a list, unless
      `kind` is another. */
  dsort.figures = (caption, heads, rows, right = [], kind = "stacked") => {
    const head = (name, i) => el("th", { scope: "col", class: right.includes(i) ? "num" : "" }, name);
    return el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
      el(
        "table",
        { class: `figures ${kind}` },
        el("caption", { class: "sr" }, caption),
        el("thead", null, el("tr", null, heads.map(head))),
        el("tbody", null, rows.map((row) => dsort.named(row, heads))),
      ),
    );
  };

  /** A row whose cells know the heads of their columns. */
  dsort.named = (row, heads) => {
    [...row.children].forEach((cell, i) => (cell.dataset.head = heads[i]));
    return row;
  };

  async function tokens(place, signal) {
    const list = el("div");
    const made = el("div", { "aria-live": "polite" });
    const look = async () => {
      const { tokens: all } = await dsort.api.get("/v1/tokens", null, signal);
      dsort.put(
        list,
        all.length
          ? dsort.figures("Tokens", ["Name", "Role", "May read", "May write", "Expires", ""], all.map(row))
          : el("p", { class: "quiet" }, "No tokens yet."),
      );
    };
    const buckets = (all) =>
      all.map((each) => [el("code", { class: "label" }, each === "*" ? "everything" : each), " "]);
    const row = (token) =>
      el(
        "tr",
        { data: { token: token.name } },
        el("th", { scope: "row" }, token.name),
        el("td", null, token.role),
        el("td", null, buckets(token.input_buckets)),
        el("td", null, buckets(token.output_buckets)),
        el("td", null, token.expires_at ? dsort.when(token.expires_at) : "never"),
        el("td", null, removal(token)),
      );
    const removal = (token) =>
      dsort.actionButton({
        key: "remove",
        name: "Remove",
        of: token.name,
        danger: true,
        work: async () => {
          const answer = await dsort.ask({
            title: "Remove this token?",
            text: `${token.name}: nobody is let in with it from now on. Its jobs stay.`,
            yes: "Remove it",
            danger: true,
          });
          if (!answer) return false;
          await dsort.api.remove(`/v1/tokens/${encodeURIComponent(token.name)}`);
          dsort.note(`Removed the token ${token.name}.`);
          return true;
        },
        done: look,
      });
    const add = async (fields) => {
      const token = await dsort.api.post("/v1/tokens", fields);
      const text = el("code", { class: "secret" }, token.token);
      dsort.put(
        made,
        el(
          "div",
          { class: "made" },
          el("p", null, `The token of ${token.name}. It is shown now, and never again:`),
          text,
        ),
      );
      await look();
    };
    dsort.put(
      place,
      el("section", { class: "card", "aria-label": "tokens" }, list),
      el("section", { class: "card", "aria-label": "add a token" }, tokenForm(add), made),
    );
    await look();
  }

  function tokenForm(add) {
    const input = (name, more) =>
      el("input", { type: "text", name, autocomplete: "off", spellcheck: "false", ...more });
    const name = input("token-name", { required: true, maxlength: 128 });
    const role = el(
      "select",
      { name: "token-role" },
      ["viewer", "submitter", "admin"].map((each) => el("option", { value: each }, each)),
    );
    const reads = input("token-reads", { placeholder: "s3://data/*" });
    const writes = input("token-writes", { placeholder: "s3://data/alice/*" });
    const days = input("token-days", { type: "number", min: 1, max: 36600, placeholder: "never" });
    const uris = (text) => text.split(/[\s,]+/).filter(Boolean);
    const submit = async (event) => {
      event.preventDefault();
      const fields = {
        name: name.value.trim(),
        role: role.value,
        input_buckets: uris(reads.value),
        output_buckets: uris(writes.value),
        expires_in_s: days.value ? Number(days.value) * DAY_S : null,
      };
      try {
        await add(fields);
        form.reset();
      } catch (error) {
        dsort.noteError(error);
      }
    };
    const everything = "URIs of buckets, or how they begin and a *; * alone is everything, nothing is no bucket";
    const form = el(
      "form",
      { onsubmit: submit },
      el("h2", null, "Add a token"),
      el(
        "div",
        { class: "grid-form" },
        dsort.field("Name", name, "its jobs belong to this name"),
        dsort.field("Role", role),
        dsort.field("Buckets that it may read", reads, everything),
        dsort.field("Buckets that it may write", writes, everything),
        dsort.field("Expires after so many days", days),
      ),
      el("p", { class: "buttons submit-buttons" }, el("button", { type: "submit", class: "primary" }, "Add")),
    );
    return form;
  }
})();
