"""Statements: what many changes amount to, how they are cut, and how rows are named."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from codec_kit import codec_for
from rowferry.change.chunk import Op, make_rows
from rowferry.change.plan import Topic
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import BadInput, DecodeError, EncodeError
from rowferry.flow.encode.sql_rows.codec import SqlRows
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.encode.sql_rows.reader import read_frame
from rowferry.flow.sink.mysql.apply import one_transaction
from rowferry.flow.sink.mysql.lanes import _by_commits
from rowferry.flow.sink.mysql.session import StatementRefused
from rowferry.flow.sink.mysql.statements import (
    Limits,
    in_order,
    net_effect,
    replacing,
    upserting,
)
from rowferry.flow.sink.mysql.target_tables import (
    TargetColumn,
    create_statements,
    misfit,
)
from rowferry.flow.sink.mysql.transactions import Transactions
from rowferry.flow.sink.sql.target_tables import TargetTable
from rowferry.mysql.type_facts import tells_apart
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

WIDE = Limits(1000, 1 << 20)


def codec(scheme: str = "tidb") -> SqlRows:
    uris = (Uri.parse("range://127.0.0.1:1", "source"), Uri.parse(f"{scheme}://u@h/", "sink"))
    return codec_for(SqlRows, ChangefeedSpec("feed", *uris))


def table(*keys: tuple[str, ...], primary: bool = True, **columns: SqlType) -> TableSchema:
    shape = columns or {"id": SqlType("int"), "a": SqlType("int"), "b": SqlType("varchar")}
    found = [Column(i, n, t, nullable=False) for i, (n, t) in enumerate(shape.items())]
    indexes = [
        Index(i, "PRIMARY" if primary and not i else f"u{i}", k, True, primary and not i)
        for i, k in enumerate(keys)
    ]
    return TableSchema(TableId("d`b", "t"), 1, 1, tuple(found), tuple(indexes))


Changes = list[tuple[Op, dict[str, Any] | None, dict[str, Any] | None]]


def frame(schema: TableSchema, changes: Changes, first_ts: int = 1) -> RowFrame:
    rows = make_rows(
        schema,
        pa.array([op for op, _, _ in changes], pa.int8()),
        pa.array(range(first_ts, first_ts + len(changes)), pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([before for _, before, _ in changes], schema.image),
        pa.array([after for _, _, after in changes], schema.image),
    )
    one = codec()
    sent = one.batch(one.encode_rows(rows, 0), Topic("t", 1, 1))
    assert sent.keys is not None
    return RowFrame.from_message(sent.keys[0].as_py(), sent.values[0].as_py())


def row(key: int, a: int, b: str = "x") -> dict[str, Any]:
    return {"id": key, "a": a, "b": b}


def texts(effect: Any) -> list[str]:
    return [s.sql.decode() for s in (*effect.deletes, *effect.upserts)]


def test_the_last_change_of_a_key_counts() -> None:
    changes: Changes = [
        (Op.INSERT, None, row(1, 1)),
        (Op.UPDATE, row(1, 1), row(1, 2, "it's \\")),
        (Op.DELETE, row(2, 1), None),
        (Op.INSERT, None, row(3, 1)),
        (Op.DELETE, row(3, 1), None),
        (Op.DELETE, row(4, 1), None),
        (Op.INSERT, None, row(4, 9)),
    ]
    plain = net_effect([frame(table(("id",)), changes)], WIDE, how=upserting)
    upsert = (
        "INSERT INTO `d``b`.`t` (`id`,`a`,`b`) VALUES "
        "(1,2,CONVERT(_utf8mb4 x'69742773205c' USING utf8mb4)),(4,9,'x') "
        "ON DUPLICATE KEY UPDATE `id`=VALUES(`id`),`a`=VALUES(`a`),`b`=VALUES(`b`)"
    )
    assert texts(plain) == ["DELETE FROM `d``b`.`t` WHERE `id` IN (2,3)", upsert]
    assert plain.apart  # and so no row is in both
    safe = net_effect([frame(table(("id",)), changes)], WIDE, how=replacing)
    assert texts(safe)[1] == (
        "REPLACE INTO `d``b`.`t` (`id`,`a`,`b`) VALUES "
        "(1,2,CONVERT(_utf8mb4 x'69742773205c' USING utf8mb4)),(4,9,'x')"
    )
    assert plain.upserts[0].replacing().sql == safe.upserts[0].sql
    # With another unique key, what was deleted on the way makes room first.
    keyed = net_effect([frame(table(("id",), ("a",)), changes)], WIDE, how=upserting)
    assert texts(keyed) == ["DELETE FROM `d``b`.`t` WHERE `id` IN (2,3,4)", upsert]
    assert not keyed.apart
    # A text that differs may be the same key downstream.
    worded = [(Op.DELETE, row(1, 1, "A"), None), (Op.INSERT, None, row(1, 1, "a"))]
    assert not net_effect([frame(table(("b",)), worded)], WIDE, how=upserting).apart


def test_keys_of_several_columns_and_of_every_kind() -> None:
    shape = {
        "a": SqlType("varchar"),
        "b": SqlType("binary", length=2),
        "c": SqlType("float"),
        "d": SqlType("decimal", length=40, scale=2),
        "e": SqlType("datetime"),
    }
    schema = table(("a", "b", "c", "d", "e"), **shape)
    image = {"a": "'", "b": b"\x00\xff", "c": np.float32(0.1), "d": "1.50", "e": "2020-01-01"}
    found = net_effect([frame(schema, [(Op.DELETE, image, None)] * 2)], WIDE, how=upserting)
    key = "(`a`='''' AND `b`=x'00ff' AND `c`=0.10000000149011612 AND `d`=1.50 AND `e`='2020-01-01')"
    assert texts(found) == [f"DELETE FROM `d``b`.`t` WHERE {key}"]
    assert found.deletes[0].named(0).startswith("table d`b.t, row (`a`=''''")
    back = read_frame(frame(schema, [(Op.DELETE, image, None), (Op.INSERT, None, image)]))
    assert back.before.to_pylist() == [image, None]
    assert back.after.to_pylist() == [None, image]


@pytest.mark.parametrize("kind", ["float", "double"])
def test_zeros_of_both_signs_are_one_key(kind: str) -> None:
    """A row that an update left as -0 and that was deleted then would come back as 0."""
    schema = table(("id",), id=SqlType(kind), a=SqlType("int"))
    zero, negative = ({"id": value, "a": 1} for value in (0.0, -0.0))
    kept: Changes = [(Op.INSERT, None, zero), (Op.UPDATE, zero, negative)]
    gone: Changes = [*kept, (Op.DELETE, negative, None)]
    into = "REPLACE INTO `d``b`.`t` (`id`,`a`) VALUES "
    away = "DELETE FROM `d``b`.`t` WHERE `id` IN (0)"
    assert texts(net_effect([frame(schema, kept)], WIDE, how=replacing)) == [into + "(-0e0,1)"]
    assert texts(net_effect([frame(schema, gone)], WIDE, how=replacing)) == [away]


def test_a_keyless_row_is_told_by_all_its_columns_and_changed_in_order() -> None:
    schema = table(a=SqlType("int"), b=SqlType("varchar"), v=SqlType("vector"))
    one, two = {"a": None, "b": "x", "v": "[1]"}, {"a": 2, "b": None, "v": None}
    changes: Changes = [(Op.INSERT, None, one), (Op.UPDATE, one, two), (Op.DELETE, two, None)]
    made = frame(schema, changes)
    where = "CAST(CONVERT(`b` USING utf8mb4) AS BINARY)<=>CAST({} AS BINARY)"
    away = "DELETE FROM `d``b`.`t` WHERE (`a`<=>{} AND " + where + ") LIMIT 1"
    into = "INSERT INTO `d``b`.`t` (`a`,`b`,`v`) VALUES "
    assert [s.sql.decode() for s in in_order(made, how=replacing)] == [
        into + "(NULL,'x','[1]')",
        away.format("NULL", "'x'"),
        into + "(2,NULL,NULL)",
        away.format("2", "NULL"),
    ]
    with pytest.raises(DecodeError, match="has no key"):
        read_frame(made)
    with pytest.raises(EncodeError, match="does not give old rows"):
        frame(schema, [(Op.UPDATE, None, two)])


def test_a_document_is_compared_as_the_server_writes_it() -> None:
    """Servers write keys in an order of their own, and numbers as what they hold them for."""
    schema = table(a=SqlType("json"), f=SqlType("float"), e=SqlType("enum", elements=("x", "y")))
    old = {"a": '{"b": 1.50, "a": "\\"}', "f": np.float32(0.1), "e": 2}
    made = frame(schema, [(Op.DELETE, old, None), (Op.DELETE, dict.fromkeys(old), None)])
    document = "CAST(CONVERT(JSON_EXTRACT({},'$') USING utf8mb4) AS BINARY)"
    here = document.format("CONVERT(`a` USING utf8mb4)")
    word = "CAST(CONVERT(`e` USING utf8mb4) AS BINARY)<=>CAST({} AS BINARY)"
    given = f"_utf8mb4 x'{str(old['a']).encode().hex()}'"
    assert [s.sql.decode().partition("WHERE ")[2] for s in in_order(made, how=replacing)] == [
        f"({here}<=>{document.format(text)} AND `f`<=>{number} AND {word.format(element)}) LIMIT 1"
        for text, number, element in (
            (given, "0.10000000149011612", "'y'"),
            ("NULL", "NULL", "NULL"),
        )
    ]


def test_texts_that_the_downstream_writes_anew_are_refused_without_a_key() -> None:
    """MariaDB's JSON is a text, in the words of whoever wrote it."""
    kinds = {"id": SqlType("int"), "a": SqlType("longtext")}
    columns = {
        "id": TargetColumn("int", "int", 0, False),
        "a": TargetColumn("json", "json", 0, False),
    }
    target = TargetTable(columns, {"PRIMARY": {"id"}})
    assert misfit(table(("id",), **kinds), target) == ""
    words = misfit(table(**kinds), target)
    assert "'a' as json" in words and "make the column longtext there" in words
    assert misfit(table(id=kinds["id"], a=SqlType("json")), target) == ""
    columns["a"] = TargetColumn("longtext", "longtext", 0, False)
    assert misfit(table(**kinds), target) == ""


