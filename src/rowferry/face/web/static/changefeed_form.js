// The form of a changefeed, new or changed. While it is filled in, the server says what would happen.

import * as api from "./api.js";
import { h, show } from "./dom.js";
import { EndpointFields } from "./endpoint_fields.js";
import { OptionFields, optionsOf, valueAt, withSecretsOf, withValue, withoutSecrets } from "./option_fields.js";
import { TablePicker } from "./table_picker.js";
import { plural } from "./words.js";

const WAIT_MS = 450; // after the last key, before the server is asked
const MOST = 100;
const ABOUT_OPTIONS = ["RF-1001", "RF-1002", "RF-1008", "RF-2004"];

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
  if (values.configWrong) return { field: "config", wrong: values.configWrong };
  let { config } = values;
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

/** Return the configuration that a text holds, or why it holds none. */
function parsedConfig(text) {
  if (!text.trim()) return { config: {} };
  try {
    const config = api.parsed(text);
    if (config !== null && typeof config === "object" && !Array.isArray(config)) return { config };
    return { wrong: 'Write an object: {"key": value}' };
  } catch (error) {
    return { wrong: `This is not JSON: ${error.message}` };
  }
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

const CONFIG = { name: "config", label: "All that is set", rows: 6, placeholder: "{}" };

function leaves(value, path = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [path];
  return Object.entries(value).flatMap(([key, one]) => leaves(one, path ? `${path}.${key}` : key));
}

/**
 * A page with a form, and beside it what it would do.
 *
 * What a kind of form must have: `prefix` of the fields' ids; `title`; `back`, a link; `begun`, the values at first; `rules`,
 * `own` and `times`, its plain fields; `button`, a word; `hint` for before anything was entered; `changefeed`, the
 * id of the one whose secrets are stored; `read(values)`, which returns `{body}`, or `{field, wrong}`, or `{}`
 * when there is nothing to ask yet; `check(body, signal)`; and `act(body, values)`, which does it.
 */
export class ChangefeedForm {
  constructor(kind, told) {
    this.kind = kind;
    this.told = told;
    this.timer = 0;
    this.asked = null; // the check that is under way
    this.form = null;
    this.place = h("div", {}, h("p", { class: "card blank" }, "Reading…"));
    this.root = h(
      "div",
      { class: "page", "data-key": kind.prefix, "data-keep": "" },
      h("p", { class: "back" }, h("a", { href: kind.back.href }, `← ${kind.back.words}`)),
      h("h1", { tabindex: -1 }, kind.title),
      h("div", { class: "first", role: "status" }),
      this.place,
    );
    this.ready = this.load();
  }

  async load() {
    try {
      this.build(await api.form());
    } catch (error) {
      const again = h("button", { type: "button", class: "button" }, "Try again");
      again.addEventListener("click", () => {
        this.ready = this.load();
      });
      this.place.replaceChildren(
        h("div", { class: "card blank" }, h("p", { class: "wrong", role: "alert" }, error.message), again),
      );
      this.told.failed(error);
    }
  }

  build(facts) {
    const { kind } = this;
    const { prefix, begun } = kind;
    this.facts = facts;
    this.config = begun.config;
    this.configWrong = "";
    const one = (side, title, hint) =>
      new EndpointFields({
        prefix,
        side,
        title,
        hint,
        kinds: side === "source" ? facts.sources : facts.sinks,
        references: facts.references,
        uri: begun[side],
        changed: () => this.edited(side),
        test: () => api[side === "source" ? "checkSource" : "checkSink"](this.endBody(side)),
      });
    this.source = one("source", "Source", kind.sourceHint);
    this.sink = one("sink", "Sink", kind.sinkHint);
    this.protocol = h("select", { id: `${prefix}-protocol` });
    this.protocol.addEventListener("change", () => this.setProtocol(this.protocol.value));
    this.protocolField = h(
      "div",
      { class: "field" },
      h("label", { for: `${prefix}-protocol` }, "Protocol"),
      this.protocol,
    );
    this.sink.fields.after(this.protocolField);
    this.picker = new TablePicker({
      prefix,
      ask: (database) => api.sourceTables(this.endBody("source", { database })),
      rules: () => linesOf(this.field("rules").value),
      setRules: (rules) => {
        this.field("rules").value = rules.join("\n");
        this.changed();
      },
    });
    this.options = new OptionFields({
      prefix,
      references: facts.references,
      get: (option) => this.optionValue(option),
      set: (option, value) => this.setOption(option, value),
      isFixed: (option) => Boolean(kind.changefeed) && !option.alterable,
      others: (known) => this.others(known),
    });
    this.form = h(
      "form",
      { novalidate: true, autocomplete: "off" },
      this.source.root,
      h(
        "section",
        { class: "card", "aria-label": "Tables" },
        h("h2", {}, "Tables"),
        field(prefix, { ...kind.rules, value: begun.rules }),
        this.picker.root,
      ),
      this.sink.root,
      h(
        "section",
        { class: "card two", "aria-label": kind.ownTitle },
        h("h2", {}, kind.ownTitle),
        kind.own.map((x) => field(prefix, { ...x, value: begun[x.name] })),
      ),
      h(
        "section",
        { class: "card", "aria-label": "Options" },
        h("h2", {}, "Options"),
        this.options.root,
        h("details", { class: "json" }, h("summary", {}, "As JSON"), field(prefix, CONFIG)),
      ),
      h(
        "p",
        { class: "actions" },
        h("a", { class: "button", href: kind.back.href }, "Cancel"),
        h("button", { class: "button primary", disabled: true }, kind.button),
      ),
    );
    this.place.replaceChildren(
      h(
        "div",
        { class: "creating" },
        this.form,
        h(
          "aside",
          { class: "card foreseen", "aria-live": "polite", "aria-label": "What it would do" },
          h("h2", {}, "What it would do"),
          h("div", { class: "found" }),
        ),
      ),
    );
    this.found = this.place.querySelector(".found");
    this.button = this.form.querySelector(".actions .primary");
    this.draw();
    this.begun = JSON.stringify(this.values());
    this.hint();
    for (const name of ["rules", ...kind.own.map((x) => x.name)])
      this.field(name).addEventListener("input", () => this.changed());
    this.field("rules").addEventListener("input", () => this.picker.renew());
    this.field("config").addEventListener("input", () => this.readConfig());
    this.field("config").addEventListener("change", () => this.drawConfig());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.act();
    });
  }

  field(name) {
    return this.form.querySelector(`#${this.kind.prefix}-${name}`);
  }

  values() {
    const plain = this.kind.own.map(({ name }) => [name, this.field(name).value.trim()]);
    return {
      source: this.source.value,
      sink: this.sink.value,
      rules: this.field("rules").value,
      config: this.config,
      configWrong: this.configWrong,
      ...Object.fromEntries(plain),
    };
  }

  /** Whether something was written that leaving the page would lose. */
  get isWritten() {
    return this.form !== null && JSON.stringify(this.values()) !== this.begun;
  }

  // --- settings ----------------------------------------------------------------------------------

  /** What a question about one side says of it. */
  endBody(side, more = {}) {
    const form = {
      [`${side}_uri`]: this[side].value,
      ...(this.kind.changefeed ? { changefeed_id: this.kind.changefeed } : {}),
      ...more,
    };
    const { config } = configOf(this.values(), []);
    return api.written(config ? { ...form, replica_config: config } : form);
  }

  sideOf(option) {
    return option.section.split(".")[0] === "source" ? this.source : this.sink;
  }

  optionValue(option) {
    const given = option.uri ? this.sideOf(option).param(option.key) : undefined;
    return given ?? valueAt(this.config, option.path);
  }

  setOption(option, value) {
    const side = this.sideOf(option);
    const inConfig = valueAt(this.config, option.path) !== undefined;
    const simple = value === undefined || typeof value !== "object";
    if (option.uri && simple && (!inConfig || value === undefined))
      side.setParam(option.key, value === undefined ? undefined : String(value));
    if (!option.uri || inConfig || !simple) this.config = withValue(this.config, option.path, value);
    this.drawConfig();
    side.tested.replaceChildren();
    this.changed();
  }

  get chosenProtocol() {
    return this.sink.param("protocol") ?? valueAt(this.config, "sink.protocol") ?? "";
  }

  setProtocol(name) {
    this.sink.setParam("protocol", name || undefined);
    this.config = withValue(this.config, "sink.protocol", undefined);
    this.edited("sink");
  }

  /** Return what is set and is no option of the choice, each with how to take it away. */
  others(known) {
    const keys = (side) =>
      new Set([...known].filter((p) => (p.split(".")[0] === "source") === (side === this.source)).map((p) => p.split(".").at(-1)));
    const params = [this.source, this.sink].flatMap((side) =>
      side.facts?.forwards_parameters
        ? []
        : (side.parts?.params ?? [])
            .filter(([key]) => key !== "protocol" && !keys(side).has(key))
            .map(([key]) => ({
              name: `${side === this.source ? "source" : "sink"} URI: ${key}`,
              drop: () => {
                side.setParam(key, undefined);
                this.changed();
              },
            })),
    );
    const isKnown = (path) =>
      path === "sink.protocol" || [...known].some((p) => path === p || path.startsWith(`${p}.`));
    const set = leaves(this.config)
      .filter((path) => path && !isKnown(path))
      .map((path) => ({
        name: path,
        drop: () => {
          this.config = withValue(this.config, path, undefined);
          this.drawConfig();
          this.changed();
        },
      }));
    return [...params, ...set];
  }

  readConfig() {
    const { config, wrong = "" } = parsedConfig(this.field("config").value);
    this.configWrong = wrong;
    if (config) {
      this.config = withSecretsOf(config, this.config);
      this.draw();
    }
    this.changed();
  }

  // --- showing -----------------------------------------------------------------------------------

  /** Another source or sink was written. */
  edited(side) {
    if (side === "source") this.picker.forget();
    this.draw();
    this.changed();
  }

  draw() {
    const sink = this.sink.facts;
    const chosen = this.chosenProtocol;
    const options = optionsOf(this.facts, this.source.facts, sink, chosen);
    for (const side of [this.source, this.sink]) {
      const own = options.filter((x) => x.secret && x.uri && this.sideOf(x) === side);
      side.secretKeys = new Set(own.map((x) => x.key));
      if (document.activeElement !== side.uri) side.showUri();
    }
    this.secrets = new Set(options.filter((x) => x.secret).map((x) => x.path));
    this.protocolField.hidden = !sink || sink.protocol === "none";
    const names = [...new Set([...(sink?.protocols ?? []), ...(chosen ? [chosen] : [])])];
    const none = sink?.default_protocol ? `default: ${sink.default_protocol}` : "Choose…";
    this.protocol.replaceChildren(
      h("option", { value: "" }, none),
      ...names.map((name) => h("option", { value: name }, name)),
    );
    this.protocol.value = chosen;
    this.options.draw(options);
    this.drawConfig();
  }

  drawConfig() {
    const box = this.field("config");
    if (this.configWrong || document.activeElement === box) return;
    const shown = withoutSecrets(this.config, (path) => this.secrets.has(path));
    box.value = Object.keys(shown).length ? JSON.stringify(shown, null, 2) : "";
  }

  /** Show something above the form; null: nothing. */
  tellFirst(node) {
    const place = this.root.querySelector(".first");
    if (node) show(place, node);
    else place.replaceChildren();
  }

  hint(words = this.kind.hint) {
    this.found.replaceChildren(h("p", { class: "muted" }, words));
  }

  changed() {
    if (!this.form) return;
    this.button.disabled = true;
    clearTimeout(this.timer);
    this.asked?.abort();
    this.timer = setTimeout(() => this.check(), WAIT_MS);
  }

  mark(name, words) {
    for (const place of this.form.querySelectorAll(".field > .wrong")) {
      const here = place.id === `${this.kind.prefix}-${name}-wrong`;
      if (place.textContent !== (here ? words : "")) place.textContent = here ? words : "";
      const input = place.parentElement.querySelector("input, textarea");
      if (here) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
      if (here) place.closest("details")?.setAttribute("open", "");
    }
  }

  refuse(name, words, code = "") {
    const inOptions = this.options.mark(ABOUT_OPTIONS.includes(code) ? words : "");
    const has = !inOptions && name && this.field(name);
    this.mark(has ? name : "", words);
    const where = "It cannot run like this: see the field that is marked.";
    this.found.replaceChildren(h("p", { class: "wrong" }, has || inOptions ? where : words));
  }

  /** Return the parts that are still to be written, in words. */
  missing() {
    return [this.source, this.sink].flatMap((side) => {
      const { facts, parts } = side;
      const lacks = (part) => facts?.[part]?.needed && !parts[part].replace(/^\//, "");
      const names = ["address", "path"].filter(lacks).map((part) => facts[part].label);
      if (side === this.sink && facts?.protocol === "needed" && !this.chosenProtocol)
        names.push("Protocol");
      return names.map((name) => `${side === this.source ? "source" : "sink"}: ${name}`);
    });
  }

  // --- asking ------------------------------------------------------------------------------------

  async check() {
    const wanted = this.kind.read(this.values());
    const missing = this.missing();
    if (wanted.body === undefined || missing.length) {
      if (wanted.field) {
        this.refuse(wanted.field, wanted.wrong);
      } else {
        this.mark("", "");
        this.options.mark("");
        this.hint(missing.length ? `Still to be filled in: ${missing.join(", ")}.` : undefined);
      }
      return;
    }
    const asked = new AbortController();
    this.asked = asked;
    this.root.classList.add("checking");
    try {
      const found = await this.kind.check(wanted.body, asked.signal);
      this.mark("", "");
      this.options.mark("");
      if (found.ok) {
        this.found.replaceChildren(...foreseen(found));
      } else {
        const { code, message } = found.error;
        this.refuse(fieldOf(found.error), `${code}: ${message}`, code);
      }
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
      this.refuse(fieldOf({ code, message }), error.message, code);
      this.told.failed(error);
    }
  }
}
