// The form that changes the settings of a changefeed that does not run.

import * as api from "./api.js";
import { ask } from "./asking.js";
import { ChangefeedForm, configOf } from "./changefeed_form.js";
import { h } from "./dom.js";
import { mayChange } from "./state_marks.js";
import { sameUri } from "./uri_parts.js";

const LABELS = {
  source: "Source",
  sink: "Sink",
  rules: "Tables",
  target: "End at commit-ts",
  config: "Options",
};

function valuesOf(feed) {
  const { filter = {}, ...others } = feed.config;
  const { rules = [], ...more } = filter;
  const rest = Object.keys(more).length ? { filter: more, ...others } : others;
  return {
    source: feed.source_uri,
    sink: feed.sink_uri,
    rules: rules.join("\n"),
    target: feed.target_ts === null ? "" : String(feed.target_ts),
    config: rest,
  };
}

const STORED = "*** stands for a secret that is stored; it stays while the address does.";
const RULES = {
  name: "rules",
  label: "Which tables",
  rows: 3,
  placeholder: "*.*",
  hint: "One rule a line; ! excludes; the last that fits decides. Tables that join are snapshotted.",
};
const OWN = [{ name: "target", label: "End at commit-ts", placeholder: "never" }];

/** Return the names of the fields that have another value than at first. */
function changedOf(values, begun) {
  const text = (value) => (typeof value === "string" ? value.trim() : JSON.stringify(value));
  const differs = (name) =>
    name === "source" || name === "sink"
      ? !sameUri(values[name], begun[name])
      : text(values[name]) !== text(begun[name]);
  return Object.keys(LABELS).filter(differs);
}

function bodyOf(values, begun) {
  const { config, ...wrong } = configOf(values, ["target"]);
  if (!config) return wrong;
  const changed = changedOf(values, begun);
  if (!changed.length) return {};
  for (const name of ["source", "sink"]) {
    if (!values[name].trim()) return { field: name, wrong: "It must be somewhere." };
  }
  if (changed.includes("target") && !values.target.trim())
    return { field: "target", wrong: "An end can be moved, but not taken away." };
  const is = (name) => changed.includes(name);
  const form = {
    ...(is("source") ? { source_uri: values.source.trim() } : {}),
    ...(is("sink") ? { sink_uri: values.sink.trim() } : {}),
    ...(is("rules") || is("config") ? { replica_config: config } : {}),
  };
  return { body: api.written(form, is("target") ? { target_ts: values.target.trim() } : {}) };
}

/** Return what is told before settings are changed. */
function words(changed) {
  const names = changed.map((name) => LABELS[name]).join(", ");
  return [
    `What changes: ${names}. It goes on with that when it is resumed.`,
    "Where the sink or its settings change, a micro-batch that was planned and not finished is discarded: rows of it that arrived already come again.",
  ];
}

/** Return the page for one changefeed; `renew` tells it how that is now. */
export function changeView(told, feed) {
  const begun = valuesOf(feed);
  const page = `#/changefeed/${encodeURIComponent(feed.id)}`;
  const form = new ChangefeedForm(
    {
      prefix: "change",
      title: `Change ${feed.id}`,
      back: { href: page, words: feed.id },
      begun,
      sourceHint: begun.source.includes("***") ? STORED : "",
      sinkHint: begun.sink.includes("***") ? STORED : "",
      rules: RULES,
      ownTitle: "End",
      own: OWN,
      changefeed: feed.id,
      button: "Change…",
      hint: "Nothing is changed yet. The server looks at what you write, and stores nothing before you say so.",
      read: (values) => bodyOf(values, begun),
      check: (body, signal) => api.checkChange(feed.id, body, signal),
      act: async (body, values) => {
        const title = `Change ${feed.id}?`;
        const about = { title, words: words(changedOf(values, begun)), yes: "Change" };
        if (await ask({ ...about, act: () => api.change(feed.id, body) })) told.altered(feed.id);
      },
    },
    told,
  );
  let could = null;
  form.renew = ({ state, id }, busy) => {
    const can = mayChange(state);
    form.tellFirst(can ? null : pauseFirst(id, state, busy));
    if (could === false && can && form.isWritten) form.changed(); // what was refused may do now
    could = can;
  };
  return form;
}

function pauseFirst(id, state, busy) {
  const over = state === "finished" || state === "removed";
  const words = over
    ? `It is ${state}: its settings cannot be changed.`
    : "It runs. Its settings can be changed while it is paused.";
  return h(
    "p",
    { class: "card notice" },
    h("span", {}, words),
    !over &&
      h(
        "button",
        {
          type: "button",
          class: "button small",
          "data-do": "pause",
          "data-id": id,
          disabled: busy.has(id),
        },
        "Pause it",
      ),
  );
}
