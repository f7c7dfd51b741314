"""The avro codec alone, on one core: rows/s, MB/s, and the ratio to fastavro row by row.

.venv/bin/python bench/stage_avro.py
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
from report import Figure, best, keep, one_core
from stages import LOOP_ROWS, ROWS, rows, table

from rowferry.flow.assemble import sink_traits
from rowferry.flow.encode.avro.codec import Avro
from rowferry.flow.encode.avro.schema import Modes, key_schema, value_schema
from rowferry.spec.build import build_spec

HEAD = bytes(5)
LEAST = 300_000  # rows/s


def codec() -> Avro:
    """A codec that registers nothing: without a topic the schema id is 0."""
    sink = "kafka://127.0.0.1:1/t?protocol=avro&schema-registry=http://127.0.0.1:1"
    spec, _ = build_spec("range://127.0.0.1:1", sink, tables=Avro.TABLES, sinks=sink_traits)
    return Avro(spec, sink_traits(spec.sink.scheme))


def loop(ready: list[dict[str, Any]]) -> list[tuple[bytes, bytes]]:
    key, value = (
        fastavro.parse_schema(json.loads(text))
        for text in (key_schema(table(), Modes()), value_schema(table(), Modes(), False))
    )
    found = []
    for row in ready:
        message = []
        for schema, record in ((key, {"id": row["id"]}), (value, row)):
            out = io.BytesIO()
            out.write(HEAD)
            fastavro.schemaless_writer(out, schema, record)
            message.append(out.getvalue())
        found.append((message[0], message[1]))
    return found


def main() -> None:
    one_core()
    ours, chunk, few = codec(), rows(ROWS), rows(LOOP_ROWS)
    ready = few.after.to_pylist()  # handed to the loop for free
    made = ours.encode_rows(few, 0)
    if made.keys is None or loop(ready) != list(
        zip(made.keys.to_pylist(), made.values.to_pylist(), strict=True)
    ):
        raise SystemExit("fastavro writes other bytes than the codec")
    loop_s = best(lambda: loop(ready), 3) / LOOP_ROWS
    ours_s = best(lambda: ours.encode_rows(chunk, 0)) / ROWS
    size = ours.encode_rows(chunk, 0).nbytes / ROWS
    figure = Figure(
        "encode avro", 1 / ours_s, size / ours_s / 1e6, "fastavro row loop", loop_s / ours_s
    )
    keep("stage_avro", [figure])
    if figure.rows_per_s < LEAST:
        raise SystemExit(f"below {LEAST:,} rows/s")


if __name__ == "__main__":
    main()
