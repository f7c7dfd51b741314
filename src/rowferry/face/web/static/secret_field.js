// A field for a secret: written here and never shown again, or a reference to where it is.

import { h } from "./dom.js";
import { HIDDEN } from "./uri_parts.js";

const LIKE_A_REFERENCE = /^(env|file|vault|literal):/;
const HERE = "here";

/**
 * Keeps one secret. `changed` hears of every key; `references` are what the server would look up.
 */
export class SecretField {
  constructor({ id, label, describedby = null, references, changed }) {
    this.stored = false; // the server has one, and keeps it unless another is written
    this.kind = h(
      "select",
      { id: `${id}-kind`, "aria-label": `${label}: where it is` },
      h("option", { value: HERE }, "written here"),
      references.map(({ kind, title, allowed }) =>
        h(
          "option",
          { value: kind, disabled: !allowed },
          `${kind}: ${title}${allowed ? "" : " (not allowed here)"}`,
        ),
      ),
    );
    this.input = h("input", {
      id,
      type: "password",
      autocomplete: "new-password",
      autocapitalize: "off",
      spellcheck: "false",
      "aria-label": label,
      "aria-describedby": describedby,
    });
    this.examples = Object.fromEntries(references.map((r) => [r.kind, r.example]));
    this.root = h("div", { class: "secret" }, this.input, this.kind);
    this.kind.addEventListener("change", () => {
      this.input.value = "";
      this.dress();
      changed();
    });
    this.input.addEventListener("input", changed);
    this.dress();
  }

  /** What goes to the server: the secret, a reference, or the mark of the stored one. */
  get value() {
    const text = this.input.value;
    if (this.kind.value !== HERE) return text && `${this.kind.value}:${text}`;
    if (!text) return this.stored ? HIDDEN : "";
    return LIKE_A_REFERENCE.test(text) ? `literal:${text}` : text;
  }

  set value(text) {
    if (text === this.value) return;
    this.stored ||= text === HIDDEN;
    const [, kind, rest] = /^(env|file|vault|literal):(.*)$/s.exec(text) ?? [];
    const here = !kind || kind === "literal";
    this.kind.value = here ? HERE : kind;
    this.input.value = text === HIDDEN ? "" : here ? (rest ?? text) : rest;
    this.dress();
  }

  dress() {
    const here = this.kind.value === HERE;
    this.input.type = here ? "password" : "text";
    const words = this.stored ? "stored" : "";
    this.input.placeholder = here ? words : (this.examples[this.kind.value] ?? "");
  }
}
