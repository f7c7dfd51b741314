// The form for a new changefeed.

import * as api from "./api.js";
import { ChangefeedForm, configOf } from "./changefeed_form.js";

const RULES = {
  name: "rules",
  label: "Which tables",
  placeholder: "shop.*\n!shop.audit_*",
  hint: "One rule a line; ! excludes; the last that fits decides. Empty: all tables.",
  rows: 3,
};
const OWN = [
  {
    name: "name",
    label: "Name",
    placeholder: "made by itself",
    hint: "Letters, digits and hyphens. Empty: made from source and sink.",
  },
  { name: "start", label: "Start behind commit-ts", placeholder: "as the source URI says" },
  { name: "target", label: "End at commit-ts", placeholder: "never" },
];

function read(values) {
  const { config, ...wrong } = configOf(values, ["start", "target"]);
  if (!config) return wrong;
  if (!values.sink) return {};
  const form = {
    changefeed_id: values.name,
    source_uri: values.source,
    sink_uri: values.sink,
    ...(Object.keys(config).length ? { replica_config: config } : {}),
  };
  return { body: api.written(form, { start_ts: values.start, target_ts: values.target }) };
}

/** Return the page; it keeps what is written in it. `told` hears of what was created, or failed. */
export function createView(told) {
  return new ChangefeedForm(
    {
      prefix: "new",
      title: "New changefeed",
      back: { href: "#/", words: "All changefeeds" },
      begun: { source: "", sink: "", rules: "", name: "", start: "", target: "", config: {} },
      sourceHint: "What the fields say; it can be written here, too. Empty: the server's own source.",
      sinkHint: "What the fields say; it can be written here, too.",
      rules: RULES,
      ownTitle: "Name and time",
      own: OWN,
      changefeed: "",
      button: "Create",
      hint: "Name source and sink: the server then looks what would be captured, and where it would go. Nothing is changed by that.",
      read,
      check: api.check,
      act: async (body) => told.created((await api.create(body)).id),
    },
    told,
  );
}
