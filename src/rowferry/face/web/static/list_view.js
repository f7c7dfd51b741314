// All changefeeds at a glance: the worst first, or by the column that was chosen.

import { sparkline } from "./chart.js";
import { h } from "./dom.js";
import { STATES, badge, glyph, lateness, mayPause, mayResume, runs } from "./state_marks.js";
import { bytes, count, duration, place, plural, time } from "./words.js";

const ORDERS = {
  state: (a, b) => STATES.indexOf(a.state) - STATES.indexOf(b.state),
  name: (a, b) => (a.id < b.id ? -1 : 1),
  lag: (a, b) => (b.lag_ms ?? -1) - (a.lag_ms ?? -1),
  rate: (a, b) => b.rows_per_s - a.rows_per_s,
};

/** Return the changefeeds that the list shows, in its order. */
export function chosen(feeds, { search, states, order, reversed }) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (f) =>
    `${f.id} ${f.state} ${f.source_uri} ${f.sink_uri} ${f.owner ?? ""}`.toLowerCase();
  return feeds
    .filter((f) => !states.size || states.has(f.state))
    .filter((f) => words.every((word) => text(f).includes(word)))
    .sort((a, b) => (reversed ? -1 : 1) * ORDERS[order](a, b) || ORDERS.name(a, b));
}

function tiles(feeds, servers, states) {
  const buttons = STATES.map((state) => [state, feeds.filter((f) => f.state === state).length])
    .filter(([state, n]) => n || states.has(state))
    .map(([state, n]) =>
      h(
        "button",
        {
          type: "button",
          class: `tile ${state}`,
          "data-do": "only",
          "data-state": state,
          "data-key": state,
          "aria-pressed": states.has(state) ? "true" : "false",
          title: `Show only ${state}`,
        },
        h("b", {}, n),
        h("span", {}, glyph(state), state),
      ),
    );
  const running = feeds.filter((f) => runs(f.state));
  const last = running
    .filter((f) => f.lag_ms !== null)
    .reduce((a, b) => (a && a.lag_ms >= b.lag_ms ? a : b), null);
  const rows = running.reduce((sum, f) => sum + f.rows_per_s, 0);
  const size = running.reduce((sum, f) => sum + f.bytes_per_s, 0);
  return h(
    "section",
    { class: "tiles", "aria-label": "At a glance" },
    h("div", { class: "group", role: "group", "aria-label": "Show only" }, buttons),
    h(
      "dl",
      { class: "totals" },
      total("Highest lag", last ? duration(last.lag_ms) : "–", last?.id, last && lateness(last)),
      total("Throughput", `${count(rows)} rows/s`, `${bytes(size)}/s`),
      total("Servers", String(servers.length), servers.length ? "alive" : "none is seen"),
    ),
  );
}

function total(name, value, more, tone) {
  return h(
    "div",
    {},
    h("dt", {}, name),
    h("dd", { class: tone || null }, value),
    h("dd", { class: "more" }, more ?? "\u00a0"),
  );
}

function head(name, order, list, label) {
  const falls = (order === "lag" || order === "rate") !== Boolean(list.reversed);
  const sorted = list.order === order ? (falls ? "descending" : "ascending") : null;
  const button = h("button", { type: "button", "data-do": "order", "data-order": order }, label);
  return h("th", { role: "columnheader", scope: "col", class: name, "aria-sort": sorted }, button);
}

/** Return the button that pauses or resumes, as the state allows. */
export function pauseButton(feed, busy) {
  const verb = mayPause(feed.state) ? "pause" : mayResume(feed.state) ? "resume" : null;
  if (!verb) return null;
  const word = verb === "pause" ? "Pause" : "Resume";
  return h(
    "button",
    {
      type: "button",
      class: "button small",
      "data-do": verb,
      "data-needs": "operator",
      "data-id": feed.id,
      disabled: busy.has(feed.id),
      "aria-label": `${word} ${feed.id}`,
    },
    word,
  );
}

/** Return a share in whole percents. */
export const percent = ({ done, all }) => (all ? Math.min(100, Math.floor((100 * done) / all)) : 0);

/** Return a bar of what is done, with words. */
export function progress(done, all, label) {
  const share = percent({ done, all });
  return h(
    "span",
    {
      class: "progress",
      role: "progressbar",
      "aria-label": label,
      "aria-valuenow": share,
      "aria-valuemin": 0,
      "aria-valuemax": 100,
    },
    h("span", { class: "done", style: `width:${share}%` }),
  );
}

