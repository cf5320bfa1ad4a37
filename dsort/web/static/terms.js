/* The texts of errors are for users of the command line and of the service alike. Here they get the
   words of the page: its buttons, its lists, the fields of a spec. */
const TERMS = [
  [/ \(--[a-z-]+\)/g, ""], // an option in brackets, after words with the same meaning
  [/ \((?:GET|POST|PUT|DELETE) \/v1\/[^)]*\)/g, ""],
  [/--overwrite\b/g, "overwrite: true in the spec"],
  [/`?dsort resume ([\w-]+)[^`]*`?/g, "Resume, on the page of job $1,"],
  [/`?dsort stop ([\w-]+)`?/g, "Stop, on the page of job $1"],
  [/`?dsort show ([\w-]+)`?/g, "the page of job $1"],
  [/`dsort show`/g, "the list of jobs"],
  [/`dsort schedule ls`/g, "the list of schedules"],
];
const OPTION = /(?:^|\s)--[a-z]/;
const OPERATOR = /operator|dsort serve/;

/** The text of an error in the words of this page. Options that are left belong to
    `dsort serve`. */
export const pageTerms = (text) => {
  if (typeof text !== "string") return text;
  const own = TERMS.reduce((words, [pattern, term]) => words.replace(pattern, term), text);
  const asks = OPTION.test(own) && !OPERATOR.test(own);
  return asks ? `${own} (an option of \`dsort serve\`: its operator sets it)` : own;
};
