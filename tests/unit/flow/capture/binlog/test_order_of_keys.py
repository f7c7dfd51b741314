"""Places that are kept between two parts of a table have a meaning in one order of its rows."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rowferry.change.position import Stage
from rowferry.change.resnapshot import Resnapshot, ResnapshotOutcome
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import SnapshotOutdated
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.binlog.reread import Reread
from rowferry.flow.capture.binlog.snapshot import rereads, snapshots
from rowferry.flow.capture.binlog.snapshot.rereads import Rereads
from rowferry.flow.capture.binlog.snapshot.same_table import misleads
from rowferry.flow.capture.binlog.snapshot.snapshots import cut_snapshots, restart_altered
from rowferry.flow.capture.binlog.state import BinlogState
from rowferry.flow.capture.contract import Appetite
from rowferry.mysql import key_ranges, range_read, session
from rowferry.mysql.ddl.statement import parse_create, plan_ddl
from rowferry.mysql.key_ranges import Chunk, order_of_key
from rowferry.mysql.session import Flavour, Login

LOGIN = Login("h", 1, "u", "")
TEXT_KEY = "CREATE TABLE d.t (k varchar(9) COLLATE utf8mb4_bin PRIMARY KEY, v varchar(9), w int)"
APPETITE = Appetite(lambda table: 1, 1, lambda commit_ts: "")
CONNECTION: Any = None


class Source:
    """A server whose table `d.t` is as somebody has altered it."""

    flavour = Flavour.MYSQL
    connection: Any = None
    login = LOGIN
    facts = SimpleNamespace(identity="server", flavour=flavour)

    def __init__(self, create: str = TEXT_KEY) -> None:
        self.definition = parse_create(create)
        self.questions = 0

    def table(self, name: TableId, table_id: int) -> TableSchema | None:
        return replace(self.definition, table_id=table_id)

    def partitions(self, name: TableId) -> tuple[tuple[str, ...], str]:
        return (), ""

    def tells_gtids(self) -> bool:
        return True

    def rows(self, connection: Any, login: Any, sql: str, values: Any = ()) -> list[Any]:
        if "COLLATION_NAME" not in sql:
            return []
        self.questions += 1
        columns = self.definition.columns
        return [(c.name, c.type.collation) for c in columns if c.type.collation]

    def collate(self, column: str, collation: str) -> None:
        columns = tuple(
            replace(c, type=replace(c.type, collation=collation)) if c.name == column else c
            for c in self.definition.columns
        )
        self.definition = replace(self.definition, columns=columns)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    source = Source()
    monkeypatch.setattr(session, "rows", source.rows)
    monkeypatch.setattr(session, "rows_of_table", source.rows)

    def next_chunks(*args: Any) -> list[Chunk]:
        after = args[3]
        return [Chunk(after, ("'m'",) if after is None else ("'s'",), 10)]

    def next_within(*args: Any, **more: Any) -> tuple[Chunk, bool]:
        return Chunk(args[3], ("'m'",) if args[3] is None else ("'s'",), 10), False

    for module in (snapshots, rereads):
        monkeypatch.setattr(module, "estimate_rows", lambda *args: 100)
        monkeypatch.setattr(module, "row_bytes", lambda *args: 10)
    monkeypatch.setattr(rereads, "estimate_range", lambda *args: 100)
    monkeypatch.setattr(snapshots, "next_chunks", next_chunks)
    monkeypatch.setattr(rereads, "next_within", next_within)
    return source


def begun(source: Source, stage: Stage = Stage.SNAPSHOT) -> BinlogState:
    state = BinlogState(LogPosition(Flavour.MYSQL, "server", last_ts=100), started=True)
    state.put(replace(source.definition, table_id=state.take_id()).at(100), stage, 100)
    return state


def order(create: str, source: Source | None = None) -> str:
    return order_of_key(CONNECTION, LOGIN, parse_create(create))


# --- what an order is ----------------------------------------------------------------------------


def test_only_the_key_matters(source: Source) -> None:
    here = order_of_key(CONNECTION, LOGIN, source.definition)
    source.collate("v", "utf8mb4_general_ci")
    assert order_of_key(CONNECTION, LOGIN, source.definition) == here
    source.collate("k", "utf8mb4_general_ci")
    assert order_of_key(CONNECTION, LOGIN, source.definition) != here


def test_a_collation_has_one_order_under_both_its_names(source: Source) -> None:
    source.collate("k", "utf8_general_ci")
    older = order_of_key(CONNECTION, LOGIN, source.definition)
    source.collate("k", "utf8mb3_general_ci")
    assert order_of_key(CONNECTION, LOGIN, source.definition) == older


def test_columns_their_places_and_types_make_the_order(source: Source) -> None:
    keys = [
        "CREATE TABLE d.t (a int, b int, PRIMARY KEY (a))",
        "CREATE TABLE d.t (a int, b int, PRIMARY KEY (b))",
        "CREATE TABLE d.t (a int, b int, PRIMARY KEY (a, b))",
        "CREATE TABLE d.t (a int, b int, PRIMARY KEY (b, a))",
        "CREATE TABLE d.t (a int unsigned, b int, PRIMARY KEY (a))",
        "CREATE TABLE d.t (a varbinary(9), b int, PRIMARY KEY (a))",
        "CREATE TABLE d.t (a enum('x', 'y'), b int, PRIMARY KEY (a))",
        "CREATE TABLE d.t (a enum('y', 'x'), b int, PRIMARY KEY (a))",
    ]
    assert len({order(key) for key in keys}) == len(keys)
    assert source.questions == 0  # of numbers the definition tells all


# --- a snapshot ----------------------------------------------------------------------------------


def test_a_snapshot_begins_again_where_its_key_has_another_order(source: Source) -> None:
    server: Any = source
    decision: Any = SimpleNamespace(keeps_schema_change=lambda change: True)
    state = begun(source)
    for _ in range(2):
        (segment,) = cut_snapshots(state, server, APPETITE)
        assert segment.read["chunk"]["order"] == order_of_key(CONNECTION, LOGIN, source.definition)
    source.collate("k", "utf8mb4_general_ci")
    with pytest.raises(SnapshotOutdated, match=r"the key of d\.t orders rows otherwise"):
        cut_snapshots(state, server, APPETITE)
    (change,) = restart_altered(state, server, decision)
    assert change.kind.name == "TRUNCATE_TABLE"
    (again,) = state.tables.values()
    assert again.progress.stage is Stage.REGISTERED


def test_a_snapshot_is_read_on_where_its_key_has_the_same_order(source: Source) -> None:
    server: Any = source
    decision: Any = None
    state = begun(source)
    cut_snapshots(state, server, APPETITE)
    source.collate("v", "utf8mb4_general_ci")
    assert restart_altered(state, server, decision) == []
    (segment,) = cut_snapshots(state, server, APPETITE)
    assert segment.read["chunk"]["lower"] == ["'m'"]


def test_a_snapshot_that_an_older_version_has_begun_is_read_on(source: Source) -> None:
    server: Any = source
    decision: Any = None
    state = begun(source)
    (table,) = state.tables.values()
    reached = json.dumps([0, ["'m'"], ""]).encode().hex()
    table.progress = table.progress.with_(last_snapshot_key=reached)
    assert restart_altered(state, server, decision) == []
    (segment,) = cut_snapshots(state, server, APPETITE)
    assert segment.read["chunk"]["lower"] == ["'m'"]
    source.collate("k", "utf8mb4_general_ci")
    with pytest.raises(SnapshotOutdated):
        cut_snapshots(state, server, APPETITE)


def test_a_part_is_not_read_in_another_order_than_it_was_cut_in(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two the table may be altered; from the view's beginning on it is not."""
    monkeypatch.setattr(session, "connect_to", lambda *args: SimpleNamespace(close=lambda: None))
    opened: list[int] = []
    monkeypatch.setattr(range_read, "_open_view", lambda *args, **more: opened.append(1))
    read = SimpleNamespace(read=lambda schema: iter(()))
    monkeypatch.setattr(range_read, "ResultSet", lambda *args: read)
    schema = source.definition
    cut = Chunk(None, ("'m'",), 5, order=order_of_key(CONNECTION, LOGIN, schema))
    assert list(range_read.read_chunk(LOGIN, schema, cut, 1, 0, Flavour.MYSQL)) == []
    source.collate("k", "utf8mb4_general_ci")
    with pytest.raises(SnapshotOutdated, match="orders rows otherwise"):
        list(range_read.read_chunk(LOGIN, schema, cut, 1, 0, Flavour.MYSQL))
    older = replace(cut, order="")
    assert list(range_read.read_chunk(LOGIN, schema, older, 1, 0, Flavour.MYSQL)) == []
    assert opened == [1, 1, 1]