def test_statements_are_cut_by_rows_and_bytes() -> None:
    schema = table(("id",))
    made = frame(schema, [(Op.INSERT, None, row(i, i, "y" * 50)) for i in range(10)])
    sizes = [len(s) for s in net_effect([made], Limits(4, 1 << 20), how=replacing).upserts]
    assert sizes == [4, 4, 2]
    few = net_effect([made], Limits(100, 220), how=replacing).upserts
    assert [len(s) for s in few] == [2] * 5
    assert all(len(s.sql) <= 220 for s in few)
    assert [len(s) for s in net_effect([made], Limits(100, 10), how=replacing).upserts] == [1] * 10
    assert few[1].single(1).sql.endswith(b"VALUES (3,3,'" + b"y" * 50 + b"')")
    assert few[1].named(1) == "table d`b.t, row id = 3"


def test_frames_of_two_versions_keep_their_columns() -> None:
    old = table(("id",))
    new = TableSchema(old.id, 1, 2, (*old.columns, Column(9, "z", SqlType("int"))), old.indexes)
    first = frame(old, [(Op.INSERT, None, row(1, 1)), (Op.INSERT, None, row(2, 1))])
    second = frame(new, [(Op.UPDATE, None, {**row(2, 5), "z": 7})])
    found = texts(net_effect([first, second], WIDE, how=replacing))
    assert [t.partition("VALUES ")[2] for t in found] == ["(1,1,'x')", "(2,5,'x',7)"]


