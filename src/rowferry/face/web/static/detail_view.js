// One changefeed: what it does, over time, and all that is known about it.

import { chart } from "./chart.js";
import { h } from "./dom.js";
import { pauseButton, percent, progress } from "./list_view.js";
import { badge, lateness, mayTakeTables, runs } from "./state_marks.js";
import { tracePanel } from "./trace_panel.js";
import { ago, bytes, count, duration, flattened, plural, time } from "./words.js";

const DAY_MS = 86_400_000;
const MOST_ROWS = 200; // of a long table; the rest is counted
const LONG_TEXT = 40;

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
  const before = feed.snapshot ? "known after the snapshot" : "not known yet";
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
    feed.kept_ms !== null &&
      fact(
        "Source keeps",
        feed.kept_ms > 0 ? duration(feed.kept_ms) : "no longer for sure",
        "the log that was not read yet",
        feed.kept_ms < 3_600_000 ? "late" : "",
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
  const sum = feed.snapshot;
  if (!sum) return null;
  const about = sum.unit === "rows" ? "about " : "";
  const left = sum.left_ms === null ? "" : `, about ${duration(sum.left_ms)} left`;
  return card(
    "Snapshot",
    `${sum.tables_done} of ${plural(sum.tables, "table")} done`,
    h(
      "p",
      { class: "sum" },
      progress(sum.done, sum.all, `Snapshot of ${feed.id}`),
      h("span", {}, `${percent(sum)}%: ${count(sum.done)} of ${about}${count(sum.all)} ${sum.unit}${left}`),
    ),
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

/** Return the last 24 hours: one point for each five minutes. */
function lastDay(more, feed, now) {
  const samples = more?.day ?? [];
  // The last minutes have charts of their own.
  if (samples.length < 3 || samples.at(-1).at - samples[0].at < 3_600_000) return null;
  const since = now - DAY_MS;
  const rates = samples.slice(1);
  const drawn = (title, points, name, rest) =>
    chart({ title, points: points.map((x) => [x.at, x[name]]), since, now, span: DAY_MS, ...rest });
  return card(
    "Last 24 hours",
    "every five minutes",
    h(
      "div",
      { class: "charts" },
      drawn("Greatest lag, 24 hours", samples, "lag_ms", { base: "time", word: duration, connect: true }),
      drawn("Rows per second, 24 hours", rates, "rows_per_s", {
        base: "count",
        word: count,
        tone: "flow",
        connect: true,
      }),
    ),
  );
}

const POSITION_WORDS = {
  file: "Log file",
  offset: "Offset",
  gtids: "GTID set",
  server: "Server",
  resolved_ts: "Resolved-ts",
  catalog_index: "Catalog's log index",
  cluster: "Cluster",
};

function position(feed) {
  const rows = Object.entries(feed.position);
  if (!rows.length) return null;
  return card(
    "Position in the source's log",
    feed.kept_ms === null ? "" : `kept for ${duration(Math.max(0, feed.kept_ms))}`,
    h(
      "dl",
      { class: "settings" },
      rows.map(([key, value]) =>
        h("div", {}, h("dt", {}, POSITION_WORDS[key] ?? key), h("dd", {}, String(value))),
      ),
    ),
  );
}

function schemaChanges(feed, now) {
  if (!feed.schema_changes.length) return null;
  const cells = (c) => [ago(c.at, now), c.table, c.kind, c.query || "–"];
  return card(
    "Schema changes",
    "newest first",
    wide(["Delivered", "Table", "Kind", "Statement"], feed.schema_changes.map(cells)),
  );
}

/** Return the last changes that were delivered, as far as whoever looks may see them. */
function lastChanges(more, now) {
  const sample = more?.sample;
  if (!sample) return null;
  const image = (one) =>
    one === null
      ? "–"
      : h(
          "span",
          { class: "image" },
          Object.entries(one).map(([name, value]) =>
            h("span", {}, h("i", {}, name), ` ${value === null ? "NULL" : value} `),
          ),
        );
  const values = sample.changes.some((c) => c.before || c.after);
  const columns = ["Committed", "Table", "Change", "Key", ...(values ? ["Before", "After"] : [])];
  const cells = (c) => [
    ago(c.at, now),
    c.table,
    c.op,
    image(c.key),
    ...(values ? [image(c.before), image(c.after)] : []),
  ];
  return card(
    "Last changes",
    sample.changes.length ? "newest first" : "",
    sample.changes.length
      ? wide(columns, sample.changes.map(cells))
      : h("p", { class: "muted" }, `${sample.message}.`),
  );
}

/** Return what the tables of a lake are made of, where the sink is one. */
function lakeTables(more, now) {
  const target = more?.target;
  if (!target?.kept) return null;
  const share = ({ rows, deleted }) => (deleted ? `${((100 * deleted) / (rows + deleted)).toFixed(1)}%` : "–");
  const cells = (t) => [
    t.table,
    count(t.files),
    count(t.rows),
    share(t),
    bytes(t.bytes),
    t.at === null ? "–" : h("span", { title: t.commit_ts }, ago(t.at, now)),
  ];
  return card(
    "Lake tables",
    target.tables.length ? String(target.tables.length) : "",
    target.tables.length
      ? wide(["Table", "Files", "Rows", "Deleted", "Size", "Commit-ts"], target.tables.map(cells))
      : h("p", { class: "muted" }, `${target.here ? "Nothing was written yet" : target.message}.`),
  );
}

function logLines(more, now) {
  if (!more?.log?.length) return null;
  return card(
    "Log",
    "newest first, of all servers",
    h(
      "ol",
      { class: "history log", tabindex: 0, "aria-label": "Log lines" },
      more.log.map(({ at, level, server, message }) =>
        h(
          "li",
          {},
          h("time", { datetime: new Date(at).toISOString(), title: time(at) }, ago(at, now)),
          h("span", { class: `what ${level}` }, level),
          h("span", { class: "details" }, message, h("i", {}, ` ${server}`)),
        ),
      ),
    ),
  );
}

function ranges(feed) {
  if (!feed.ranges.length)
    return card("Ranges", "", h("p", { class: "muted" }, "No progress was recorded yet."));
  if (feed.ranges.length <= feed.captured.length && !feed.ranges.some((r) => r.position)) return null;
  const cells = (r) => [r.table, r.range_id, r.stage, r.position || "–"];
  return card(
    "Ranges",
    `${feed.ranges.length}, in ${plural(feed.captured.length, "table")}`,
    wide(["Table", "Range", "Stage", "Position"], feed.ranges.map(cells)),
  );
}

const isLong = (cell) => typeof cell === "string" && cell.length > LONG_TEXT;

/**
 * Return a table that scrolls in itself. With `breaks`, long texts are broken, and a row stands line
 * by line where there is little room: what is behind them is seen without scrolling.
 */
export function wide(columns, rows, breaks = false) {
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": columns.filter(Boolean).join(", ") },
    h(
      "table",
      { class: breaks ? "plain stacks" : "plain" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((c) => (c ? h("th", { scope: "col" }, c) : h("td", {}))),
        ),
      ),
      h(
        "tbody",
        {},
        rows.slice(0, MOST_ROWS).map((row) =>
          h(
            "tr",
            {},
            row.map((x, at) => h("td", { class: breaks && isLong(x) ? "long" : null, "data-label": columns[at] || null }, x ?? "–")),
          ),
        ),
      ),
    ),
    rows.length > MOST_ROWS && h("p", { class: "muted" }, `and ${rows.length - MOST_ROWS} more`),
  );
}