# --- parts beside the log ------------------------------------------------------------------------


def parts(reads: Rereads, state: BinlogState, one: Reread) -> Any:
    (table,) = state.tables.values()
    return reads._parts_of(state, one, 200, 1, 0)


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("altered", ["collation", "type", "column"])
def test_parts_begin_again_where_the_key_has_another_order(
    source: Source, joins: bool, altered: str
) -> None:
    server: Any = source
    decision: Any = None
    reads, state = Rereads(server, decision), begun(source, Stage.LOG)
    one = Reread("1", 1, "d.t", joins=joins)
    state.rereads[one.id] = one
    assert parts(reads, state, one)[0].read["chunk"]["lower"] is None
    assert parts(reads, state, one)[0].read["chunk"]["lower"] == ["'m'"]
    if altered == "collation":
        source.collate("k", "utf8mb4_general_ci")
    else:
        statement = {
            "type": "ALTER TABLE d.t MODIFY k varbinary(9)",
            "column": "ALTER TABLE d.t DROP COLUMN k, ADD COLUMN k varchar(9) PRIMARY KEY",
        }[altered]
        (table,) = state.tables.values()
        known = {table.schema.id: table.schema}
        (change,) = plan_ddl(statement, "d", known, lambda: 0)
        assert change.schema is not None
        state.put(change.schema, Stage.LOG)  # as the log tells it
    assert parts(reads, state, one)[0].read["chunk"]["lower"] is None


