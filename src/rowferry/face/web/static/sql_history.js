// Statements that were run, kept in this browser alone, and never with a secret in them.

const KEPT = "rowferry.sql";
const MOST = 50;

const LOGIN = /(:\/\/[^/@:\s'"]*:)[^'"\s]*@/g;
const NAMED =
  /((?:[\w.-]*(?:password|secret|token|access-key|account-key|credential)[\w.-]*|\bsas\b)\s*=\s*)('(?:''|[^'])*'|"(?:\\.|[^"])*"|[^\s&,)'"]+)/gi;
const HEADER = /((?:authorization|api-key|cookie)["']?\s*[:=]\s*)[^'"]+/gi;

/** Return a statement without passwords, keys and tokens. */
export function withoutSecrets(statement) {
  const hidden = (all, lead, value) => {
    const quote = /^['"]/.test(value) ? value[0] : "";
    return `${lead}${quote}***${quote}`;
  };
  return statement.replace(LOGIN, "$1***@").replace(NAMED, hidden).replace(HEADER, "$1***");
}

/** Return the statements, the newest first. */
export function history() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEPT) ?? "[]");
    return Array.isArray(kept) ? kept.filter((one) => typeof one === "string").slice(0, MOST) : [];
  } catch {
    return []; // storage may be forbidden, or hold something else
  }
}

function keep(list) {
  try {
    localStorage.setItem(KEPT, JSON.stringify(list.slice(0, MOST)));
  } catch {
    // Storage may be forbidden; then nothing is remembered.
  }
}

/** Remember a statement as the newest. */
export function remember(statement) {
  const shown = withoutSecrets(statement);
  keep([shown, ...history().filter((one) => one !== shown)]);
}

/** Forget all. */
export function forget() {
  keep([]);
}
