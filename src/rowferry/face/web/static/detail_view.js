// One changefeed: what it does, over time, and all that is known about it.

import { chart } from "./chart.js";
import { h } from "./dom.js";
import { pauseButton, progress } from "./list_view.js";
import { badge, lateness, mayTakeTables, runs } from "./state_marks.js";
import { ago, bytes, count, duration, flattened, plural, time } from "./words.js";

const MOST_ROWS = 200; // of a long table; the rest is counted

function fact(name, value, more, tone) {
  return h(
    "div",
    {},
    h("dt", {}, name),
    h("dd", { class: tone || null }, value),
    more && h("dd", { class: "more" }, more),
  );
}

function facts(feed, now) {
  const running = runs(feed.state);
  const before = feed.snapshots.length ? "known after the snapshot" : "not known yet";
  const behind = feed.lag_ms === null ? before : "behind the source";
  return h(
    "dl",
    { class: "facts card" },
    fact(
      "Lag",
      duration(feed.lag_ms),
      running ? behind : "not running",
      lateness(feed),
    ),
    fact(
      "Throughput",
      running ? `${count(feed.rows_per_s)} rows/s` : "–",
      running && `${bytes(feed.bytes_per_s)}/s`,
    ),
    fact(
      "Checkpoint",
      feed.checkpoint_time ? ago(feed.checkpoint_time, now) : "–",
      feed.checkpoint_time ? time(feed.checkpoint_time) : before,
    ),
    fact("Owner", feed.owner ?? "nobody", `epoch ${feed.epoch}`),
    feed.retention_ms !== null &&
      fact(
        "Source keeps",
        duration(feed.retention_ms),
        "of what was not read yet",
        feed.retention_ms < 3_600_000 ? "late" : "",
      ),
    feed.target_ts !== null && fact("Ends at", feed.target_ts, "target-ts"),
    fact("Created", ago(feed.created_at, now), time(feed.created_at)),
  );
}

function trouble({ error, state }, now) {
  return h(
    "section",
    { class: `card trouble ${state}`, "aria-label": "Error" },
    h(
      "h2",
      {},
      h("code", {}, error.code || "error"),
      error.at ? h("small", {}, ` ${ago(error.at, now)}, ${time(error.at)}`) : null,
    ),
    h("p", { class: "message" }, error.message),
    error.cure && h("p", { class: "cure" }, h("b", {}, "What to do: "), error.cure),
  );
}

function charts(feed, now) {
  if (!feed.samples.length) {
    return h("p", { class: "card muted" }, "Nothing was measured in the last 15 minutes.");
  }
  const rates = feed.samples.slice(1); // the first has nothing before it to be a rate of
  const since = feed.samples[0].at;
  const drawn = (title, samples, name, more) =>
    chart({ title, points: samples.map((x) => [x.at, x[name]]), since, now, ...more });
  return h(
    "section",
    { class: "charts", "aria-label": "Over time" },
    drawn("Lag", feed.samples, "lag_ms", { base: "time", word: duration, tone: lateness(feed) }),
    drawn("Rows per second", rates, "rows_per_s", { base: "count", word: count, tone: "flow" }),
    drawn("Bytes per second", rates, "bytes_per_s", { base: "bytes", word: bytes, tone: "flow" }),
    drawn("Time of a micro-batch", rates, "micro_batch_ms", {
      base: "time",
      word: duration,
      connect: true,
    }),
  );
}

function card(title, more, ...inside) {
  return h(
    "section",
    { class: "card", "data-key": title, "aria-label": title },
    h("h2", {}, title, more && h("small", {}, ` ${more}`)),
    inside,
  );
}

function snapshots(feed) {
  if (!feed.snapshots.length) return null;
  const done = feed.snapshots.filter((x) => x.done >= x.all).length;
  return card(
    "Snapshot",
    `${done} of ${plural(feed.snapshots.length, "table")} done`,
    h(
      "ul",
      { class: "bars" },
      feed.snapshots.map(({ table, done: part, all }) =>
        h(
          "li",
          { "data-key": table },
          h("span", { class: "what" }, table),
          progress(part, all, `Snapshot of ${table}`),
          h("span", { class: "number" }, `${count(part)} of ${count(all)}`),
        ),
      ),
    ),
  );
}

