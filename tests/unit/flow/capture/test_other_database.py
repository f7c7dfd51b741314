"""A database that is no MySQL needs one module and a registry line; or it is refused by name."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import other_database
from other_database import DIALECT_NAME, Elephant, ElephantDialect, neutral
from rowferry.change.chunk import DdlKind, Rows, SchemaChange
from rowferry.change.plan import Output, Segment, TableSlice, Topic
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import MYSQL, TableId, TableSchema
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.operator.checks.prepare import prepare
from rowferry.control.store.sql_store import open_store
from rowferry.errors import BadInput, BadRoute, NotSupported, SchemaChangeRefused
from rowferry.flow.assemble import Flow, assemble, option_tables, sink_traits
from rowferry.flow.decide.expression import Expression
from rowferry.flow.dispatch.by_topic import ByTopic
from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.mysql.other_dialects import statement_of
from rowferry.flow.sink.mysql.target_tables import create_statements
from rowferry.registry import SOURCES
from rowferry.spark.job import InProcessRunner
from rowferry.spec.build import build_spec
from rowferry.testing.registry_stub import registry_stub

COLUMNS = {
    "id": "bigint",
    "paid": "boolean",
    "placed": "timestamp with time zone",
    "total": "numeric(12,2)",
    "photo": "bytea",
    "tags": "text[]",
    "name": "character varying(20)",
}
FIRST = {
    "id": 1,
    "paid": True,
    "placed": "2026-01-02 03:04:05.000006+00",
    "total": "12.50",
    "photo": "\\x00ff",
    "tags": ["a", None],
    "name": "Ann",
}
SECOND = {"id": 2, "paid": False}
WEIGHED = {**FIRST, "weight": "1" * 60 + ".5"}
NAME = TableId.in_schema("shop", "public", "orders")


def ts(place: int) -> int:
    return (1_770_000_000_000 << PHYSICAL_SHIFT) + place


def log(*lines: dict[str, Any]) -> str:
    stamped = ({"lsn": f"0/{i}A", "ts": ts(i), "oid": 7, **line} for i, line in enumerate(lines, 1))
    return "".join(json.dumps(line) + "\n" for line in stamped)


def statement(kind: str, text: str, **more: Any) -> dict[str, Any]:
    return {"ddl": text, "kind": kind, "table": ["shop", "public", "orders"], **more}


CREATE = statement("CREATE_TABLE", "CREATE TABLE public.orders (…)", columns=COLUMNS, key=["id"])
ROWS: tuple[dict[str, Any], ...] = (
    {"op": "INSERT", "after": FIRST},
    {"op": "INSERT", "after": SECOND},
    {"op": "UPDATE", "before": SECOND, "after": {**SECOND, "paid": True}},
    {"op": "DELETE", "before": FIRST},
)
ADD = statement(
    "ADD_COLUMN",
    "ALTER TABLE public.orders ADD COLUMN weight numeric",
    columns={**COLUMNS, "weight": "numeric"},
    key=["id"],
)
OWN = {**CREATE, "oid": 8, "table": ["shop", "pg_catalog", "pg_class"]}


@pytest.fixture
def elephant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Add the source: its module is `tests/other_database.py`, and here is its registry line."""
    monkeypatch.setitem(SOURCES._places, "elephant", "other_database:Elephant")
    file = tmp_path / "log"
    file.write_text(log(OWN, CREATE, *ROWS))
    yield file


def stages(log: Path, sink: str, config: dict[str, Any] | None = None) -> Flow:
    built = build_spec(f"elephant://{log}", sink, config, "feed", option_tables, sinks=sink_traits)
    return assemble(built[0])


def delivered(log: Path, query: str, rules: str = "*.*") -> Path:
    """Run a changefeed into files until nothing is left to plan; returns their folder."""
    folder = log.parent
    config = folder / "feed.toml"
    config.write_text(f"[filter]\nrules = ['{rules}']\n[sink.csv]\nnull = 'NULL'\n")
    with closing(open_store(f"sqlite:///{folder}/meta.db")) as store:
        feed = store.feed("feed")
        known = feed.spec if feed else None
        uri = f"file://{folder}/out?{query}"
        prepared = prepare(f"elephant://{log}", uri, config, "feed", stored=lambda _: known)
        if feed is None:
            store.create_changefeed(prepared.spec, 0)
        claim = store.claim("feed", Holder.here(), 1.0, 0.0)
        with closing(
            Loop("feed", prepared.flow, store, claim, InProcessRunner(), lambda: 1)
        ) as loop:
            while not loop.step().caught_up:
                pass
    return folder / "out"


