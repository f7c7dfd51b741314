// A panel that follows one row: every change of it that was delivered, and where it went.

import * as api from "./api.js";
import { wide } from "./detail_view.js";
import { h } from "./dom.js";
import { plural, time } from "./words.js";

const COLUMNS = ["Committed", "Op", "Commit-ts", "Micro-batch", "Log", "Place"];

function batch(one) {
  if (!one) return null;
  return one.first === one.last ? String(one.first) : `${one.first}–${one.last}`;
}

function logPlace(log) {
  const file = log.file ? `${log.file}:` : log.range ? `range ${log.range}: ` : "";
  const gtid = log.gtid ? `, ${log.gtid}` : "";
  if (log.offset) return `${file}${log.offset}${gtid}`;
  return log.from ? `${file}${log.from}–${log.to_file ? `${log.to_file}:` : ""}${log.to}` : null;
}

function place(at) {
  if (at.row) return `${at.file}, row ${at.row}`;
  if (at.topic) return `${at.topic}[${at.partition}] at ${at.offset}`;
  return Object.entries(at)
    .map(([name, value]) => `${name} ${value}`)
    .join(", ");
}

function cells(values) {
  return (one) => [
    one.committed_at ? time(one.committed_at) : null,
    one.op,
    one.commit_ts,
    batch(one.micro_batch),
    logPlace(one.log),
    place(one.place),
    ...(values ? [one.before && JSON.stringify(one.before), one.after && JSON.stringify(one.after)] : []),
  ];
}

function answered({ changes, complete, notes, table, key }, values) {
  const row = Object.entries(key)
    .map(([name, value]) => `${name}=${value}`)
    .join(", ");
  const more = complete ? "" : "; there may be more";
  return [
    h("p", {}, `${plural(changes.length, "change")} of ${table} ${row}${more}`),
    notes.map((line) => h("p", { class: "hint" }, line)),
    changes.length > 0 && wide([...COLUMNS, ...(values ? ["Before", "After"] : [])], changes.map(cells(values)), true),
  ];
}

function field(label, id, box, hint) {
  return h(
    "div",
    { class: "field" },
    h("label", { for: id }, label),
    box,
    hint && h("span", { class: "hint" }, hint),
  );
}

function choice(id, word, needs) {
  const box = h("input", { type: "checkbox", id });
  return [box, h("span", { class: "choice", "data-needs": needs }, box, h("label", { for: id }, ` ${word}`))];
}

/** Return the panel; while its page is shown, it keeps what is written in it. */
export function tracePanel(feed) {
  const table = h("input", { id: "trace-table", list: "trace-tables", required: true, autocomplete: "off", spellcheck: "false" });
  const key = h("textarea", { id: "trace-key", rows: 1, required: true, spellcheck: "false", placeholder: "id=5" });
  const [log, logChoice] = choice("trace-log", "look transactions up in the source's log");
  const [values, valuesChoice] = choice("trace-values", "show the rows", "operator");
  const go = h("button", { type: "submit", class: "button small" }, "Trace");
  const wrong = h("p", { class: "wrong", role: "alert" });
  const answer = h("div", { class: "answer", "aria-live": "polite" });
  const form = h(
    "form",
    { class: "tracing" },
    field("Table", "trace-table", table),
    field("Key", "trace-key", key, "COLUMN=VALUE, each column of the key on its own line"),
    h("datalist", { id: "trace-tables" }, feed.captured.map((name) => h("option", { value: name }))),
    h("p", { class: "choices" }, logChoice, valuesChoice, go),
    wrong,
    answer,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    wrong.textContent = "";
    answer.replaceChildren("Looking…");
    try {
      const lines = key.value.split("\n").filter((line) => line.trim());
      const trace = await api.trace(feed.id, table.value.trim(), lines, log.checked, values.checked);
      answer.replaceChildren(...answered(trace, values.checked).flat().filter(Boolean));
    } catch (error) {
      answer.replaceChildren();
      wrong.textContent = error.message;
    }
    go.disabled = false;
  });
  return h(
    "section",
    { class: "card", "data-key": "Trace a row", "data-keep": "", "aria-label": "Trace a row" },
    h("h2", {}, "Trace a row", h("small", {}, " every change that was delivered, and where it went")),
    form,
  );
}
