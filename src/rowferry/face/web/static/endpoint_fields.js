// The fields of a source or a sink: made from what its class says, in step with its URI.

import { h } from "./dom.js";
import { SecretField } from "./secret_field.js";
import { HIDDEN, emptyUri, isSecretName, parseUri, writeUri } from "./uri_parts.js";

const MARKS = { ok: ["✓", "is fine"], warning: ["!", "could be better"], failed: ["✗", "is wrong"] };

/** Return what checks have found, a line each, with what helps. */
export function checkList(checks) {
  return h(
    "ul",
    { class: "checks" },
    checks.map(({ check, result, words, cure }) => {
      const [mark, meaning] = MARKS[result] ?? MARKS.failed;
      return h(
        "li",
        { class: result },
        h("span", { class: "mark", role: "img", "aria-label": meaning }, mark),
        h(
          "div",
          {},
          h("b", {}, check),
          h("p", {}, words),
          cure && h("p", { class: "cure" }, "What to do: ", cure),
        ),
      );
    }),
  );
}

function plain(id, label, part, changed) {
  const input = h("input", {
    id,
    placeholder: part.example,
    required: part.needed,
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
  });
  input.addEventListener("input", changed);
  return { input, root: h("div", { class: "field" }, h("label", { for: id }, label), input) };
}

/**
 * One side of a changefeed. `kinds` are the facts of all sources, or sinks; `changed` hears of every key,
 * and `test` returns a promise of checks.
 */
export class EndpointFields {
  constructor({ prefix, side, title, kinds, references, uri = "", hint, changed, test }) {
    this.id = `${prefix}-${side}`;
    this.kinds = kinds;
    this.references = references;
    this.changed = changed;
    this.raw = ""; // what was written where that is no URI
    this.parts = null;
    this.secretKeys = new Set(); // of parameters, as options declare them
    this.made = null; // the scheme whose fields are shown
    this.scheme = this.schemeSelect(title);
    this.fields = h("div", { class: "parts" });
    this.uri = h("input", {
      id: this.id,
      name: side,
      class: "uri",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
      placeholder: side === "sink" ? "scheme://…" : "scheme://user@host:port/",
      "aria-describedby": `${this.id}-wrong ${this.id}-hint`,
    });
    this.tested = h("div", { class: "tested", role: "status" });
    this.button = h("button", { type: "button", class: "button small" }, `Test ${side}`);
    this.root = h(
      "section",
      { class: "card endpoint", "aria-label": title },
      h("h2", {}, title),
      h(
        "div",
        { class: "field" },
        h("label", { for: `${this.id}-scheme` }, "Kind"),
        this.scheme,
      ),
      this.fields,
      h(
        "div",
        { class: "field" },
        h("label", { for: this.id }, "URI"),
        this.uri,
        h("p", { class: "wrong", id: `${this.id}-wrong`, role: "alert" }),
        h("p", { class: "hint", id: `${this.id}-hint` }, hint),
      ),
      h("div", { class: "testing" }, this.button, this.tested),
    );
    this.scheme.addEventListener("change", () => this.choose(this.scheme.value));
    this.uri.addEventListener("input", () => {
      this.read(this.uri.value);
      this.tell();
    });
    this.uri.addEventListener("change", () => this.showUri());
    this.button.addEventListener("click", () => this.run(test));
    this.read(uri);
    this.showUri();
  }

  schemeSelect(title) {
    const groups = new Map();
    for (const kind of this.kinds) groups.set(kind.title, [...(groups.get(kind.title) ?? []), kind]);
    return h(
      "select",
      { id: `${this.id}-scheme`, "aria-label": `${title}: kind` },
      h("option", { value: "" }, "Choose…"),
      [...groups].map(([name, kinds]) =>
        h(
          "optgroup",
          { label: name },
          kinds.map(({ scheme, missing }) =>
            h(
              "option",
              { value: scheme, disabled: Boolean(missing), title: missing || null },
              scheme === name ? scheme : `${name} (${scheme})`,
            ),
          ),
        ),
      ),
    );
  }

  /** The facts of the chosen kind; undefined: none is chosen, or nobody knows it. */
  get facts() {
    return this.kinds.find((kind) => kind.scheme === this.parts?.scheme);
  }

