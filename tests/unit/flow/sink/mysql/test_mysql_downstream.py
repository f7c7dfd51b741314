"""A downstream in memory: names that differ in case only, DDLs that were interrupted, the fence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.own_tables import DELIVERED, FENCE, SCHEMA_CHANGES
from rowferry.change.plan import Plan, Stretch
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import (
    Fenced,
    SchemaChangeRefused,
    SinkUnavailable,
    TargetLost,
    TargetUnfit,
)
from rowferry.flow.assemble import assemble
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.mysql import schema_changes
from rowferry.flow.sink.mysql.ledger import BEGUN, DONE, REFUSED
from rowferry.flow.sink.mysql.options import read_settings
from rowferry.flow.sink.mysql.schema_changes import SchemaChanges, _definition, _digest
from rowferry.flow.sink.mysql.session import StatementRefused
from rowferry.flow.sink.mysql.target_tables import check
from rowferry.flow.sink.sql.ledger import LaneNote, LanePlace
from rowferry.mysql.ddl.statement import parse_create
from rowferry.mysql.feed_mark import MARK_SQL_MODE
from rowferry.mysql.flavour import Flavour
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

UPPER, LOWER = TableId("shop", "Orders"), TableId("shop", "orders")
STAMP = 1 << 40


@dataclass
class Table:
    """A table of one column, which is its key."""

    key: str
    kind: str = "int"
    collation: str | None = None


class Downstream:
    """A server, and each of its sessions; `folds` is its lower_case_table_names."""

    def __init__(self, folds: str, tables: dict[TableId, Table]) -> None:
        self.folds, self.tables = folds, tables
        self.place = "h"
        self.facts = SimpleNamespace(flavour=Flavour.MYSQL)
        self.ran: list[bytes] = []
        self.modes: list[str] = []
        self.meets: Callable[[bytes], None] = lambda statement: None
        self.digits: list[tuple[Any, ...]] = []  # of seconds, by column

    def run(self, *statements: bytes, joined: bool = True) -> None:
        for statement in statements:
            self.meets(statement)
            self.ran.append(statement)

    def ask(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if "@@lower_case_table_names" in sql:
            return [(self.folds,)]
        if "datetime_precision" in sql:
            return self.digits
        if shown := re.fullmatch(r"SHOW CREATE TABLE `(\w+)`\.`(\w+)`", sql):
            name = TableId(*shown.groups())
            if self.folds != "0":
                name = TableId(name.database.lower(), name.table.lower())
            if name not in self.tables:
                raise StatementRefused(1146, f"Table '{name}' doesn't exist", "h")
            return [(name.table, f"CREATE TABLE {name.table} ({self.tables[name]})")]
        if "TABLE_NAME FROM information_schema.TABLES" in sql:
            return [(name.table,) for name in self.tables if name.database == values[0]]
        if sql.startswith("SHOW CREATE DATABASE"):
            return [("all", "CREATE DATABASE `all`")]
        if "information_schema.TABLES" in sql:
            return [("1",)] if TableId(*map(str, values)) in self.tables else []
        if sql.startswith("SELECT COLUMN_NAME FROM information_schema.COLUMNS"):
            return [(t.key,) for name, t in self.tables.items() if name == tuple(values)]
        if "information_schema.COLUMNS" in sql:
            return [
                (*name, t.key, t.kind, t.kind, None, None, "NO", None, "", t.collation)
                for name, t in self.tables.items()
            ]
        if "information_schema.STATISTICS" in sql:
            return [(*name, "PRIMARY", t.key, None) for name, t in self.tables.items()]
        if "COLLATION_CHARACTER_SET_APPLICABILITY" in sql:
            return [("utf8mb4_0900_ai_ci", "utf8mb4")]
        return []

    def set_mode(self, mode: str, *more: str) -> None:
        self.modes.append(mode)

    def rollback(self) -> None:
        pass

    def close(self) -> None:
        pass


class Notes:
    """The ledger, as far as DDLs go: what it knows of the only one, and what is noted."""

    def __init__(self, known: tuple[str, str] | None = None) -> None:
        self.known = known
        self.states: list[str] = []

    def begin(self, session: Any, epoch: int) -> list[tuple[Any, ...]]:
        return []

    def schema_change(self, *place: Any) -> tuple[str, str] | None:
        return self.known

    def note_schema_change(
        self,
        session: Any,
        micro_batch: int,
        ordinal: int,
        commit_ts: int,
        state: str,
        digests: tuple[str, str],
        statement: str,
    ) -> None:
        self.states.append(state)


def spec_of(uri: str = "mysql://u@h/") -> ChangefeedSpec:
    return ChangefeedSpec("feed", Uri.parse("range://h:1", "source"), Uri.parse(uri, "sink"), {})


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a schema change at a downstream, with notes of what was done before."""

    def make_it(
        server: Downstream,
        notes: Any,
        change: SchemaChange,
        there: Sequence[TableId] = (),
        marks: bool = False,
    ) -> None:
        monkeypatch.setattr(schema_changes, "connect", lambda login, **how: server)
        plan = Plan(7, 1, 0, Stretch((), (change,), {}))
        SchemaChanges(read_settings(spec_of()), notes, marks).run(plan, 1, there)

    return make_it


