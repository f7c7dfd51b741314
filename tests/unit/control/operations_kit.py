"""A source that answers from a list of tables, so that operations can be asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from rowferry.change.dialect import SourceDialect
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.capture.binlog.options import BinlogOptions
from rowferry.flow.capture.binlog.source import BinlogSource
from rowferry.flow.capture.contract import SourceTraits
from rowferry.flow.decide.contract import Decision
from rowferry.mysql.dialect import MYSQL_DIALECT
from rowferry.registry import SOURCES
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable

TABLES: dict[str, list[TableSchema]] = {}


def table(name: str, keyed: bool = True) -> TableSchema:
    """Return a table `database.table` with a number and a text."""
    columns = (
        Column(1, "id", SqlType("bigint"), nullable=False),
        Column(2, "note", SqlType("varchar", length=20)),
    )
    keys = (Index(1, "PRIMARY", ("id",), unique=True, primary=True),) if keyed else ()
    return TableSchema(TableId(*name.split(".")), 0, 0, columns, keys)


class ListedSource:
    """A source whose present tables are `TABLES` of its address; it has no log."""

    TABLES: ClassVar[tuple[OptionTable, ...]] = (BinlogOptions.TABLE,)
    DIALECT: ClassVar[SourceDialect] = MYSQL_DIALECT
    STAMPED_BY_ROWS: ClassVar[bool] = True
    notices: tuple[str, ...] = ()
    unnumbered: tuple[TableId, ...] = ()
    identity = ""
    start_option = staticmethod(BinlogSource.start_option)

    def __init__(self, spec: ChangefeedSpec) -> None:
        self._tables = TABLES[spec.source.address]

    def traits(self) -> SourceTraits:
        return SourceTraits(True, True, movable=True)

    def probe(self, decision: Decision) -> tuple[TableSchema, ...]:
        return tuple(t for t in self._tables if decision.keeps_table(t.id))

    def cluster_id(self) -> int:
        return 7


@contextmanager
def listed_source(*tables: TableSchema) -> Iterator[list[TableSchema]]:
    """Let `listed://shop` be a source of these tables; what is added later is seen, too."""
    SOURCES._places["listed"] = f"{__name__}:ListedSource"
    TABLES["shop"] = list(tables)
    try:
        yield TABLES["shop"]
    finally:
        del SOURCES._places["listed"], TABLES["shop"]


@dataclass
class Clock:
    """A clock that stands until it is moved."""

    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now