def test_its_rows_schema_and_position_pass_every_stage_to_files(
    elephant: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    out = delivered(elephant, "protocol=csv")
    assert sorted(p.name for p in out.iterdir() if p.is_dir() and "rowferry" not in p.name) == [
        "shop.public"  # of two parts; nothing of the system's own schema
    ]
    (file,) = (out / "shop.public" / "orders").rglob("CDC*.csv")
    both = '"2026-01-02 03:04:05.000006","12.50","AP8=","[""a"", null]","Ann"'
    none = ",".join(["NULL"] * 5)
    assert file.read_text().splitlines() == [
        f'"I","orders","shop.public",1,1,{both}',
        f'"I","orders","shop.public",2,0,{none}',
        f'"U","orders","shop.public",2,1,{none}',
        f'"D","orders","shop.public",1,1,{both}',
    ]
    schemas = [json.loads(p.read_text()) for p in (out / "shop.public").rglob("schema_*.json")]
    (made,) = [s for s in schemas if s["Query"]]
    assert (made["Schema"], made["Table"]) == ("shop.public", "orders")
    assert made["Query"] == CREATE["ddl"]
    types = [c["ColumnType"] for c in made["TableColumns"]]
    assert types == ["BIGINT", "TINYINT", "TIMESTAMP", "DECIMAL", "LONGBLOB", "JSON", "VARCHAR"]
    assert "reads on from the beginning" in caplog.text
    elephant.write_text(log(OWN, CREATE, *ROWS, {"op": "INSERT", "after": FIRST}))
    delivered(elephant, "protocol=csv")
    assert "reads on from lsn 0/6A" in caplog.text
    assert len([*(out / "shop.public" / "orders").rglob("CDC*.csv")]) == 2
    with closing(open_store(f"sqlite:///{elephant.parent}/meta.db")) as store:
        assert store.state("feed").position == {"lsn": "0/7A"}  # its own form, as it is
        assert {v.dialect for v in store.state("feed").versions} == {DIALECT_NAME}


def test_typed_files_have_its_values(elephant: Path) -> None:
    elephant.write_text(
        log(OWN, CREATE, *ROWS[:1], ADD, {"op": "INSERT", "after": {**WEIGHED, "id": 3}})
    )
    out = delivered(elephant, "protocol=parquet")
    first, second = sorted((out / "shop.public" / "orders").rglob("*.parquet"))
    row = pq.read_table(first).to_pylist()[0]
    assert (row["paid"], row["photo"], row["tags"]) == (1, b"\x00\xff", '["a", null]')
    assert str(row["total"]) == "12.50"
    assert pq.read_table(second).to_pylist()[0]["weight"] == WEIGHED["weight"]


def packed(flow: Flow) -> list[Packet]:
    """Carry the rows from the log to packets, as a task of a sink with lanes does."""
    table = flow.capture.probe(flow.decide)[0]
    piece = TableSlice(table.id, table.table_id, table.version)
    assert isinstance(flow.capture, Elephant)
    lsns = [line["lsn"] for line in flow.capture.lines() if "op" in line]
    segment = Segment(0, {"lsns": lsns}, (piece,), ts(3), ts(6))
    assert isinstance(flow.dispatch, ByTopic)
    topic = Topic(flow.dispatch.topic_of(table.id), 1, 1 << 20)
    output = Output(0, 0, topic.to_json())
    made = list(flow.pack_segment(segment, (output,), {piece: table}, 1, None))
    return [one for one in made if isinstance(one, Packet)]


@pytest.mark.parametrize("protocol", ["canal-json", "debezium", "avro", "open-protocol", "json"])
def test_messages_of_queues_have_its_rows(elephant: Path, protocol: str) -> None:
    config = {"sink": {"dispatchers": [{"matcher": ["*.*"], "topic": "{schema}_{table}"}]}}
    with registry_stub() as registry:
        more = f"&schema-registry={registry.url}" if protocol == "avro" else ""
        flow = stages(elephant, f"kafka://127.0.0.1:1/t?protocol={protocol}{more}", config)
        (packet,) = packed(flow)
        assert packet.topic.name == "shop.public_orders"
        sent = packet.messages
        assert sent.row_count >= len(ROWS)
        text = b"".join(v for v in sent.values.to_pylist() if v)
        assert b"Ann" in text and b"2026-01-02" in text
        key = None if sent.keys is None else sent.keys[0].as_py()
        read = flow.encode.decode_message(key, sent.values[0].as_py())
        rows = next(one for one in read if isinstance(one, Rows))
        assert rows.table.id.table == "orders"
        assert rows.after.to_pylist()[0]["id"] == 1


# --- refused by name ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sink",
    [
        "kafka://127.0.0.1:1/t?protocol=canal-json",
        "kafka://127.0.0.1:1/t?protocol=open-protocol",
        "kafka://127.0.0.1:1/t?protocol=simple",
        "kafka://127.0.0.1:1/t?protocol=canal",
        "kafka://127.0.0.1:1/t?protocol=avro&schema-registry=http://127.0.0.1:1",
        "mysql://root@127.0.0.1:1/",
    ],
)
def test_a_type_without_a_form_is_refused_with_table_column_and_type(
    elephant: Path, sink: str
) -> None:
    elephant.write_text(log(CREATE, ADD))
    flow = stages(elephant, sink)
    (table,) = flow.capture.probe(flow.decide)
    with pytest.raises(NotSupported) as caught:
        flow.decide.check_tables([table])
    words = str(caught.value)
    assert "table shop.public.orders, column 'weight': protocol" in words
    assert "has no form for the type numeric; leave the column out" in words
    if not sink.startswith("mysql"):
        left = {"sink": {"column-selectors": [{"matcher": ["*.*"], "columns": ["*", "!weight"]}]}}
        assert stages(elephant, sink, left).decide.check_tables([table]) == []