def orders(name: TableId, key: str = "id") -> TableSchema:
    return parse_create(f"CREATE TABLE {name.table} ({key} INT PRIMARY KEY)", name.database)


def test_names_that_differ_in_case_only_are_kept_apart() -> None:
    server: Any = Downstream("0", {UPPER: Table("id"), LOWER: Table("code")})
    both = [orders(UPPER), orders(LOWER, "code")]
    assert check(server, both, create=False) == []
    for one in both:  # a server may answer with both
        assert check(server, [one], create=False) == []
    server = Downstream("0", {LOWER: Table("code")})
    assert check(server, both, create=True) == both[:1]
    assert check(server, both[:1], create=True) == both[:1], "the other one is not it"


def test_tables_that_would_be_one_are_refused() -> None:
    """Each would have the rows of both, and a delete in one would take them from the other."""
    server: Any = Downstream("1", {LOWER: Table("id")})
    both = [orders(UPPER), orders(LOWER)]
    words = r"shop\.Orders and shop\.orders are one table"
    for create in (False, True):
        with pytest.raises(TargetUnfit, match=words):
            check(server, both, create)
        with pytest.raises(TargetUnfit, match=words):
            check(server, both[:1], create, known=[LOWER])
        for one in both:
            assert check(server, [one], create) == []


@pytest.mark.parametrize(("folds", "states"), [("0", [BEGUN, DONE]), ("1", [REFUSED])])
def test_a_table_that_would_be_another_is_not_made(
    make: Callable[..., None], folds: str, states: list[str]
) -> None:
    """A CREATE that finds it there counts as done, and a DROP would take the other one away."""
    server, notes = Downstream(folds, {LOWER: Table("id")}), Notes()
    sql = "CREATE TABLE `shop`.`Orders` (id INT PRIMARY KEY)"
    change = SchemaChange(STAMP, DdlKind.CREATE_TABLE, sql, UPPER, orders(UPPER))
    if folds == "0":
        make(server, notes, change, [LOWER])
    else:
        with pytest.raises(SchemaChangeRefused, match=r"cases apart .* shop\.orders, to which"):
            make(server, notes, change, [LOWER])
    assert notes.states == states
    assert (sql.encode() in server.ran) is (folds == "0")


RENAME = SchemaChange(
    STAMP,
    DdlKind.RENAME_TABLE,
    "RENAME TABLE `shop`.`a` TO `shop`.`b`",
    TableId("shop", "b"),
    previous=TableId("shop", "a"),
)


@pytest.mark.parametrize("begun", [True, False])
def test_a_rename_that_ends_behind_its_process(make: Callable[..., None], begun: bool) -> None:
    """One that waits for a lock goes on when its process is killed; the next one waits behind."""
    old, new = TableId("shop", "a"), TableId("shop", "b")
    server: Any = Downstream("0", {old: Table("id")})
    notes = Notes((BEGUN, _digest(_definition(server, RENAME))) if begun else None)

    def is_late(statement: bytes) -> None:
        if statement.startswith(b"RENAME"):
            moved = server.tables.pop(old)
            if begun:
                server.tables[new] = moved
            raise StatementRefused(1146, "Table 'shop.a' doesn't exist", "h")

    server.meets = is_late
    if begun:
        make(server, notes, RENAME, [old])
    else:  # nobody else had begun it: the table is gone
        with pytest.raises(TargetLost):
            make(server, notes, RENAME, [old])
    assert notes.states == [BEGUN, DONE if begun else REFUSED]