@pytest.mark.parametrize("number", range(20))
def test_the_net_effect_is_that_of_all_changes_in_any_order_of_statements(number: int) -> None:
    """Against a table in memory that refuses what a database would refuse."""
    dice = random.Random(number)
    schema = table(("id",), ("a",))
    start: dict[int, int] = {i: 5 - i for i in range(6)}
    state, changes = dict(start), list[Any]()
    for _ in range(40):
        key, value = dice.randrange(8), dice.randrange(8)
        if key in state and (value in state.values() or dice.random() < 0.3):
            changes.append((Op.DELETE, row(key, state.pop(key)), None))
        elif value not in state.values():
            if key in state:  # an update of a unique key comes as two halves
                changes.append((Op.DELETE, row(key, state[key]), None))
            state[key] = value
            changes.append((Op.INSERT, None, row(key, value)))
    effect = net_effect([frame(schema, changes)], Limits(3, 1 << 20), how=upserting)
    found = dict(start)
    for part in (list(effect.deletes), list(effect.upserts)):
        dice.shuffle(part)
        for statement in part:
            apply_to(found, statement.sql.decode())
    assert found == state


def apply_to(state: dict[int, int], sql: str) -> None:
    if sql.startswith("DELETE"):
        for key in re.findall(r"\d+", sql.partition(" IN ")[2]):
            state.pop(int(key), None)
        return
    for key, value in re.findall(r"\((\d+),(\d+),'x'\)", sql):
        others = {v for k, v in state.items() if k != int(key)}
        assert int(value) not in others, "it would overwrite another row"
        state[int(key)] = int(value)


