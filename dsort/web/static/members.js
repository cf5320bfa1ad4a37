/* Shows one member of a record: the browser decodes pictures; JSON and text are folded; all else is
   shown as bytes. All content of a shard becomes text or pixels, and none of it HTML. */
import { api } from "./api.js";
import { noteError, saveBlob, showDialog, workButton } from "./dialogs.js";
import { el, fromJson, put } from "./dom.js";
import { bytesText, countText, numberText } from "./format.js";
import { dataPath, shardLink } from "./links.js";

const SMALL = 224; // pixels of the longer side
const LARGE = 1600;
const LOADED_MAX = 4 << 20; // a larger picture is loaded on request
const NODES_MAX = 400;
const LINE = 96;
const SHORT = 240;
const WORDS = 160;
const BYTES_A_LINE = 16;

/** A record with all its members. */
export const recordCard = (record, { bucket, shard }, more) => {
  const left = record.members_total - record.members.length;
  const place = (at) => ({ bucket, shard, number: record.number, at });
  return el(
    "article.record",
    { "aria-label": `record ${record.key}` },
    el(
      "header",
      el("h2", el("code", record.key)),
      el(
        "span.quiet",
        `number ${numberText(record.number)} of `,
        el("a", { href: shardLink(bucket, shard) }, shard),
        `, ${bytesText(record.size_bytes)}`,
      ),
      more,
    ),
    el(
      "div.members",
      record.members.map((member, i) => shownMember(member, place(i))),
    ),
    left > 0 && note(`${countText(left, "more member")}.`),
  );
};

function shownMember(member, place) {
  const { extension, kind, name, problem, width, height } = member;
  const facts = [width && `${width} × ${height} pixels`, bytesText(member.size_bytes)];
  return el(
    "section",
    { class: `member kind-${kind}`, "aria-label": name },
    el(
      "p.about",
      el("code", { title: name }, extension || name),
      el("span.quiet", facts.filter(Boolean).join(", ")),
      saving(member, place),
    ),
    problem ? note(problem) : content(member, place),
  );
}

function content(member, place) {
  if (member.kind === "image") return picture(member, place);
  if (member.kind === "audio") return note("A sound: save the file to hear it.");
  if (member.kind === "json") return asJson(member);
  if (member.kind === "text") return asText(member.text || "", member.size_bytes, "text");
  return asBytes(member);
}

const note = (text) => el("p.quiet", text);

/** The bytes of a member, as a blob of `type`. */
const bytesOf = ({ bucket, shard, number, at }, type) =>
  api.blob(dataPath("members", bucket, shard), { number, member: at }, type);

/** A button that saves the member as a file of its name, and with a type that no browser opens. */
function saving({ name }, place) {
  const save = async () =>
    saveBlob(await bytesOf(place, "application/octet-stream"), name.split("/").pop());
  return workButton("Save", save, { class: "small", "aria-label": `Save ${name}` });
}

// --- pictures

function fromBase64(text, type) {
  const raw = atob(text);
  return new Blob([Uint8Array.from(raw, (each) => each.charCodeAt(0))], { type });
}

const blobOf = async (member, place) =>
  member.base64 ? fromBase64(member.base64, member.media_type) : bytesOf(place, member.media_type);

const loadsAtOnce = ({ base64, size_bytes: size }) => Boolean(base64) || size <= LOADED_MAX;

function picture(member, place) {
  const box = el("div.picture");
  const draw = async () => {
    try {
      const blob = await blobOf(member, place);
      const canvas = await drawn(blob, member, SMALL);
      const open = () => enlarge(blob, member).catch(noteError);
      const label = `Enlarge ${member.name}`;
      const button = { type: "button", "aria-label": label, onclick: open };
      put(box, el("button.plain", button, canvas));
    } catch (error) {
      put(box, note(error.problem ? error.message : "The browser cannot decode the picture."));
    }
  };
  if (loadsAtOnce(member)) draw();
  else {
    const words = `Load the picture (${bytesText(member.size_bytes)})`;
    put(box, el("button", { type: "button", onclick: draw }, words));
  }
  return box;
}

/** A small picture, or words in place of a picture. */
export const thumbnail = (member, place) => {
  const box = el("span.thumb");
  const draw = async () => put(box, await drawn(await blobOf(member, place), member, SMALL));
  if (loadsAtOnce(member)) draw().catch(() => put(box, "no picture"));
  else put(box, `a picture of ${bytesText(member.size_bytes)}`);
  return box;
};