def test_what_has_no_neutral_form_at_all_is_the_sources_to_refuse(elephant: Path) -> None:
    elephant.write_text(log({**CREATE, "columns": {"id": "bigint", "where": "point"}}))
    with pytest.raises(other_database.SourceUnsupported, match="the type point"):
        delivered(elephant, "protocol=csv")


def test_names_in_its_statements_are_replaced_by_its_dialect_alone(elephant: Path) -> None:
    config = {"sink": {"dispatchers": [{"matcher": ["*.*"], "target-schema": "new"}]}}
    flow = stages(elephant, f"file://{elephant.parent}/out?protocol=csv", config)
    (table,) = flow.capture.probe(flow.decide)
    assert flow.decide.seen_as(table).written_as == TableId("new", "orders")
    change = SchemaChange(9, DdlKind.ADD_COLUMN, "ALTER …", NAME, table, dialect=DIALECT_NAME)
    with pytest.raises(BadRoute, match="postgres-like: names in statements"):
        flow.decide.change_seen_as(change)


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        (("shop", "public", "t"), "shop.public.t"),
        (("my.shop", "public", "t"), '"my.shop".public.t'),
        (('a"b', "", "t"), '"a""b"."".t'),
        (("a", "b.c", "t"), 'a."b.c".t'),
    ],
)
def test_names_of_three_parts(parts: tuple[str, str, str], shown: str) -> None:
    name = TableId.in_schema(*parts)
    assert str(name) == shown
    assert name.schema_parts == parts[:2]


@pytest.mark.parametrize("database", ["shop", "", "a.b.c", ".", "a.", '"a.b'])
def test_other_databases_are_no_two_parts(database: str) -> None:
    with pytest.raises(BadInput, match="is not a catalog and a schema"):
        _ = TableId(database, "t").schema_parts


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ('"shop.public".orders', True),
        ("shop\\.public.o*", True),
        ("/^shop\\./.*", True),
        ('"shop.public".other', False),
        ("public.orders", False),
    ],
)
def test_three_parts_are_filtered_as_a_database_and_a_table(
    elephant: Path, rule: str, kept: bool
) -> None:
    config = {"filter": {"rules": [rule]}}
    decide = stages(elephant, f"file://{elephant.parent}/out?protocol=csv", config).decide
    assert decide.keeps_table(NAME) is kept
    assert not decide.keeps_table(TableId.in_schema("shop", "pg_catalog", "orders"))


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "kind"),
    [
        ("boolean", Kind.INTEGER),
        ("timestamp with time zone", Kind.TIMESTAMP),
        ("numeric(12,2)", Kind.DECIMAL),
        ("numeric", Kind.NUMERIC),
        ("bytea", Kind.BINARY),
        ("integer[]", Kind.JSON),
        ("interval", Kind.TEXT),
        ("int4range", Kind.TEXT),
    ],
)
def test_a_type_has_a_neutral_form_and_its_own_words(own: str, kind: Kind) -> None:
    found = neutral(own)
    assert (found.kind, found.sql) == (kind, own)
    assert SqlType.from_json(found.to_json()) == found


