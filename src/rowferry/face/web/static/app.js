// The page: reads the server's answers again and again, and shows them by the address after #.

import * as api from "./api.js";
import { drawCursors, followPointer } from "./chart.js";
import { createView } from "./create_view.js";
import { detailView } from "./detail_view.js";
import { h, show } from "./dom.js";
import { listView } from "./list_view.js";
import { serversView } from "./servers_view.js";
import { sqlView } from "./sql_view.js";
import { ago, clock, duration } from "./words.js";

const EVERY_MS = 2000;
const PATIENCE_MS = 10_000; // an answer that takes longer counts as none
const TOAST_MS = 6000;
const SETTLE_MS = 1100; // the server reads its overview once a second; then a change is in it

const state = {
  route: { page: "list" },
  overview: null,
  detail: null,
  gone: "", // why the changefeed of the address is not there
  list: { search: "", states: new Set(), order: "state" },
  busy: new Set(), // changefeeds with a request of ours under way
  answeredAt: 0,
  awaySince: 0, // since when the server does not answer; 0: it does
  now: Date.now(),
};
const $ = (id) => document.getElementById(id);

// --- showing -------------------------------------------------------------------------------------

const told = {
  changed: () => refresh(),
  failed: (error) => trouble(error, false),
  created: (id) => {
    toast(`${id} was created`);
    location.hash = `#/changefeed/${encodeURIComponent(id)}`;
  },
};
const kept = {}; // pages that keep what is written in them, while they are shown

function keeping(page, make) {
  kept[page] ??= make(told);
  return kept[page];
}

function waiting(words) {
  return h("div", { class: "page", "data-key": "waiting" }, h("p", { class: "card blank" }, words));
}

function view() {
  const { page, id } = state.route;
  if (page === "new") return keeping("new", createView);
  if (page === "sql") return keeping("sql", sqlView);
  if (page === "changefeed") {
    if (state.gone) return waiting([state.gone, " ", h("a", { href: "#/" }, "All changefeeds")]);
    return state.detail?.id === id ? detailView(state) : waiting("Reading…");
  }
  if (!state.overview) return waiting("Reading…");
  return page === "servers" ? serversView(state) : listView(state);
}

function render() {
  state.now = Date.now();
  const shown = view();
  const main = $("main");
  if (main.firstElementChild !== shown) show(main, shown);
  for (const page of Object.keys(kept)) if (page !== state.route.page) delete kept[page];
  for (const link of document.querySelectorAll("nav a")) {
    const here =
      link.dataset.page === (state.route.page === "changefeed" ? "list" : state.route.page);
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  renderLive();
  drawCursors();
}

function renderLive() {
  const away = state.awaySince > 0;
  const live = $("live");
  live.className = `live ${away ? "away" : state.answeredAt ? "on" : ""}`;
  const server = state.overview?.server;
  const words = away ? "no answer" : server ? `${server.address} · ${server.version}` : "";
  if (live.textContent !== words) live.textContent = words;
  if (server) live.title = `This server started ${ago(server.started_at)}`;
  document.body.classList.toggle("stale", away);
  const banner = $("banner");
  banner.hidden = !away;
  if (away) {
    const since = `The server has not answered since ${clock(state.awaySince)}.`;
    const shown = state.answeredAt
      ? ` What you see is ${duration(state.now - state.answeredAt).replace(/\.\d s/, " s")} old.`
      : "";
    banner.textContent = `${since}${shown} Asking again…`;
  }
  const failed = state.overview?.changefeeds.filter((f) => f.state === "failed").length ?? 0;
  const title = state.route.page === "changefeed" ? `${state.route.id} · Rowferry` : "Rowferry";
  document.title = away ? `(no answer) ${title}` : failed ? `(${failed} failed) ${title}` : title;
}

/** Tell something in passing. */
function toast(words, tone = "") {
  const place = $("toasts");
  if (place.lastElementChild?.textContent === words) return;
  const node = h("p", { class: tone }, words);
  place.append(node);
  setTimeout(() => node.remove(), TOAST_MS);
}

// --- reading -------------------------------------------------------------------------------------

let reading = null;
let timer = 0;

async function within(promise) {
  let late;
  const limit = new Promise((_, refuse) => {
    late = setTimeout(() => refuse(new api.Unreachable("no answer in time")), PATIENCE_MS);
  });
  try {
    return await Promise.race([promise, limit]);
  } finally {
    clearTimeout(late);
  }
}

async function read() {
  const { page, id } = state.route;
  try {
    const [overview, detail] = await within(
      Promise.all([
        api.overview(),
        page === "changefeed" ? api.changefeed(id).catch((error) => error) : null,
      ]),
    );
    state.overview = overview;
    state.answeredAt = Date.now();
    state.awaySince = 0;
    if (state.route.page === "changefeed" && state.route.id === id) {
      if (detail instanceof api.Refused) state.gone = detail.message;
      else if (detail instanceof Error) throw detail;
      else if (detail) [state.detail, state.gone] = [detail, ""];
    }
  } catch (error) {
    trouble(error, true);
  }
  render();
}

function trouble(error, whileReading) {
  if (error instanceof api.Refused && error.status === 401) askLogin(error);
  else if (error instanceof api.Unreachable) state.awaySince ||= Date.now();
  else if (whileReading) toast(error.message, "bad");
}

/** Read now; reads never overlap. */
async function refresh() {
  clearTimeout(timer);
  while (reading) await reading;
  reading = read().finally(() => {
    reading = null;
    clearTimeout(timer);
    if (!document.hidden && !$("login").open) timer = setTimeout(refresh, EVERY_MS);
  });
  return reading;
}

// --- acting --------------------------------------------------------------------------------------

async function act(verb, id, done) {
  state.busy.add(id);
  render();
  try {
    await api[verb](id);
    toast(`${id} ${done}`);
    if (verb === "remove") location.hash = "#/";
  } catch (error) {
    toast(error.message, "bad");
    trouble(error, false);
  }
  await new Promise((tell) => setTimeout(tell, SETTLE_MS));
  await refresh();
  state.busy.delete(id);
  render();
}

function confirmed(title, words, yes) {
  const dialog = $("confirm");
  $("confirm-title").textContent = title;
  $("confirm-words").textContent = words;
  $("confirm-yes").textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((tell) => {
    dialog.addEventListener("close", () => tell(dialog.returnValue === "yes"), { once: true });
  });
}

function askLogin({ challenge }) {
  const dialog = $("login");
  if (dialog.open) return;
  const ways = { token: /bearer/i.test(challenge) || !challenge, user: /basic/i.test(challenge) };
  for (const line of dialog.querySelectorAll("[data-way]")) line.hidden = !ways[line.dataset.way];
  $("login-words").textContent =
    ways.token && ways.user ? "Enter its token, or a user and the password." : "";
  dialog.showModal();
  dialog.querySelector("p:not([hidden]) > input").focus();
}

function login(dialog) {
  const [token, user, password] = ["token", "user", "password"].map((x) =>
    $(`login-${x}`).value.trim(),
  );
  if (dialog.returnValue === "enter" && (token || user)) api.enter({ token, user, password });
  for (const input of dialog.querySelectorAll("input")) input.value = "";
  refresh(); // without a right one, it is asked for again
}

function theme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme ?? (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("rowferry.theme", root.dataset.theme);
  } catch {
    // Storage may be forbidden; the choice then lasts until the page is loaded anew.
  }
}

