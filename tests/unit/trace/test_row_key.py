"""The key of a traced row: how it is read, in which rows it is, and what bytes tell beforehand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.plan import Topic
from rowferry.downstream.trace.row_key import RowKey, holds_all, key_pairs
from rowferry.errors import BadTrace
from rowferry.flow.assemble import format_of, option_tables, sink_traits
from rowferry.flow.encode.contract import Codec, PlainValues
from rowferry.mysql.ddl.statement import parse_create
from rowferry.registry import CODECS
from rowferry.spec.build import build_spec

TABLE = parse_create(
    'CREATE TABLE d.t (id bigint, `naïve "name"` varchar(20), v int, '
    'PRIMARY KEY (id, `naïve "name"`))'
)
NAME = 'naïve "name"'


def rows(*changes: tuple[Op, Any, Any]) -> Rows:
    images = [
        [None if key is None else {"id": key[0], NAME: key[1], "v": 5} for key in column]
        for column in zip(*[(before, after) for _, before, after in changes], strict=True)
    ]
    return make_rows(
        TABLE,
        pa.array([int(op) for op, _, _ in changes], pa.int8()),
        pa.array([9] * len(changes), pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array(images[0], TABLE.image),
        pa.array(images[1], TABLE.image),
    )


def key(number: str, name: str) -> RowKey:
    return RowKey.read(TABLE, (("ID", number), (NAME, name)))


def test_a_row_is_found_by_both_of_its_images() -> None:
    chunk = rows(
        (Op.INSERT, None, (5, "a")),
        (Op.UPDATE, (5, "a"), (6, "a")),
        (Op.UPDATE, (5, "b"), (5, "b")),
        (Op.DELETE, (5, "a"), None),
    )
    assert key("5", "a").in_rows(chunk).tolist() == [True, True, False, True]
    assert key("6", "a").in_rows(chunk).tolist() == [False, True, False, False]
    # An old image that has the changed column alone
    old = pa.array([None, {"id": 5}, None, None], pa.struct([("id", pa.int64())]))
    some = make_rows(
        TABLE, *(chunk.batch.column(n) for n in ("op", "commit_ts", "seq")), old, chunk.after
    )
    assert key("5", "a").in_rows(some).tolist()[:2] == [True, True]


def codecs() -> list[tuple[str, Codec]]:
    """Every codec that says what its bytes tell, for files and for topics."""
    made = []
    for name in CODECS.names():
        for sink in ("file:///x", "kafka://h:9092/t"):
            query = f"{sink}?protocol={name}"
            if name == "csv" and sink.startswith("kafka"):
                continue
            try:
                spec, _ = build_spec(
                    "mysql://a:b@h:1/", query, {}, "f", tables=option_tables, sinks=sink_traits
                )
                codec: Any = format_of(spec)
            except Exception:  # not every protocol goes to every sink
                continue
            if isinstance(codec, PlainValues):
                made.append((query, codec))
    return made


CODECS_THAT_TELL = codecs()


def test_these_formats_tell() -> None:
    names = {query.partition("=")[2] for query, _ in CODECS_THAT_TELL}
    assert names == {"csv", "canal-json", "json", "open-protocol"}


@pytest.mark.parametrize(("query", "codec"), CODECS_THAT_TELL, ids=[q for q, _ in CODECS_THAT_TELL])
def test_bytes_never_hide_a_row(query: str, codec: Codec) -> None:
    topic = Topic("t", 1, 1 << 20) if query.startswith("kafka") else None
    for number, name in ((5, "a"), (-7, "Wörter"), (2**50, "a-b_C9"), (0, 'it\'s "so"')):
        made = [
            (Op.INSERT, None, (number, name)),
            (Op.UPDATE, (number, name), (number, name)),
            (Op.DELETE, (number, name), None),
        ]
        for change in made:
            encoded = codec.encode_rows(rows(change), 0, topic)
            keys = encoded.keys.to_pylist() if encoded.keys is not None else [b""]
            content = (keys[0] or b"") + bytes(encoded.value_bytes())
            needles = key(str(number), name).needles(codec, TABLE)
            assert needles
            assert holds_all(content, needles), (needles, content)
            assert not holds_all(content, key("123", name).needles(codec, TABLE))
            assert not holds_all(content, key(f"{number}1", name).needles(codec, TABLE))


def test_delimiters_that_look_like_words_hide_nothing() -> None:
    config = {"sink": {"csv": {"delimiter": "a"}}}
    spec, _ = build_spec(
        "mysql://a:b@h:1/",
        "file:///x?protocol=csv",
        config,
        "f",
        tables=option_tables,
        sinks=sink_traits,
    )
    assert key("5", "a").needles(format_of(spec), TABLE) == ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((("id", "5"),), "is missing; the key of d.t is"),
        ((("id", "5"), (NAME, "a"), ("v", "5")), "'v' is no column of the key"),
        ((("id", "5"), ("Id", "5"), (NAME, "a")), "given twice"),
        ((("id", "five"), (NAME, "a")), "'five' is no value of d.t, column id"),
        ((("id", str(2**70)), (NAME, "a")), "is no value of d.t, column id"),
    ],
)
def test_a_slip_is_told(given: Any, words: str) -> None:
    with pytest.raises(BadTrace, match=words):
        RowKey.read(TABLE, given)


def test_words_of_the_command_line() -> None:
    assert key_pairs(["id=5", "`b`=x=y", "c="]) == (("id", "5"), ("b", "x=y"), ("c", ""))
    with pytest.raises(BadTrace, match="write COLUMN=VALUE"):
        key_pairs(["id"])
    keyless = parse_create("CREATE TABLE d.t (v int)")
    with pytest.raises(BadTrace, match="no primary or NOT NULL unique key"):
        RowKey.read(keyless, (("v", "1"),))
