"use strict";
/* One member of a record, shown: pictures decoded by the browser, JSON and text folded,
   the rest as bytes. Whatever a shard holds comes in as text, or as pixels: nothing of it is HTML. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const THUMB = 224; // pixels of the longer side
  const LARGE = 1600;
  const LOADED_MAX = 4 << 20; // a larger picture is loaded when it is asked for
  const NODES_MAX = 400;
  const LINE = 96;
  const SHORT = 240;
  const BYTES_A_LINE = 16;

  /** The path of a bucket's data: `dataPath("samples", "images", "a/b.tar")`. */
  dsort.dataPath = (kind, bucket, shard) => {
    const name = shard === undefined ? "" : `/${shard.split("/").map(encodeURIComponent).join("/")}`;
    return `/v1/${kind}/${encodeURIComponent(bucket)}${name}`;
  };

  /** A record with all its members. `where`: {bucket, shard}. */
  dsort.recordCard = (record, where, more) => {
    const left = record.members_total - record.members.length;
    return el(
      "article",
      { class: "record", "aria-label": `record ${record.key}` },
      el(
        "header",
        null,
        el("h3", null, el("code", null, record.key)),
        el(
          "span",
          { class: "quiet" },
          `number ${dsort.number(record.number)} of `,
          el("a", { href: dsort.shardLink(where.bucket, where.shard) }, where.shard),
          ", ",
          dsort.bytes(record.size_bytes),
        ),
        more,
      ),
      el(
        "div",
        { class: "members" },
        record.members.map((member, i) => shownMember(member, { ...where, record, i })),
      ),
      left > 0 && el("p", { class: "quiet" }, `${dsort.count(left, "more member")}.`),
    );
  };

  function shownMember(member, at) {
    const facts = [dsort.bytes(member.size_bytes)];
    if (member.width) facts.unshift(`${member.width} × ${member.height} pixels`);
    return el(
      "section",
      { class: `member kind-${member.kind}`, "aria-label": member.name },
      el(
        "p",
        { class: "about" },
        el("code", { title: member.name }, member.extension || member.name),
        el("span", { class: "quiet" }, facts.join(", ")),
        saving(member, at),
      ),
      member.problem ? el("p", { class: "quiet" }, member.problem) : content(member, at),
    );
  }

  function content(member, at) {
    if (member.kind === "image") return picture(member, at);
    if (member.kind === "audio") return note("A sound: save it to hear it.");
    if (member.kind === "json") return asJson(member);
    if (member.kind === "text") return asText(member.text || "", member.size_bytes, "text");
    return asBytes(member);
  }

  const note = (text) => el("p", { class: "quiet" }, text);

  const bytesOf = async (member, { bucket, shard, record, i }) => {
    const path = dsort.dataPath("members", bucket, shard);
    return dsort.api.blob(path, { number: record.number, member: i }, member.media_type);
  };

  /** A button that saves the member as a file: with its name, whatever the browser makes of it. */
  function saving(member, at) {
    const run = async () => {
      try {
        const content = await bytesOf({ ...member, media_type: "application/octet-stream" }, at);
        const url = URL.createObjectURL(content);
        el("a", { href: url, download: member.name.split("/").pop() }).click();
        setTimeout(() => URL.revokeObjectURL(url), 1000);
      } catch (error) {
        dsort.noteError(error);
      }
    };
    const label = `Save ${member.name}`;
    return el("button", { type: "button", class: "small", "aria-label": label, onclick: run }, "Save");
  }

  // --- pictures

  function fromBase64(text, type) {
    const raw = atob(text);
    return new Blob([Uint8Array.from(raw, (each) => each.charCodeAt(0))], { type });
  }

  function picture(member, at) {
    const place = el("div", { class: "picture" });
    let blob = member.base64 ? fromBase64(member.base64, member.media_type) : null;
    const draw = async () => {
      try {
        blob ||= await bytesOf(member, at);
        const canvas = await drawn(blob, member, THUMB);
        const open = () => enlarge(blob, member);
        const label = `Enlarge ${member.name}`;
        const button = { type: "button", class: "plain", "aria-label": label, onclick: open };
        dsort.put(place, el("button", button, canvas));
      } catch (error) {
        dsort.put(place, note(error.problem ? error.message : "The browser cannot decode it."));
      }
    };
    if (blob || member.size_bytes <= LOADED_MAX) draw();
    else {
      const words = `Load the picture (${dsort.bytes(member.size_bytes)})`;
      dsort.put(place, el("button", { type: "button", onclick: draw }, words));
    }
    return place;
  }

  /** The picture on a canvas whose longer side has at most `side` pixels. */
  async function drawn(blob, { name, width, height }, side) {
    const scale = Math.min(1, side / Math.max(width, height));
    const resizeWidth = Math.max(1, Math.round(width * scale));
    const resizeHeight = Math.max(1, Math.round(height * scale));
    const bitmap = await createImageBitmap(blob, {
      resizeWidth,
      resizeHeight,
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
      "dialog",
      { class: "large", "aria-label": member.name },
      el(
        "div",
        { class: "bar-above" },
        el("code", null, member.name),
        el("button", { type: "button", onclick: close }, "Close"),
      ),
      canvas,
    );
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  // --- JSON, text, bytes

  function asJson(member) {
    const left = { nodes: NODES_MAX };
    try {
      return el("div", { class: "tree" }, node(JSON.parse(member.text), null, left, 0));
    } catch {
      return asText(member.text, member.size_bytes, "JSON"); // cut off, or none
    }
  }

  function node(value, name, left, depth) {
    left.nodes -= 1;
    const title = name !== null && [el("span", { class: "name" }, name), ": "];
    if (left.nodes < 0) return el("div", { class: "quiet" }, title, "…");
    if (value === null || typeof value !== "object") {
      const text = JSON.stringify(value);
      return el("div", null, title, el("span", { class: `value of-${typeof value}` }, text));
    }
    const all = Object.entries(value);
    const words = Array.isArray(value) ? dsort.count(all.length, "element") : brief(all);
    if (!all.length) return el("div", null, title, Array.isArray(value) ? "[]" : "{}");
    const inner = all.map(([key, each]) => node(each, key, left, depth + 1));
    const open = depth === 0 && all.length <= 20;
    return el(
      "details",
      { open },
      el("summary", null, title, el("span", { class: "quiet" }, words)),
      el("div", { class: "inner" }, inner),
    );
  }

  const brief = (all) => cut(all.map(([key]) => key).join(", "), LINE);
  const cut = (text, length) => (text.length > length ? `${text.slice(0, length)}…` : text);

  function asText(text, size, kind) {
    const whole = new TextEncoder().encode(text).length >= size;
    const rest = !whole && el("p", { class: "quiet" }, `The first ${dsort.bytes(text.length)}.`);
    const box = el("pre", { class: "text", tabindex: 0, "aria-label": kind }, text);
    if (whole && text.length <= SHORT && text.split("\n").length <= 4)
      return text ? el("p", { class: "short" }, text) : note("Empty.");
    return el("details", null, el("summary", null, cut(text.trim().split("\n")[0], LINE)), box, rest);
  }

  function asBytes(member) {
    const bytes = (member.hex || "").match(/../g) || [];
    if (!bytes.length) return note("Empty.");
    const lines = [];
    for (let at = 0; at < bytes.length; at += BYTES_A_LINE) {
      const line = bytes.slice(at, at + BYTES_A_LINE);
      const code = (each) => parseInt(each, 16);
      const seen = (each) => (code(each) > 31 && code(each) < 127 ? String.fromCharCode(code(each)) : ".");
      const offset = at.toString(16).padStart(4, "0");
      lines.push(`${offset}  ${line.join(" ").padEnd(3 * BYTES_A_LINE)} ${line.map(seen).join("")}`);
    }
    const box = { class: "text hex", tabindex: 0, "aria-label": "bytes, hexadecimal" };
    const words = `Bytes: ${bytes.slice(0, 8).join(" ")}${bytes.length > 8 ? " …" : ""}`;
    const large = member.width && note("Too many pixels to be decoded here.");
    return el("details", null, el("summary", null, words), large, el("pre", box, lines.join("\n")));
  }
})();
