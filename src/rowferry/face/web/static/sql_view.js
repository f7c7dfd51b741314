// A box for SQL statements about changefeeds, with what may come next, examples, and what was run.

import * as api from "./api.js";
import { wide } from "./detail_view.js";
import { h } from "./dom.js";
import { completions, subject, tableOf } from "./sql_completion.js";
import { forget, history, remember } from "./sql_history.js";

const NOTHING = {
  forms: [],
  changefeeds: [],
  tables: [],
  columns: [],
  options: [],
  sources: [],
  sinks: [],
};

function cell(value) {
  if (value === null) return null;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function statementButton(text, more) {
  return h(
    "button",
    { type: "button", class: "statement", "data-statement": text },
    more && h("span", {}, more),
    h("code", {}, text),
  );
}

class SqlPage {
  constructor(told) {
    this.told = told;
    this.known = NOTHING;
    this.captured = new Map(); // tables by changefeed
    this.columns = new Map(); // columns by changefeed and table
    this.items = [];
    this.active = -1;
    this.box = h("textarea", {
      id: "statement",
      rows: 5,
      spellcheck: "false",
      autocomplete: "off",
      placeholder: "SHOW CHANGEFEEDS",
      role: "combobox",
      "aria-autocomplete": "list",
      "aria-expanded": "false",
      "aria-controls": "next-words",
      "aria-describedby": "statement-hint",
    });
    this.list = h("ul", { id: "next-words", role: "listbox", "aria-label": "What may come next", hidden: true });
    this.answer = h("div", { class: "answer", "aria-live": "polite" });
    this.examples = h("div", { class: "statements" }, h("p", { class: "muted" }, "Reading…"));
    this.past = h("div", { class: "statements" });
    this.root = h(
      "div",
      { class: "page", "data-key": "sql", "data-keep": "" },
      h("h1", {}, "SQL"),
      h(
        "div",
        { class: "querying" },
        h(
          "form",
          { class: "card sql" },
          h("label", { for: "statement" }, "One statement about changefeeds"),
          h("div", { class: "completed" }, this.box, this.list),
          h(
            "p",
            { class: "actions spread" },
            h(
              "span",
              { class: "hint", id: "statement-hint" },
              "Tab takes the first word offered, ↓ chooses another, Ctrl+Space shows all.",
            ),
            h("button", { class: "button primary", title: "Ctrl+Enter" }, "Run"),
          ),
        ),
        this.answer,
        h("details", { class: "card", open: true }, h("summary", {}, "Examples"), this.examples),
        h("details", { class: "card", open: true }, h("summary", {}, "History"), this.past),
      ),
    );
    this.listen();
    this.drawHistory();
    this.load();
  }

  listen() {
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    this.root.addEventListener("click", (event) => {
      const { statement } = event.target.closest("[data-statement]")?.dataset ?? {};
      if (statement !== undefined) this.put(statement);
      const option = event.target.closest('[role="option"]');
      if (option) this.take(Number(option.dataset.place));
      if (event.target.dataset.forget !== undefined) {
        forget();
        this.drawHistory();
      }
    });
    this.box.addEventListener("input", () => this.offer(false));
    this.box.addEventListener("click", () => this.close());
    this.box.addEventListener("blur", () => setTimeout(() => this.close(), 200));
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  async load() {
    try {
      const [facts, overview] = await Promise.all([api.form(), api.overview()]);
      const options = new Map();
      for (const { section, options: some } of facts.tables) {
        for (const one of some) {
          const path = section ? `${section}.${one.key}` : one.key;
          if (!options.has(path)) options.set(path, { ...one, path });
        }
      }
      this.known = {
        ...NOTHING,
        forms: facts.statements.map((one) => one.form),
        changefeeds: overview.changefeeds,
        options: [...options.values()].sort((a, b) => (a.path < b.path ? -1 : 1)),
        sources: facts.sources,
        sinks: facts.sinks,
      };
      this.examples.replaceChildren(
        ...facts.statements.map(({ title, example }) => statementButton(example, title)),
      );
    } catch (error) {
      this.examples.replaceChildren(h("p", { class: "wrong" }, error.message));
      this.told.failed(error);
    }
  }

  put(text) {
    this.box.value = text;
    this.box.focus();
    this.close();
    this.box.scrollIntoView({ block: "nearest" });
  }

  // --- completing --------------------------------------------------------------------------------

  before() {
    return this.box.value.slice(0, this.box.selectionStart);
  }

  /** Show what may come next; by itself only where a word was begun. */
  offer(always) {
    const text = this.before();
    const id = subject(text);
    const tables = this.captured.get(id);
    if (id && tables === undefined && /\bTABLES?\s/i.test(text)) this.readTables(id);
    const columns = this.columnsOf(id, tableOf(text));
    const { at, items } = completions(text, { ...this.known, tables: tables ?? [], columns });
    this.at = at;
    const begun = text.length > at;
    if (!items.length || !(always || begun || / $/.test(text))) return this.close();
    this.items = items;
    this.active = -1;
    this.list.replaceChildren(
      ...items.map(({ text: word, note }, place) =>
        h(
          "li",
          { id: `next-${place}`, role: "option", "data-place": place, "aria-selected": "false" },
          h("code", {}, word),
          note && h("small", {}, note),
        ),
      ),
    );
    this.list.hidden = false;
    this.list.scrollTop = 0;
    this.box.setAttribute("aria-expanded", "true");
    return undefined;
  }

  /** Return the columns of a captured table; none until they have been read. */
  columnsOf(id, table) {
    const place = `${id} ${table}`;
    if (id && table && !this.columns.has(place)) this.readColumns(id, table, place);
    return this.columns.get(place) ?? [];
  }

  async readColumns(id, table, place) {
    this.columns.set(place, []);
    try {
      this.columns.set(place, await api.columns(id, table));
      if (!this.list.hidden || document.activeElement === this.box) this.offer(false);
    } catch {
      // It is not captured: then it has no columns to offer.
    }
  }

  async readTables(id) {
    this.captured.set(id, []);
    try {
      this.captured.set(id, (await api.changefeed(id)).captured);
      if (!this.list.hidden || document.activeElement === this.box) this.offer(false);
    } catch {
      // No such changefeed (yet): then it has no tables to offer.
    }
  }

  close() {
    this.list.hidden = true;
    this.items = [];
    this.box.setAttribute("aria-expanded", "false");
    this.box.removeAttribute("aria-activedescendant");
  }

  move(by) {
    const rows = [...this.list.children];
    this.active = (this.active + by + rows.length) % rows.length;
    rows.forEach((row, place) => row.setAttribute("aria-selected", String(place === this.active)));
    rows[this.active].scrollIntoView({ block: "nearest" });
    this.box.setAttribute("aria-activedescendant", rows[this.active].id);
  }

  take(place) {
    const word = this.items[place].text;
    const lead = /^[,)=]$/.test(word) && this.box.value[this.at - 1] === " " && word === "," ? 1 : 0;
    const end = this.box.selectionStart;
    const tail = word.endsWith("://") ? "" : " ";
    this.box.setRangeText(`${word}${tail}`, this.at - lead, end, "end");
    this.box.focus();
    this.offer(false);
  }

  key(event) {
    const open = !this.list.hidden;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.close();
      this.run();
    } else if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      this.offer(true);
    } else if (open && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      this.move(event.key === "ArrowDown" ? 1 : -1);
    } else if (open && event.key === "Tab" && !event.shiftKey) {
      event.preventDefault();
      this.take(Math.max(0, this.active));
    } else if (open && event.key === "Enter" && this.active >= 0) {
      event.preventDefault();
      this.take(this.active);
    } else if (open && event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      this.close();
    }
  }

  // --- running -----------------------------------------------------------------------------------

  drawHistory() {
    const list = history();
    this.past.replaceChildren(
      ...(list.length
        ? [
            ...list.map((text) => statementButton(text)),
            h("button", { type: "button", class: "link", "data-forget": "" }, "Forget all"),
          ]
        : [h("p", { class: "muted" }, "Nothing was run yet. Statements stay in this browser, without their secrets.")]),
    );
  }

  async run() {
    const statement = this.box.value.trim();
    if (!statement) return;
    this.close();
    this.answer.replaceChildren(h("p", { class: "muted" }, "Running…"));
    remember(statement);
    this.drawHistory();
    try {
      const { columns, rows, message } = await api.sql(statement);
      this.answer.replaceChildren(
        ...(message ? [h("p", {}, message)] : []),
        ...(columns.length ? [wide(columns, rows.map((row) => row.map(cell)))] : []),
      );
      this.told.changed();
      this.captured.clear();
      this.load();
    } catch (error) {
      this.answer.replaceChildren(h("p", { class: "wrong", role: "alert" }, error.message));
      this.told.failed(error);
    }
  }
}

/** Return the page; it keeps what is written in it. `told` hears of changes and failures. */
export function sqlView(told) {
  return new SqlPage(told);
}
