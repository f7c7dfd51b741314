"""Each stage alone, on one core: rows/s, MB/s, and the ratio to doing it row by row in Python.

.venv/bin/python bench/stages.py
"""

from __future__ import annotations

import csv
import io
import json
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from report import Figure, best, keep, one_core

from rowferry.change.chunk import Rows, make_rows
from rowferry.change.plan import Output, Segment, Stretch, TableSlice, Topic
from rowferry.change.table import TableSchema
from rowferry.flow.assemble import assemble, sink_traits
from rowferry.flow.capture.range_log.kv import RowDecoder
from rowferry.flow.capture.range_log.page import read_page
from rowferry.flow.dispatch.by_topic import ByKey
from rowferry.flow.sink.contract import Owner
from rowferry.mysql.ddl.statement import parse_create
from rowferry.refstore.rows.kv_encode import encode_rows
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.wire import range_cdc_pb2 as pb

ROWS = 200_000
LOOP_ROWS = 50_000
SQL = (
    "CREATE TABLE bench.t (id int unsigned PRIMARY KEY, k int unsigned NOT NULL, "
    "c char(120) NOT NULL, pad char(60) NOT NULL)"
)
TS = 450_000_000_000_000_000


def table() -> TableSchema:
    return parse_create(SQL)


def image(count: int) -> pa.StructArray:
    ids = np.arange(count, dtype=np.uint64)
    digits = pa.array([f"{i * 2654435761 % 10**11:011d}" for i in range(count)], pa.large_utf8())
    parts = [digits] * 10
    dash = pa.scalar("-", pa.large_utf8())
    c = pc.binary_join_element_wise(*parts, dash)
    pad = pc.binary_join_element_wise(*parts[:5], dash)
    columns = [pa.array(ids), pa.array(ids % 5000), c, pad]
    return pa.StructArray.from_arrays(columns, fields=list(table().image))


def rows(count: int, update: bool = False) -> Rows:
    full = image(count)
    before = full if update else pa.nulls(count, table().image)
    op = pa.array(np.full(count, 1 if update else 0, np.int8))
    ts = pa.array(np.arange(TS, TS + count, dtype=np.uint64))
    seq = pa.array(np.arange(count, dtype=np.int64))
    return make_rows(table().at(1), op, ts, seq, before, full)


def spec(protocol: str, folder: str = "/tmp/bench") -> ChangefeedSpec:
    uri = f"file://{folder}?protocol={protocol}"
    return build_spec("range://127.0.0.1:1", uri, changefeed_id="bench", sinks=sink_traits)[0]


def encode_figures() -> list[Figure]:
    chunk, loop_chunk = rows(ROWS), rows(LOOP_ROWS)
    ready = loop_chunk.after.to_pylist()  # handed to the loops for free
    found = []
    for protocol, loop in (("csv", _csv_loop), ("canal-json", _json_loop)):
        codec = assemble(spec(protocol)).encode
        ours = codec.encode_rows(loop_chunk, 0).value_bytes().tobytes()
        theirs = loop(ready)
        if ours != theirs:
            raise SystemExit(f"{protocol}: the row loop writes other bytes than the codec")
        loop_s = best(lambda loop=loop: loop(ready), 3) / LOOP_ROWS  # type: ignore[misc]
        ours_s = best(lambda codec=codec: codec.encode_rows(chunk, 0)) / ROWS  # type: ignore[misc]
        size = codec.encode_rows(chunk, 0).nbytes / ROWS
        what = "csv.writer" if protocol == "csv" else "json.dumps"
        found.append(
            Figure(
                f"encode {protocol}",
                1 / ours_s,
                size / ours_s / 1e6,
                f"{what} row loop",
                loop_s / ours_s,
            )
        )
        text = codec.encode_rows(chunk, 0).value_bytes().tobytes()
        decode_s = best(lambda c=codec, t=text: list(c.decode(t, chunk.table)), 3) / ROWS  # type: ignore[misc]
        found.append(Figure(f"decode {protocol}", 1 / decode_s, size / decode_s / 1e6))
    return found


def _csv_loop(ready: list[dict[str, Any]]) -> bytes:
    out = io.StringIO()
    write = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n").writerow
    for row in ready:
        write(["I", "t", "bench", row["id"], row["k"], row["c"], row["pad"]])
    return out.getvalue().encode()


def _json_loop(ready: list[dict[str, Any]]) -> bytes:
    kinds = {"id": "int unsigned", "k": "int unsigned", "c": "char", "pad": "char"}
    lines = []
    for number, row in enumerate(ready):
        message = {
            "id": 0,
            "database": "bench",
            "table": "t",
            "pkNames": ["id"],
            "isDdl": False,
            "type": "INSERT",
            "es": (TS + number) >> 18,
            "ts": 0,
            "sql": "",
            "sqlType": {"id": 4, "k": 4, "c": 1, "pad": 1},
            "mysqlType": kinds,
            "old": None,
            "data": [{name: str(value) for name, value in row.items()}],
        }
        lines.append(json.dumps(message, separators=(",", ":"), ensure_ascii=False))
    return "".join(line + "\r\n" for line in lines).encode()


