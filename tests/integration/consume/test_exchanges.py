"""Tables that trade names downstream: once, whatever is repeated, and no row in the wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from rowferry.change.chunk import DdlKind, Op, SchemaChange
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.downstream.consume.apply import Applier
from rowferry.downstream.consume.arrival import Arrival, ArrivedRow, ArrivedStatement, Where
from rowferry.downstream.consume.checks import ConsumeFindings
from rowferry.downstream.consume.exchanges import NOTES
from rowferry.downstream.consume.mysql_target import MySqlTarget
from rowferry.errors import ExchangedBefore, RowRejected, SinkUnavailable
from rowferry.spec.uri import Uri
from rowferry.testing.servers import MariaDb, MySql

D = "exchanged"
MAKE = "CREATE TABLE {} (id INT PRIMARY KEY, v INT, w INT)"
KEY = Index(1, "PRIMARY", ("id",), True, True)
COLUMNS = tuple(
    Column(i, name, SqlType("int"), nullable=i > 1) for i, name in enumerate(("id", "v", "w"), 1)
)
IN_ONE = ["RENAME TABLE a TO x, b TO a, x TO b"]
ONE_BY_ONE = ["RENAME TABLE a TO x", "ALTER TABLE b RENAME TO a", "RENAME TABLE x TO b"]
OF_PARTITIONS = ["ALTER TABLE a EXCHANGE PARTITION p WITH TABLE b"]
OF_COLUMNS = ["ALTER TABLE a RENAME COLUMN v TO w, RENAME COLUMN w TO v"]


@pytest.fixture
def server(source_server: MySql | MariaDb) -> Iterator[MySql | MariaDb]:
    source_server.script(
        f"DROP DATABASE IF EXISTS {D}", f"CREATE DATABASE {D}", f"DROP TABLE IF EXISTS {NOTES}"
    )
    yield source_server
    source_server.script(f"DROP DATABASE {D}", f"DROP TABLE IF EXISTS {NOTES}")


def row(table: str, stamp: int, number: int) -> ArrivedRow:
    schema = TableSchema(TableId(D, table), 0, 0, COLUMNS, (KEY,))
    image = {"id": number, "v": number, "w": -number}
    return ArrivedRow(schema, Op.INSERT, stamp, None, image, Where("t[0]", stamp))


def statement(query: str, stamp: int) -> ArrivedStatement:
    change = SchemaChange(stamp, DdlKind.NONE, query, TableId(D, "x"))
    return ArrivedStatement(change, Where("t[0]", stamp))


def history(exchange: list[str], parted: bool = False) -> list[Arrival]:
    """Return what a feed tells: two tables with a row each, the exchange, and a row more each."""
    parts = " PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (100))" if parted else ""
    statements = [statement(query, 100 + n) for n, query in enumerate(exchange)]
    return [
        statement(MAKE.format("a") + parts, 1), statement(MAKE.format("b"), 2),
        row("a", 10, 1), row("b", 11, 2),
        *statements, row("a", 200, 3), row("b", 201, 4),
    ]  # fmt: skip


def apply(server: MySql | MariaDb, changes: list[Arrival], after: int = 0) -> None:
    """Run once, as a process does."""
    target = MySqlTarget(Uri.parse(server.uri, "--apply"))
    with closing(Applier(target, ConsumeFindings())) as applier:
        for change in changes:
            if change.commit_ts > after:
                applier.take([change])


def ids(server: MySql | MariaDb, table: str) -> list[str]:
    return [str(r[0]) for r in server.execute(f"SELECT id FROM {D}.{table} ORDER BY id")]


def die_behind(monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    """Lose the connection once a statement was carried out."""
    whole = MySqlTarget.change_schema

    def change_schema(this: MySqlTarget, database: str, text: str) -> None:
        whole(this, database, text)
        if text == query:
            raise SinkUnavailable("the answer was lost")

    monkeypatch.setattr(MySqlTarget, "change_schema", change_schema)


@pytest.mark.parametrize("exchange", [IN_ONE, ONE_BY_ONE, OF_PARTITIONS, OF_COLUMNS])
def test_what_comes_before_an_exchange_is_not_applied_again(
    server: MySql | MariaDb, exchange: list[str]
) -> None:
    """A run that begins at the beginning would take it back, or fill the wrong tables."""
    changes = history(exchange, parted=exchange is OF_PARTITIONS)
    apply(server, changes)
    there = {table: server.execute(f"SELECT * FROM {D}.{table} ORDER BY id") for table in "ab"}
    if exchange is not OF_COLUMNS:
        assert (ids(server, "a"), ids(server, "b")) == (["2", "3"], ["1", "4"])
    last = 100 + len(exchange) - 1
    with pytest.raises(ExchangedBefore, match=f"go on with --from {last}, or .* drop {D}.a"):
        apply(server, changes)
    apply(server, changes, after=last)
    for table in "ab":
        assert server.execute(f"SELECT * FROM {D}.{table} ORDER BY id") == there[table]


@pytest.mark.parametrize("after", [0, 99], ids=["from the beginning", "from before it"])
@pytest.mark.parametrize("exchange", [IN_ONE, ONE_BY_ONE])
def test_an_exchange_whose_answer_was_lost_is_not_repeated(
    server: MySql | MariaDb, exchange: list[str], after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = history(exchange)
    last = 100 + len(exchange) - 1
    with monkeypatch.context() as patch:
        die_behind(patch, exchange[-1])
        with pytest.raises(SinkUnavailable):
            apply(server, changes)
    unknown = f"not known; .* --from {last}, if not, set .* to 'open' .* --from {last - 1}"
    with pytest.raises(ExchangedBefore, match=unknown):
        apply(server, changes, after)
    assert (ids(server, "a"), ids(server, "b")) == (["2"], ["1"])
    apply(server, changes, after=last)
    assert (ids(server, "a"), ids(server, "b")) == (["2", "3"], ["1", "4"])


@pytest.mark.parametrize("exchange", [IN_ONE, ONE_BY_ONE])
def test_an_exchange_that_was_begun_and_not_done_is_done(
    server: MySql | MariaDb, exchange: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has looked. What comes before it is refused as before, and behind it as well."""
    changes = history(exchange)
    last = 100 + len(exchange) - 1
    whole = MySqlTarget.change_schema

    def change_schema(this: MySqlTarget, database: str, text: str) -> None:
        if text == exchange[-1]:
            raise SinkUnavailable("there is nobody")
        whole(this, database, text)

    with monkeypatch.context() as patch:
        patch.setattr(MySqlTarget, "change_schema", change_schema)
        with pytest.raises(SinkUnavailable):
            apply(server, changes)
    server.script(f"UPDATE {NOTES} SET state = 'open' WHERE commit_ts = {last}")
    with pytest.raises(ExchangedBefore, match="not known"):
        apply(server, changes)
    apply(server, changes, after=last - 1)
    assert (ids(server, "a"), ids(server, "b")) == (["2", "3"], ["1", "4"])
    with pytest.raises(ExchangedBefore, match="was carried out"):
        apply(server, changes, after=last - 1)


