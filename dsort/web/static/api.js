/* The REST interface. The token is kept for this tab only, and goes into a header, never into a
   URL. */
import { fromJson } from "./dom.js";

const TOKEN = "dsort-token";
const RETRY_MS = [500, 1000, 2000, 5000, 10000];
const SILENCE_MS = 45000; // the server sends a comment every 15 s

/** The page replaces these: `askToken(hadOne)` is true if the reader gave a token;
    `showConnection(answers)` shows whether the service answers. */
export const hooks = { askToken: async () => false, showConnection: () => {} };

/** An error with the problem document that the service answered. */
export class Problem extends Error {
  constructor(problem) {
    super(problem.detail || problem.title || "The service refused.");
    this.problem = problem;
  }
}

/** The service cannot be reached at all. */
export class Unreachable extends Problem {
  constructor() {
    super({
      title: "No answer",
      detail: "The service cannot be reached.",
      hint: "Check that `dsort serve` is running.",
      status: 0,
    });
  }
}

export const setToken = (token) =>
  token ? sessionStorage.setItem(TOKEN, token) : sessionStorage.removeItem(TOKEN);

async function request(path, { method = "GET", body, type, signal, headers = {} } = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const all = {
    Accept: "application/json, application/problem+json;q=0.9, text/plain;q=0.8",
    ...headers,
  };
  if (token) all.Authorization = `Bearer ${token}`;
  if (body !== undefined) all["Content-Type"] = type || "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method,
      body,
      headers: all,
      signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    hooks.showConnection(false);
    throw new Unreachable();
  }
  hooks.showConnection(true);
  if (answer.status === 401) {
    if (sessionStorage.getItem(TOKEN) === token) setToken(null);
    if (await hooks.askToken(token !== null))
      return request(path, { method, body, type, signal, headers });
  }
  if (!answer.ok) throw new Problem(await problemIn(answer));
  return answer;
}

async function problemIn(answer) {
  const text = await answer.text();
  try {
    const found = fromJson(text);
    if (found && typeof found === "object") return { status: answer.status, ...found };
  } catch {
    // no problem document of the service: an answer of a proxy, perhaps
  }
  return {
    title: `Answer ${answer.status}`,
    detail: text.slice(0, 500) || answer.statusText,
    status: answer.status,
  };
}

const json = async (path, options) => {
  const answer = await request(path, options);
  return answer.status === 204 ? null : fromJson(await answer.text());
};

/** "/v1/jobs" and {state: "failed", owner: ""} is "/v1/jobs?state=failed". */
const withQuery = (path, query) => {
  const pairs = Object.entries(query || {}).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map((each) => [name, each]),
  );
  const kept = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return kept.length ? `${path}?${new URLSearchParams(kept)}` : path;
};

export const api = {
  get: (path, query, signal) => json(withQuery(path, query), { signal }),
  text: async (path, signal) =>
    (await request(path, { signal, headers: { Accept: "text/plain" } })).text(),
  /** [a text, a header of the answer]. */
  textAndHeader: async (path, header, signal) => {
    const answer = await request(path, { signal, headers: { Accept: "text/plain" } });
    return [await answer.text(), answer.headers.get(header)];
  },
  /** The bytes of the answer as a blob of `type`, which must be no document: the browser only
      decodes it. */
  blob: async (path, query, type, signal) => {
    const headers = { Accept: "application/octet-stream" };
    const answer = await request(withQuery(path, query), { signal, headers });
    return new Blob([await answer.arrayBuffer()], { type });
  },
  post: (path, value, query) =>
    json(withQuery(path, query), {
      method: "POST",
      body: value === undefined ? undefined : JSON.stringify(value),
    }),
  sendText: (method, path, text, { type, query, signal, headers } = {}) =>
    json(withQuery(path, query), { method, body: text, type, signal, headers }),
  remove: (path) => json(path, { method: "DELETE" }),
  whoami: () => json("/v1/whoami"),
};

/** Call `onEvent(kind, data)` for server-sent events, up to the event `end`. After a break, connect
    again from the last event on. An abort of `signal` or a refusal ends the stream, too. */
export const follow = async (path, onEvent, signal) => {
  let last = "";
  let failures = 0;
  while (!signal.aborted) {
    const watch = new AbortController();
    const stop = () => watch.abort();
    signal.addEventListener("abort", stop);
    try {
      const headers = { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) };
      const answer = await request(path, { headers, signal: watch.signal });
      for await (const event of eventsIn(answer.body, watch)) {
        failures = 0;
        if (event.id) last = event.id;
        if (event.data) onEvent(event.kind, fromJson(event.data));
        if (event.kind === "end") return;
      }
    } catch (error) {
      if (signal.aborted) return;
      const status = error.problem ? error.problem.status : 0;
      if (status >= 400 && status < 500 && status !== 429) throw error;
      if (!error.problem && error.name !== "AbortError" && !(error instanceof TypeError))
        throw error; // no failure of the network
    } finally {
      signal.removeEventListener("abort", stop);
      watch.abort();
    }
    await pause(RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)], signal);
  }
};

async function* eventsIn(stream, watch) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const silence = setTimeout(() => watch.abort(), SILENCE_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(silence));
    if (done) return;
    const blocks = (rest + value).replace(/\r\n?/g, "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = { kind: "message", data: "", id: "" };
      for (const line of block.split("\n")) {
        const [, name, text] = /^([^:]*):? ?(.*)$/.exec(line);
        if (name === "event") event.kind = text;
        else if (name === "id") event.id = text;
        else if (name === "data") event.data += event.data ? `\n${text}` : text;
      }
      yield event;
    }
  }
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done);
  });
}

/** Call `look` now, and again every `ms` while the tab is visible. `look` shows its own errors. */
export const every = (ms, look, signal) => {
  const again = async () => {
    while (!signal.aborted) {
      if (!document.hidden) await look();
      await pause(ms, signal);
    }
  };
  const back = () => !document.hidden && look();
  document.addEventListener("visibilitychange", back);
  signal.addEventListener("abort", () => document.removeEventListener("visibilitychange", back));
  return again();
};
