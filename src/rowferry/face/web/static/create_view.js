// The form for a new changefeed.

import * as api from "./api.js";
import { ChangefeedForm, configOf } from "./changefeed_form.js";

const FIELDS = [
  {
    name: "source",
    label: "Source",
    placeholder: "mysql://<user>:<password>@db.example:3306/",
    hint: "Where to read: mysql://, range://. Empty: the server's own source, if it has one.",
  },
  {
    name: "sink",
    label: "Sink",
    placeholder: "kafka://broker:9092/topic?protocol=canal-json",
    hint: "Where to write: kafka://, mysql://, s3://, gcs://, azure://, file://, http://.",
    needed: true,
  },
  {
    name: "rules",
    label: "Tables",
    placeholder: "shop.*\n!shop.audit_*",
    hint: "One rule a line; ! excludes; the last that fits decides. Empty: all tables.",
    rows: 3,
  },
  {
    name: "name",
    label: "Name",
    placeholder: "made from source and sink",
    hint: "Letters, digits and hyphens.",
  },
];
const MORE = [
  { name: "start", label: "Start behind commit-ts", placeholder: "as the source URI says" },
  { name: "target", label: "End at commit-ts", placeholder: "never" },
  {
    name: "config",
    label: "Further settings, as JSON",
    placeholder: '{"sink": {"csv": {"include-commit-ts": true}}}',
    rows: 5,
  },
];

function read(values) {
  const { config, ...wrong } = configOf(values, ["start", "target"]);
  if (!config) return wrong;
  if (!values.sink.trim()) return {};
  const form = {
    changefeed_id: values.name.trim(),
    source_uri: values.source.trim(),
    sink_uri: values.sink.trim(),
    ...(Object.keys(config).length ? { replica_config: config } : {}),
  };
  const digits = { start_ts: values.start.trim(), target_ts: values.target.trim() };
  return { body: api.written(form, digits) };
}

/** Return the page; it keeps what is written in it. `told` hears of what was created, or failed. */
export function createView(told) {
  return new ChangefeedForm(
    {
      prefix: "new",
      title: "New changefeed",
      back: { href: "#/", words: "All changefeeds" },
      fields: FIELDS,
      more: MORE,
      button: "Create",
      hint: "Name source and sink: the server then looks what would be captured, and where it would go. Nothing is changed by that.",
      read,
      check: api.check,
      act: async (body) => told.created((await api.create(body)).id),
    },
    told,
  );
}