def test_who_drops_the_tables_begins_anew(server: MySql | MariaDb) -> None:
    apply(server, history(IN_ONE))
    server.script(f"DROP TABLE {D}.a, {D}.b")
    for _ in range(2):
        apply(server, history(IN_ONE)[:-3])  # as far as before the exchange
    apply(server, history(IN_ONE))
    assert (ids(server, "a"), ids(server, "b")) == (["2", "3"], ["1", "4"])


def test_an_exchange_that_is_refused_may_be_tried_again(server: MySql | MariaDb) -> None:
    changes = history(IN_ONE)
    server.script(f"CREATE TABLE {D}.x (id INT)")
    with pytest.raises(RowRejected, match="already exists"):
        apply(server, changes)
    server.script(f"DROP TABLE {D}.x")
    apply(server, changes)
    assert (ids(server, "a"), ids(server, "b")) == (["2", "3"], ["1", "4"])


def test_other_tables_and_other_renames_are_applied_again(server: MySql | MariaDb) -> None:
    other = [statement(MAKE.format("c"), 3), row("c", 12, 7)]
    copy = ["RENAME TABLE c TO gone, fresh TO c", "DROP TABLE gone"]
    online = [
        statement(MAKE.format("fresh"), 20), row("fresh", 21, 8), statement(copy[0], 22),
        statement(copy[1], 23),
    ]  # fmt: skip
    apply(server, [*other, *history(IN_ONE)])
    for _ in range(2):
        apply(server, [*other, *online, *history(IN_ONE)[-2:]])
    assert ids(server, "c") == ["8"]