def capture_figures() -> list[Figure]:
    schema = table()
    keys, values = encode_rows(schema, 1, image(ROWS))
    answer = pb.CdcPullLogResponse()
    for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
        answer.log_data.add(key=key, value=value, commit_ts=TS)
    raw = answer.SerializeToString()
    decoder = RowDecoder(schema)

    def ours() -> pa.StructArray:
        page, _ = read_page(raw, 2, "bench")
        return decoder.decode(page.raw, page.key_at, page.key_len, page.value_at, page.value_len)

    few = pb.CdcPullLogResponse()
    few.log_data.extend(answer.log_data[:LOOP_ROWS])
    few_raw = few.SerializeToString()

    def loop() -> list[dict[str, Any]]:
        return [
            _decode_row(c.key, c.value) for c in pb.CdcPullLogResponse.FromString(few_raw).log_data
        ]

    if loop() != ours().slice(0, LOOP_ROWS).to_pylist():
        raise SystemExit("the row loop decodes other rows than the source")
    loop_s, ours_s = best(loop, 3) / LOOP_ROWS, best(ours) / ROWS
    size = len(raw) / ROWS
    name = "capture: scan and decode a log answer"
    return [Figure(name, 1 / ours_s, size / ours_s / 1e6, "struct row loop", loop_s / ours_s)]


def _decode_row(key: bytes, value: bytes) -> dict[str, Any]:
    """Row format v2, small form, of this one table: what a plain Python reader would do."""
    count = int.from_bytes(value[2:4], "little")
    ids = value[6 : 6 + count]
    ends = 6 + count
    data = ends + 2 * count
    found: dict[str, Any] = {"id": int.from_bytes(key[-8:], "big") ^ (1 << 63)}
    names = {2: "k", 3: "c", 4: "pad"}
    start = 0
    for place, column in enumerate(ids):
        end = int.from_bytes(value[ends + 2 * place : ends + 2 * place + 2], "little")
        piece = value[data + start : data + end]
        name = names[column]
        found[name] = int.from_bytes(piece, "little") if name == "k" else piece.decode()
        start = end
    return found


def decide_figures() -> list[Figure]:
    flow = assemble(spec("csv"))
    chunk = rows(ROWS, update=True)
    seconds = best(lambda: list(flow.decide.rows(chunk))) / ROWS
    return [Figure("decide: filter and key split of updates", 1 / seconds)]


def dispatch_figures() -> list[Figure]:
    """Partitions by the primary key, beside zlib.crc32 row by row."""
    found = []
    texts = pa.array([f"customer-{i:011d}" for i in range(ROWS)], pa.large_utf8())
    for kind, values in (("bigint", pa.array(np.arange(ROWS) * 7919)), ("varchar(20)", texts)):
        schema = parse_create(f"CREATE TABLE bench.t (id {kind} PRIMARY KEY)").at(1)
        full = pa.StructArray.from_arrays([values], fields=list(schema.image))
        stamps = pa.array(np.arange(TS, TS + ROWS, dtype=np.uint64))
        seq = pa.array(np.arange(ROWS, dtype=np.int64))
        op = pa.array(np.zeros(ROWS, np.int8))
        chunk = make_rows(schema, op, stamps, seq, pa.nulls(ROWS, schema.image), full)
        segment = Segment(0, {}, (TableSlice(schema.id, 0, 1),), TS, TS)
        outputs = (Output(0, 0, Topic("t", 16, 1).to_json()),)
        ready = values.slice(0, LOOP_ROWS).to_pylist()

        def ours(route: tuple[Any, ...] = (segment, outputs, chunk)) -> Any:
            return next(ByKey().route(*route)).partitions

        def loop(ready: list[Any] = ready) -> list[int]:
            head = zlib.crc32(b"bencht")
            return [(head ^ zlib.crc32(f"id{value}".encode())) % 16 for value in ready]

        if loop() != ours()[:LOOP_ROWS].tolist():
            raise SystemExit("the row loop finds other partitions than dispatch")
        loop_s, ours_s = best(loop, 3) / LOOP_ROWS, best(ours) / ROWS
        size = values.nbytes / ROWS
        name = f"dispatch: partitions by a {kind} key"
        ratio = loop_s / ours_s
        found.append(Figure(name, 1 / ours_s, size / ours_s / 1e6, "zlib row loop", ratio))
    return found


def sink_figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        flow = assemble(spec("csv", folder))
        encoded = flow.encode.encode_rows(rows(ROWS), 0)
        schema = table().at(1)
        one = TableSlice(schema.id, 0, 1)
        segment = Segment(0, {}, (one,), TS, TS)
        flow.sink.open(Owner("bench", 1), None)
        stretches = [Stretch((segment,), (), {})] * 3
        state, outputs = None, []
        for stretch in stretches:
            made, state = flow.sink.allocate(stretch, {one: schema})
            outputs.append(made)
        waiting = iter(outputs)

        def write() -> None:
            list(flow.sink.write(segment, next(waiting), iter([(0, encoded)])))

        seconds = best(write, 3)
        plain = best(lambda: Path(folder, "plain").write_bytes(encoded.value_bytes()), 3)
        size = encoded.nbytes
    return [
        Figure(
            "sink: one storage file",
            ROWS / seconds,
            size / seconds / 1e6,
            "Path.write_bytes",
            plain / seconds,
        )
    ]


def main() -> None:
    one_core()
    figures = capture_figures() + decide_figures() + dispatch_figures()
    figures += encode_figures() + sink_figures()
    keep("stages", figures)
    slow = [f.name for f in figures if f.name.startswith("encode") and f.ratio < 10]
    if slow:
        raise SystemExit(f"below 10× the row loop: {', '.join(slow)}")


if __name__ == "__main__":
    main()
