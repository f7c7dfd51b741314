"""Borders that messages do not tell, and values by which a copy's rows are found."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from rowferry.change.chunk import Op
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.downstream.consume.apply import Applier
from rowferry.downstream.consume.arrival import ArrivedRow, Where
from rowferry.downstream.consume.checks import ConsumeFindings
from rowferry.downstream.consume.consumer import ConsumeRequest, consume
from rowferry.downstream.consume.mysql_target import MySqlTarget
from rowferry.errors import BadOption

REGISTRY = "&schema-registry=http://127.0.0.1:1"
UNTOLD, IN_PART = "rows do not tell when they were committed", "262143 is the end of"


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        (f"avro{REGISTRY}", UNTOLD),
        (f"debezium-avro{REGISTRY}", IN_PART),
        ("debezium", IN_PART),
        ("canal", IN_PART),
    ],
)
def test_borders_that_messages_do_not_tell_are_refused(protocol: str, words: str) -> None:
    """Rows of the same millisecond would be left out, or rows below the border handed on."""
    request = ConsumeRequest(f"kafka://127.0.0.1:1/t?protocol={protocol}", after_ts=5)
    with pytest.raises(BadOption, match=f"--from 5: .*{words}"):
        consume(request, lambda _: [], threading.Event())


class Database(MySqlTarget):
    """Notes the values of deletes; its table has the columns that are written."""

    def __init__(self) -> None:
        self.deleted: list[list[object]] = []

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if "information_schema" in sql:
            return [("k", "", "decimal"), ("v", "", "varchar")]
        if sql.startswith("DELETE"):
            self.deleted.append(list(values))
        return []

    def commit(self) -> None:
        pass


@pytest.mark.parametrize("keyed", [True, False])
def test_a_delete_takes_no_neighbour_of_a_long_number_along(keyed: bool) -> None:
    """As a text it would be compared as a DOUBLE: 10000000000000000001 and …2 are one there."""
    columns = (
        Column(1, "k", SqlType("decimal", length=20), nullable=False),
        Column(2, "v", SqlType("varchar", length=9)),
    )
    index = Index(1, "PRIMARY", ("k",), unique=True, primary=True)
    table = TableSchema(TableId("d", "t"), 0, 0, columns, (index,) if keyed else ())
    database = Database()
    for number in ("10000000000000000001", "no number"):
        row = ArrivedRow(table, Op.DELETE, 1, {"k": number, "v": "1"}, None, Where("t[0]", 7))
        Applier(database, ConsumeFindings()).take([row])
    rest: list[object] = [] if keyed else ["1"]
    wanted = [[Decimal("10000000000000000001"), *rest], ["no number", *rest]]
    assert database.deleted == wanted
    assert isinstance(database.deleted[0][0], Decimal)


def test_a_row_without_a_key_is_told_by_all_that_it_holds() -> None:
    """A document is compared as one, a text to the last letter, an element also by its number."""

    class Asked(Database):
        def __init__(self) -> None:
            super().__init__()
            self.sql = ""

        def execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
            if "information_schema" in sql:
                kinds = {"j": "json", "t": "varchar", "m": "json", "e": "enum", "v": "vector"}
                return [(name, "", kind) for name, kind in kinds.items()]
            self.sql = sql if sql.startswith("DELETE") else self.sql
            return super().execute(sql, values)

    kinds = {"j": "json", "t": "varchar", "m": "longtext", "e": "enum", "v": "vector"}
    columns = tuple(Column(n, name, SqlType(kind)) for n, (name, kind) in enumerate(kinds.items()))
    table = TableSchema(TableId("d", "t"), 0, 0, columns, ())
    document = "CAST(CONVERT(JSON_EXTRACT({},'$') USING utf8mb4) AS BINARY)"
    text = "CAST(CONVERT(`{}` USING utf8mb4) AS BINARY)<=>CAST(%s AS BINARY)"
    documents = [
        document.format(f"CONVERT(`{name}` USING utf8mb4)") + "<=>" + document.format("%s")
        for name in ("j", "m")
    ]
    for element, compared in ((2, "`e`<=>%s"), ("y", text.format("e"))):
        database = Asked()
        old = {"j": '{"a":1}', "t": "x ", "m": "[1]", "e": element, "v": "[1]"}
        row = ArrivedRow(table, Op.DELETE, 1, old, None, Where("t[0]", 7))
        Applier(database, ConsumeFindings()).take([row])
        where = " AND ".join([documents[0], text.format("t"), documents[1], compared])
        assert database.sql == f"DELETE FROM `d`.`t` WHERE {where} LIMIT 1"
        assert database.deleted == [['{"a":1}', "x ", "[1]", element]]