const ACTIONS = {
  pause: ({ id }) => act("pause", id, "is paused"),
  resume: ({ id }) => act("resume", id, "runs again"),
  remove: async ({ id }) => {
    const words =
      "It stops at its next border, and how far it came is forgotten. What it has delivered stays where it is.";
    if (await confirmed(`Remove ${id}?`, words, "Remove")) await act("remove", id, "was removed");
  },
  only: ({ state: one }) => {
    const { states } = state.list;
    if (!states.delete(one)) states.add(one);
    render();
  },
  order: ({ order }) => {
    state.list.order = order;
    render();
  },
  everything: () => {
    state.list.states.clear();
    search("");
  },
  theme,
  help: () => $("help").showModal(),
  skip: () => $("main").focus(),
};

function search(words) {
  state.list.search = words;
  if ($("search")) $("search").value = words;
  render();
}

// --- keys ----------------------------------------------------------------------------------------

function step(by) {
  const links = [...document.querySelectorAll("a.open")];
  if (!links.length) return;
  const row = document.activeElement?.closest?.("tr.feed");
  const here = links.findIndex((link) => row?.contains(link));
  const next = here < 0 ? (by > 0 ? 0 : links.length - 1) : here + by;
  links[Math.max(0, Math.min(links.length - 1, next))].focus();
}

function isWritten() {
  return [...document.querySelectorAll("main input, main textarea")].some((x) => x.value);
}

function escape() {
  const box = $("search");
  if (document.activeElement === box && box.value) search("");
  else if (document.activeElement === box) box.blur();
  else if (state.route.page === "new" && isWritten())
    return; // only Cancel throws it away
  else if (state.route.page !== "list") location.hash = "#/";
  else if (state.list.search || state.list.states.size) ACTIONS.everything();
}

const KEYS = {
  "/": () => {
    if (state.route.page !== "list") location.hash = "#/";
    queueMicrotask(() => $("search")?.focus());
  },
  j: () => step(1),
  k: () => step(-1),
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  n: () => (location.hash = "#/new"),
  t: theme,
  "?": ACTIONS.help,
};

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]"))
    return;
  const writes = event.target.matches?.("input, textarea, select");
  if (event.key === "Escape") {
    if (writes && event.target.id !== "search")
      event.target.blur(); // what was written stays
    else escape();
    return;
  }
  const down = event.target.id === "search" && event.key === "ArrowDown";
  const arrow = event.key === "ArrowDown" || event.key === "ArrowUp";
  if ((writes && !down) || (arrow && state.route.page !== "list")) return;
  const work = KEYS[event.key];
  if (!work) return;
  event.preventDefault();
  work();
}

// --- beginning -----------------------------------------------------------------------------------

function route() {
  const [page = "", id = ""] = location.hash.replace(/^#\/?/, "").split("/");
  const known = ["changefeed", "new", "servers", "sql"].includes(page);
  let name = id;
  try {
    name = decodeURIComponent(id);
  } catch {
    // An address that somebody wrote by hand; it names no changefeed.
  }
  state.route = { page: known ? page : "list", id: name };
  state.gone = "";
  render();
  if (state.route.page === "list" && $("search")) $("search").value = state.list.search;
  if (state.route.page === "new") $("new-source").focus();
  else window.scrollTo(0, 0);
  refresh();
}

document.addEventListener("click", (event) => {
  const place = event.target.closest("[data-do]");
  if (place) {
    if (place.dataset.do === "skip") event.preventDefault();
    ACTIONS[place.dataset.do](place.dataset);
    return;
  }
  const row = event.target.closest("tr.feed");
  if (row && !event.target.closest("a, button") && !getSelection().toString())
    row.querySelector("a.open").click();
});
document.addEventListener("input", (event) => {
  if (event.target.id === "search") search(event.target.value);
});
document.addEventListener("keydown", key);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
window.addEventListener("hashchange", route);
$("login").addEventListener("close", () => login($("login")));
setInterval(renderLive, 1000);
followPointer();
route();
