// The form of a changefeed, new or changed. While it is filled in, the server says what would happen.

import { h, show } from "./dom.js";
import { plural } from "./words.js";

const WAIT_MS = 450; // after the last key, before the server is asked
const MOST = 100;

/** Return the field that an error is about; "" where it is about no single one. */
export function fieldOf({ code, message }) {
  const is = (...codes) => codes.includes(code);
  if (is("RF-1010", "RF-2008")) return "name";
  if (is("RF-1005", "RF-1009", "RF-1011")) return "rules";
  if (is("RF-1020") || /target[-_]ts/.test(message)) return "target";
  if (/start[-_]ts/.test(message)) return "start";
  if (is("RF-2004")) {
    const [, place = ""] = /has the (source|sink) /.exec(message) ?? [];
    return place || (/ writes \S+, not /.test(message) ? "sink" : "config");
  }
  if (
    code.startsWith("RF-3") ||
    /source[_ ](uri|scheme)|no source|^source|as a source/i.test(message)
  )
    return "source";
  if (
    code.startsWith("RF-4") ||
    is("RF-1016") ||
    /sink[_ ](uri|scheme)|^sink|as a sink|protocol/i.test(message)
  )
    return "sink";
  if (is("RF-1001", "RF-1002", "RF-1003", "RF-1012", "RF-1013", "RF-1014", "RF-1015"))
    return "config";
  return "";
}

const WHOLE = /^\d*$/;

/** Return the configuration that the fields ask for, or the field that is wrong and why. */
export function configOf(values, digits) {
  let config = {};
  if (values.config.trim()) {
    try {
      config = JSON.parse(values.config);
    } catch (error) {
      return { field: "config", wrong: `This is not JSON: ${error.message}` };
    }
    if (config === null || typeof config !== "object" || Array.isArray(config)) {
      return { field: "config", wrong: 'Write an object: {"key": value}' };
    }
  }
  for (const name of digits) {
    if (!WHOLE.test(values[name].trim()))
      return { field: name, wrong: "A commit-ts is a whole number." };
  }
  const rules = linesOf(values.rules);
  if (rules.length) config = { ...config, filter: { ...config.filter, rules } };
  return { config };
}