def refused_once(server: Downstream, number: int, verb: bytes) -> None:
    """Let the server refuse a statement the first time."""
    refusals = [StatementRefused(number, "no", "h")]

    def refuse(statement: bytes) -> None:
        if statement.startswith(verb) and refusals:
            raise refusals.pop()

    server.meets = refuse


@pytest.mark.parametrize("known", [None, (REFUSED, "0"), (BEGUN, "0")])
def test_a_rename_that_was_made_already(make: Callable[..., None], known: Any) -> None:
    """By hand after it was refused, or by a plan that was given up; MariaDB misses the old name."""
    server = Downstream("0", {TableId("shop", "b"): Table("id")})
    refused_once(server, 1146, b"RENAME")
    notes = Notes(known)
    make(server, notes, RENAME, [TableId("shop", "a")])
    assert notes.states[-1] == DONE


ALTER = SchemaChange(
    STAMP,
    DdlKind.MULTI_SCHEMA_CHANGE,
    "ALTER TABLE `shop`.`orders` CHANGE COLUMN old id INT, ADD COLUMN more INT",
    LOWER,
)


def test_a_change_that_is_half_made_is_not_taken_for_made(make: Callable[..., None]) -> None:
    """Of the two clauses, somebody has carried the first one out by hand."""
    server, notes = Downstream("0", {LOWER: Table("id")}), Notes()
    refused_once(server, 1054, b"ALTER")
    make(server, notes, ALTER)
    assert server.ran[-1] == b"ALTER TABLE `shop`.`orders` ADD COLUMN more INT"
    assert notes.states == [BEGUN, DONE]


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (1054, replace(ALTER, query="ALTER TABLE `shop`.`orders` MODIFY COLUMN old INT")),
        (1826, SchemaChange(STAMP, DdlKind.CREATE_TABLE, "CREATE TABLE `shop`.`t` (…)", LOWER)),
    ],
)
def test_what_left_nothing_behind_is_refused(
    make: Callable[..., None], number: int, change: SchemaChange
) -> None:
    """A constraint of another table's has the name of one of a new table: that is not made."""
    server, notes = Downstream("0", {LOWER: Table("id")}), Notes()
    refused_once(server, number, change.query[:5].encode())
    with pytest.raises(SchemaChangeRefused):
        make(server, notes, change)
    assert notes.states == [BEGUN, REFUSED]


@pytest.mark.parametrize(
    ("query", "there", "rest"),
    [
        ("DROP TABLE shop.a, shop.b", "b", "DROP TABLE `shop`.`b`"),
        ("DROP TABLE shop.a, shop.b", "", ""),
        ("RENAME TABLE shop.a TO shop.c, shop.b TO shop.e", "c b", "RENAME TABLE `shop`.`b` TO "
         "`shop`.`e`"),
        ("RENAME TABLE shop.a TO shop.c, shop.b TO shop.e", "c e", ""),
        ("RENAME TABLE shop.a TO shop.x, shop.b TO shop.a, shop.x TO shop.b", "a b", ""),
    ],
)  # fmt: skip
def test_a_statement_of_several_tables_that_was_cut_off(
    make: Callable[..., None], query: str, there: str, rest: str
) -> None:
    """The server died between two tables, or only the answer was lost: the first table tells."""
    server = Downstream("0", {TableId("shop", name): Table("id") for name in there.split()})
    change = SchemaChange(STAMP, DdlKind.MULTI_SCHEMA_CHANGE, query, TableId("shop", "a"))
    notes = Notes((BEGUN, _digest("as it was before")))
    make(server, notes, change)
    ran = [s for s in server.ran if s.startswith((b"DROP", b"RENAME"))]
    assert ran == ([rest.encode()] if rest else [])
    assert notes.states == [DONE]


