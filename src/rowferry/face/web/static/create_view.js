// The form for a new changefeed. While it is filled in, the server says what would happen.

import * as api from "./api.js";
import { h } from "./dom.js";
import { plural } from "./words.js";

const WAIT_MS = 450; // after the last key, before the server is asked
const MOST = 100;

const FIELDS = [
  {
    name: "source",
    label: "Source",
    placeholder: "mysql://<user>:<password>@db.example:3306/",
    hint: "Where to read: mysql://, range://. Empty: the server's own source, if it has one.",
  },
  {
    name: "sink",
    label: "Sink",
    placeholder: "kafka://broker:9092/topic?protocol=canal-json",
    hint: "Where to write: kafka://, mysql://, s3://, gcs://, azure://, file://, http://.",
    needed: true,
  },
  {
    name: "rules",
    label: "Tables",
    placeholder: "shop.*\n!shop.audit_*",
    hint: "One rule a line; ! excludes; the last that fits decides. Empty: all tables.",
    rows: 3,
  },
  {
    name: "name",
    label: "Name",
    placeholder: "made from source and sink",
    hint: "Letters, digits and hyphens.",
  },
];
const MORE = [
  {
    name: "start",
    label: "Start behind commit-ts",
    placeholder: "as the source URI says",
    digits: true,
  },
  { name: "target", label: "End at commit-ts", placeholder: "never", digits: true },
  {
    name: "config",
    label: "Further settings, as JSON",
    placeholder: '{"sink": {"csv": {"include-commit-ts": true}}}',
    rows: 5,
  },
];

/** Return the field that an error is about; "" where it is about no single one. */
export function fieldOf({ code, message }) {
  const is = (...codes) => codes.includes(code);
  if (is("RF-1010", "RF-2008")) return "name";
  if (is("RF-1005", "RF-1009", "RF-1011")) return "rules";
  if (is("RF-1020") || /target[-_]ts/.test(message)) return "target";
  if (/start[-_]ts/.test(message)) return "start";
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

/** Return what the form asks for, or the field that is wrong and why. */
export function wantedOf(values) {
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
  for (const { name } of MORE.filter((f) => f.digits)) {
    if (!/^\d*$/.test(values[name].trim()))
      return { field: name, wrong: "A commit-ts is a whole number." };
  }
  if (!values.sink.trim()) return { field: "", wrong: "" };
  const rules = values.rules
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  if (rules.length) config = { ...config, filter: { ...config.filter, rules } };
  const form = {
    changefeed_id: values.name.trim(),
    source_uri: values.source.trim(),
    sink_uri: values.sink.trim(),
    ...(Object.keys(config).length ? { replica_config: config } : {}),
  };
  const digits = { start_ts: values.start.trim(), target_ts: values.target.trim() };
  return { body: api.written(form, digits) };
}

function field({ name, label, placeholder, hint, rows, needed }) {
  const common = {
    id: `new-${name}`,
    name,
    placeholder,
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
    "aria-describedby": `new-${name}-wrong${hint ? ` new-${name}-hint` : ""}`,
    required: needed,
  };
  return h(
    "div",
    { class: "field" },
    h("label", { for: `new-${name}` }, label),
    rows ? h("textarea", { ...common, rows }) : h("input", common),
    h("p", { class: "wrong", id: `new-${name}-wrong`, role: "alert" }),
    hint && h("p", { class: "hint", id: `new-${name}-hint` }, hint),
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
  ];
}

class Form {
  constructor(told) {
    this.told = told;
    this.timer = 0;
    this.asked = null; // the check that is under way
    this.root = h(
      "div",
      { class: "page", "data-key": "new", "data-keep": "" },
      h("p", { class: "back" }, h("a", { href: "#/" }, "← All changefeeds")),
      h("h1", {}, "New changefeed"),
      h(
        "div",
        { class: "creating" },
        h(
          "form",
          { class: "card", novalidate: true },
          FIELDS.map(field),
          h("details", {}, h("summary", {}, "More settings"), MORE.map(field)),
          h(
            "p",
            { class: "actions" },
            h("a", { class: "button", href: "#/" }, "Cancel"),
            h("button", { class: "button primary", disabled: true }, "Create"),
          ),
        ),
        h(
          "aside",
          { class: "card foreseen", "aria-live": "polite", "aria-label": "What it would do" },
          h("h2", {}, "What it would do"),
          h(
            "div",
            { class: "found" },
            h(
              "p",
              { class: "muted" },
              "Name source and sink: the server then looks what would be captured, and where it would go. Nothing is changed by that.",
            ),
          ),
        ),
      ),
    );
    this.form = this.root.querySelector("form");
    this.found = this.root.querySelector(".found");
    this.button = this.form.querySelector("button.primary");
    this.form.addEventListener("input", () => this.changed());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.create();
    });
  }

  values() {
    return Object.fromEntries([...new FormData(this.form)]);
  }

  changed() {
    this.button.disabled = true;
    clearTimeout(this.timer);
    this.asked?.abort();
    this.timer = setTimeout(() => this.check(), WAIT_MS);
  }

  mark(name, words) {
    for (const place of this.form.querySelectorAll(".field .wrong")) {
      const here = place.id === `new-${name}-wrong`;
      if (place.textContent !== (here ? words : "")) place.textContent = here ? words : "";
      const input = place.parentElement.querySelector("input, textarea");
      if (here) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
      if (here) place.closest("details")?.setAttribute("open", "");
    }
  }

  refuse(name, words) {
    this.mark(name, words);
    const where = name ? "See the field that is marked." : "";
    this.found.replaceChildren(h("p", { class: "wrong" }, name ? where : words));
  }

  async check() {
    const wanted = wantedOf(this.values());
    if (wanted.body === undefined) {
      if (wanted.field) this.refuse(wanted.field, wanted.wrong);
      else this.mark("", "");
      return;
    }
    const asked = new AbortController();
    this.asked = asked;
    this.root.classList.add("checking");
    try {
      const found = await api.check(wanted.body, asked.signal);
      this.mark("", "");
      if (found.ok) this.found.replaceChildren(...foreseen(found).filter(Boolean));
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

  async create() {
    const wanted = wantedOf(this.values());
    if (this.button.disabled || wanted.body === undefined) return;
    this.button.disabled = true;
    try {
      const made = await api.create(wanted.body);
      this.told.created(made.id);
    } catch (error) {
      this.button.disabled = false;
      const [, code = "", message = error.message] =
        /^\[(RF-\d+)\] (.*)$/s.exec(error.message) ?? [];
      this.refuse(fieldOf({ code, message }), error.message);
      this.told.failed(error);
    }
  }
}

/** Return the page; it keeps what is written in it. `told` hears of what was created, or failed. */
export function createView(told) {
  return new Form(told).root;
}
