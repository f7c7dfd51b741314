"""decode(encode(rows)) gives the rows, for every column type and option that changes the form."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_kit import codec_for
from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import DecodeError
from rowferry.flow.encode.canal_json.codec import CanalJson
from rowferry.flow.encode.contract import Codec
from rowferry.flow.encode.csv.codec import Csv
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30) | st.text(
    "\\\"'|,\r\n<>&\u2028aN", max_size=12
)
IN_PARTS = st.text("|@a", max_size=5)  # delimiters, also in parts
DIGITS = st.text("0123456789", min_size=1, max_size=12)


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def moments(digits: int) -> st.SearchStrategy[str]:
    whole = st.datetimes().map(lambda d: d.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0"))
    if digits == 0:
        return whole | st.just("0000-00-00 00:00:00")
    fraction = st.integers(0, 10**digits - 1).map(lambda i: f".{i:0{digits}d}")
    return st.tuples(whole, fraction).map("".join)


KINDS: list[tuple[SqlType, st.SearchStrategy[Any]]] = [
    (SqlType("bigint"), signed(64)),
    (SqlType("tinyint", unsigned=True), st.integers(0, 255)),
    (SqlType("bigint", unsigned=True), st.integers(0, (1 << 64) - 1)),
    (SqlType("year"), st.integers(1901, 2155)),
    (SqlType("bit", length=64), st.integers(0, (1 << 64) - 1)),
    (SqlType("float"), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    (SqlType("double"), st.floats(allow_nan=False, allow_infinity=False)),
    (SqlType("decimal", length=20, scale=2), DIGITS.map(lambda d: f"-{d}.50")),
    (SqlType("varchar", length=30), TEXT),
    (SqlType("json"), TEXT),
    (SqlType("uuid"), TEXT),
    (SqlType("varbinary", length=30), st.binary(max_size=30)),
    (SqlType("geometry"), st.binary(max_size=30)),
    (SqlType("date"), st.dates().map(str)),
    (SqlType("datetime"), moments(0)),
    (SqlType("datetime", scale=3), moments(3)),
    (SqlType("timestamp", scale=6), moments(6)),
    (SqlType("time", scale=1), st.integers(0, 9).map(lambda i: f"-838:59:59.{i}")),
    (SqlType("enum", elements=("x", "y,", "z'\"")), st.integers(0, 3)),
    (SqlType("set", elements=("p", "q'\"", "r|")), st.integers(0, 7)),
    (SqlType("vector"), st.just("[1,2]")),
]
TABLE = TableSchema(
    TableId("d,b", 't"|'),
    1,
    1,
    tuple(Column(i, f"c<{i}", kind) for i, (kind, _) in enumerate(KINDS)),
    (Index(1, "PRIMARY", ("c<0",), True, True),),
)
ROW = st.tuples(*(st.none() | values for _, values in KINDS)).map(
    lambda values: {c.name: v for c, v in zip(TABLE.columns, values, strict=True)}
)
CHANGE = st.one_of(
    st.tuples(st.just(Op.INSERT), st.none(), ROW),
    st.tuples(st.just(Op.UPDATE), ROW, ROW),
    st.tuples(st.just(Op.DELETE), ROW, st.none()),
)
CHANGES = st.lists(CHANGE, max_size=6)


def chunk(changes: list[tuple[Op, Any, Any]]) -> Rows:
    return make_rows(
        TABLE,
        pa.array([int(op) for op, _, _ in changes], pa.int8()),
        pa.array([(7 << 18) + i for i in range(len(changes))], pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([before for _, before, _ in changes], TABLE.image),
        pa.array([after for _, _, after in changes], TABLE.image),
    )


def spec(section: dict[str, Any]) -> ChangefeedSpec:
    source, sink = Uri.parse("range://store", "source"), Uri.parse("file:///data", "sink")
    return ChangefeedSpec("feed", source, sink, {"sink": section})


def back(codec: Codec, rows: Rows) -> tuple[list[int], list[int], list[Any], list[Any]]:
    """Encode and decode; return commit-ts, ops, old and new rows."""
    data = codec.file_head(TABLE) + bytes(codec.encode_rows(rows, 5).value_bytes())
    parts = [p for p in codec.decode(data, TABLE) if isinstance(p, Rows)]
    return (
        [int(t) for p in parts for t in p.commit_ts],
        [int(o) for p in parts for o in p.op],
        [i for p in parts for i in p.before.to_pylist()],
        [i for p in parts for i in p.after.to_pylist()],
    )


def wanted(rows: Rows) -> tuple[list[int], list[int], list[Any], list[Any]]:
    images = rows.before.to_pylist(), rows.after.to_pylist()
    return rows.commit_ts.tolist(), rows.op.tolist(), *images


@settings(deadline=None, max_examples=60)
@given(
    CHANGES,
    st.booleans(),
    st.sampled_from([(",", '"'), ("|", "'"), ("[*]", '"'), (",", ""), ("|@|", ""), ("||", "")]),
    st.sampled_from(["base64", "hex"]),
    st.sampled_from(["\r\n", "\n"]),
)
def test_csv(
    changes: list[tuple[Op, Any, Any]], old: bool, marks: tuple[str, str], packing: str, end: str
) -> None:
    options = {"delimiter": marks[0], "quote": marks[1], "binary-encoding-method": packing}
    options |= {"output-old-value": old, "include-commit-ts": True, "output-field-header": old}
    rows = chunk(changes)
    times, ops, before, after = wanted(rows)
    if not old:  # a line of an update holds the new row only
        before = [None if op == Op.UPDATE else b for op, b in zip(ops, before, strict=True)]
    assert back(codec_for(Csv, spec({"csv": options, "terminator": end})), rows) == (
        times,
        ops,
        before,
        after,
    )


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(IN_PARTS, IN_PARTS, IN_PARTS), min_size=1, max_size=4),
    st.sampled_from(["||", "|@|", "|||", "|@", "@a@"]),
)
def test_csv_whose_delimiter_texts_begin(texts: list[tuple[str, ...]], delimiter: str) -> None:
    names = [c.name for c in TABLE.columns if c.type.name in ("varchar", "json", "uuid")]
    row = {c.name: None for c in TABLE.columns}
    new = [row | dict(zip(names, some, strict=True)) for some in texts]
    rows = chunk([(Op.INSERT, None, one) for one in new])
    options: dict[str, Any] = {"delimiter": delimiter, "quote": "", "include-commit-ts": True}
    assert back(codec_for(Csv, spec({"csv": options})), rows) == wanted(rows)


@settings(deadline=None, max_examples=60)
@given(CHANGES, st.booleans(), st.booleans(), st.sampled_from(["\r\n", "\n", "|"]))
def test_canal_json(
    changes: list[tuple[Op, Any, Any]], updated: bool, full: bool, end: str
) -> None:
    section = {"only-output-updated-columns": updated, "content-compatible": full}
    section |= {"enable-tidb-extension": True, "terminator": end}
    rows = chunk(changes)
    assert back(codec_for(CanalJson, spec(section)), rows) == wanted(rows)


@settings(deadline=None, max_examples=60)
@given(CHANGES, st.data())
def test_any_slice_is_written_like_the_whole(changes: Any, data: st.DataObject) -> None:
    rows = chunk(changes)
    start = data.draw(st.integers(0, len(rows)))
    part = Rows(TABLE, rows.batch.slice(start, data.draw(st.integers(0, len(rows)))))
    codecs: list[Codec] = [codec_for(Csv, spec({})), codec_for(CanalJson, spec({}))]
    for codec in codecs:
        whole = codec.encode_rows(rows, 5).values.to_pylist()
        found = codec.encode_rows(part, 5).values.to_pylist()
        assert found == whole[start : start + len(part)]


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.data())
def test_damaged_files_are_errors_or_rows(junk: bytes, data: st.DataObject) -> None:
    rows = chunk([(Op.INSERT, None, {c.name: None for c in TABLE.columns})] * 2)
    codecs: list[Codec] = [codec_for(Csv, spec({})), codec_for(CanalJson, spec({}))]
    for codec in codecs:
        whole = bytes(codec.encode_rows(rows, 5).value_bytes())
        at = data.draw(st.integers(0, len(whole)))
        for content in (junk, whole[:at] + junk + whole[at:], whole[:at] + junk + whole[at + 9 :]):
            try:
                list(codec.decode(content, TABLE))
            except DecodeError as err:
                assert "row " in str(err)