@pytest.mark.parametrize(
    ("flavour", "told", "mode"),
    [
        (Flavour.MYSQL, "", ""),
        (Flavour.MARIADB, "", "TIME_ROUND_FRACTIONAL"),
        (Flavour.MYSQL, "TIME_TRUNCATE_FRACTIONAL", "TIME_TRUNCATE_FRACTIONAL"),
        (Flavour.MARIADB, "TIME_TRUNCATE_FRACTIONAL", ""),
        (Flavour.MARIADB, "REAL_AS_FLOAT,TIME_TRUNCATE_FRACTIONAL", "REAL_AS_FLOAT"),
        (Flavour.MARIADB, "REAL_AS_FLOAT", "REAL_AS_FLOAT,TIME_ROUND_FRACTIONAL"),
    ],
)
def test_a_ddl_runs_as_its_session_at_the_source_was_set(
    make: Callable[..., None], flavour: Flavour, told: str, mode: str
) -> None:
    """MySQL rounds digits of a second that go, MariaDB cuts them off, unless they are told."""
    made = parse_create("CREATE TABLE orders (id INT PRIMARY KEY, at TIME)", "shop")
    server = Downstream("0", {LOWER: Table("id")})
    server.facts.flavour = flavour
    query = "ALTER TABLE `shop`.`orders` MODIFY at TIME"
    change = SchemaChange(STAMP, DdlKind.MODIFY_COLUMN, query, LOWER, made, sql_mode=told)
    make(server, Notes(), change)
    assert server.modes[-1] == mode
    make(server, Notes(), change, marks=True)
    seconds = [m for m in mode.split(",") if m.startswith("TIME_")]
    assert server.modes[-1] == ",".join([MARK_SQL_MODE, *seconds])
    make(server, Notes(), replace(change, schema=orders(LOWER)))  # there are no times
    assert server.modes[-1] == ("REAL_AS_FLOAT" if "REAL" in told else "")


@pytest.mark.parametrize(
    ("told", "digits", "taken"),
    [
        ("TIME_TRUNCATE_FRACTIONAL", 6, True),
        ("TIME_TRUNCATE_FRACTIONAL", 3, False),
        ("", 6, False),  # both round
    ],
)
def test_tidb_does_not_round_what_the_source_cut_off(
    make: Callable[..., None], told: str, digits: int, taken: bool
) -> None:
    """It knows no mode of these names, and is not asked for one."""
    made = parse_create("CREATE TABLE orders (id INT PRIMARY KEY, at TIME(3))", "shop")
    server = Downstream("0", {LOWER: Table("id")})
    server.facts.flavour = Flavour.TIDB
    server.digits = [("AT", digits)]
    query = "ALTER TABLE `shop`.`orders` MODIFY at TIME(3)"
    change = SchemaChange(STAMP, DdlKind.MODIFY_COLUMN, query, LOWER, made, sql_mode=told)
    if taken:
        with pytest.raises(SchemaChangeRefused, match="which TiDB rounds and the source cut off"):
            make(server, Notes(), change)
        assert query.encode() not in server.ran
    else:
        make(server, Notes(), change)
        assert query.encode() in server.ran
    assert not any("TIME_" in mode for mode in server.modes)


@pytest.mark.parametrize(
    ("target", "folds", "left", "there", "drops"),
    [
        ("all", "0", [], [], True),
        ("all", "0", ["other"], [], False),  # made by hand, or by another changefeed
        (None, "0", [], [], True),
        (None, "0", ["other"], [], True),  # the copy of a whole database
        (None, "0", ["other"], [TableId("ALL", "other")], True),  # of another database
        (None, "1", ["other"], [TableId("ALL", "other")], False),  # to this server it is the same
        (None, "1", [], [TableId("ALL", "other")], True),
    ],
)
def test_a_dropped_database_takes_no_tables_of_others_along(
    make: Callable[..., None],
    target: str | None,
    folds: str,
    left: list[str],
    there: list[TableId],
    drops: bool,
) -> None:
    """The source's own tables in it were dropped one by one before."""
    server = Downstream(folds, {TableId("all", name): Table("id") for name in left})
    name = TableId("shop" if target else "all", "")
    routed = TableId(target, "") if target else None
    sql = "DROP DATABASE `all`"
    notes = Notes()
    make(server, notes, SchemaChange(STAMP, DdlKind.DROP_DATABASE, sql, name, target=routed), there)
    assert (sql.encode() in server.ran) is drops
    assert notes.states == [BEGUN, DONE]


