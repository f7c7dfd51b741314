// Lines over time, drawn as SVG that stretches; words around it stay crisp as they are HTML.

import { h, s } from "./dom.js";
import { clock } from "./words.js";

const WIDTH = 1000;
const HEIGHT = 100;
const WINDOW_MS = 900_000;
const LEAST_MS = 60_000;

/** Return a small line of the newest values; the words beside it say what it shows. */
export function sparkline(values, tone = "") {
  const known = values.filter((v) => v !== null && v !== undefined);
  if (known.length < 2) return h("span", { class: "spark empty", "aria-hidden": "true" });
  const top = Math.max(...known, 1e-9);
  const step = WIDTH / (values.length - 1);
  const line = path(
    values.map((v, i) => [i * step, v]),
    (x) => x,
    (v) => 92 - (84 * v) / top,
  );
  return s(
    "svg",
    {
      class: `spark ${tone}`,
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      "aria-hidden": "true", // the number beside it says how it is now
    },
    s("title", {}, "the last minutes"),
    s("path", { class: "area", d: filled(line) }),
    s("path", { class: "line", d: line }),
  );
}

/** Return a path through points `[x, value]`; where a value is null, the line breaks. */
function path(points, x, y) {
  const pieces = [[]];
  for (const [at, value] of points) {
    if (value === null || value === undefined) pieces.push([]);
    else pieces[pieces.length - 1].push(`${x(at).toFixed(1)} ${y(value).toFixed(1)}`);
  }
  return pieces
    .filter((piece) => piece.length)
    .map((piece) => `M${piece.join("L")}${piece.length === 1 ? "h4" : ""}`) // one alone is a dash
    .join("");
}

/** Return the area below each piece of a line. */
function filled(line) {
  return line
    .split("M")
    .filter((piece) => piece.includes("L"))
    .map((piece) => {
      const steps = piece.split("L");
      const [first] = steps[0].split(" ");
      const [last] = steps[steps.length - 1].split(" ");
      return `M${first} ${HEIGHT}L${steps.join("L")}L${last} ${HEIGHT}Z`;
    })
    .join("");
}

const TIME_STEPS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[1, 2, 5, 10, 15, 30].map((n) => n * 1000),
  ...[1, 2, 5, 10, 15, 30].map((n) => n * 60_000),
  ...[1, 2, 4, 8, 12, 24, 48, 96, 240, 480].map((n) => n * 3_600_000),
];

/** Return round values from 0 to above `top`, three to five of them. */
function ticks(top, base) {
  const rough = Math.max(top, base === "time" ? 100 : 1) / 3;
  let step;
  if (base === "time") {
    step = TIME_STEPS.find((n) => n >= rough) ?? rough;
  } else {
    const radix = base === "bytes" ? 1024 : 10;
    const power = radix ** Math.floor(Math.log(rough) / Math.log(radix));
    const rounds = base === "bytes" ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] : [1, 2, 5];
    step = power * (rounds.find((n) => n * power >= rough) ?? radix);
  }
  const found = [0];
  while (found[found.length - 1] < top || found.length < 3) found.push(found.length * step);
  return found;
}

function timeTicks(begin, end) {
  const steps = [15, 30, 60, 120, 180, 300, 1800, 3600, 7200, 21_600].map((n) => n * 1000);
  const step = steps.find((n) => (end - begin) / n <= 5) ?? steps.at(-1);
  const found = [];
  for (let t = Math.ceil(begin / step) * step; t <= end; t += step) found.push(t);
  return { found, seconds: step < 60_000 };
}

/**
 * Return a chart.
 *
 * `points` are `[ms, value or null]`, oldest first, from `since` on; `base` is "time", "bytes" or "count"; `word`
 * writes a value; `span` is how far back it goes at most, in ms. Where a sample is missing, the line breaks, unless `connect`.
 */