/** Return the lines of a text that hold something. */
export function linesOf(text) {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

/** Return a field with its label, and the places of what is wrong with it and of its hint. */
export function field(prefix, { name, label, placeholder, hint, rows, needed, value }) {
  const id = `${prefix}-${name}`;
  const common = {
    id,
    name,
    placeholder,
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
    "aria-describedby": `${id}-wrong${hint ? ` ${id}-hint` : ""}`,
    required: needed,
  };
  return h(
    "div",
    { class: "field" },
    h("label", { for: id }, label),
    rows ? h("textarea", { ...common, rows }, value) : h("input", { ...common, value }),
    h("p", { class: "wrong", id: `${id}-wrong`, role: "alert" }),
    hint && h("p", { class: "hint", id: `${id}-hint` }, hint),
  );
}

function list(title, lines, tone) {
  if (!lines.length) return null;
  return h(
    "section",
    { class: tone },
    title && h("h3", {}, title),
    h(
      "ul",
      {},
      lines.slice(0, MOST).map((line) => h("li", {}, line)),
    ),
    lines.length > MOST && h("p", { class: "muted" }, `and ${lines.length - MOST} more`),
  );
}

function foreseen(found) {
  const rows = found.tables.map((table) => [
    h("b", {}, table),
    found.outputs[table] && [h("span", { class: "arrow" }, " → "), found.outputs[table]],
  ]);
  return [
    h(
      "p",
      { class: "fine" },
      `It can run: ${plural(found.tables.length, "table")} would be captured.`,
    ),
    list("Would be captured", rows, ""),
    list("Cannot be captured: no key", found.ineligible, "bad"),
    list("Notices", found.notices, "notices"),
    found.rules.length > 0 &&
      h("details", {}, h("summary", {}, "Rules in force"), list("", found.rules, "")),
  ].filter(Boolean);
}

/**
 * A page with a form, and beside it what it would do.
 *
 * What a kind of form must have: `prefix` of the fields' ids; `title`; `back`, a link; `fields` and `more` (below a
 * fold); `button`, a word; `hint` for before anything was entered; `read(values)`, which returns
 * `{body}`, or `{field, wrong}`, or `{}` when there is nothing to ask yet; `check(body, signal)`; and
 * `act(body, values)`, which does it.
 */
export class ChangefeedForm {
  constructor(kind, told) {
    this.kind = kind;
    this.told = told;
    this.timer = 0;
    this.asked = null; // the check that is under way
    const { prefix } = kind;
    this.root = h(
      "div",
      { class: "page", "data-key": prefix, "data-keep": "" },
      h("p", { class: "back" }, h("a", { href: kind.back.href }, `← ${kind.back.words}`)),
      h("h1", { tabindex: -1 }, kind.title),
      h("div", { class: "first", role: "status" }),
      h(
        "div",
        { class: "creating" },
        h(
          "form",
          { class: "card", novalidate: true },
          kind.fields.map((one) => field(prefix, one)),
          h(
            "details",
            {},
            h("summary", {}, "More settings"),
            kind.more.map((one) => field(prefix, one)),
          ),
          h(
            "p",
            { class: "actions" },
            h("a", { class: "button", href: kind.back.href }, "Cancel"),
            h("button", { class: "button primary", disabled: true }, kind.button),
          ),
        ),
        h(
          "aside",
          { class: "card foreseen", "aria-live": "polite", "aria-label": "What it would do" },
          h("h2", {}, "What it would do"),
          h("div", { class: "found" }),
        ),
      ),
    );
    this.form = this.root.querySelector("form");
    this.found = this.root.querySelector(".found");
    this.button = this.form.querySelector("button.primary");
    this.begun = this.values();
    this.hint();
    this.form.addEventListener("input", () => this.changed());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.act();
    });
  }

  values() {
    return Object.fromEntries([...new FormData(this.form)]);
  }

  /** Whether something was written that leaving the page would lose. */
  get isWritten() {
    return Object.entries(this.values()).some(([name, value]) => value !== this.begun[name]);
  }

  /** Show something above the form; null: nothing. */
  tellFirst(node) {
    const place = this.root.querySelector(".first");
    if (node) show(place, node);
    else place.replaceChildren();
  }

  hint() {
    this.found.replaceChildren(h("p", { class: "muted" }, this.kind.hint));
  }

  changed() {
    this.button.disabled = true;
    clearTimeout(this.timer);
    this.asked?.abort();
    this.timer = setTimeout(() => this.check(), WAIT_MS);
  }

  mark(name, words) {
    for (const place of this.form.querySelectorAll(".field .wrong")) {
      const here = place.id === `${this.kind.prefix}-${name}-wrong`;
      if (place.textContent !== (here ? words : "")) place.textContent = here ? words : "";
      const input = place.parentElement.querySelector("input, textarea");
      if (here) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
      if (here) place.closest("details")?.setAttribute("open", "");
    }
  }

  refuse(name, words) {
    const has = name && this.form.elements[name];
    this.mark(has ? name : "", words);
    const where = "It cannot run like this: see the field that is marked.";
    this.found.replaceChildren(h("p", { class: "wrong" }, has ? where : words));
  }

  async check() {
    const wanted = this.kind.read(this.values());
    if (wanted.body === undefined) {
      if (wanted.field) {
        this.refuse(wanted.field, wanted.wrong);
      } else {
        this.mark("", "");
        this.hint();
      }
      return;
    }
    const asked = new AbortController();
    this.asked = asked;
    this.root.classList.add("checking");
    try {
      const found = await this.kind.check(wanted.body, asked.signal);
      this.mark("", "");
      if (found.ok) this.found.replaceChildren(...foreseen(found));
      else this.refuse(fieldOf(found.error), `${found.error.code}: ${found.error.message}`);
      this.button.disabled = !found.ok;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.refuse("", error.message);
      this.told.failed(error);
    } finally {
      if (this.asked === asked) this.root.classList.remove("checking");
    }
  }

  async act() {
    const values = this.values();
    const wanted = this.kind.read(values);
    if (this.button.disabled || wanted.body === undefined) return;
    this.button.disabled = true;
    try {
      await this.kind.act(wanted.body, values);
      this.button.disabled = false; // where the operator thought better of it
    } catch (error) {
      this.button.disabled = false;
      const [, code = "", message = error.message] =
        /^\[(RF-\d+)\] (.*)$/s.exec(error.message) ?? [];
      this.refuse(fieldOf({ code, message }), error.message);
      this.told.failed(error);
    }
  }
}