def test_a_table_that_was_made_and_not_completed(make: Callable[..., None]) -> None:
    """Who dies between CREATE TABLE and what follows it leaves keys that take texts for one."""
    name = TableId("shop", "t")
    kept = SqlType("varchar", length=9, collation="utf8mb4_0900_ai_ci")
    schema = TableSchema(
        name,
        0,
        0,
        (Column(1, "k", kept, nullable=False),),
        (Index(1, "PRIMARY", ("k",), unique=True, primary=True),),
    )
    server = Downstream("0", {name: Table("k", "varchar", "utf8mb4_general_ci")})
    notes = Notes((BEGUN, _digest("error 1146")))
    sql = "CREATE TABLE `shop`.`t` (k VARCHAR(9) PRIMARY KEY)"
    make(server, notes, SchemaChange(STAMP, DdlKind.CREATE_TABLE, sql, name, schema))
    assert sql.encode() not in server.ran
    (altered,) = [s for s in server.ran if s.startswith(b"ALTER TABLE")]
    assert b"MODIFY `k` varchar(9)" in altered and b"COLLATE utf8mb4_0900_ai_ci" in altered
    assert notes.states == [DONE]


class Fence:
    """Sessions of a downstream whose fence has an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.place = "h"
        self.facts = SimpleNamespace(fence_slots=1, lock="LOCK IN SHARE MODE", judges_fence=True)
        self.number = 0  # of the micro-batch that is published
        self.lanes: list[tuple[str, ...]] = []
        self.refuses: StatementRefused | None = None
        self.ran: list[bytes] = []

    def begin(self, sql: bytes) -> list[tuple[Any, ...]]:
        return [(str(self.epoch), "0", str(self.number))]

    def ask(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if "information_schema" in sql:
            return [(name,) for name in (DELIVERED, FENCE, SCHEMA_CHANGES)]
        if "packet_rows" in sql:
            return self.lanes
        return [(str(self.epoch), "0", str(self.number))]

    def run(self, *statements: bytes, joined: bool = True) -> None:
        self.ran += statements
        if self.refuses is not None:
            raise self.refuses

    def rollback(self) -> None:
        pass

    def close(self) -> None:
        pass

    @contextmanager
    def one(self) -> Iterator[Fence]:
        yield self


def fenced(query: str, owner: int) -> tuple[Any, Fence]:
    """Return a sink of a changefeed of this epoch, whose downstream has the epoch 9."""
    sink: Any = assemble(spec_of(f"mysql://u@h/?{query}")).sink
    sink._sessions, sink._owner = fence, _ = Fence(9), Owner("feed", owner)
    sink.session_of_its_own = lambda: fence
    return sink, fence


def raised(statement: bytes) -> bool:
    """Return whether a statement waits until no transaction is under way."""
    return b"ON DUPLICATE KEY UPDATE epoch = " in statement


def test_who_was_replaced_takes_no_notes_away() -> None:
    """Without them, a replay by the one who writes now would write rows twice."""
    plan = Plan(7, 1, 0, Stretch((), (), {}))
    sink, fence = fenced("exactly-once=true", 8)
    with pytest.raises(Fenced):
        sink.discard(plan)
    assert all(map(raised, fence.ran))
    sink._claim = lambda: None  # somebody is faster
    with pytest.raises(Fenced):
        sink.discard(plan)
    assert all(map(raised, fence.ran))
    sink, fence = fenced("exactly-once=true", 9)
    assert sink.discard(plan) is True
    assert fence.ran[1:] == [sink._ledger.forget_delivered(), b"COMMIT"]


OVERFLOW, TWICE = StatementRefused(1690, "out of range", "h"), StatementRefused(1062, "twice", "h")
PLACE, SINCE = LanePlace(7, 3, 0, 20), LanePlace(7, 3, 0, 10)


@pytest.mark.parametrize(
    ("since", "lanes", "refuses", "words"),
    [
        (SINCE, [("lane", "7", "3", "0", "20")], OVERFLOW, "another task writes them"),
        (SINCE, [], OVERFLOW, "another task writes them"),  # of a plan that was discarded
        (None, [("lane", "7", "3", "0", "20")], TWICE, "another task writes them"),
        (SINCE, [("lane", "7", "3", "0", "10")], OVERFLOW, ""),  # the row itself is refused
        (None, [("other", "7", "3", "0", "10")], TWICE, ""),
    ],
)
def test_a_lane_is_noted_only_behind_what_was_known(
    since: LanePlace | None, lanes: list[Any], refuses: StatementRefused, words: str
) -> None:
    """A task that Spark has given up may be at work beside the one in its place."""
    sink, fence = fenced("exactly-once=true", 9)
    note = LaneNote("lane", PLACE, since)
    sink._ledger.within(fence, 9, 0, [b"row"], True, note)
    assert fence.ran[2:] == [b"row", *sink._ledger.note_delivered(note), b"COMMIT"]
    known = b"micro_batch = 7 AND segment = 3 AND packet = 0 AND packet_rows = 10"
    assert (known in fence.ran[3]) is (since is not None)
    assert fence.ran[3].startswith(b"INSERT INTO" if since is None else b"UPDATE")
    fence.refuses, fence.lanes = refuses, lanes
    with pytest.raises(SinkUnavailable if words else StatementRefused, match=words or None):
        sink._ledger.within(fence, 9, 0, [b"row"], True, note)


@pytest.mark.parametrize("joined", [True, False])
def test_a_task_whose_micro_batch_was_published_writes_no_more(joined: bool) -> None:
    """What it brings is older than what is there."""
    sink, fence = fenced("", 9)
    sink._ledger.within(fence, 9, 0, [b"row"], joined, since=0)
    fence.number, fence.refuses = 8, OVERFLOW if joined else None
    with pytest.raises(SinkUnavailable, match="published micro-batch 8 since this task began"):
        sink._ledger.within(fence, 9, 0, [b"row"], joined, since=7)
    if joined:
        assert b"MAX(micro_batch) IN (0, 7)" in fence.ran[-3]


@pytest.mark.parametrize("query", ["", "exactly-once=true"])
def test_a_plan_is_given_up_when_none_of_its_transactions_is_under_way(query: str) -> None:
    """One would set rows back that the plan in its place writes, or have it leave some out."""
    sink, fence = fenced(query, 9)
    assert sink.discard(Plan(7, 1, 0, Stretch((), (), {}))) is True
    assert raised(fence.ran[0])


def test_a_plan_that_is_given_up_leaves_only_what_it_has_made() -> None:
    """A plan in its place has the same number and may have the same statement, but other rows."""
    sink, fence = fenced("", 9)
    assert sink.discard(Plan(7, 1, 0, Stretch((), (RENAME,), {}))) is True
    assert fence.ran[1:] == [sink._ledger.forget_begun(7), b"COMMIT"]
    assert b"micro_batch = 7 AND state <> 'done'" in fence.ran[1]
    fence.ran.clear()
    assert sink.discard(Plan(7, 1, 0, Stretch((), (), {}))) is True
    assert len(fence.ran) == 1


def test_what_another_life_has_begun_is_forgotten() -> None:
    """It published nothing, so that its first statement has this one's place: not its rows."""
    sink: Any = assemble(spec_of()).sink
    sink._sessions, sink._owner = fence, _ = Fence(9), Owner("feed", 9)
    sink._forget_notes()
    assert sink._ledger.forget_begun(1) in fence.ran
    assert sink._ledger.forget_changes(1) in fence.ran and fence.ran[-1] == b"COMMIT"


@pytest.mark.parametrize("continues", [True, False])
def test_what_was_made_before_a_reset_is_forgotten(continues: bool) -> None:
    """Its plan was given up by the reset; its rows, and those before them, are wanted again."""
    sink, fence = fenced("", 9)
    sink._owner = Owner("feed", 9, micro_batch=5, continues=continues)
    sink._forget_notes()
    assert sink._ledger.forget_changes(6 if continues else 5) in fence.ran