/** Return which tables were read again, newest first: how far the open ones are, how others ended. */
function readAgain(feed, busy, now) {
  if (!feed.resnapshots.length) return null;
  const open = (one) => one.state === "waiting" || one.state === "running";
  const keys = ({ first_key: first, last_key: last }) =>
    first.length || last.length ? `keys ${first.join(",")}..${last.join(",")}` : "";
  const far = (one) => {
    if (one.state === "waiting") return "waits";
    if (open(one)) return one.total ? `${count(one.rows)} of about ${count(one.total)} rows` : "begins";
    return `${count(one.rows)} rows, ${ago(one.ended_at, now)}`;
  };
  const line = (one) =>
    h(
      "li",
      { "data-key": one.id, class: `again ${one.state}` },
      h("span", { class: "what" }, one.table),
      open(one)
        ? progress(one.rows, one.total || 1, `Reading ${one.table} again`)
        : h("span", { class: "outcome" }, one.state),
      h("span", { class: "number" }, far(one)),
      (keys(one) || one.where || one.message) &&
        h(
          "span",
          { class: "details" },
          [keys(one), one.where && `where ${one.where}`, one.message].filter(Boolean).join(" · "),
        ),
      open(one) &&
        button("cancel-resnapshot", "operator", "Cancel…", feed, busy, "", {
          "data-which": one.id,
          "data-table": one.table,
          "aria-label": `Cancel reading ${one.table} again`,
        }),
    );
  const many = feed.resnapshots.filter(open).length;
  return card(
    "Read again",
    many ? `${many} open` : "none open",
    h("ul", { class: "bars" }, [...feed.resnapshots].reverse().map(line)),
  );
}

