// Questions before something is done: they tell what happens, and keep what the server refuses in sight.

import * as api from "./api.js";
import { linesOf } from "./changefeed_form.js";
import { h } from "./dom.js";
import { time } from "./words.js";

const place = () => document.getElementById("ask");

/**
 * Ask, and do it. Returns whether it was done.
 *
 * `words` are paragraphs; `fields` stand below them; `act(values)` does it, and what it throws is shown in the
 * question; `changed(form, button)` hears of every key. Without fields, Enter does nothing: Cancel has the focus.
 */
export function ask({ title, words, fields = [], yes, danger = false, act, changed }) {
  const dialog = place();
  const wrong = h("p", { class: "wrong", role: "alert" });
  const cancel = h("button", { type: "button", class: "button" }, "Cancel");
  const doing = h("button", { class: danger ? "button danger" : "button primary" }, yes);
  const form = h(
    "form",
    { method: "dialog", novalidate: true },
    h("h2", { id: "ask-title" }, title),
    h("div", { id: "ask-words", class: "words" }, words.map((line) => h("p", {}, line))),
    fields,
    wrong,
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
      try {
        await act(Object.fromEntries([...new FormData(form)]));
        dialog.close("done");
      } catch (error) {
        wrong.textContent = error.message;
      }
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
  for (const one of form.querySelectorAll(".way")) {
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

/** Ask where a changefeed should begin anew, and let it. */
export function askReset(feed) {
  const { id } = feed;
  const now = feed.checkpoint_ts ? `It stands at ${feed.checkpoint_ts} now.` : "";
  return ask({
    title: `Reset ${id}?`,
    words: [
      "It begins anew when it is resumed: rows may come again, and its checkpoint may go back. What it has delivered stays.",
      "A micro-batch that was planned and not finished is discarded.",
    ],
    fields: [
      h(
        "fieldset",
        {},
        h("legend", {}, "Begin"),
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
    ],
    yes: "Reset",
    danger: true,
    changed: (form) => {
      showChosen(form);
      form.querySelector("output").textContent = momentOf(form.elements.ts);
    },
    act: (values) => api.reset(id, RESETS[values.to](values)),
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

/** Ask whether a changefeed may be paused, which a reset needs. */
export function askPause(id) {
  const words = [`Only a changefeed that does not run can be reset. Pause ${id} first.`];
  return ask({ title: `${id} runs`, words, yes: "Pause", act: () => api.pause(id) });
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
