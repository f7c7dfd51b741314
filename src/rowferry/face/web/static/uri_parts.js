// A URI as its parts, and back: what the server's own reader makes of it. Nothing is asked of anybody.

export const HIDDEN = "***"; // stands for a secret that the server has stored

const SECRET_WORDS = ["password", "secret", "token", "access-key", "account-key", "credential"];

/** Return whether a parameter's value must not be shown, whoever declares it. */
export function isSecretName(key) {
  const name = key.toLowerCase();
  return SECRET_WORDS.some((word) => name.includes(word)) || name.split(/[-_.]/).includes("sas");
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // the server says what is wrong with it
  }
}

/** Return the parts of a URI; null: it is none yet. */
export function parseUri(text) {
  const [, scheme, rest] = /^\s*([A-Za-z][A-Za-z0-9+.-]*):\/\/(.*?)\s*$/s.exec(text) ?? [];
  if (!scheme) return null;
  const [before, query = ""] = splitAt(rest, "?");
  const slash = before.indexOf("/");
  const place = slash < 0 ? before : before.slice(0, slash);
  const at = place.lastIndexOf("@");
  const [user, password = ""] = splitAt(at < 0 ? "" : place.slice(0, at), ":");
  return {
    scheme: scheme.toLowerCase(),
    user: decoded(user),
    password: decoded(password),
    address: place.slice(at + 1),
    path: slash < 0 ? "" : decoded(before.slice(slash)), // with its leading slash
    params: query
      .split("&")
      .filter(Boolean)
      .map((pair) => splitAt(pair.replaceAll("+", " "), "=").map(decoded))
      .map(([key, value = ""]) => [key, value]),
  };
}

function splitAt(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

const quoted = (text) =>
  text === HIDDEN
    ? text
    : encodeURIComponent(text).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16)}`);
const inPath = (text) => text.split("/").map(quoted).join("/");
const inQuery = (text) =>
  quoted(text).replaceAll("%2F", "/").replaceAll("%3A", ":").replaceAll("%2C", ",");

/** Return the URI of some parts; with `isSecret`, secrets in it are hidden. */
export function writeUri({ scheme, user, password, address, path, params }, isSecret) {
  const word = isSecret && password ? HIDDEN : quoted(password);
  const login = user || password ? `${quoted(user)}${password ? `:${word}` : ""}@` : "";
  const query = params
    .map(([k, v]) => `${quoted(k)}=${isSecret && v && isSecret(k) ? HIDDEN : inQuery(v)}`)
    .join("&");
  return `${scheme}://${login}${address}${inPath(path)}${query ? `?${query}` : ""}`;
}

/** Return an empty URI of a scheme. */
export function emptyUri(scheme) {
  return { scheme, user: "", password: "", address: "", path: "", params: [] };
}

/** Return whether two texts are the same URI, but for how it is written. */
export function sameUri(one, other) {
  const [a, b] = [parseUri(one), parseUri(other)];
  return a && b ? writeUri(a) === writeUri(b) : one.trim() === other.trim();
}
