// The page: reads the server's answers again and again, and shows them by the address after #.

import * as api from "./api.js";
import {
  askCancelResnapshot,
  askDropParked,
  askRemove,
  askReset,
  askResnapshot,
  askTables,
} from "./asking.js";
import { changeView } from "./change_view.js";
import { drawCursors, followPointer } from "./chart.js";
import { createView } from "./create_view.js";
import { detailView } from "./detail_view.js";
import { h, show } from "./dom.js";
import { listView } from "./list_view.js";
import { askLogin, whenLoggedIn } from "./login.js";
import { serversView } from "./servers_view.js";
import { sqlView } from "./sql_view.js";
import { ago, clock, duration } from "./words.js";

const EVERY_MS = 2000;
const MORE_EVERY_MS = 15_000;
const PATIENCE_MS = 10_000; // an answer that takes longer counts as none
const TOAST_MS = 6000;
const SETTLE_MS = 1100; // the server reads its overview once a second; then a change is in it

const state = {
  route: { page: "list" },
  overview: null,
  detail: null,
  more: null,
  gone: "", // why the changefeed of the address is not there
  list: { search: "", states: new Set(), order: "state", reversed: false },
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
  altered: (id) => {
    toast(`${id} was changed; resume it to go on`);
    location.hash = `#/changefeed/${encodeURIComponent(id)}`;
  },
};

let kept = null; // the page that keeps what is written in it, while it is shown

function keeping(make) {
  // Not by the address, which is the next page's already while its event is still to come.
  const { page, id } = state.route;
  if (kept?.route !== `${page}/${id}`) kept = { route: `${page}/${id}`, page: make() };
  kept.page.renew?.(state.detail, state.busy);
  return kept.page.root;
}

const ROLES = ["viewer", "operator", "admin"];

/** Whether whoever looks at the page has this role, or a higher one. */
function may(role) {
  return ROLES.indexOf(state.overview?.you?.role) >= ROLES.indexOf(role);
}

function waiting(words) {
  return h("div", { class: "page", "data-key": "waiting" }, h("p", { class: "card blank" }, words));
}

function view() {
  const { page, id } = state.route;
  if ((page === "new" || page === "change") && state.overview && !may("admin"))
    return waiting(["Your role may not do that. ", h("a", { href: "#/" }, "All changefeeds")]);
  if (page === "new") return keeping(() => createView(told));
  if (page === "sql") return keeping(() => sqlView(told));
  if (id) {
    if (state.gone) return waiting([state.gone, " ", h("a", { href: "#/" }, "All changefeeds")]);
    if (state.detail?.id !== id) return waiting("Reading…");
    return page === "change" ? keeping(() => changeView(told, state.detail)) : detailView(state);
  }
  if (!state.overview) return waiting("Reading…");
  return page === "servers" ? serversView(state) : listView(state);
}

function render() {
  state.now = Date.now();
  const shown = view();
  const main = $("main");
  if (main.firstElementChild !== shown) show(main, shown);
  if (kept && kept.page.root !== shown) kept = null;
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.dataset.page === (state.route.id ? "list" : state.route.page);
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
  const you = state.overview?.you;
  document.body.dataset.role = you?.role ?? "viewer"; // what another role needs is not shown
  const who = you && you.name !== "anybody" ? `${you.name} · ${you.role}` : "";
  if ($("you").textContent !== who) $("you").textContent = who;
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
  const title = state.route.id ? `${state.route.id} · Rowferry` : "Rowferry";
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
  const { id } = state.route;
  try {
    const [overview, detail] = await within(
      Promise.all([
        api.overview(),
        id ? api.changefeed(id).catch((error) => error) : null,
      ]),
    );
    tellNews(state.overview, overview);
    state.overview = overview;
    state.answeredAt = Date.now();
    state.awaySince = 0;
    if (id) readMore(id);
    if (id && state.route.id === id) {
      if (detail instanceof api.Refused) state.gone = detail.message;
      else if (detail instanceof Error) throw detail;
      else if (detail) [state.detail, state.gone] = [detail, ""];
    }
  } catch (error) {
    trouble(error, true);
  }
  render();
}

/** Read now and then what is long: the last day, parked rows, and the log for who may see it. */
async function readMore(id) {
  if (state.more?.id === id && Date.now() - state.more.at < MORE_EVERY_MS) return;
  const nothing = { day: [], log: [], sample: null, target: null, parked: [] };
  const before = state.more?.id === id ? state.more : nothing;
  state.more = { ...before, id, at: Date.now() };
  const role = state.overview.you?.role ?? "admin";
  const [day, sample, target, log, parked] = await Promise.all([
    api.day(id).catch(() => null),
    api.sample(id).catch(() => null),
    api.target(id).catch(() => null),
    role === "viewer" ? null : api.log(id).catch(() => null),
    state.detail?.id === id && !state.detail.quarantined ? [] : api.quarantine(id).catch(() => null),
  ]);
  if (state.more.id !== id) return;
  state.more.day = day?.samples ?? before.day;
  state.more.sample = sample ?? before.sample;
  state.more.target = target ?? before.target;
  state.more.log = log?.lines ?? before.log;
  state.more.parked = parked ?? before.parked;
  render();
}

