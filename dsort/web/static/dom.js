/* Elements of the document. Texts become text nodes only, because names, descriptions and warnings
   come from strangers. */
const SVG = "http://www.w3.org/2000/svg";

function addAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

function addChildren(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false && child !== "") {
      const isText = typeof child !== "object";
      element.append(isText || child instanceof Node ? child : JSON.stringify(child));
    }
  }
  return element;
}

function made(create, tag, content) {
  const [name, ...classes] = tag.split(".");
  const element = create(name);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  const hasAttributes = content[0]?.constructor === Object;
  if (hasAttributes) addAttributes(element, content[0]);
  return addChildren(element, hasAttributes ? content.slice(1) : content);
}

/* The prototype of objects from JSON: `el` does not take such an object for attributes, and as text
   it is JSON. */
const FOREIGN = Object.create(null);
FOREIGN.toString = function toString() {
  return JSON.stringify(this);
};

/** The value of a JSON text. Its objects come from strangers, and get the prototype FOREIGN. */
export const fromJson = (text) =>
  JSON.parse(text, (_, value) =>
    value === null || typeof value !== "object" || Array.isArray(value)
      ? value
      : Object.setPrototypeOf(value, FOREIGN),
  );

/** An HTML element: `el("p.quiet", {title: "x"}, "text", element, [more])`. */
export const el = (tag, ...content) => made((name) => document.createElement(name), tag, content);

/** An SVG element, made as `el` makes an HTML element. */
export const svg = (tag, ...content) =>
  made((name) => document.createElementNS(SVG, name), tag, content);

/** Put these children, and nothing else, into `element`. */
export const put = (element, ...children) => {
  element.replaceChildren();
  return addChildren(element, children);
};

const FOCUSABLE = "a[href], button, input, summary, [tabindex]";

/** Put `node`, or nothing, into `place`. Open details stay open, and the focus stays. */
export const redraw = (place, node) => {
  const open = [...place.querySelectorAll("details")].map((details) => details.open);
  const focus = [...place.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
  place.replaceChildren(...(node ? [node] : []));
  place.querySelectorAll("details").forEach((details, i) => (details.open = Boolean(open[i])));
  if (focus >= 0) place.querySelectorAll(FOCUSABLE)[focus]?.focus({ preventScroll: true });
};

/** Text in which parts in backticks are code. */
export const withCode = (text) =>
  String(text ?? "")
    .split(/`([^`\n]+)`/)
    .map((part, i) => (i % 2 ? el("code", part) : part));

/** The head of a table: names, or [name, class] of columns. */
export const tableHead = (heads) =>
  el(
    "thead",
    el(
      "tr",
      heads.map((head) => {
        const [name, kind] = [head].flat();
        return el("th", { scope: "col", class: kind }, name);
      }),
    ),
  );

/** A table of figures that scrolls sideways where it has no room; `kind`: further classes of the
    table. With "stacked", each row is a list on a phone. */
export const figureTable = (caption, heads, rows, kind = "") => {
  const names = heads.map((head) => [head].flat()[0]);
  for (const row of rows) [...row.children].forEach((cell, i) => (cell.dataset.head = names[i]));
  return el(
    "div.scroll",
    { tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      { class: `figures ${kind}` },
      el("caption.sr", caption),
      tableHead(heads),
      el("tbody", rows),
    ),
  );
};

/** A table that is made when a reader opens it. */
export const foldedTable = (summary, caption, heads, rows) => {
  const details = el("details", el("summary", summary));
  const fill = () => {
    const table = figureTable(caption, heads, rows());
    table.classList.add("tall");
    details.append(table);
  };
  details.addEventListener("toggle", fill, { once: true });
  return details;
};

export const numberCell = (...content) => el("td.num", content);

/** Whether the page is dark now: as chosen, else as the system is. */
export const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
};

/** Call `draw` whenever light becomes dark or dark light, while `element` is in the page. */
export const onTheme = (element, draw) => {
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  const changed = () => {
    if (element.isConnected) draw();
    else {
      media.removeEventListener("change", changed);
      document.removeEventListener("dsort-theme", changed);
    }
  };
  media.addEventListener("change", changed);
  document.addEventListener("dsort-theme", changed);
};

/** Call `draw(width, height)` with the size that `element` has, now and whenever it changes. */
export const onSize = (element, draw) => {
  let last = "";
  new ResizeObserver(([entry]) => {
    const [width, height] = [entry.contentRect.width, entry.contentRect.height].map(Math.round);
    if (width > 0 && `${width} ${height}` !== last) draw(width, height);
    last = `${width} ${height}`;
  }).observe(element);
};

/** A function that calls `call` once, `ms` after the first of several calls. */
export const debounce = (ms, call) => {
  let timer = 0;
  return () => {
    timer ||= setTimeout(() => {
      timer = 0;
      call();
    }, ms);
  };
};