function row(feed, busy) {
  const tone = lateness(feed);
  const shown = runs(feed.state);
  const cell = (name, label, ...inside) =>
    h("td", { role: "cell", class: name, "data-label": label }, inside);
  return h(
    "tr",
    { role: "row", class: `feed ${feed.state}`, "data-key": feed.id, "data-id": feed.id },
    cell("state", "State", badge(feed.state, feed.phase)),
    cell(
      "name",
      "Changefeed",
      h("a", { class: "open", href: `#/changefeed/${encodeURIComponent(feed.id)}` }, feed.id),
      h(
        "span",
        { class: "route", title: `${feed.source_uri}\n→ ${feed.sink_uri}` },
        h("span", { class: "end" }, place(feed.source_uri)),
        h(
          "span",
          { class: "end" },
          h("span", { class: "arrow", role: "img", "aria-label": "to" }, "→"),
          ` ${place(feed.sink_uri)}`,
        ),
      ),
      feed.quarantined > 0 &&
        h(
          "span",
          { class: "parked", title: "The sink refused rows; they wait for an operator" },
          `${plural(feed.quarantined, "row")} in quarantine`,
        ),
      feed.error &&
        h(
          "span",
          { class: "trouble", title: feed.error.message },
          h("b", {}, feed.error.code),
          ` ${feed.error.message}`,
        ),
    ),
    cell(
      `lag ${shown ? tone : "past"}`,
      "Lag",
      h("span", { class: "number" }, duration(feed.lag_ms)),
      sparkline(shown ? feed.lag_series : [], tone),
    ),
    cell(
      "rate",
      "Throughput",
      h(
        "span",
        { class: "number" },
        shown ? [count(feed.rows_per_s), h("small", {}, " rows/s")] : "–",
        shown && h("small", { class: "under" }, `${bytes(feed.bytes_per_s)}/s`),
      ),
      sparkline(shown ? (feed.rows_series ?? []) : [], "flow"),
    ),
    cell(
      "tables",
      "Tables",
      feed.snapshot
        ? [
            h("span", {}, `snapshot ${percent(feed.snapshot)}%`),
            progress(feed.snapshot.done, feed.snapshot.all, `Snapshot of ${feed.id}`),
          ]
        : plural(feed.tables, "table"),
    ),
    cell(
      "owner",
      "Owner",
      feed.owner ?? h("span", { class: "muted" }, "nobody"),
      h(
        "small",
        { class: "under", title: "Everything up to then was delivered" },
        time(feed.checkpoint_time),
      ),
    ),
    cell("do", "", pauseButton(feed, busy)),
  );
}

const LABELS = { state: "worst first", name: "by name", lag: "by lag", rate: "by throughput" };

function toolbar(shown, all, order) {
  return h(
    "div",
    { class: "toolbar" },
    h(
      "div",
      { class: "search" },
      h("input", {
        id: "search",
        type: "search",
        placeholder: "Search…",
        "aria-label": "Search changefeeds",
        autocomplete: "off",
        spellcheck: "false",
      }),
      h("kbd", { "aria-hidden": "true" }, "/"),
    ),
    h(
      "select",
      { id: "order", class: "narrow-only", "aria-label": "Order" },
      Object.entries(LABELS).map(([value, label]) =>
        h("option", { value, selected: value === order }, label),
      ),
    ),
    h(
      "span",
      { class: "muted", role: "status" },
      shown === all ? plural(all, "changefeed") : `${shown} of ${plural(all, "changefeed")}`,
    ),
  );
}

function table(feeds, list, busy) {
  const column = (name, ...inside) =>
    h("th", { role: "columnheader", scope: "col", class: name }, inside);
  return h(
    "table",
    { class: "feeds", role: "table", "aria-label": "Changefeeds" },
    h(
      "thead",
      { role: "rowgroup" },
      h(
        "tr",
        { role: "row" },
        head("state", "state", list, "State"),
        head("name", "name", list, "Changefeed"),
        head("lag", "lag", list, "Lag"),
        head("rate", "rate", list, "Throughput"),
        column("tables", "Tables"),
        column("owner", "Owner, checkpoint"),
        column("do", h("span", { class: "hidden" }, "Do")),
      ),
    ),
    h(
      "tbody",
      { role: "rowgroup" },
      feeds.map((feed) => row(feed, busy)),
    ),
  );
}

function nothingYet() {
  return h(
    "div",
    { class: "card blank" },
    h("h2", {}, "No changefeed yet"),
    h("p", {}, "A changefeed carries every committed change of some tables to a target."),
    h("p", {}, h("a", { class: "button primary", href: "#/new", "data-needs": "admin" }, "Create the first one")),
    h("p", { class: "small" }, "From the shell: ", h("code", {}, "rowferry changefeed create")),
  );
}

/** Return the page with all changefeeds. */
export function listView(state) {
  const { overview, list, busy } = state;
  const all = overview.changefeeds;
  const feeds = chosen(all, list);
  const inside = all.length
    ? [
        tiles(all, overview.servers, list.states),
        toolbar(feeds.length, all.length, list.order),
        table(feeds, list, busy),
        feeds.length === 0 &&
          h(
            "p",
            { class: "card blank" },
            h("span", {}, "Nothing fits."),
            h("button", { type: "button", class: "link", "data-do": "everything" }, "Show all"),
          ),
      ]
    : nothingYet();
  return h(
    "div",
    { class: "page", "data-key": "list" },
    h("h1", { class: "hidden" }, "Changefeeds"),
    inside,
  );
}