export function chart({ title, points, since, base, word, tone = "", connect = false, now, span = WINDOW_MS }) {
  const end = Math.max(now, points.length ? points[points.length - 1][0] : 0);
  const begin = Math.min(Math.max(end - span, since), end - LEAST_MS);
  let seen = points.filter(([at]) => at >= begin);
  const known = seen.filter(([, v]) => v !== null);
  if (connect) seen = known;
  const top = Math.max(...known.map(([, v]) => v), 0);
  const marks = ticks(top, base);
  const high = marks[marks.length - 1];
  const x = (at) => ((at - begin) / (end - begin)) * WIDTH;
  const y = (value) => HEIGHT - (value / high) * HEIGHT;
  const line = path(connect ? seen : broken(seen), x, y);
  const times = timeTicks(begin, end);
  const newest = known.length ? known[known.length - 1][1] : null;
  const told = known.length
    ? `${title}: now ${word(newest)}, highest ${word(top)}`
    : `${title}: nothing was measured yet`;
  const share = (at) => `${(x(at) / WIDTH) * 100}%`;
  return h(
    "figure",
    { class: `chart ${tone}`, "data-key": title },
    h("figcaption", {}, h("span", {}, title), h("b", {}, known.length ? word(newest) : "–")),
    h(
      "div",
      {
        class: "plot",
        role: "img",
        tabindex: 0,
        "aria-label": told,
        points: { known, begin, end, high, word },
      },
      (known.length ? marks : [0]).map((value) =>
        h(
          "span",
          { class: "y", style: `bottom:${(value / high) * 100}%` },
          h(
            "i",
            {},
            value
              ? word(value).replace(/\.0 s$| 00 [ms]$/, (x) => (x[0] === "." ? " s" : ""))
              : "0",
          ),
        ),
      ),
      times.found.map((at) =>
        h(
          "span",
          { class: "x", style: `left:${share(at)}` },
          h("i", {}, times.seconds ? clock(at) : clock(at).slice(0, 5)),
        ),
      ),
      s(
        "svg",
        { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        s("path", { class: "area", d: filled(line) }),
        s("path", { class: "line", d: line }),
      ),
      known.length === 0 && h("p", { class: "nothing" }, "nothing was measured yet"),
      h("span", { class: "cursor", "data-keep": "", "data-key": "cursor" }),
      h("output", { class: "tip", "data-keep": "", "data-key": "tip" }),
    ),
  );
}

/** Put a break where samples are missing: the changefeed did not run then. */
function broken(points) {
  const gaps = points.slice(1).map(([at], i) => at - points[i][0]);
  const usual = [...gaps].sort((a, b) => a - b)[Math.floor(gaps.length / 2)] ?? 0;
  const found = [];
  points.forEach((point, i) => {
    if (i && gaps[i - 1] > 4 * usual) found.push([point[0], null]);
    found.push(point);
  });
  return found;
}

// --- the cursor: the same moment in all charts of the page ---------------------------------------

let moment = null;

function nearest(known, at) {
  let best = known[0];
  for (const point of known) if (Math.abs(point[0] - at) < Math.abs(best[0] - at)) best = point;
  return best;
}

/** Draw the cursor of every chart anew: after a move of the pointer, and after new data. */
export function drawCursors() {
  for (const plot of document.querySelectorAll(".plot")) {
    const cursor = plot.querySelector(".cursor");
    const tip = plot.querySelector(".tip");
    const { known, begin, end, high, word } = plot.points_;
    const shown = moment !== null && known.length > 0 && moment >= begin - 1000;
    plot.classList.toggle("pointed", shown);
    if (!shown) continue;
    const [at, value] = nearest(known, moment);
    const share = Math.min(1, (at - begin) / (end - begin));
    cursor.style.left = `${share * 100}%`;
    cursor.style.setProperty("--up", `${(value / high) * 100}%`);
    tip.textContent = `${word(value)} · ${clock(at)}`;
    tip.style.left = `${share * 100}%`;
    tip.classList.toggle("left", share > 0.6);
  }
}

function pointAt(event) {
  const plot = event.target.closest?.(".plot");
  if (!plot) {
    if (moment === null || document.activeElement?.matches(".plot")) return;
    moment = null;
  } else {
    const box = plot.getBoundingClientRect();
    const { begin, end } = plot.points_;
    moment = begin + ((event.clientX - box.left) / box.width) * (end - begin);
  }
  drawCursors();
}

function stepAlong(event) {
  const plot = event.target.closest?.(".plot");
  if (!plot || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
  const { known, end } = plot.points_;
  if (!known.length) return;
  const here = known.indexOf(nearest(known, moment ?? end));
  const next = here + (event.key === "ArrowLeft" ? -1 : 1);
  moment = known[Math.max(0, Math.min(known.length - 1, next))][0];
  event.preventDefault();
  drawCursors();
}

/** Let pointer and arrow keys move the cursor. */
export function followPointer() {
  document.addEventListener("pointermove", pointAt);
  document.addEventListener("keydown", stepAlong);
  document.addEventListener("focusout", (event) => {
    if (!event.target.matches?.(".plot")) return;
    moment = null;
    drawCursors();
  });
}
