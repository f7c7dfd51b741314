// Questions before something is done: they tell what happens, and keep what the server refuses in sight.

import * as api from "./api.js";
import { linesOf } from "./changefeed_form.js";
import { h } from "./dom.js";
import { mayReset } from "./state_marks.js";
import { time } from "./words.js";

const place = () => document.getElementById("ask");
const WAITS_MS = 2000; // between two looks whether a micro-batch has come to its end
const STILL_HELD = /RF-2003/; // the owner has not let go of it yet

/**
 * Ask, and do it. Returns whether it was done.
 *
 * `words` are paragraphs; `fields` stand below them; `act(values)` does it, and what it throws is shown in the
 * question; `changed(form, button)` hears of every key. Without fields, Enter does nothing: Cancel has the focus.
 * `act` also gets `tell(words)`, for what goes on meanwhile, and `gone()`, whether the question was closed.
 */
export function ask({ title, words, fields = [], yes, danger = false, act, changed }) {
  const dialog = place();
  const wrong = h("p", { class: "wrong", role: "alert" });
  const meanwhile = h("p", { class: "muted", role: "status" });
  const cancel = h("button", { type: "button", class: "button" }, "Cancel");
  const doing = h("button", { class: danger ? "button danger" : "button primary" }, yes);
  const form = h(
    "form",
    { method: "dialog", novalidate: true },
    h("h2", { id: "ask-title" }, title),
    h(
      "div",
      { id: "ask-words", class: "words" },
      words.filter(Boolean).map((line) => h("p", {}, line)),
    ),
    fields,
    wrong,
    meanwhile,
    h("p", { class: "actions" }, cancel, doing),
  );
  dialog.replaceChildren(form);
  form.addEventListener("input", () => {
    wrong.textContent = "";
    changed?.(form, doing);
  });
  changed?.(form, doing);
  cancel.addEventListener("click", () => dialog.close());
  dialog.returnValue = "";
  dialog.showModal();
  (form.querySelector("input:checked, input, textarea") ?? cancel).focus();
  return new Promise((tell) => {
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (doing.disabled) return;
      doing.disabled = true;
      wrong.textContent = "";
      const gone = () => !form.isConnected || !dialog.open;
      const say = (words) => {
        meanwhile.textContent = words;
      };
      try {
        await act(Object.fromEntries([...new FormData(form)]), say, gone);
        if (!gone()) dialog.close("done");
      } catch (error) {
        wrong.textContent = error.message;
      }
      say("");
      doing.disabled = false;
    });
    dialog.addEventListener("close", () => tell(dialog.returnValue === "done"), { once: true });
  });
}

/** Return one of several ways, with what it means. */
function way(name, value, label, hint, checked, ...more) {
  const id = `ask-${value}`;
  return h(
    "div",
    { class: "way" },
    h("input", { type: "radio", id, name, value, checked, "aria-describedby": `${id}-hint` }),
    h("label", { for: id }, label),
    h("p", { class: "hint", id: `${id}-hint` }, hint),
    more,
  );
}

/** Show only what belongs to the way that was chosen. */
function showChosen(form) {
  for (const one of form.querySelectorAll('.way:has([type="radio"])')) {
    const chosen = one.querySelector('[type="radio"]').checked;
    for (const box of one.querySelectorAll('[name]:not([type="radio"])')) box.hidden = !chosen;
  }
}

function whole(text) {
  const digits = text.trim();
  if (!/^\d+$/.test(digits)) throw new Error("A commit-ts is a whole number.");
  return digits;
}

const input = (name, label, placeholder) =>
  h("input", { name, "aria-label": label, placeholder, autocomplete: "off", spellcheck: "false" });

const RESETS = {
  snapshot: () => api.written({ snapshot: true }),
  commit: ({ ts }) => api.written({}, { commit_ts: whole(ts) }),
  position: ({ position }) => api.written({ position }),
};

const later = () => new Promise((go) => setTimeout(go, WAITS_MS));

/** Reset one whose owner may still be coming to the end of a micro-batch; waits for that. */
async function resetWhenFree(id, body, say, gone) {
  for (;;) {
    try {
      return await api.reset(id, body);
    } catch (error) {
      if (!STILL_HELD.test(error.message) || gone()) throw error;
      say("It is paused. Waiting for its micro-batch to end…");
      await later();
      if (gone()) return null;
    }
  }
}

