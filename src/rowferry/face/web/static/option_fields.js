// Every option of the chosen source, sink and protocol, as the server declares it.

import { h } from "./dom.js";
import { SecretField } from "./secret_field.js";
import { HIDDEN, isSecretName } from "./uri_parts.js";

const FIELDS_OF_THEIR_OWN = new Set(["sink.protocol", "filter.rules"]);

export const pathOf = (section, key) => (section ? `${section}.${key}` : key);

/** Return the value at a dotted place of a configuration; undefined: there is none. */
export function valueAt(config, path) {
  return path.split(".").reduce((at, key) => at?.[key], config);
}

/** Return a configuration with another value at a place; undefined takes it away. */
export function withValue(config, path, value) {
  const [key, ...rest] = path.split(".");
  const made = { ...config };
  const inner = rest.length ? withValue(made[key] ?? {}, rest.join("."), value) : value;
  const gone = inner === undefined || (rest.length && !Object.keys(inner).length);
  if (gone) delete made[key];
  else made[key] = inner;
  return made;
}

/** Return a configuration with every secret as `***`; `isSecret` knows some by their place. */
export function withoutSecrets(config, isSecret, path = "") {
  return Object.fromEntries(
    Object.entries(config).map(([key, value]) => {
      const place = path ? `${path}.${key}` : key;
      if (value !== null && typeof value === "object" && !Array.isArray(value))
        return [key, withoutSecrets(value, isSecret, place)];
      return [key, (isSecret(place) || isSecretName(key)) && value ? HIDDEN : value];
    }),
  );
}

/** Return a configuration in which `***` is what another has in the same place. */
export function withSecretsOf(config, before) {
  return Object.fromEntries(
    Object.entries(config).map(([key, value]) => {
      if (value !== null && typeof value === "object" && !Array.isArray(value))
        return [key, withSecretsOf(value, before?.[key] ?? {})];
      return [key, value === HIDDEN && before?.[key] !== undefined ? before[key] : value];
    }),
  );
}

/** Return the options that count for a choice of source, sink and protocol, each once. */
export function optionsOf(facts, source, sink, protocol) {
  if (!sink) return [];
  const places = [
    ...(source?.tables ?? []),
    ...sink.tables,
    ...facts.common,
    ...(facts.protocols[protocol || sink.default_protocol] ?? []),
  ];
  const known = new Map();
  for (const { section, options } of places.map((place) => facts.tables[place])) {
    for (const one of options) {
      const path = pathOf(section, one.key);
      if (!known.has(path) && !FIELDS_OF_THEIR_OWN.has(path))
        known.set(path, { ...one, section, path });
    }
  }
  return [...known.values()].sort((a, b) =>
    a.section === b.section ? (a.key < b.key ? -1 : 1) : a.section < b.section ? -1 : 1,
  );
}

/** Return what a text in an option's field means, for a configuration. */
function typed(option, text) {
  if (option.kind === "flag") return text === "true";
  if (option.kind === "number" && /^[+-]?\d{1,15}$/.test(text.trim())) return Number(text);
  if (option.kind === "texts")
    return text
      .split("\n")
      .map((line) => line.trim())
      .filter(Boolean);
  if (option.kind === "json") {
    try {
      return JSON.parse(text);
    } catch {
      return text; // the server says what is wrong with it
    }
  }
  return text;
}

