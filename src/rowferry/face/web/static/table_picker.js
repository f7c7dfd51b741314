// Databases and tables of the source, to choose from; what is ticked stands in the rules.

import { h } from "./dom.js";
import { count } from "./words.js";

const MOST_SHOWN = 400;

/** Return a name as filter rules have it. */
export function quotedName(name) {
  return /^[$_0-9A-Za-z\u0080-\uffff]+$/.test(name) ? name : `\`${name.replaceAll("`", "``")}\``;
}

function partOf(text) {
  const quoted = /^(["`])((?:\1\1|(?!\1).)+)\1$/.exec(text);
  if (quoted) return { literal: quoted[2].replaceAll(quoted[1] + quoted[1], quoted[1]) };
  if (text === "*") return { any: true };
  if (/^[$_0-9A-Za-z\u0080-\uffff]+$/.test(text)) return { literal: text };
  if (!/^[$_0-9A-Za-z\u0080-\uffff*?]+$/.test(text)) return null; // the server knows what it means
  const pattern = text.replaceAll("$", "\\$").replaceAll("*", ".*").replaceAll("?", ".");
  return { pattern: new RegExp(`^${pattern}$`, "i") };
}

function fits(part, name) {
  if (part.any) return true;
  return part.literal === undefined
    ? part.pattern.test(name)
    : part.literal.toLowerCase() === name.toLowerCase();
}

/** Return whether rules keep a table, as far as they can be judged here: the last that fits decides. */
export function keeps(rules, database, table) {
  let kept = false;
  for (const rule of rules) {
    const negative = rule.startsWith("!");
    const halves = /^((?:"(?:""|[^"])+"|`(?:``|[^`])+`|[^."`]+))\.(.+)$/.exec(
      negative ? rule.slice(1) : rule,
    );
    const [one, other] = halves ? [partOf(halves[1]), partOf(halves[2])] : [];
    if (one && other && fits(one, database) && fits(other, table ?? "*")) {
      if (table !== null || other.any) kept = !negative;
    }
  }
  return kept;
}

/** Return rules by which a table is kept, or not; null as the table: the whole database. */
export function changedRules(rules, database, table, wanted) {
  const rule = `${quotedName(database)}.${table === null ? "*" : quotedName(table)}`;
  const own = `${quotedName(database)}.`;
  let left = rules.filter((one) => one !== rule && one !== `!${rule}`);
  if (table === null) left = left.filter((one) => !one.replace(/^!/, "").startsWith(own));
  if (keeps(left, database, table) === wanted) return left;
  return [...left, wanted ? rule : `!${rule}`];
}

/**
 * A panel with the source's databases. `ask(database)` returns a promise of its tables, or without one of the
 * databases; `rules` and `setRules` are the text field's.
 */
export class TablePicker {
  constructor({ prefix, ask, rules, setRules }) {
    Object.assign(this, { ask, rules, setRules });
    this.button = h(
      "button",
      { type: "button", class: "button small", "aria-expanded": "false" },
      "Choose from the source…",
    );
    this.search = h("input", {
      id: `${prefix}-table-search`,
      type: "search",
      placeholder: "Search",
      "aria-label": "Search databases and tables",
      autocomplete: "off",
    });
    this.list = h("div", { class: "databases" });
    this.note = h("p", { class: "hint", role: "status" });
    this.panel = h("div", { class: "picker", hidden: true }, this.search, this.note, this.list);
    this.root = h("div", { class: "picking" }, this.button, this.panel);
    this.boxes = []; // [database, table or null, checkbox]
    this.button.addEventListener("click", () => this.toggle());
    this.search.addEventListener("input", (event) => {
      event.stopPropagation(); // it is no setting
      this.filter();
    });
    this.panel.addEventListener("change", (event) => {
      event.stopPropagation();
      this.tick(event.target);
    });
  }

  toggle() {
    const open = this.panel.hidden;
    this.panel.hidden = !open;
    this.button.setAttribute("aria-expanded", String(open));
    this.button.textContent = open ? "Close the list" : "Choose from the source…";
    if (open) this.load();
  }

  /** Forget what was read: the source is another. */
  forget() {
    if (!this.panel.hidden) this.toggle();
    this.boxes = [];
    this.list.replaceChildren();
  }

  async load() {
    this.boxes = [];
    this.list.replaceChildren();
    this.note.textContent = "Reading…";
    try {
      const { databases, more } = await this.ask("");
      this.list.replaceChildren(...databases.map((name) => this.database(name)));
      this.note.textContent = databases.length
        ? more
          ? `The first ${databases.length} databases; of others write a rule.`
          : ""
        : "The source has no databases, or none that this login may see.";
      this.renew();
      this.search.focus();
    } catch (error) {
      this.list.replaceChildren(h("p", { class: "wrong", role: "alert" }, error.message));
      this.note.textContent = "";
    }
  }

  database(name) {
    const inside = h("div", { class: "tables" });
    const box = h("input", { type: "checkbox", "aria-label": `All tables of ${name}` });
    this.boxes.push([name, null, box]);
    const details = h(
      "details",
      { "data-name": name },
      h("summary", {}, name),
      inside,
    );
    details.addEventListener("toggle", () => {
      if (details.open && !inside.childElementCount) this.loadTables(name, inside);
    });
    return h("div", { class: "database" }, box, details);
  }

  async loadTables(database, inside) {
    inside.replaceChildren(h("p", { class: "hint" }, "Reading…"));
    try {
      const { tables, more } = await this.ask(database);
      const shown = tables.slice(0, MOST_SHOWN);
      const left = tables.length - shown.length;
      inside.replaceChildren(
        ...shown.map(({ name, rows }) => this.table(database, name, rows)),
        ...(tables.length ? [] : [h("p", { class: "hint" }, "No tables that this login may see.")]),
        ...(left || more
          ? [h("p", { class: "hint" }, `${more ? "more than " : ""}${count(left)} further ones: write a rule.`)]
          : []),
      );
      this.renew();
      this.filter();
    } catch (error) {
      inside.replaceChildren(h("p", { class: "wrong", role: "alert" }, error.message));
    }
  }

  table(database, name, rows) {
    const box = h("input", { type: "checkbox" });
    this.boxes.push([database, name, box]);
    return h(
      "label",
      { class: "table", "data-name": `${database}.${name}` },
      box,
      h("span", {}, name),
      h("small", {}, rows === null ? "" : `about ${count(rows)} rows`),
    );
  }

  tick(box) {
    const [database, table] = this.boxes.find(([, , one]) => one === box) ?? [];
    if (database === undefined) return;
    this.setRules(changedRules(this.rules(), database, table, box.checked));
    this.renew();
  }

  /** Tick what the rules keep. */
  renew() {
    const rules = this.rules();
    const partly = new Set(); // databases of which some tables are kept, and others not
    for (const [database, table, box] of this.boxes) box.checked = keeps(rules, database, table);
    for (const [database, table, box] of this.boxes) {
      const all = this.boxes.find(([name, one]) => name === database && one === null);
      if (table !== null && all[2].checked !== box.checked) partly.add(database);
    }
    for (const [database, table, box] of this.boxes)
      box.indeterminate = table === null && partly.has(database);
  }

  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hit = (text) => words.every((word) => text.toLowerCase().includes(word));
    for (const one of this.list.querySelectorAll(".table")) one.hidden = !hit(one.dataset.name);
    for (const one of this.list.querySelectorAll(".database")) {
      const name = one.querySelector("details").dataset.name;
      one.hidden = !hit(name) && !one.querySelector(".table:not([hidden])");
    }
  }
}
