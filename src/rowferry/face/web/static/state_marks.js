// States of a changefeed: a shape, a colour and the word, so that none of them stands alone.

import { h, s } from "./dom.js";

// The worst first: so lists are sorted.
export const STATES = ["failed", "warning", "pending", "normal", "stopped", "finished", "removed"];

const MEANING = {
  normal: "runs",
  warning: "an error is being retried",
  pending: "wants to run, but no server can run it now",
  stopped: "paused by an operator",
  failed: "gave up on an error; waits for an operator",
  finished: "reached its target",
  removed: "is being removed",
};

const SHAPES = {
  normal: () => [s("circle", { cx: 8, cy: 8, r: 5 })],
  warning: () => [s("path", { d: "M8 2 15 14H1z" })],
  pending: () => [
    s("circle", { cx: 8, cy: 8, r: 5, class: "hollow", "stroke-dasharray": "3.2 2" }),
  ],
  stopped: () => [s("path", { d: "M3.5 3h3v10h-3zM9.5 3h3v10h-3z" })],
  failed: () => [s("path", { d: "M3 3 13 13M13 3 3 13", class: "thick" })],
  finished: () => [s("path", { d: "M2.5 8.5 6.5 12.5 13.5 4", class: "thick" })],
  removed: () => [s("path", { d: "M3 8h10", class: "thick" })],
};

/** Return the shape of a state. */
export function glyph(state) {
  const shape = (SHAPES[state] ?? SHAPES.removed)();
  return s("svg", { class: `glyph ${state}`, viewBox: "0 0 16 16", "aria-hidden": "true" }, shape);
}

const PHASES = {
  waiting: "waits for a server",
  starting: "starts",
  snapshot: "reads what its tables hold",
};

/** Return shape and word of a state, and what it is doing meanwhile, unless it follows the log. */
export function badge(state, phase) {
  const doing = PHASES[phase] && h("small", { title: PHASES[phase] }, ` ${phase}`);
  return h("span", { class: `badge ${state}`, title: MEANING[state] }, glyph(state), state, doing);
}

/** Return whether servers should be working on it. */
export const runs = (state) => state === "normal" || state === "warning";

export const mayPause = (state) => runs(state) || state === "pending";
export const mayResume = (state) => ["stopped", "failed", "finished"].includes(state);

export const mayChange = (state) => state === "stopped" || state === "failed";
export const mayReset = (state) => mayResume(state);
export const mayTakeTables = (state) => mayPause(state) || mayChange(state);

/** Return how worrying a lag is: "", "late" or "very-late"; of what does not run it says nothing. */
export function lateness({ state, lag_ms: lag }) {
  if (!runs(state) || lag === null || lag < 10_000) return "";
  return lag < 60_000 ? "late" : "very-late";
}