/** Return a value as it stands in a field. */
function written(option, value) {
  if (value === undefined || value === null) return "";
  if (option.kind === "texts" && Array.isArray(value)) return value.join("\n");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function control(option, id, fixed, set) {
  const common = { id, disabled: fixed, "aria-describedby": `${id}-doc ${id}-wrong` };
  const fallback = option.default ? `default: ${option.default}` : "default";
  let node;
  if (option.kind === "flag" || option.kind === "choice") {
    const words = option.kind === "flag" ? ["true", "false"] : option.choices;
    node = h(
      "select",
      common,
      h("option", { value: "" }, fallback),
      words.map((word) => h("option", { value: word }, word)),
    );
    node.addEventListener("change", () => set(node.value));
    return node;
  }
  const text = { ...common, autocomplete: "off", spellcheck: "false", placeholder: option.default };
  node =
    option.kind === "texts" || option.kind === "json"
      ? h("textarea", { ...text, rows: 2, placeholder: option.default || option.allowed })
      : h("input", { ...text, inputmode: option.kind === "number" ? "numeric" : null });
  node.addEventListener("input", () => set(node.value));
  return node;
}

/**
 * The list of options, in groups that open, with a search. `get(option)` and `set(option, value)` are where values
 * live; `isFixed(option)` says what cannot be changed any more.
 */
export class OptionFields {
  constructor({ prefix, references, get, set, isFixed = () => false, others, dropOther }) {
    Object.assign(this, { prefix, references, get, set, isFixed, others, dropOther });
    this.rows = new Map();
    this.shown = null; // nothing yet
    this.search = h("input", {
      id: `${prefix}-option-search`,
      type: "search",
      placeholder: "Search options",
      "aria-label": "Search options",
      autocomplete: "off",
    });
    this.groups = h("div", { class: "groups" });
    this.rest = h("div", { class: "others" });
    this.count = h("p", { class: "hint", role: "status" });
    this.root = h("div", { class: "options" }, this.search, this.count, this.rest, this.groups);
    this.search.addEventListener("input", (event) => {
      event.stopPropagation(); // it is no setting
      this.filter();
    });
  }

  /** Show these options; what is open and what has the focus stays. */
  draw(options) {
    const key = options.map((one) => one.path).join(" ");
    if (key !== this.shown) this.make(options);
    this.shown = key;
    this.renew();
  }

  make(options) {
    this.rows.clear();
    const sections = new Map();
    for (const one of options) sections.set(one.section, [...(sections.get(one.section) ?? []), one]);
    const groups = [...sections].map(([section, members]) =>
      h(
        "details",
        { class: "group", "data-section": section },
        h("summary", {}, section || "changefeed", h("small", {}, "")),
        members.map((one) => this.row(one)),
      ),
    );
    if (!groups.length)
      groups.push(h("p", { class: "muted" }, "Choose a source and a sink: their options come then."));
    this.groups.replaceChildren(...groups);
    this.search.hidden = !options.length;
    this.filter();
  }

  row(option) {
    const id = `${this.prefix}-opt-${option.path.replaceAll(".", "-")}`;
    const fixed = this.isFixed(option);
    const set = (text) => {
      this.set(option, text === "" ? undefined : typed(option, text));
      this.renew();
    };
    let field;
    let node;
    if (option.secret) {
      field = new SecretField({
        id,
        label: option.path,
        describedby: `${id}-doc`,
        references: this.references,
        changed: () => set(field.value),
      });
      node = field.root;
    } else {
      node = control(option, id, fixed, set);
    }
    const clear = h(
      "button",
      { type: "button", class: "link", "aria-label": `${option.path}: back to the default` },
      "reset",
    );
    clear.addEventListener("click", () => {
      this.set(option, undefined);
      this.renew();
      (field?.input ?? node).focus();
    });
    const root = h(
      "div",
      { class: "option", "data-path": option.path },
      h("div", { class: "key" }, h("label", { for: id }, option.key), clear),
      node,
      h("p", { class: "wrong", id: `${id}-wrong`, role: "alert" }),
      h(
        "p",
        { class: "hint", id: `${id}-doc` },
        option.doc,
        " ",
        h("span", { class: "allowed" }, `Allowed: ${option.allowed}.`),
        fixed && h("b", {}, " Fixed when the changefeed was created."),
      ),
    );
    this.rows.set(option.path, { option, root, node, field, clear, fixed });
    return root;
  }

  /** Show the values as they are now. */
  renew() {
    for (const { option, root, node, field, clear, fixed } of this.rows.values()) {
      const value = this.get(option);
      const isSet = value !== undefined;
      const text = written(option, value);
      if (field) field.value = text;
      else if (document.activeElement !== node && node.value !== text) node.value = text;
      root.classList.toggle("set", isSet);
      clear.hidden = !isSet || fixed;
    }
    for (const group of this.groups.querySelectorAll("details")) {
      const set = group.querySelectorAll(".option.set").length;
      const all = group.querySelectorAll(".option").length;
      group.querySelector("summary small").textContent = ` ${set ? `${set} of ${all} set` : all}`;
    }
    this.drawOthers();
  }

  /** Show what is set and belongs to none of the options: of another sink, or misspelt. */
  drawOthers() {
    const known = new Set(this.rows.keys());
    const lost = this.rows.size ? this.others(known) : [];
    const line = ({ name, drop }) => {
      const button = h("button", { type: "button", class: "link" }, "remove");
      button.setAttribute("aria-label", `remove ${name}`);
      button.addEventListener("click", () => {
        drop();
        this.renew();
      });
      return h("li", {}, h("code", {}, name), " ", button);
    };
    this.rest.replaceChildren(
      ...(lost.length
        ? [h("p", { class: "hint" }, "Also set, and no option of this choice:"), h("ul", {}, lost.map(line))]
        : []),
    );
  }

  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let hits = 0;
    for (const { option, root } of this.rows.values()) {
      const text = `${option.path} ${option.doc} ${option.choices.join(" ")}`.toLowerCase();
      const fits = words.every((word) => text.includes(word));
      root.hidden = !fits;
      hits += fits;
    }
    for (const group of this.groups.querySelectorAll("details")) {
      const some = group.querySelector(".option:not([hidden])") !== null;
      group.hidden = !some;
      if (words.length) group.open = some;
    }
    this.count.textContent = words.length ? `${hits} of ${this.rows.size} options` : "";
  }

  /** Show what is wrong with the option that an error names; returns whether it names one. */
  mark(message) {
    let marked = false;
    for (const { option, root, node, field } of this.rows.values()) {
      const here = !marked && message !== "" && namesOption(message, option.path);
      marked ||= here;
      const place = root.querySelector(".wrong");
      if (place.textContent !== (here ? message : "")) place.textContent = here ? message : "";
      const input = field?.input ?? node;
      if (here) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
      if (here) root.closest("details").open = true;
    }
    return marked;
  }
}

/** Return whether a message is about an option: its path stands in it as a word of its own. */
export function namesOption(message, path) {
  const at = message.indexOf(path);
  if (at < 0) return false;
  const edge = (c) => c === undefined || !/[\w.-]/.test(c);
  const after = message[at + path.length];
  return edge(message[at - 1]) && (edge(after) || (after === "." && /\.(\s|$)/.test(message.slice(at + path.length))));
}