/** Tell those who hear the page which changefeeds have another state now. */
function tellNews(before, now) {
  const known = new Map(before?.changefeeds.map((f) => [f.id, f.state]));
  const news = now.changefeeds
    .filter((f) => known.has(f.id) && known.get(f.id) !== f.state && !state.busy.has(f.id))
    .map((f) => `${f.id} is ${f.state} now${f.error ? `: ${f.error.message}` : ""}`);
  if (news.length) $("news").textContent = news.slice(0, 3).join(". ");
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

/** Do something with a changefeed; its buttons wait until the change can be seen. */
async function act(id, work, done) {
  state.busy.add(id);
  render();
  try {
    await work();
    toast(`${id} ${done}`);
    await new Promise((tell) => setTimeout(tell, SETTLE_MS));
  } catch (error) {
    toast(error.message, "bad");
    trouble(error, false);
  }
  await refresh();
  state.busy.delete(id);
  render();
}

/** Wait for an answer to a question that does something itself; then as above. */
async function asked(id, question, done) {
  if (await question) await act(id, async () => {}, done);
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
  pause: ({ id }) => act(id, () => api.pause(id), "is paused"),
  resume: ({ id }) => act(id, () => api.resume(id), "runs again"),
  remove: ({ id }) => asked(id, askRemove(id), "was removed"),
  reset: ({ id }) => asked(id, askReset(state.detail), "was reset"),
  tables: ({ id }) => asked(id, askTables(state.detail), "has other tables now"),
  resnapshot: ({ id, table }) =>
    asked(id, askResnapshot(state.detail, table), `reads ${table} again`),
  "cancel-resnapshot": ({ id, which, table }) =>
    asked(id, askCancelResnapshot(id, which, table), `reads ${table} no further`),
  retryparked: ({ id }) => {
    state.more = null;
    return act(id, () => api.retryParked(id), "sends its parked rows again");
  },
  dropparked: ({ id, row }) => {
    state.more = null;
    return asked(id, askDropParked(id, row), "has dropped a parked row");
  },
  only: ({ state: one }) => {
    const { states } = state.list;
    if (!states.delete(one)) states.add(one);
    render();
  },
  order: ({ order }) => {
    const { list } = state;
    list.reversed = list.order === order && !list.reversed;
    list.order = order;
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

function escape() {
  const box = $("search");
  const { page, id } = state.route;
  if (document.activeElement === box && box.value) search("");
  else if (document.activeElement === box) box.blur();
  else if (kept?.page.isWritten)
    return; // only Cancel throws it away
  else if (page === "change") location.hash = `#/changefeed/${encodeURIComponent(id)}`;
  else if (page !== "list") location.hash = "#/";
  else if (state.list.search || state.list.states.size) ACTIONS.everything();
}

const KEYS = {
  "/": () => {
    if ($("search")) $("search").focus();
    else [seeks, location.hash] = [true, "#/"];
  },
  j: () => step(1),
  k: () => step(-1),
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  n: () => may("admin") && (location.hash = "#/new"),
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

function parsedAddress() {
  const [page = "", id = "", more = ""] = location.hash.replace(/^#\/?/, "").split("/");
  if (page === "changefeed" && id) {
    let name = id;
    try {
      name = decodeURIComponent(id);
    } catch {
      // An address that somebody wrote by hand; it names no changefeed.
    }
    return { page: more === "change" ? "change" : "changefeed", id: name };
  }
  return { page: ["new", "servers", "sql"].includes(page) ? page : "list", id: "" };
}

let listScroll = 0;
let seeks = false; // the list is opened to search in it

function route(event) {
  const before = state.route;
  if (before.page === "list") listScroll = window.scrollY;
  state.route = parsedAddress();
  state.gone = "";
  render();
  const { page } = state.route;
  if (page === "list" && $("search")) $("search").value = state.list.search;
  window.scrollTo(0, page === "list" ? listScroll : 0);
  if (page === "new") focusForm();
  else if (seeks && $("search")) $("search").focus();
  else if (event) focusLost(page === "list" ? before.id : ""); // at first, Tab begins at the top
  seeks = false;
  refresh();
}

/** Let a new changefeed begin with its first field, once that is there. */
async function focusForm() {
  const page = kept?.page;
  await page?.ready;
  if (kept?.page === page && [document.body, $("main")].includes(document.activeElement))
    $("new-source-scheme")?.focus();
}

/** Give the focus a place on a new page: the changefeed that one comes from, else its beginning. */
function focusLost(from) {
  if (![document.body, $("main")].includes(document.activeElement)) return;
  const row = from && document.querySelector(`tr[data-id="${CSS.escape(from)}"] a.open`);
  (row || $("main")).focus({ preventScroll: !row });
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
document.addEventListener("change", (event) => {
  if (event.target.id === "order") ACTIONS.order({ order: event.target.value });
});
document.addEventListener("keydown", key);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
window.addEventListener("hashchange", route);
whenLoggedIn(refresh);
setInterval(renderLive, 1000);
followPointer();
route();
