"use strict";
/* Which page is shown, who looks at it, light or dark. */
(() => {
  const dsort = (window.dsort = window.dsort || {});
  const { el } = dsort;
  const main = document.getElementById("main");
  const signing = document.getElementById("signing");
  let leave = new AbortController();

  const ROUTES = [
    [/^\/(?:jobs)?$/, "jobs", "Jobs"],
    [/^\/jobs\/([^/]+)$/, "job", "Job"],
    [/^\/schedules$/, "schedules", "Schedules"],
    [/^\/schedules\/([^/]+)$/, "schedule", "Schedule"],
    [/^\/submit$/, "submit", "Submit"],
    [/^\/tokens$/, "tokens", "Tokens"],
    [/^\/data$/, "data", "Data"],
    [/^\/data\/([^/]+)$/, "bucket", "Data"],
  ];

  function decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  }

  async function go() {
    leave.abort();
    leave = new AbortController();
    const { signal } = leave;
    const [path, query] = (location.hash.slice(1) || "/jobs").split(/\?(.*)/s);
    const found = ROUTES.map(([pattern, view, title]) => ({
      match: pattern.exec(path),
      view,
      title,
    })).find(({ match }) => match);
    document.title = `${found ? found.title : "Not found"} · dsort`;
    for (const link of document.querySelectorAll(".top nav a")) {
      const part = link.hash.slice(1);
      const here = path.startsWith(part) || (path === "/" && part === "/jobs");
      if (here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const root = el("div", { class: `view view-${found ? found.view : "none"}` });
    main.replaceChildren(root);
    window.scrollTo(0, 0);
    if (!found) {
      root.append(
        el("h1", null, "There is no such page"),
        el("p", null, el("a", { href: "#/jobs" }, "All jobs")),
      );
      return;
    }
    try {
      await dsort.views[found.view](root, {
        name: found.match[1] && decoded(found.match[1]),
        query: new URLSearchParams(query || ""),
        signal,
      });
    } catch (error) {
      if (error.name !== "AbortError" && !signal.aborted)
        root.replaceChildren(dsort.problemPage(error));
    }
  }

  /** Ask who looks, and say it in the corner. */
  dsort.learnWho = async () => {
    try {
      dsort.who = await dsort.api.whoami();
    } catch (error) {
      if (!error.problem) throw error;
      dsort.who = null;
    }
    const { who } = dsort;
    const known = who && who.authenticated;
    dsort.put(
      document.getElementById("whoami"),
      known && [who.name, el("span", { class: "role" }, ` (${who.role})`)],
    );
    document.getElementById("for-admins").hidden = who?.role !== "admin";
    signing.textContent = who ? "Sign out" : "Sign in";
    signing.hidden = Boolean(who) && !who.authenticated;
  };

  function drawTheme() {
    const button = document.getElementById("theme");
    const other = dsort.isDark() ? "light" : "dark";
    button.textContent = dsort.isDark() ? "☀" : "☾";
    button.setAttribute("aria-label", `Make the page ${other}`);
    button.title = `Make the page ${other}`;
  }

  document.getElementById("theme").addEventListener("click", () => {
    dsort.setTheme(dsort.isDark() ? "light" : "dark");
    drawTheme();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTheme);
  drawTheme();

  signing.addEventListener("click", async () => {
    const out = Boolean(dsort.who);
    leave.abort();
    if (out) {
      dsort.setToken(null);
      dsort.who = null;
      main.replaceChildren();
      await dsort.learnWho();
    } else await dsort.askToken(false, true);
    await go();
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // its hash is no page
    main.focus();
  });
  window.addEventListener("hashchange", () => {
    go();
    main.focus({ preventScroll: true });
  });

  dsort.learnWho().then(go);
})();
