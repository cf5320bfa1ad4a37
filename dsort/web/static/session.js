/* The reader of the page, the reader's rights, and the dialog for a token. */
import { api, setToken } from "./api.js";
import { ask } from "./dialogs.js";
import { el, put } from "./dom.js";

/** `who`: the answer of /v1/whoami, or null. */
export const session = { who: null };

/** Whether the reader may change what `owner` owns. */
export const mayChange = (owner) => {
  const { who } = session;
  return Boolean(who) && (who.role === "admin" || (who.role === "submitter" && who.name === owner));
};

export const maySubmit = () => Boolean(session.who) && session.who.role !== "viewer";

/** Ask the service who the reader is, and show the name in the corner. */
export const learnWho = async () => {
  try {
    session.who = await api.whoami();
  } catch (error) {
    if (!error.problem) throw error;
    session.who = null;
  }
  const { who } = session;
  const known = who && who.authenticated;
  put(document.getElementById("whoami"), known && [who.name, el("span.role", ` (${who.role})`)]);
  document.getElementById("for-admins").hidden = who?.role !== "admin";
  const signing = document.getElementById("signing");
  signing.textContent = who ? "Sign out" : "Sign in";
  signing.hidden = Boolean(who) && !who.authenticated;
};

let asking = null; // one dialog, however many requests were refused at once
let declined = false; // if true, the dialog opens only when the reader wants to sign in

/** Ask for the token; true if one was given. `wanted`: the reader opened the dialog. */
export const askToken = (hadOne, wanted = false) => {
  if (declined && !wanted) return Promise.resolve(false);
  asking ??= ask({
    title: "Sign in",
    text:
      (hadOne ? "This token is unknown, or has expired. " : "") +
      "This service needs a token, as `dsort token add` prints it. " +
      "The token is kept for this tab only.",
    fields: [{ name: "token", label: "Token", type: "password", required: true }],
    yes: "Sign in",
  }).then(async (answer) => {
    asking = null;
    declined = !answer;
    if (declined) return false;
    setToken(answer.token);
    await learnWho();
    return true;
  });
  return asking;
};
