/* Chooses the page for the address, and switches between light and dark. */
import { hooks, setToken } from "./api.js";
import { bucketView, dataView } from "./data.js";
import { problemPage, showConnection } from "./dialogs.js";
import { el, isDark } from "./dom.js";
import { jobsView } from "./jobs.js";
import { jobView } from "./live.js";
import { terms } from "./problems.js";
import { scheduleView } from "./schedule.js";
import { schedulesView } from "./schedules.js";
import { askToken, learnWho, session } from "./session.js";
import { submitView } from "./submit.js";
import { pageTerms } from "./terms.js";
import { tokensView } from "./tokens.js";

const THEME = "dsort-theme";
const ROUTES = [
  [/^\/(?:jobs)?$/, jobsView, "Jobs"],
  [/^\/jobs\/([^/]+)$/, jobView, "Job"],
  [/^\/schedules$/, schedulesView, "Schedules"],
  [/^\/schedules\/([^/]+)$/, scheduleView, "Schedule"],
  [/^\/data$/, dataView, "Data"],
  [/^\/data\/([^/]+)$/, bucketView, "Data"],
  [/^\/submit$/, submitView, "Submit"],
  [/^\/tokens$/, tokensView, "Tokens"],
];

const main = document.getElementById("main");
let leave = new AbortController();

terms.own = pageTerms;
Object.assign(hooks, { askToken, showConnection });

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function markLink(path) {
  for (const link of document.querySelectorAll(".top nav a")) {
    const part = link.hash.slice(1);
    const here = path.startsWith(part) || (path === "/" && part === "/jobs");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function go() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const [path, query] = (location.hash.slice(1) || "/jobs").split(/\?(.*)/s);
  const route = ROUTES.find(([pattern]) => pattern.test(path));
  const [pattern, view, title] = route || [null, null, "Not found"];
  document.title = `${title} · dsort`;
  markLink(path);
  const root = el("div.view");
  main.replaceChildren(root);
  window.scrollTo(0, 0);
  if (!view) {
    root.append(
      el("h1", "There is no such page"),
      el("p", el("a", { href: "#/jobs" }, "All jobs")),
    );
    return;
  }
  const [, name] = pattern.exec(path);
  const found = { name: name && decoded(name), query: new URLSearchParams(query || ""), signal };
  try {
    await view(root, found);
  } catch (error) {
    if (error.name !== "AbortError" && !signal.aborted) root.replaceChildren(problemPage(error));
  }
}

const theme = document.getElementById("theme");

function drawTheme() {
  theme.textContent = isDark() ? "☀" : "☾";
  theme.title = `Make the page ${isDark() ? "light" : "dark"}`;
  theme.setAttribute("aria-label", theme.title);
}

theme.addEventListener("click", () => {
  const chosen = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  localStorage.setItem(THEME, chosen);
  document.dispatchEvent(new Event(THEME));
  drawTheme();
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTheme);
drawTheme();

document.getElementById("signing").addEventListener("click", async () => {
  const out = Boolean(session.who);
  leave.abort();
  if (out) {
    setToken(null);
    session.who = null;
    main.replaceChildren();
    await learnWho();
  } else await askToken(false, true);
  await go();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash of this link is no page
  main.focus();
});
window.addEventListener("hashchange", () => {
  go();
  main.focus({ preventScroll: true });
});

learnWho().then(go);
