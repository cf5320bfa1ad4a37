/* A grid of random records: the first picture of each record, and the first lines of its text. */
import { waiting } from "./dialogs.js";
import { el, put } from "./dom.js";
import { bytesText, countText } from "./format.js";
import { shardLink } from "./links.js";
import { firstWords, thumbnail } from "./members.js";
import { problemBox } from "./problems.js";

/** The card of one record, which is a link to the whole record. */
function sampleCard(record, bucket, shard) {
  const { members, key, number } = record;
  const image = members.find(({ kind, problem }) => kind === "image" && !problem);
  const words = members.map(firstWords).find(Boolean);
  const names = members.map(({ extension, name }) => extension || name).join(" ");
  return el(
    "a.sample",
    { href: shardLink(bucket, shard, { record: number }), title: `${shard}, record ${number}` },
    image && thumbnail(image, { bucket, shard, number, at: members.indexOf(image) }),
    el("code", key || "(empty)"),
    words && el("span.words", words),
    el("small", el("span", names), bytesText(record.size_bytes)),
  );
}

/** `{button, place}`: ten new random records each time. `draw(seed)` gives [[record, shard]]. */
export const randomRecords = ({ bucket, draw, signal }) => {
  const place = el("div.drawn", { "aria-live": "polite" });
  const run = async () => {
    button.disabled = true;
    put(place, waiting("Drawing records …"));
    try {
      const found = await draw(String(Math.random()).slice(2, 12));
      const cards = found.map(([record, shard]) => sampleCard(record, bucket, shard));
      put(
        place,
        el(
          "section.card",
          { "aria-label": "random records" },
          el("h2", countText(found.length, "random record")),
          el("div.samples", cards),
        ),
      );
    } catch (error) {
      if (signal.aborted) return;
      put(place, error.problem ? problemBox(error.problem) : null);
      if (!error.problem) throw error;
    } finally {
      button.disabled = false;
      button.textContent = "Ten others";
    }
  };
  const button = el("button", { type: "button", onclick: run }, "Ten random records");
  return { button, place };
};
