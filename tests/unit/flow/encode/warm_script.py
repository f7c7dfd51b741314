"""Prints every kernel that is compiled anew by use after `warm`; run in a process of its own."""

from __future__ import annotations

from encode_cases import inserts, spec, table

from rowferry.change.chunk import Rows
from rowferry.change.sqltype import SqlType
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar import render as kernels_render
from rowferry.flow.assemble import sink_traits
from rowferry.flow.encode.canal_json import codec as canal_json
from rowferry.flow.encode.canal_json import tokenizer as kernels_json
from rowferry.flow.encode.canal_json.codec import CanalJson
from rowferry.flow.encode.csv import codec as csv
from rowferry.flow.encode.csv import tokenizer as kernels_csv
from rowferry.flow.encode.csv.codec import Csv
from rowferry.flow.encode.kernels import row_writer as kernels
from rowferry.flow.encode.kernels import spans as kernels_spans
from rowferry.flow.encode.plain_json import codec as plain_json
from rowferry.flow.encode.plain_json import tokenizer as kernels_plain_json
from rowferry.flow.encode.plain_json.codec import PlainJson

MODULES = (
    kernels,
    kernels_csv,
    kernels_float,
    kernels_json,
    kernels_plain_json,
    kernels_render,
    kernels_spans,
)


def compiled() -> dict[str, set[str]]:
    return {
        f"{m.__name__}.{n}": {str(s) for s in v.signatures}
        for m in MODULES
        for n, v in vars(m).items()
        if hasattr(v, "signatures")
    }


csv.warm()
canal_json.warm()
plain_json.warm()
before = compiled()
kinds = ("int", "float", "double", "varbinary", "datetime", "text", "bigint")
schema = table(*(SqlType(k) for k in kinds), SqlType("set", elements=("x", "y")))
rows = inserts(schema, *[(1, 1.5, 2.5, b"\0\xff", "2020-01-01 00:00:00", "é\\", 9, 3)] * 4)
for part in (rows, Rows(schema, rows.batch.slice(1, 2))):
    for kind, wish in (
        (Csv, spec()),
        (Csv, spec(csv={"quote": "", "binary-encoding-method": "hex"})),
        (CanalJson, spec()),
        (CanalJson, spec("kafka://broker/topic")),
        (PlainJson, spec()),
    ):
        codec = kind(wish, sink_traits(wish.sink.scheme))
        data = bytes(codec.encode_rows(part, 5).value_bytes())
        if not data.endswith(b"}"):
            assert sum(len(p) for p in codec.decode(data, schema)) == len(part)
for name, signatures in compiled().items():
    if signatures - before[name]:
        print(name, signatures - before[name])
