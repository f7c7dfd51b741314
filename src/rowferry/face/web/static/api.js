// Requests to the server that gave this page, with what the operator has entered as a login.

const LOGIN = "rowferry.login";

let login = "";
try {
  login = sessionStorage.getItem(LOGIN) ?? "";
} catch {
  // Storage may be forbidden; the login then lasts until the page is loaded anew.
}

/** The server refused a request; `message` is its line. */
export class Refused extends Error {
  constructor(status, message, challenge) {
    super(message);
    this.status = status;
    this.challenge = challenge;
  }
}

/** The server did not answer. */
export class Unreachable extends Error {}

/** Remember a login for this tab: `token`, or `user` and `password`. */
export function enter({ token, user, password }) {
  const basic = () => btoa(String.fromCharCode(...new TextEncoder().encode(`${user}:${password}`)));
  login = token ? `Bearer ${token}` : `Basic ${basic()}`;
  try {
    sessionStorage.setItem(LOGIN, login);
  } catch {
    // See above.
  }
}

/** Read JSON; whole numbers that JavaScript would round stay texts. */
export function parsed(text) {
  const safe = text.replace(/("(?:[^"\\]|\\.)*")|(-?\d{16,})(?![\d.eE])/g, (all, string, digits) =>
    string === undefined ? `"${digits}"` : all,
  );
  return JSON.parse(safe);
}

/** Write JSON; `digits` are whole numbers written as texts, which go as numbers of any size. */
export function written(form, digits = {}) {
  const more = Object.entries(digits)
    .filter(([, value]) => value)
    .map(([name, value]) => `${JSON.stringify(name)}:${value}`);
  const body = JSON.stringify(form).slice(1, -1);
  return `{${[body, ...more].filter(Boolean).join(",")}}`;
}

async function ask(method, path, body, signal) {
  let answer;
  let text;
  try {
    answer = await fetch(path, {
      method,
      body,
      signal,
      cache: "no-store",
      credentials: "omit", // else the browser would ask for a login by itself
      headers: login ? { Authorization: login } : {},
    });
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable("The server does not answer.");
  }
  let found = null;
  try {
    found = text ? parsed(text) : null;
  } catch {
    if (answer.ok) throw new Unreachable("something else than Rowferry answers here");
  }
  if ([502, 503, 504].includes(answer.status) && !found?.error_msg) {
    throw new Unreachable(`a proxy answers ${answer.status}`); // the server behind it is away
  }
  if (!answer.ok) {
    const words = found?.error_msg ?? `the server answered ${answer.status}`;
    throw new Refused(answer.status, words, answer.headers.get("www-authenticate") ?? "");
  }
  return found;
}

const feed = (id) => encodeURIComponent(id);

export const overview = () => ask("GET", "/api/rowferry/overview");
export const changefeed = (id) => ask("GET", `/api/rowferry/changefeeds/${feed(id)}`);
export const day = (id) => ask("GET", `/api/rowferry/changefeeds/${feed(id)}/day`);
export const sample = (id) => ask("GET", `/api/rowferry/changefeeds/${feed(id)}/sample`);
export const target = (id) => ask("GET", `/api/rowferry/changefeeds/${feed(id)}/target`);
export const columns = (id, table) =>
  ask("GET", `/api/rowferry/changefeeds/${feed(id)}/columns?table=${encodeURIComponent(table)}`);
export const log = (id) => ask("GET", `/api/rowferry/changefeeds/${feed(id)}/log`);
export const quarantine = (id) => ask("GET", `/api/rowferry/changefeeds/${feed(id)}/quarantine`);
export const retryParked = (id) =>
  ask("POST", `/api/rowferry/changefeeds/${feed(id)}/quarantine/retry`, written({ all: true }));
export const dropParked = (id, row) =>
  ask("POST", `/api/rowferry/changefeeds/${feed(id)}/quarantine/drop`, written({ row }));
export const pause = (id) => ask("POST", `/api/v2/changefeeds/${feed(id)}/pause`);
export const resume = (id) => ask("POST", `/api/v2/changefeeds/${feed(id)}/resume`, "{}");
export const remove = (id) => ask("DELETE", `/api/v2/changefeeds/${feed(id)}`);
export const check = (body, signal) => ask("POST", "/api/rowferry/changefeeds/check", body, signal);
export const checkChange = (id, body, signal) =>
  ask("POST", `/api/rowferry/changefeeds/${feed(id)}/check`, body, signal);
export const change = (id, body) => ask("PUT", `/api/v2/changefeeds/${feed(id)}`, body);
export const reset = (id, body) => ask("POST", `/api/rowferry/changefeeds/${feed(id)}/reset`, body);
export const tables = (id, body) =>
  ask("POST", `/api/rowferry/changefeeds/${feed(id)}/tables`, body);
export const trace = (id, table, key, log, values) => {
  const asked = new URLSearchParams({ table, log, values });
  for (const one of key) asked.append("key", one);
  return ask("GET", `/api/v2/changefeeds/${feed(id)}/trace?${asked}`);
};
export const resnapshot = (id, body) =>
  ask("POST", `/api/rowferry/changefeeds/${feed(id)}/resnapshots`, body);
export const cancelResnapshot = (id, which) =>
  ask("DELETE", `/api/rowferry/changefeeds/${feed(id)}/resnapshots/${feed(which)}`);
export const create = (body) => ask("POST", "/api/v2/changefeeds", body);
export const form = () => ask("GET", "/api/rowferry/form");
export const checkSource = (body) => ask("POST", "/api/rowferry/source/check", body);
export const checkSink = (body) => ask("POST", "/api/rowferry/sink/check", body);
export const sourceTables = (body) => ask("POST", "/api/rowferry/source/tables", body);
export const sql = (statement) => ask("POST", "/api/rowferry/sql", written({ statement }));