  /** The URI with its secrets, for the server. */
  get value() {
    return this.parts ? writeUri(this.parts) : this.raw.trim();
  }

  choose(scheme) {
    if (!scheme) this.parts = null;
    else this.parts = this.parts ? { ...this.parts, scheme } : emptyUri(scheme);
    this.raw = "";
    if (this.facts && !this.facts.login) Object.assign(this.parts, { user: "", password: "" });
    if (this.facts && !this.facts.address) this.parts.address = "";
    if (this.facts && !this.facts.path) this.parts.path = "";
    this.draw();
    this.showUri();
    this.tell();
  }

  /** Take a URI that was written; a hidden secret is the one that the fields have. */
  read(text) {
    const before = this.parts;
    this.raw = text;
    this.parts = parseUri(text);
    if (this.parts && before) {
      if (this.parts.password === HIDDEN && before.password) this.parts.password = before.password;
      const known = new Map(before.params);
      this.parts.params = this.parts.params.map(([key, value]) => [
        key,
        value === HIDDEN && known.has(key) ? known.get(key) : value,
      ]);
    }
    this.draw();
  }

  /** Show the URI without its secrets. */
  showUri() {
    const hides = (key) => this.secretKeys.has(key) || isSecretName(key);
    this.uri.value = this.parts ? writeUri(this.parts, hides) : this.raw;
  }

  draw() {
    const scheme = this.facts?.scheme ?? "";
    this.scheme.value = scheme;
    if (this.made !== scheme) this.make();
    this.made = scheme;
    if (!this.facts) return;
    for (const name of ["address", "path", "user"]) {
      const input = this[name]?.input;
      const bare = name === "path" && this.facts.address; // else it is a whole path of its own
      const text = bare ? this.parts.path.replace(/^\//, "") : this.parts[name];
      if (input && document.activeElement !== input && input.value !== text) input.value = text;
    }
    if (this.password && this.password.value !== this.parts.password)
      this.password.value = this.parts.password;
  }

  make() {
    const { facts } = this;
    const set = (name, input) => {
      const text = name === "password" ? input.value : input.value.trim();
      this.parts[name] = name === "path" && text ? `/${text.replace(/^\/+/, "")}` : text;
      this.showUri();
      this.tell();
    };
    const one = (name, part, label) => {
      this[name] = part && plain(`${this.id}-${name}`, label, part, () => set(name, this[name].input));
      return this[name]?.root;
    };
    this.password = null;
    const rows = facts
      ? [
          one("address", facts.address, facts.address?.label),
          one("path", facts.path, facts.path?.label),
          one("user", facts.login ? { example: "", needed: false } : null, "User"),
        ]
      : [];
    if (facts?.login) {
      const id = `${this.id}-password`;
      this.password = new SecretField({
        id,
        label: "Password",
        references: this.references,
        changed: () => set("password", this.password),
      });
      rows.push(
        h("div", { class: "field" }, h("label", { for: id }, "Password"), this.password.root),
      );
    }
    this.fields.replaceChildren(...rows.filter(Boolean));
  }

  /** Return the text of a parameter; undefined: it is not given. */
  param(key) {
    return this.parts?.params.find(([name]) => name === key)?.[1];
  }

  /** Set a parameter, in its place; undefined takes it away. */
  setParam(key, value) {
    if (!this.parts) return;
    const { params } = this.parts;
    const place = params.findIndex(([name]) => name === key);
    if (value === undefined) this.parts.params = params.filter(([name]) => name !== key);
    else if (place < 0) params.push([key, value]);
    else params[place] = [key, value];
    this.showUri();
  }

  tell() {
    this.tested.replaceChildren(); // what was found was about something else
    this.changed();
  }

  async run(test) {
    this.button.disabled = true;
    this.tested.replaceChildren(h("p", { class: "muted" }, "Asking…"));
    const asked = this.value;
    let shown;
    try {
      const { checks } = await test();
      shown = checkList(checks);
    } catch (error) {
      shown = h("p", { class: "wrong", role: "alert" }, error.message);
    }
    if (this.value === asked) this.tested.replaceChildren(shown);
    else this.tested.replaceChildren();
    this.button.disabled = false;
  }
}