def test_transactions_stay_whole_over_tables() -> None:
    schema, other = table(("id",)), table(("id",), id=SqlType("int"))
    one = frame(schema, [(Op.INSERT, None, row(i, i)) for i in range(6)], first_ts=1)
    two = frame(other, [(Op.INSERT, None, {"id": i}) for i in range(6)], first_ts=4)
    found = list(_by_commits([one, two], 4))
    assert [last for _, last in found] == [3, 5, 8, 9]  # commits 4 to 6 have a row in each
    assert [sum(len(f) for f in part) for part, _ in found] == [3, 4, 4, 1]
    assert list(_by_commits([], 4)) == []
    joined = one_transaction(found[1][0], WIDE, how=replacing, batches=False)
    assert len(joined) == 4


def test_a_table_is_made_after_its_definition() -> None:
    schema = table(
        ("id",),
        ("b", "a"),
        id=SqlType("bigint", unsigned=True),
        a=SqlType("uuid"),
        b=SqlType("varchar", length=9, charset="latin1"),
        c=SqlType("timestamp", scale=3),
    )
    assert create_statements(schema, ()) == [
        "CREATE DATABASE IF NOT EXISTS `d``b`",
        "CREATE TABLE IF NOT EXISTS `d``b`.`t` (`id` bigint unsigned NOT NULL, `a` uuid NOT NULL, "
        "`b` varchar(9) CHARACTER SET latin1 NOT NULL, `c` timestamp(3) NOT NULL, "
        "PRIMARY KEY (`id`), UNIQUE KEY `u1` (`b`, `a`)) DEFAULT CHARSET=utf8mb4",
    ]


def test_texts_of_keys_never_become_one() -> None:
    kinds = {
        name: SqlType("varchar", length=9, collation=f"utf8mb4_{collation}")
        for name, collation in (("a", "bin"), ("b", "0900_ai_ci"), ("c", "0900_ai_ci"))
    }
    made = create_statements(table(("a",), **kinds), {"utf8mb4_bin", "utf8mb4_general_ci"})[1]
    start = "varchar(9) CHARACTER SET utf8mb4"
    assert f"`a` {start} COLLATE utf8mb4_bin" in made
    assert f"`c` {start} NOT NULL" in made  # in no key: as the downstream likes
    with pytest.raises(BadInput, match="key column 'b' .*spaces at the end"):
        create_statements(table(("a", "b"), **kinds), {"utf8mb4_bin", "utf8mb4_general_ci"})
    kinds["d"] = SqlType("varchar", length=9, collation="utf8mb4_unicode_ci")
    assert f"`d` {start} COLLATE utf8mb4_bin" in create_statements(table(("d",), **kinds), ())[1]
    for strict in ("utf8mb4_nopad_bin", "utf8mb4_0900_bin"):
        made = create_statements(table(("b",), **kinds), {"utf8mb4_bin", strict})[1]
        assert f"`b` {start} COLLATE {strict}" in made