/** The picture on a canvas whose longer side has at most `side` pixels. */
async function drawn(blob, { name, width, height }, side) {
  const scale = Math.min(1, side / Math.max(width, height));
  const bitmap = await createImageBitmap(blob, {
    resizeWidth: Math.max(1, Math.round(width * scale)),
    resizeHeight: Math.max(1, Math.round(height * scale)),
    resizeQuality: "medium",
  });
  const canvas = el("canvas", { role: "img", "aria-label": name });
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  bitmap.close();
  return canvas;
}

async function enlarge(blob, member) {
  const canvas = await drawn(blob, member, LARGE);
  const close = () => dialog.close();
  const dialog = el(
    "dialog.large",
    { "aria-label": member.name },
    el(
      "div.bar-above",
      el("code", member.name),
      el("button", { type: "button", onclick: close }, "Close"),
    ),
    canvas,
  );
  showDialog(dialog);
}

// --- JSON, text, bytes

/** The first words of a text, or the first fields of JSON; "" of everything else. */
export const firstWords = ({ kind, text }) => {
  if (kind === "text") return cut((text || "").trim(), WORDS);
  if (kind !== "json") return "";
  try {
    const value = fromJson(text);
    if (value === null || typeof value !== "object") return cut(String(value), WORDS);
    const fields = Object.entries(value).map(([name, each]) => {
      const plain = each === null || typeof each !== "object";
      return `${name}: ${plain ? each : JSON.stringify(each)}`;
    });
    return cut(fields.join("\n"), WORDS);
  } catch {
    return cut(text || "", WORDS); // cut off, or no JSON
  }
};

function asJson(member) {
  const left = { nodes: NODES_MAX };
  try {
    return el("div.tree", node(fromJson(member.text), null, left, 0));
  } catch {
    return asText(member.text, member.size_bytes, "JSON"); // cut off, or no JSON
  }
}

function node(value, name, left, depth) {
  left.nodes -= 1;
  const title = name !== null && [el("span.name", name), ": "];
  if (left.nodes < 0) return el("div.quiet", title, "…");
  if (value === null || typeof value !== "object") {
    const text = JSON.stringify(value);
    return el("div", title, el("span", { class: `value of-${typeof value}` }, text));
  }
  const all = Object.entries(value);
  const words = Array.isArray(value) ? countText(all.length, "element") : brief(all);
  if (!all.length) return el("div", title, Array.isArray(value) ? "[]" : "{}");
  const inner = all.map(([key, each]) => node(each, key, left, depth + 1));
  const open = depth === 0 && all.length <= 20;
  return el(
    "details",
    { open },
    el("summary", title, el("span.quiet", words)),
    el("div.inner", inner),
  );
}

const brief = (all) => cut(all.map(([key]) => key).join(", "), LINE);
const cut = (text, length) => (text.length > length ? `${text.slice(0, length)}…` : text);

function asText(text, size, kind) {
  const whole = new TextEncoder().encode(text).length >= size;
  if (whole && text.length <= SHORT && text.split("\n").length <= 4)
    return text ? el("p.short", text) : note("Empty.");
  return el(
    "details",
    el("summary", cut(text.trim().split("\n")[0], LINE)),
    el("pre.text", { tabindex: 0, "aria-label": kind }, text),
    !whole && note(`The first ${bytesText(text.length)}.`),
  );
}

function asBytes(member) {
  const bytes = (member.hex || "").match(/../g) || [];
  if (!bytes.length) return note("Empty.");
  const seen = (byte) => {
    const code = parseInt(byte, 16);
    return code > 31 && code < 127 ? String.fromCharCode(code) : ".";
  };
  const lines = [];
  for (let at = 0; at < bytes.length; at += BYTES_A_LINE) {
    const line = bytes.slice(at, at + BYTES_A_LINE);
    const hex = line.join(" ").padEnd(3 * BYTES_A_LINE);
    lines.push(`${at.toString(16).padStart(4, "0")}  ${hex} ${line.map(seen).join("")}`);
  }
  const words = `Bytes: ${bytes.slice(0, 8).join(" ")}${bytes.length > 8 ? " …" : ""}`;
  return el(
    "details",
    el("summary", words),
    member.width && note("Too many pixels to be decoded here."),
    el("pre.text.hex", { tabindex: 0, "aria-label": "bytes, hexadecimal" }, lines.join("\n")),
  );
}
