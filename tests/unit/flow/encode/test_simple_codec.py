"""The simple codec: when table definitions are sent, where to, and rows that need them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, Watermark, make_rows
from rowferry.change.plan import Topic
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import DecodeError, MessageTooLarge, OptionsConflict
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.encode.simple.codec import Simple
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

TOPIC = Topic("t", 3, 1 << 20)
STAMP = 1_700_000_000_000 << 18
TABLE = replace(
    parse_create("create table d.t (id int key, v varchar(9), n bigint unsigned default 3)"),
    table_id=7,
    version=11,
)


def codec(section: dict[str, Any] | None = None, scheme: str = "kafka") -> Simple:
    source, sink = Uri.parse("range://store", "source"), Uri.parse(f"{scheme}://h/x", "sink")
    return codec_for(Simple, ChangefeedSpec("feed", source, sink, {"sink": section or {}}))


def rows(count: int = 1, table: TableSchema = TABLE, first: int = 0) -> Rows:
    images = [{"id": i, "v": "<é>", "n": 5} for i in range(count)]
    return make_rows(
        table,
        pa.array([int(Op.INSERT)] * count, pa.int8()),
        pa.array([STAMP] * count, pa.uint64()),
        pa.array(range(first, first + count), pa.int64()),
        pa.array([None] * count, table.image),
        pa.array(images, table.image),
    )


def sent(one: Simple, chunk: Rows, at_ms: int = 0, topic: Topic = TOPIC) -> list[tuple[int, str]]:
    """Partition and type of each message as a queue gets them."""
    encoded = one.encode_rows(chunk, at_ms, topic)
    partitions = np.full(len(chunk), 1, np.int32)
    made = one.batch(replace(encoded, partitions=partitions), topic)
    assert made.row_count == len(chunk) and made.partitions is not None
    types = [json.loads(v)["type"] for v in made.values.to_pylist()]
    return list(zip(made.partitions.tolist(), types, strict=True))


ROW, EVERYWHERE = (1, "INSERT"), [(n, "BOOTSTRAP") for n in range(3)]


def test_a_definition_comes_before_the_first_row_in_every_partition() -> None:
    one = codec()
    assert sent(one, rows()) == [*EVERYWHERE, ROW]
    assert sent(one, rows(first=1)) == [ROW]
    assert sent(one, rows(), topic=Topic("other", 1, 1 << 20)) == [EVERYWHERE[0], ROW]


def test_a_definition_is_sent_again_when_a_plan_is_carried_out_again() -> None:
    """Nothing of the first run may have arrived."""
    one = codec()
    assert sent(one, rows(2), 5) == [*EVERYWHERE, ROW, ROW]
    assert sent(one, rows(first=2), 5) == [ROW]
    assert sent(one, rows(2), 5) == [*EVERYWHERE, ROW, ROW]
    assert sent(one, rows(first=2), 5) == [ROW]
    assert sent(one, rows(first=2), 5) == [*EVERYWHERE, ROW]  # the first rows were parked
    assert sent(one, rows(), 6) == [ROW]


def test_a_definition_is_sent_again_when_a_plan_was_made_anew() -> None:
    """Nothing of the one in whose place it is may have arrived, and it is a later one."""
    one, before, since = codec(), *(replace(TOPIC, attempt=a) for a in ("a", "b"))
    assert sent(one, rows(2), 5, before) == [*EVERYWHERE, ROW, ROW]
    assert sent(one, rows(2), 6, since) == [*EVERYWHERE, ROW, ROW]
    assert sent(one, rows(), 7, since) == [ROW]


@pytest.mark.parametrize("lineage", ["1.0.run", ""])
def test_where_repeats_are_known_whoever_carries_a_plan_out_sends_the_same(lineage: str) -> None:
    """A queue that counts leaves out as many messages of a repeat as it has; over HTTP, those with
    the same content: what a process has sent before may make no difference."""
    topic = replace(TOPIC, lineage=lineage)
    section = {"send-bootstrap-in-msg-count": 3}
    fresh, busy = (codec(section, "kafka" if lineage else "http") for _ in range(2))
    other = replace(TABLE, id=TableId("d", "u"), table_id=8)
    for planned_at_ms in (1, 2):  # an earlier micro-batch, and one that was given up
        sent(busy, rows(2), planned_at_ms, topic)
    segments = [
        [rows(2), rows(2, first=2), rows(3, other, first=4), rows(first=7)],
        [rows(2, first=1 << 40), rows(first=(1 << 40) + 2)],
    ]
    for one in (fresh, busy, busy):
        first, second = ([sent(one, c, 2, topic) for c in chunks] for chunks in segments)
        assert first == [[*EVERYWHERE, *[ROW] * 2], [ROW] * 2, [*EVERYWHERE, *[ROW] * 3], [ROW]]
        assert second == [[*EVERYWHERE, *[ROW] * 2], [ROW]]


def test_a_definition_is_sent_again_behind_a_row_that_may_not_go() -> None:
    one = codec()
    assert sent(one, rows(), 5) == [*EVERYWHERE, ROW]
    with pytest.raises(MessageTooLarge):
        one.encode_rows(rows(2, first=1), 5, Topic("t", 3, 100))
    assert sent(one, rows(first=2), 5) == [*EVERYWHERE, ROW]


def test_a_definition_is_sent_again_after_its_time_its_rows_and_a_change() -> None:
    one = codec({"send-bootstrap-interval-in-sec": 2, "send-bootstrap-in-msg-count": 5})
    assert sent(one, rows(), 0) == [*EVERYWHERE, ROW]
    assert sent(one, rows(), 1999) == [ROW]
    assert sent(one, rows(), 2000) == [*EVERYWHERE, ROW]
    assert sent(one, rows(4), 2001) == [ROW] * 4
    assert sent(one, rows(), 2002) == [*EVERYWHERE, ROW]
    assert sent(one, rows(table=replace(TABLE, version=12)), 2003) == [*EVERYWHERE, ROW]


def test_definitions_go_where_the_options_say() -> None:
    assert sent(codec({"send-bootstrap-to-all-partition": False}), rows()) == [EVERYWHERE[0], ROW]
    assert sent(codec({"send-bootstrap-interval-in-sec": 0}), rows()) == [ROW]
    assert sent(codec({"send-bootstrap-in-msg-count": -1}), rows()) == [ROW]


def test_a_definition_tells_all_of_a_table() -> None:
    lead = codec().encode_rows(rows(), 5, TOPIC).lead
    assert lead is not None
    number = {"charset": "binary", "collate": "binary"}
    assert json.loads(lead) == {
        "version": 1,
        "type": "BOOTSTRAP",
        "commitTs": 0,
        "buildTs": 5,
        "tableSchema": {
            "schema": "d",
            "table": "t",
            "tableID": 7,
            "version": 11,
            "columns": [
                {
                    "name": "id",
                    "dataType": {"mysqlType": "int", **number, "length": 11},
                    "nullable": False,
                    "default": None,
                },
                {
                    "name": "v",
                    "dataType": {
                        "mysqlType": "varchar",
                        "charset": "utf8mb4",
                        "collate": "utf8mb4_bin",
                        "length": 9,
                    },
                    "nullable": True,
                    "default": None,
                },
                {
                    "name": "n",
                    "dataType": {"mysqlType": "bigint", **number, "length": 20, "unsigned": True},
                    "nullable": True,
                    "default": 3,
                },
            ],
            "indexes": [
                {
                    "name": "primary",
                    "unique": True,
                    "primary": True,
                    "nullable": False,
                    "columns": ["id"],
                }
            ],
        },
    }


@pytest.mark.parametrize(
    ("field", "given"), [("commitTs", "1e999"), ("commitTs", "-1"), ("type", '"OTHER"')]
)
def test_messages_that_make_no_sense_are_refused(field: str, given: str) -> None:
    form = {"version": 1, "type": '"WATERMARK"', "commitTs": 5} | {field: given}
    text = "{" + ", ".join(f'"{name}": {value}' for name, value in form.items()) + "}"
    with pytest.raises(DecodeError, match="no message of the simple protocol"):
        list(codec().decode_message(None, text.encode()))


def test_a_row_without_its_definition_is_refused() -> None:
    (value,) = codec().encode_rows(rows(), 5).values.to_pylist()
    with pytest.raises(DecodeError, match=r"definition of d\.t has not come yet.*BOOTSTRAP"):
        list(codec().decode_message(None, value))


def test_a_schema_change_teaches_the_definition() -> None:
    one, reader = codec(), codec()
    change = SchemaChange(STAMP, DdlKind.RENAME_TABLE, "rename", TABLE.id, TABLE, TableId("d", "o"))
    made = one.encode_schema_change(change, 5)
    assert made is not None
    text = made.values[0].as_py()
    assert json.loads(text)["preTableSchema"]["table"] == "o"
    (found,) = reader.decode_message(None, text)
    assert isinstance(found, SchemaChange)
    assert (found.kind, found.query, found.table) == (DdlKind.RENAME_TABLE, "rename", TABLE.id)
    (value,) = one.encode_rows(rows(), 5).values.to_pylist()
    (row,) = reader.decode_message(None, value)
    assert isinstance(row, Rows)
    assert row.after.to_pylist() == [{"id": 0, "v": "<é>", "n": 5}]


@pytest.mark.parametrize("encoding", ["json", "avro"])
def test_a_row_is_read_by_the_definition_that_it_was_written_with(encoding: str) -> None:
    """Another partition may have told of a later schema change before this row is read."""
    one = codec({"kafka-config": {"codec-config": {"encoding-format": encoding}}})
    renamed = parse_create(
        "create table d.t (id int key, w varchar(9), n bigint unsigned default 3)"
    )
    later = replace(renamed, table_id=7, version=12)
    lead = one.encode_rows(rows(), 5, TOPIC).lead
    (value,) = one.encode_rows(rows(), 5).values.to_pylist()
    change = SchemaChange(STAMP + 1, DdlKind.MODIFY_COLUMN, "alter", later.id, later)
    altered = one.encode_schema_change(change, 5)
    assert lead is not None and altered is not None
    assert list(one.decode_message(None, lead)) == []
    (told,) = one.decode_message(None, altered.values[0].as_py())
    assert isinstance(told, SchemaChange)
    (row,) = one.decode_message(None, value)
    assert isinstance(row, Rows)
    assert row.after.to_pylist() == [{"id": 0, "v": "<é>", "n": 5}]


def test_a_watermark_comes_back() -> None:
    one = codec()
    made = one.encode_watermark(Watermark(STAMP), 5)
    assert isinstance(made, Encoded)
    assert list(one.decode_message(None, made.values[0].as_py())) == [Watermark(STAMP)]


@pytest.mark.parametrize("handling", ["handle-key-only", "claim-check"])
def test_a_row_that_is_too_large(handling: str, tmp_path: Any) -> None:
    section = {
        "kafka-config": {
            "large-message-handle": {
                "large-message-handle-option": handling,
                "claim-check-storage-uri": f"file://{tmp_path}",
                "large-message-handle-compression": "lz4",
            }
        }
    }
    one = codec(section)
    chunk = rows()
    wide = chunk.after.to_pylist()[0] | {"v": "".join(chr(0x4E00 + i) for i in range(400))}
    chunk = make_rows(
        TABLE,
        *(chunk.batch.column(n) for n in ("op", "commit_ts", "seq", "before")),
        pa.array([wide], TABLE.image),
    )
    encoded = one.encode_rows(chunk, 5, Topic("t", 1, 700))
    sent_all = one.batch(encoded, Topic("t", 1, 700)).values.to_pylist()
    found = [c for v in sent_all for c in one.decode_message(None, v)]
    (row,) = (c for c in found if isinstance(c, Rows))
    assert row.key_only == (handling == "handle-key-only")
    assert row.after.to_pylist() == [{"id": 0} if row.key_only else wide]


def test_files_are_refused() -> None:
    with pytest.raises(OptionsConflict, match="simple sends table definitions.*file"):
        codec(scheme="file")