def test_stored_forms_name_a_dialect_only_where_it_is_another(elephant: Path) -> None:
    flow = stages(elephant, f"file://{elephant.parent}/out?protocol=csv")
    (table,) = flow.capture.probe(flow.decide)
    assert TableSchema.from_json(table.to_json()) == table
    assert table.to_json()["dialect"] == DIALECT_NAME
    assert "dialect" not in replace(table, dialect=MYSQL).to_json()
    change = SchemaChange(1, DdlKind.CREATE_TABLE, "…", NAME, table, dialect=DIALECT_NAME)
    assert SchemaChange.from_json(change.to_json()) == change
    assert "dialect" not in replace(change, dialect=MYSQL, schema=None).to_json()


def test_texts_of_it_keep_their_case_in_expressions(elephant: Path) -> None:
    flow = stages(elephant, f"file://{elephant.parent}/out?protocol=csv")
    (table,) = flow.capture.probe(flow.decide)
    rows = flow.capture.read(
        Segment(0, {"lsns": ["0/3A"]}, (piece := TableSlice(NAME, 7, table.version),), 1, 1),
        {piece: table},
    )
    (chunk,) = rows
    for here, wanted in ((table, False), (replace(table, dialect=MYSQL), True)):
        images = Expression("name = 'ANN'", "rule").fit(here)
        assert list(images(_Images(chunk))) == [wanted]


class _Images:
    """The new rows of a chunk, as expressions see them."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> Any:
        return self._rows.after.field(name)


# --- the MySQL sink -------------------------------------------------------------------------------


def change(kind: DdlKind, query: str = "in its words", **more: Any) -> SchemaChange:
    return SchemaChange(5, kind, query, NAME, dialect=DIALECT_NAME, **more)


def test_a_mysql_sink_makes_statements_of_the_structure(elephant: Path) -> None:
    flow = stages(elephant, "mysql://root@127.0.0.1:1/")
    (table,) = flow.capture.probe(flow.decide)

    def collations() -> set[str]:
        return {"utf8mb4_0900_bin"}

    created = statement_of(change(DdlKind.CREATE_TABLE, schema=table), collations)
    assert created == (
        "CREATE TABLE IF NOT EXISTS `shop.public`.`orders` (`id` bigint NOT NULL, `paid` "
        "tinyint(1), `placed` timestamp(6) NULL, `total` decimal(12,2), `photo` longblob, `tags` "
        "json, `name` varchar(20) CHARACTER SET utf8mb4, PRIMARY KEY (`id`)) "
        "DEFAULT CHARSET=utf8mb4"
    )
    old = TableId.in_schema("shop", "public", "old")
    for made, text in (
        (change(DdlKind.DROP_TABLE), "DROP TABLE `shop.public`.`orders`"),
        (change(DdlKind.TRUNCATE_TABLE), "TRUNCATE TABLE `shop.public`.`orders`"),
        (
            change(DdlKind.RENAME_TABLE, previous=old, schema=table),
            "RENAME TABLE `shop.public`.`old` TO `shop.public`.`orders`",
        ),
        (change(DdlKind.CREATE_DATABASE), "CREATE DATABASE `shop.public`"),
        (change(DdlKind.DROP_DATABASE), "DROP DATABASE `shop.public`"),
        (change(DdlKind.ADD_COLUMN, ""), ""),
        (replace(change(DdlKind.ADD_COLUMN, "ALTER …"), dialect=MYSQL), "ALTER …"),
    ):
        assert statement_of(made, collations) == text
    with pytest.raises(SchemaChangeRefused) as caught:
        statement_of(change(DdlKind.ADD_COLUMN, "ALTER TABLE x"), collations)
    words = str(caught.value)
    assert (
        "shop.public.orders: ADD COLUMN comes from a source of the dialect postgres-like" in words
    )
    assert 'skip-ddl = ["5"]' in words and 'replace-ddl = ["5 <statement>"]' in words


def test_keys_of_texts_are_made_as_strict_as_can_be(elephant: Path) -> None:
    flow = stages(elephant, "mysql://root@127.0.0.1:1/")
    (table,) = flow.capture.probe(flow.decide)
    index = replace(table.indexes[0], columns=("name",))
    keyed = replace(table, indexes=(index,))
    made = create_statements(keyed, {"utf8mb4_0900_bin"})[1]
    assert "`name` varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin" in made


def test_a_dialect_answers_for_its_own_system() -> None:
    is_system = ElephantDialect().is_system_database
    assert is_system("shop.pg_catalog")
    assert not is_system("shop.mysql")
