"""The debezium codec: what its options change, tombstones, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, Watermark, make_rows
from rowferry.change.plan import Topic
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadOption, MessageTooLarge, OptionsConflict
from rowferry.flow.encode.debezium.codec import Debezium
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

TOPIC = Topic("t", 3, 1 << 20)
STAMP = 1_700_000_000_000 << 18
TABLE = parse_create("create table d.t (id int primary key, v varchar(9) default 'q')")


def codec(query: str = "", scheme: str = "kafka") -> Debezium:
    source, sink = Uri.parse("range://store", "source"), f"{scheme}://h/x?protocol=debezium&{query}"
    return codec_for(Debezium, ChangefeedSpec("feed", source, Uri.parse(sink, "sink"), {}))


def rows(table: TableSchema, *changes: tuple[Op, Any, Any]) -> Rows:
    return make_rows(
        table,
        pa.array([int(op) for op, _, _ in changes], pa.int8()),
        pa.array([STAMP + i for i in range(len(changes))], pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([before for _, before, _ in changes], table.image),
        pa.array([after for _, _, after in changes], table.image),
    )


OLD, NEW = {"id": 1, "v": "a"}, {"id": 1, "v": "b"}
ALL = [(Op.INSERT, None, OLD), (Op.UPDATE, OLD, NEW), (Op.DELETE, NEW, None)]


def sent(one: Debezium, *changes: tuple[Op, Any, Any]) -> list[tuple[Any, Any]]:
    """Keys and values as a queue gets them, without what is the same in all."""
    encoded = one.encode_rows(rows(TABLE, *changes), 5, TOPIC)
    partitions = np.arange(len(changes), dtype=np.int32) % 3
    made = one.batch(
        type(encoded)(encoded.values, encoded.keys, None, partitions, encoded.tombstones), TOPIC
    )
    assert made.keys is not None and made.partitions is not None
    assert made.row_count == len(changes)
    assert len(made.partitions) == len(made.values)
    pairs = zip(made.keys.to_pylist(), made.values.to_pylist(), strict=True)
    return [(json.loads(k), v and json.loads(v)) for k, v in pairs]


def test_a_delete_is_followed_by_a_tombstone_in_its_partition() -> None:
    one = codec("debezium-disable-schema=true")
    found = sent(one, ALL[2], ALL[0], ALL[2])
    assert [v and v["op"] for _, v in found] == ["d", None, "c", "d", None]
    encoded = one.encode_rows(rows(TABLE, ALL[2], ALL[0]), 5, TOPIC)
    partitioned = type(encoded)(
        encoded.values, encoded.keys, None, np.array([2, 1], np.int32), encoded.tombstones
    )
    assert one.batch(partitioned, TOPIC).partitions is not None
    assert one.batch(partitioned, TOPIC).partitions.tolist() == [2, 2, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(("old", "new"), [(1.5, 1.0), (1.0, 1.5), (1e300, 2.0), (1e19, 1e18)])
def test_a_type_guessed_without_a_schema_holds_both_images(old: float, new: float) -> None:
    one, table = codec("debezium-disable-schema=true"), parse_create("create table d.t (c double)")
    update = rows(table, (Op.UPDATE, {"c": old}, {"c": new}))
    (found,) = one.decode_message(None, one.encode_rows(update, 5).values[0].as_py())
    assert isinstance(found, Rows)
    assert [image[0].as_py()["c"] for image in (found.before, found.after)] == [old, new]


@pytest.mark.parametrize(("elements", "number"), [("'a',''", 2), ("''", 1), ("'a'", 0)])
def test_an_empty_element_comes_back(elements: str, number: int) -> None:
    one, table = codec(), parse_create(f"create table d.t (c enum({elements}))")
    added = rows(table, (Op.INSERT, None, {"c": number}))
    (found,) = one.decode_message(None, one.encode_rows(added, 5).values[0].as_py())
    assert isinstance(found, Rows)
    assert found.after.to_pylist() == [{"c": number}]


def test_without_tombstones_there_are_none() -> None:
    one = codec("debezium-disable-schema=true&debezium-tombstones-on-delete=false")
    assert [v["op"] for _, v in sent(one, *ALL)] == ["c", "u", "d"]


def test_a_table_without_a_key_has_no_tombstones() -> None:
    table = parse_create("create table d.t (id int, v varchar(9))")
    one = codec()
    encoded = one.encode_rows(rows(table, ALL[2]), 5, TOPIC)
    assert encoded.keys is None
    assert len(one.batch(encoded, TOPIC).values) == 1


def test_a_key_that_is_not_written_as_a_whole_is_none() -> None:
    """What is left of it would name several rows, and a tombstone would take all of them away."""
    table = parse_create(
        "create table d.t (id int not null, v int generated always as (id + 1) virtual not null, "
        "unique key (id, v))"
    )
    assert table.handle_key == ("id", "v")
    one = codec()
    encoded = one.encode_rows(rows(table, (Op.DELETE, {"id": 1, "v": 2}, None)), 5, TOPIC)
    assert encoded.keys is None
    assert len(one.batch(encoded, TOPIC).values) == 1


def test_http_gets_no_tombstones() -> None:
    one = codec(scheme="http")
    encoded = one.encode_rows(rows(TABLE, ALL[2]), 5, TOPIC)
    assert len(one.batch(encoded, TOPIC).values) == 1


def test_an_update_shows_its_old_row_unless_told_otherwise() -> None:
    shown = sent(codec("debezium-disable-schema=true"), ALL[1])
    assert (shown[0][1]["before"], shown[0][1]["after"]) == (OLD, NEW)
    source, sink = Uri.parse("range://store", "source"), Uri.parse("kafka://h/x", "sink")
    section = {"debezium": {"output-old-value": False}, "debezium-disable-schema": True}
    one = codec_for(Debezium, ChangefeedSpec("feed", source, sink, {"sink": section}))
    assert sent(one, ALL[1])[0][1]["before"] is None


def test_null_is_the_default_unless_told_otherwise() -> None:
    change = (Op.INSERT, None, {"id": 1, "v": None})
    plain = "debezium-disable-schema=true"
    assert sent(codec(plain), change)[0][1]["after"]["v"] == "q"
    kept = codec(f"{plain}&debezium-replace-null-with-default=false")
    assert sent(kept, change)[0][1]["after"]["v"] is None


def test_the_extension_tells_commit_ts_types_and_watermarks() -> None:
    assert codec().encode_watermark(Watermark(STAMP), 5) is None
    one = codec("enable-tidb-extension=true")
    key, value = sent(one, ALL[0])[0]
    assert value["payload"]["source"]["commit_ts"] == STAMP
    assert value["payload"]["source"]["cluster_id"] == "feed"
    assert [f["tidb_type"] for f in key["schema"]["fields"]] == ["INT"]
    mark = one.encode_watermark(Watermark(STAMP + 9), 5)
    assert mark is not None and mark.keys is not None
    made = json.loads(mark.values[0].as_py())
    assert (made["payload"]["op"], made["payload"]["source"]["db"]) == ("m", "")
    assert list(one.decode_message(mark.keys[0].as_py(), mark.values[0].as_py())) == [
        Watermark(STAMP + 9)
    ]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (DdlKind.CREATE_TABLE, [("CREATE", '"d"."t"', 2)]),
        (DdlKind.ADD_COLUMN, [("ALTER", '"d"."t"', 2)]),
        (DdlKind.DROP_TABLE, [("DROP", '"d"."t"', 0)]),
        (DdlKind.TRUNCATE_TABLE, []),
    ],
)
def test_a_schema_change_tells_the_table(kind: DdlKind, changes: list[Any]) -> None:
    one = codec("debezium-disable-schema=true")
    made = one.encode_schema_change(SchemaChange(STAMP, kind, "ddl", TableId("d", "t"), TABLE), 5)
    assert made is not None and made.keys is not None
    assert json.loads(made.keys[0].as_py()) == {"databaseName": "d"}
    value = json.loads(made.values[0].as_py())
    assert (value["ddl"], value["databaseName"], value["ts_ms"]) == ("ddl", "d", 5)
    found = [
        (c["type"], c["id"], len(c["table"]["columns"]) if c["table"] else 0)
        for c in value["tableChanges"]
    ]
    assert found == changes


@pytest.mark.parametrize("how", ["lz4", "snappy"])
def test_keys_and_values_are_compressed(how: str) -> None:
    def made(scheme: str) -> Debezium:
        large = {"large-message-handle": {"large-message-handle-compression": how}}
        config = {"sink": {"kafka-config": large}}
        source, sink = Uri.parse("range://store", "source"), Uri.parse(f"{scheme}://h/x", "sink")
        return codec_for(Debezium, ChangefeedSpec("feed", source, sink, config))

    one, plain = made("kafka"), codec()
    found, usual = (c.encode_rows(rows(TABLE, *ALL), 5, TOPIC) for c in (one, plain))
    assert found.keys is not None and usual.keys is not None
    for data, wanted in ((found.keys, usual.keys), (found.values, usual.values)):
        plain_bytes = wanted[0].as_py()
        assert data[0].as_py() != plain_bytes
        assert pa.decompress(data[0].as_py(), len(plain_bytes), how, asbytes=True) == plain_bytes
    sent_all = one.batch(found, TOPIC)
    assert sent_all.keys is not None and len(sent_all.values) > len(found.values)
    back = [
        change
        for pair in zip(sent_all.keys.to_pylist(), sent_all.values.to_pylist(), strict=True)
        for change in one.decode_message(*pair)
    ]
    assert len(back) == len(ALL)
    with pytest.raises(OptionsConflict, match="compression = .*over http are lines of text"):
        made("http")


def test_what_it_refuses() -> None:
    with pytest.raises(OptionsConflict, match="debezium makes messages with keys.*file"):
        codec(scheme="file")
    with pytest.raises(BadOption, match=r"debezium-include-start-ts.*does not tell"):
        codec("debezium-include-start-ts=true")
    with pytest.raises(BadOption, match=r"debezium-time-precision-mode.*nanoseconds"):
        codec("debezium-time-precision-mode=weeks")
    small = Topic("t", 1, 100)
    with pytest.raises(MessageTooLarge, match=r"d\.t.*debezium-disable-schema"):
        codec().encode_rows(rows(TABLE, ALL[0]), 5, small)