/** Ask where a changefeed should start again, and let it; one that runs is paused for that. */
export function askReset(feed) {
  const { id } = feed;
  const ran = !mayReset(feed.state);
  let runs = ran;
  const now = feed.checkpoint_ts ? `It stands at ${feed.checkpoint_ts} now.` : "";
  return ask({
    title: `Reset ${id}?`,
    words: [
      runs && "It runs: it is paused first, at the end of its micro-batch.",
      "It starts again when it is resumed: rows may come again, and its checkpoint may go back. What it has delivered stays.",
      "A micro-batch that was planned and not finished is discarded.",
    ],
    fields: [
      h(
        "fieldset",
        {},
        h("legend", {}, "Start"),
        way(
          "to",
          "snapshot",
          "with a new snapshot",
          "All rows of all its tables, then what changes.",
          true,
        ),
        way(
          "to",
          "commit",
          "behind a commit-ts",
          `All changes that were committed after it. ${now}`,
          false,
          input("ts", "Commit-ts", "a whole number"),
          h("output", { class: "hint" }),
        ),
        way(
          "to",
          "position",
          "at a position",
          "A place in the source's log: FILE:OFFSET, or GTIDs.",
          false,
          input("position", "Position", "binlog.000042:1197"),
        ),
      ),
      h(
        "div",
        { class: "way" },
        h("input", { type: "checkbox", id: "ask-resume", name: "resume", checked: runs }),
        h("label", { for: "ask-resume" }, "resume it afterwards"),
      ),
    ],
    yes: runs ? "Pause and reset" : "Reset",
    danger: true,
    changed: (form) => {
      showChosen(form);
      form.querySelector("output").textContent = momentOf(form.elements.ts);
    },
    act: async (values, say, gone) => {
      const body = RESETS[values.to](values); // what is wrong with it is told before it is paused
      if (runs) {
        say("Pausing…");
        await api.pause(id);
        runs = false;
      }
      say("Resetting…");
      try {
        await resetWhenFree(id, body, say, gone);
      } catch (error) {
        throw ran ? new Error(`${error.message} (It is paused, and was not reset.)`) : error;
      }
      if (values.resume && !gone()) await api.resume(id);
    },
  });
}

/** Return the time that a commit-ts stands for, in words. */
function momentOf({ value, hidden }) {
  if (hidden || !/^\d{12,19}$/.test(value.trim())) return "";
  const ms = Number(BigInt(value.trim()) >> 18n);
  return ms < 8.64e15 ? `That is ${time(ms)}.` : "";
}

/** Ask which tables should be captured beside the others, or no more, and let it be so. */
export function askTables({ id }) {
  const box = (name, label, placeholder) =>
    h("textarea", { name, "aria-label": label, placeholder, rows: 3, spellcheck: "false" });
  return ask({
    title: `Tables of ${id}`,
    words: [
      "It need not be paused. Write one rule a line, as DATABASE.TABLE; * stands for any text.",
    ],
    fields: [
      h(
        "fieldset",
        {},
        h("legend", {}, "Tables"),
        way(
          "way",
          "add",
          "capture these, too",
          "Those that exist are snapshotted first, unless it runs without snapshots.",
          true,
          box("add", "Tables to add", "shop.customers"),
        ),
        way(
          "way",
          "drop",
          "capture these no more",
          "From its next micro-batch on. What was delivered stays.",
          false,
          box("drop", "Tables to drop", "shop.audit_*"),
        ),
      ),
    ],
    yes: "Add",
    changed: (form, button) => {
      showChosen(form);
      button.textContent = form.elements.way.value === "add" ? "Add" : "Drop";
    },
    act: (values) => {
      const rules = linesOf(values[values.way]);
      if (!rules.length) throw new Error("Write at least one rule.");
      return api.tables(id, api.written({ [values.way]: rules }));
    },
  });
}

/** Ask which rows of a table should be read and delivered again, and let them. */
export function askResnapshot({ id }, table) {
  const field = (name, label, placeholder, hint) =>
    h(
      "div",
      { class: "field" },
      h("label", { for: `ask-${name}` }, label),
      h("input", {
        id: `ask-${name}`,
        name,
        placeholder,
        autocomplete: "off",
        spellcheck: "false",
        "aria-describedby": `ask-${name}-hint`,
      }),
      h("p", { class: "hint", id: `ask-${name}-hint` }, hint),
    );
  return ask({
    title: `Read ${table} again?`,
    words: [
      "Its rows are read from the source and delivered once more, in small parts beside the stream. Other tables go on.",
      "Leave both fields empty for all rows.",
    ],
    fields: [
      field("keys", "Keys", "100..200", "FIRST..LAST, both included; FIRST.. or ..LAST for one end."),
      field("where", "Where", "state = 'open' and total > 10", "An expression as in event filters."),
    ],
    yes: "Read again",
    act: ({ keys, where }) =>
      api.resnapshot(id, api.written({ table, keys: keys.trim(), where: where.trim() })),
  });
}

/** Ask whether a resnapshot may end where it is. */
export function askCancelResnapshot(id, which, table) {
  return ask({
    title: `Cancel reading ${table} again?`,
    words: ["What was delivered stays; the rest is not read."],
    yes: "Cancel it",
    danger: true,
    act: () => api.cancelResnapshot(id, which),
  });
}

/** Ask whether a parked row may be forgotten. */
export function askDropParked(id, row) {
  const words = [
    "The sink never gets this change. What waits behind it is sent when the rows are sent again.",
    "The history keeps the key of the row, not its values.",
  ];
  const work = () => api.dropParked(id, row);
  return ask({ title: `Drop row ${row} of ${id}?`, words, yes: "Drop", danger: true, act: work });
}

/** Ask whether a changefeed may be removed; then the list is shown. */
export function askRemove(id) {
  const words = [
    "It stops behind its micro-batch, and how far it came is forgotten. What it has delivered stays where it is.",
  ];
  const work = async () => {
    await api.remove(id);
    location.hash = "#/";
  };
  return ask({ title: `Remove ${id}?`, words, yes: "Remove", danger: true, act: work });
}