def test_a_range_that_was_asked_for_is_not_that_of_another_order(source: Source) -> None:
    server: Any = source
    decision: Any = None
    reads, state = Rereads(server, decision), begun(source, Stage.LOG)
    reads.follow(state, [Resnapshot("1", TableId("d", "t"), first=("a",))])
    one = state.rereads["1"]
    source.collate("k", "utf8mb4_general_ci")
    assert parts(reads, state, one) == []
    assert one.outcome is ResnapshotOutcome.FAILED
    assert one.words == "the key of d.t is another one now; ask for its new range"


def test_a_key_s_column_that_is_made_anew_misleads() -> None:
    """Its rows have other values, of which the log tells nothing."""
    old = parse_create("CREATE TABLE d.t (id int, v int, PRIMARY KEY (id))")

    def misled(statement: str) -> bool:
        (change,) = plan_ddl(statement, "d", {old.id: old}, lambda: 0)
        assert change.schema is not None
        return misleads(change.schema, old)

    anew = "ADD COLUMN id int AUTO_INCREMENT PRIMARY KEY"
    assert misled(f"ALTER TABLE d.t DROP COLUMN id, {anew}")
    assert not misled("ALTER TABLE d.t DROP COLUMN v, ADD COLUMN v int")
    assert not misled("ALTER TABLE d.t MODIFY id bigint")


def test_chunks_without_an_order_look_as_they_did() -> None:
    assert "order" not in Chunk(None, None, 0).to_json()
    assert key_ranges.Chunk.from_json({"lower": None, "upper": None, "rows": 0, "partition": ""})