function ranges(feed) {
  if (!feed.ranges.length)
    return card("Ranges", "", h("p", { class: "muted" }, "No progress was recorded yet."));
  const cells = (r) => [r.table, r.range_id, r.stage, r.position || "–", r.owner ?? "nobody"];
  return card(
    "Ranges",
    `${feed.ranges.length}, in ${plural(feed.captured.length, "table")}`,
    wide(["Table", "Range", "Stage", "Position", "Owner"], feed.ranges.map(cells)),
  );
}

/** Return a table that scrolls in itself. */
export function wide(columns, rows) {
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": columns.join(", ") },
    h(
      "table",
      { class: "plain" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((c) => h("th", { scope: "col" }, c)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.slice(0, MOST_ROWS).map((row) =>
          h(
            "tr",
            {},
            row.map((x) => h("td", {}, x ?? "–")),
          ),
        ),
      ),
    ),
    rows.length > MOST_ROWS && h("p", { class: "muted" }, `and ${rows.length - MOST_ROWS} more`),
  );
}

function captured(feed) {
  return card(
    "Tables",
    String(feed.captured.length),
    feed.captured.length
      ? h(
          "ul",
          { class: "chips" },
          feed.captured.slice(0, MOST_ROWS).map((name) => h("li", {}, name)),
        )
      : h("p", { class: "muted" }, "None yet."),
    feed.captured.length > MOST_ROWS &&
      h("p", { class: "muted" }, `and ${feed.captured.length - MOST_ROWS} more`),
  );
}

function settings(feed) {
  const rows = [["source", feed.source_uri], ["sink", feed.sink_uri], ...flattened(feed.config)];
  return card(
    "Settings",
    `version ${feed.spec_version}, secrets hidden`,
    h(
      "dl",
      { class: "settings" },
      rows.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value))),
    ),
  );
}

function history(feed, now) {
  const line = ({ at, what, details }) =>
    h(
      "li",
      {},
      h("time", { datetime: new Date(at).toISOString(), title: time(at) }, ago(at, now)),
      h("span", { class: "what" }, what),
      h(
        "span",
        { class: "details" },
        flattened(details)
          .filter(([, v]) => v)
          .map(([k, v]) => h("span", {}, k && h("i", {}, k), ` ${v} `)),
      ),
    );
  return card(
    "History",
    "newest first",
    feed.history.length
      ? h("ol", { class: "history" }, feed.history.map(line))
      : h("p", { class: "muted" }, "Nothing happened yet."),
  );
}

function button(verb, needs, word, feed, busy, tone = "") {
  return h(
    "button",
    {
      type: "button",
      class: `button small ${tone}`,
      "data-do": verb,
      "data-needs": needs,
      "data-id": feed.id,
      disabled: busy.has(feed.id),
    },
    word,
  );
}

/** Return the page of one changefeed. */
export function detailView(state) {
  const { detail: feed, busy, now } = state;
  return h(
    "div",
    { class: "page", "data-key": `changefeed ${feed.id}` },
    h("p", { class: "back" }, h("a", { href: "#/" }, "← All changefeeds")),
    h(
      "div",
      { class: "title" },
      h("div", { class: "name" }, h("h1", {}, feed.id), badge(feed.state)),
      h(
        "div",
        { class: "actions" },
        pauseButton(feed, busy),
        h(
          "a",
          {
            class: "button small",
            "data-needs": "admin",
            href: `#/changefeed/${encodeURIComponent(feed.id)}/change`,
          },
          "Change settings",
        ),
        mayTakeTables(feed.state) && button("tables", "admin", "Tables…", feed, busy),
        button("reset", "operator", "Reset…", feed, busy),
        button("remove", "admin", "Remove…", feed, busy, "danger"),
      ),
      h(
        "p",
        { class: "route" },
        h("span", {}, feed.source_uri),
        h("span", { class: "arrow", role: "img", "aria-label": "to" }, " → "),
        h("span", {}, feed.sink_uri),
      ),
    ),
    feed.error && trouble(feed, now),
    facts(feed, now),
    charts(feed, now),
    snapshots(feed),
    h(
      "div",
      { class: "halves" },
      h("div", {}, ranges(feed), captured(feed)),
      h("div", {}, history(feed, now), settings(feed)),
    ),
  );
}
