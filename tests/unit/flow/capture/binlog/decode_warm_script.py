"""Prints every kernel that is compiled anew by use after `warm`; run in a process of its own."""

from __future__ import annotations

from binlog_event_kit import mapped, row_events

from rowferry.columnar import json_binary, packed_text
from rowferry.flow.capture.binlog.decode import kernels_columns as decode_kernels_columns
from rowferry.flow.capture.binlog.decode import kernels_find as decode_kernels
from rowferry.flow.capture.binlog.decode import kernels_text as decode_kernels_text
from rowferry.flow.capture.binlog.decode.rows_events import RowsDecoder
from rowferry.flow.capture.binlog.decode.table_map import MappedColumn, infer_schema
from rowferry.flow.capture.binlog.frame import compressed
from rowferry.mysql import address_text as decode_kernels_address
from rowferry.mysql import charset_kernels as decode_kernels_charset
from rowferry.mysql.charsets import decoded
from rowferry.mysql.session import Flavour
from rowferry.testing.slow_binlog import rows_body

WARM = (
    compressed,
    decode_kernels,
    decode_kernels_address,
    decode_kernels_charset,
    decode_kernels_columns,
    json_binary,
)
MODULES = (*WARM, decode_kernels_text, packed_text)


def compiled() -> dict[str, set[str]]:
    return {
        f"{m.__name__}.{n}": {str(s) for s in v.signatures}
        for m in MODULES
        for n, v in vars(m).items()
        if hasattr(v, "signatures")
    }


for module in WARM:
    module.warm()
before = compiled()
columns = (
    (MappedColumn("", 3, 0), b"\1\0\0\0"),
    (MappedColumn("", 15, 40, collation=45), b"\2\xc3\xa9"),
    (MappedColumn("", 15, 40, collation=28), b"\2\xd6\xd0"),
    (MappedColumn("", 15, 40, collation=35), b"\2\0a"),
    (MappedColumn("", 246, 9 << 8), b"\x80\0\0\1"),
    (MappedColumn("", 18, 6), b"\x80" + b"\0" * 7),
    (MappedColumn("", 245, 4), b"\x02\0\0\0\x04\0"),
    (MappedColumn("", 242, 4, vector_dimensions=1), b"\4\0\0\0\0\0\0\0"),
)
table = mapped(*(column for column, _ in columns))
value = [value for _, value in columns]
events = row_events(
    *(
        (code, rows_body(code, len(columns), [value, [None] * len(columns)]))
        for code in (23, 24, 25, 30)
    )
)
decoder = RowsDecoder(table, infer_schema(table, None), Flavour.MYSQL)
assert sum(len(chunk) for chunk in decoder.decode(events)) == 7
assert decoded("utf8mb4", [b"\xff"]) == ("?",)
for name, signatures in compiled().items():
    if signatures - before[name]:
        print(name, signatures - before[name])
