/* Tokens, for admins: their names and buckets, and a new one. */
import { actionButton } from "./actions.js";
import { api } from "./api.js";
import { ask, labelledField, noteError, notify, textInput } from "./dialogs.js";
import { el, figureTable, put } from "./dom.js";
import { timeAgo } from "./format.js";

const DAY_S = 86400;
const HEADS = ["Name", "Role", "May read", "May write", "Expires", ["Actions", "sr-head"]];
const BUCKETS =
  "URIs of buckets, or beginnings of URIs with * after each; only *: all buckets; empty: no bucket";

export const tokensView = async (root, { signal }) => {
  const list = el("div");
  const made = el("div", { "aria-live": "polite" });
  const look = async () => {
    const { tokens } = await api.get("/v1/tokens", null, signal);
    const rows = tokens.map((token) => tokenRow(token, look));
    const none = el("p.quiet", "No tokens yet.");
    put(list, rows.length ? figureTable("Tokens", HEADS, rows, "stacked") : none);
  };
  const add = async (fields) => {
    const token = await api.post("/v1/tokens", fields);
    const words = `The token of ${token.name}. The page shows it only once:`;
    put(made, el("div.made", el("p", words), el("code.secret", token.token)));
    await look();
  };
  put(
    root,
    el("div.page-head", el("h1", "Tokens")),
    el("div.card", list),
    el("section.card", { "aria-label": "add a token" }, tokenForm(add), made),
  );
  await look();
};

const buckets = (all) =>
  all.map((each) => [el("code.label", each === "*" ? "everything" : each), " "]);

function tokenRow(token, look) {
  const remove = async () => {
    const answer = await ask({
      title: "Remove this token?",
      text: `${token.name}: requests with it are refused from now on. Its jobs stay.`,
      yes: "Remove it",
      danger: true,
    });
    if (!answer) return false;
    await api.remove(`/v1/tokens/${encodeURIComponent(token.name)}`);
    notify(`Removed the token ${token.name}.`);
    return true;
  };
  const button = { key: "remove", name: "Remove", of: token.name, work: remove, done: look };
  return el(
    "tr",
    { data: { token: token.name } },
    el("th", { scope: "row" }, token.name),
    el("td", token.role),
    el("td", buckets(token.input_buckets)),
    el("td", buckets(token.output_buckets)),
    el("td", token.expires_at ? timeAgo(token.expires_at) : "never"),
    el("td.act", actionButton(button)),
  );
}

function tokenForm(add) {
  const name = textInput("token-name", { required: true, maxlength: 128 });
  const role = el(
    "select",
    { name: "token-role" },
    ["viewer", "submitter", "admin"].map((each) => el("option", { value: each }, each)),
  );
  const reads = textInput("token-reads", { placeholder: "s3://data/*" });
  const writes = textInput("token-writes", { placeholder: "s3://data/alice/*" });
  const number = { type: "number", min: 1, max: 36600, placeholder: "never" };
  const days = textInput("token-days", number);
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
      noteError(error);
    }
  };
  const form = el(
    "form",
    { onsubmit: submit },
    el("h2", "Add a token"),
    el(
      "div.grid-form",
      labelledField("Name", name, "its jobs belong to this name"),
      labelledField("Role", role),
      labelledField("Buckets that it may read", reads, BUCKETS),
      labelledField("Buckets that it may write", writes, BUCKETS),
      labelledField("Expires after so many days", days),
    ),
    el("p.buttons", el("button.primary", { type: "submit" }, "Add")),
  );
  return form;
}
