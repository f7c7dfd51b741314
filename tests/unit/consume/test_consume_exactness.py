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
            return [("k", ""), ("v", "")]
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
