// Lists the paths of /openapi.json. Everything is put into the page as text, never as markup.
"use strict";

function make(tag, attributes, ...inside) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) found.setAttribute(name, value);
  found.append(...inside.filter((part) => part !== null && part !== undefined));
  return found;
}

function resolved(schema, all) {
  if (!schema) return null;
  if (schema.$ref) return all[schema.$ref.split("/").pop()] || null;
  const choice = (schema.anyOf || []).find((one) => one.$ref);
  return choice ? resolved(choice, all) : schema;
}

function kind(schema, all) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.anyOf) return schema.anyOf.map((one) => kind(one, all)).join(" or ");
  if (schema.type === "array") return "list of " + kind(schema.items, all);
  return schema.type || "anything";
}

function fields(title, schema, all) {
  const found = resolved(schema, all);
  if (!found || !found.properties) return null;
  const needed = new Set(found.required || []);
  const rows = Object.entries(found.properties).map(([name, one]) =>
    make("tr", {},
      make("td", {}, make("code", {}, name), title === "Body" && needed.has(name) ? " (needed)" : ""),
      make("td", {}, kind(one, all)),
      make("td", {}, one.description || "")));
  const head = make("tr", {}, make("th", {}, title), make("th", {}, "type"), make("th", {}, "meaning"));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

function parameters(operation, all) {
  const rows = (operation.parameters || []).map((one) =>
    make("tr", {},
      make("td", {}, make("code", {}, one.name), " (" + one.in + ")"),
      make("td", {}, kind(one.schema, all)),
      make("td", {}, one.description || one.schema.description || "")));
  if (!rows.length) return null;
  const head = make("tr", {}, make("th", {}, "Parameter"), make("th", {}, "type"), make("th", {}, "meaning"));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

function json(content) {
  const found = content && content["application/json"];
  return found ? found.schema : null;
}

function entry(path, verb, operation, all) {
  const inside = make("div", { class: "inside" });
  if (operation.description) inside.append(make("p", {}, operation.description));
  const answer = (operation.responses["200"] || {}).content;
  const parts = [
    parameters(operation, all),
    fields("Body", json((operation.requestBody || {}).content), all),
    fields("Answer", json(answer), all),
  ].filter(Boolean);
  inside.append(...(parts.length || operation.description ? parts : [make("p", {}, "No body; the answer is free-form JSON or {}.")]));
  return make("details", { "data-find": (path + " " + verb + " " + (operation.summary || "")).toLowerCase() },
    make("summary", {},
      make("span", { class: "verb " + verb }, verb.toUpperCase()),
      make("span", { class: "path" }, path),
      make("span", { class: "words" }, operation.summary || "")),
    inside);
}

function show(api) {
  const all = (api.components || {}).schemas || {};
  document.getElementById("version").textContent = api.info.version;
  document.getElementById("words").textContent = api.info.description.replaceAll("`", "");
  const groups = new Map();
  for (const [path, verbs] of Object.entries(api.paths)) {
    for (const [verb, operation] of Object.entries(verbs)) {
      const name = (operation.tags || ["other"])[0];
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(entry(path, verb, operation, all));
    }
  }
  const place = document.getElementById("paths");
  place.replaceChildren();
  for (const [name, entries] of groups) place.append(make("section", {}, make("h2", {}, name), ...entries));
}

document.getElementById("find").addEventListener("input", (event) => {
  const word = event.target.value.trim().toLowerCase();
  for (const one of document.querySelectorAll("details")) one.hidden = !one.dataset.find.includes(word);
  for (const part of document.querySelectorAll("section")) part.hidden = !part.querySelector("details:not([hidden])");
});

fetch("/openapi.json")
  .then((answer) => answer.json())
  .then(show)
  .catch((error) => { document.getElementById("paths").textContent = "The list cannot be read: " + error; });