function captured(feed, busy, now) {
  const again = (t) =>
    button("resnapshot", "operator", "Read again…", feed, busy, "", {
      "data-table": t.table,
      "aria-label": `Read ${t.table} again`,
    });
  const cells = (t) => [
    t.table,
    t.stage,
    count(t.rows),
    bytes(t.bytes),
    t.lag_ms === null ? "–" : duration(t.lag_ms),
    t.last_change === null ? "–" : ago(t.last_change, now),
    ...(feed.rereads ? [again(t)] : []),
  ];
  return card(
    "Tables",
    String(feed.captured.length),
    feed.captured.length
      ? wide(
          ["Table", "Stage", "Rows", "Bytes", "Lag", "Last change", ...(feed.rereads ? [""] : [])],
          feed.table_counts.map(cells),
        )
      : h("p", { class: "muted" }, "None yet."),
  );
}

function quarantine(feed, more, busy, now) {
  if (!feed.quarantined) return null;
  const drop = (row) =>
    h(
      "button",
      {
        type: "button",
        class: "button small danger",
        "data-do": "dropparked",
        "data-needs": "operator",
        "data-id": feed.id,
        "data-row": row,
        disabled: busy.has(feed.id),
        "aria-label": `Drop row ${row}`,
      },
      "Drop…",
    );
  const cells = (r) => [r.table, r.key, r.op, r.state, ago(r.parked_at, now), r.cause, drop(r.row)];
  return card(
    "Quarantine",
    `${plural(feed.quarantined, "row")} that the sink refused, or that wait behind such`,
    h("p", { class: "actions" }, button("retryparked", "operator", "Send all again", feed, busy)),
    wide(["Table", "Key", "Change", "State", "Parked", "Cause", ""], (more?.parked ?? []).map(cells), true),
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

function button(verb, needs, word, feed, busy, tone = "", more = {}) {
  return h(
    "button",
    {
      type: "button",
      class: `button small ${tone}`,
      "data-do": verb,
      "data-needs": needs,
      "data-id": feed.id,
      disabled: busy.has(feed.id),
      ...more,
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
      h("div", { class: "name" }, h("h1", {}, feed.id), badge(feed.state, feed.phase)),
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
    lastDay(state.more, feed, now),
    snapshots(feed),
    tracePanel(feed),
    readAgain(feed, busy, now),
    lastChanges(state.more, now),
    quarantine(feed, state.more, busy, now),
    h(
      "div",
      { class: "halves" },
      h("div", {}, captured(feed, busy, now), lakeTables(state.more, now), position(feed), ranges(feed), schemaChanges(feed, now)),
      h("div", {}, history(feed, now), logLines(state.more, now), settings(feed)),
    ),
  );
}