def test_a_key_that_forgets_case_is_refused() -> None:
    kept = SqlType("varchar", length=9, collation="utf8mb4_bin")
    schema = table(("a",), a=kept, b=kept)
    columns = {
        name: TargetColumn("varchar", "varchar(9)", 0, False, f"utf8mb4_{collation}")
        for name, collation in (("a", "0900_bin"), ("b", "general_ci"))
    }
    target = TargetTable(columns, {"PRIMARY": {"a"}})
    assert misfit(schema, target) == ""
    columns["a"].collation = "utf8mb4_general_ci"
    assert "key column 'a' by utf8mb4_general_ci" in misfit(schema, target)


@pytest.mark.parametrize(
    ("theirs", "ours", "apart"),
    [
        ("utf8mb4_bin", "latin1_swedish_ci", True),
        ("utf8mb4_bin", "utf8mb4_0900_ai_ci", False),  # spaces at the end
        ("latin1_bin", "latin1_nopad_bin", False),
        ("utf8mb4_nopad_bin", "utf8mb4_0900_ai_ci", True),
        ("utf8mb4_0900_bin", "utf8mb4_0900_as_cs", True),
        ("utf8mb4_0900_as_cs", "utf8mb4_0900_ai_ci", True),
        ("utf8mb4_0900_ai_ci", "utf8mb4_0900_as_ci", False),
        ("utf8mb4_0900_as_ci", "utf8mb4_0900_as_cs", False),
        ("utf8mb4_general_ci", "utf8mb4_0900_ai_ci", False),
        ("utf8mb4_0900_ai_ci", "utf8mb4_general_ci", False),
        ("utf8mb4_general_ci", "utf8mb3_general_ci", True),
        ("utf8mb4_general_ci", "latin1_general_ci", False),
        ("utf8mb4_uca1400_nopad_ai_ci", "utf8mb4_0900_ai_ci", True),
        ("utf8mb4_uca1400_ai_ci", "utf8mb4_0900_ai_ci", False),
        ("utf8mb4_0900_ai_ci", "utf8mb4_uca1400_ai_ci", True),
        ("utf8mb4_0900_as_cs", "binary", False),
        ("binary", "utf8mb4_0900_ai_ci", True),
    ],
)
def test_which_collations_tell_texts_apart(theirs: str, ours: str, apart: bool) -> None:
    assert tells_apart(theirs, ours) is apart


class _Deadlocked:
    """A session whose first INSERT meets another transaction: its own is over then."""

    def __init__(self) -> None:
        self.ran: list[bytes] = []

    def run(self, *texts: bytes) -> None:
        self.ran += texts
        if texts[0].startswith(b"INSERT"):
            raise StatementRefused(1213, "Deadlock found when trying to get lock", "h")

    def rollback(self) -> None:
        self.ran.append(b"ROLLBACK")

    @contextmanager
    def one(self) -> Iterator[_Deadlocked]:
        yield self


def test_nothing_is_written_while_a_refused_row_is_looked_for() -> None:
    """Behind a deadlock every statement would be a transaction of its own, without the fence."""
    schema = table(("id",))
    inserts: Changes = [(Op.INSERT, None, row(key, 1)) for key in (1, 2, 3)]
    (statement,) = net_effect([frame(schema, inserts)], WIDE, upserting).upserts
    session: Any = _Deadlocked()
    settings: Any = SimpleNamespace(options=SimpleNamespace(multi_stmt_enable=True))
    ledger: Any = None
    refusal = StatementRefused(1406, "Data too long for column 'b'", "h")
    error = Transactions(settings, ledger, session)._worded([statement], refusal)
    assert "Data too long" in str(error)
    assert session.ran == [b"BEGIN", statement.sql, b"ROLLBACK"]
