// A box for SQL statements about changefeeds.

import * as api from "./api.js";
import { wide } from "./detail_view.js";
import { h } from "./dom.js";

const EXAMPLES = ["SHOW CHANGEFEEDS", "SHOW ALL CHANGEFEEDS", "SHOW CHANGEFEED name PROGRESS"];

async function run(root, told) {
  const box = root.querySelector("textarea");
  const place = root.querySelector(".answer");
  const statement = box.value.trim();
  if (!statement) return;
  place.replaceChildren(h("p", { class: "muted" }, "…"));
  try {
    const { columns, rows, message } = await api.sql(statement);
    place.replaceChildren(
      ...(message ? [h("p", {}, message)] : []),
      ...(columns.length
        ? [
            wide(
              columns,
              rows.map((r) =>
                r.map((x) =>
                  x === null ? null : typeof x === "object" ? JSON.stringify(x) : String(x),
                ),
              ),
            ),
          ]
        : []),
    );
    told.changed();
  } catch (error) {
    place.replaceChildren(h("p", { class: "wrong", role: "alert" }, error.message));
    told.failed(error);
  }
}

/** Return the page; it keeps what is written in it. `told` hears of changes and failures. */
export function sqlView(told) {
  const root = h(
    "div",
    { class: "page", "data-key": "sql", "data-keep": "" },
    h("h1", {}, "SQL"),
    h(
      "form",
      { class: "card sql" },
      h("label", { for: "statement" }, "One statement about changefeeds"),
      h("textarea", {
        id: "statement",
        rows: 4,
        spellcheck: "false",
        placeholder: "SHOW CHANGEFEEDS",
      }),
      h(
        "p",
        { class: "actions spread" },
        h(
          "span",
          { class: "examples" },
          EXAMPLES.map((x) => h("button", { type: "button", class: "link", "data-example": x }, x)),
        ),
        h("button", { class: "button primary", title: "Ctrl+Enter" }, "Run"),
      ),
    ),
    h("div", { class: "answer", "aria-live": "polite" }),
  );
  root.addEventListener("submit", (event) => {
    event.preventDefault();
    run(root, told);
  });
  root.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(root, told);
  });
  root.addEventListener("click", (event) => {
    const { example } = event.target.dataset;
    if (!example) return;
    const box = root.querySelector("textarea");
    box.value = example;
    box.focus();
  });
  return { root };
}
