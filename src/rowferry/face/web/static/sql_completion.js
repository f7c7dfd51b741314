// What may come next in a statement: found by the forms that the server has for its statements. Pure.

const TOKEN = /'(?:''|[^'])*'?|"(?:\\.|[^"\\])*"?|`(?:``|[^`])*`?|[(),;=]|[^\s(),;='"`]+/g;
const LISTS = ["<tables>", "<settings>", "<key>"];
const MOST = 40;

/** Return the words of a text, each with where it begins. */
export function wordsOf(text) {
  return [...text.matchAll(TOKEN)].map((found) => ({ text: found[0], at: found.index }));
}

/** Return what each form expects behind these words, each once, with the words of a list so far. */
function expected(forms, words) {
  const found = new Map();
  const note = (item, list) => found.set(item, list);
  const walk = (items, i, j, list) => {
    if (i === items.length) return;
    const item = items[i];
    if (j === words.length) {
      note(item, list);
      return;
    }
    if (LISTS.includes(item)) {
      for (let end = j + 1; end <= words.length; end += 1) {
        const part = words.slice(j, end);
        if (end === words.length) note(item, part);
        walk(items, i + 1, end, part);
      }
    } else if (item.startsWith("<") || item.toUpperCase() === words[j].toUpperCase()) {
      walk(items, i + 1, j + 1, item === "<tables>" ? list : []);
    }
  };
  for (const form of forms) walk(form.split(/\s+/), 0, 0, []);
  return found;
}

const plain = (name) => (/^[A-Za-z_][\w-]*$/.test(name) ? name : `\`${name.replaceAll("`", "``")}\``);

function settings(list, known) {
  const last = list.at(-1);
  if (last === undefined || last === ",") {
    return [
      ...known.options.map(({ path, doc }) => ({ text: path, note: doc })),
      ...["sink_uri", "source_uri", "start_ts", "target_ts"].map((text) => ({ text, note: "" })),
    ];
  }
  if (last === "=") {
    const option = known.options.find(({ path }) => path === list.at(-2));
    const words = option?.kind === "flag" ? ["TRUE", "FALSE"] : (option?.choices ?? []);
    return [...words, "DEFAULT"].map((text) => ({ text, note: "" }));
  }
  return list.at(-2) === "=" ? [{ text: ",", note: "" }] : [{ text: "=", note: "" }];
}

/** Offer the columns of a row's key, then the others; behind each value there may be one more. */
function keyColumns(list, known) {
  const last = list.at(-1);
  if (last !== undefined && last !== ",") {
    return last === "=" ? [] : [{ text: list.at(-2) === "=" ? "," : "=", note: "" }];
  }
  return [...known.columns]
    .filter(({ name }) => !list.includes(plain(name)))
    .sort((a, b) => Number(b.key) - Number(a.key))
    .map(({ name, type, key }) => ({ text: plain(name), note: key ? `${type}, key` : type }));
}

function tables(list, known) {
  if (list.length && list.at(-1) !== ",") return [{ text: ",", note: "" }];
  return known.tables.map((text) => ({ text, note: "" }));
}

const address = (kinds) => kinds.map(({ scheme, title }) => ({ text: `'${scheme}://`, note: title }));

function offers(item, list, known) {
  switch (item) {
    case "<changefeed>":
      return known.changefeeds.map(({ id, state }) => ({ text: plain(id), note: state }));
    case "<settings>":
      return settings(list, known);
    case "<tables>":
      return tables(list, known);
    case "<key>":
      return keyColumns(list, known);
    case "<source>":
      return address(known.sources);
    case "<sink>":
      return address(known.sinks);
    default:
      return item.startsWith("<") ? [] : [{ text: item, note: "" }];
  }
}

/**
 * Return what may stand at the end of `text`: `at`, where it would begin, and `items` of `{text, note}`.
 *
 * `known` has `forms`, `changefeeds`, `tables`, `columns`, `options`, `sources` and `sinks`.
 */
export function completions(text, known) {
  const words = wordsOf(text);
  const last = words.at(-1);
  const open = last && last.at + last.text.length === text.length && !/^[(),;=]$/.test(last.text);
  const begun = open ? words.pop() : { text: "", at: text.length };
  const start = begun.text.toLowerCase();
  const seen = new Set();
  const items = [...expected(known.forms, words.map((word) => word.text))]
    .flatMap(([item, list]) => offers(item, list, known))
    .filter((one) => one.text.toLowerCase().startsWith(start) && one.text.toLowerCase() !== start)
    .filter((one) => !seen.has(one.text) && seen.add(one.text));
  return { at: begun.at, items: items.slice(0, MOST) };
}

/** Return the changefeed that a statement is about; "": none yet. */
export function subject(text) {
  const words = wordsOf(text).map((word) => word.text);
  const at = words.findIndex((word) => word.toUpperCase() === "CHANGEFEED");
  return at < 0 ? "" : (words[at + 1] ?? "").replace(/^`(.*)`$/, "$1").replaceAll("``", "`");
}

/** Return the one table that a statement names behind TABLE; "": none yet, or it is still being written. */
export function tableOf(text) {
  const words = wordsOf(text).map((word) => word.text);
  const at = words.findIndex((word) => word.toUpperCase() === "TABLE");
  return at < 0 || at + 2 >= words.length ? "" : words[at + 1].replaceAll("`", "");
}
