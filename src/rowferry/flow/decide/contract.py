"""What a decision promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rowferry.change.chunk import Rows, SchemaChange
from rowferry.change.table import TableId, TableSchema


class Decision(Protocol):
    """One policy over rows: vectorised, without state, order kept."""

    @property
    def renames(self) -> bool:
        """Whether tables are written under other names than their own."""

    def keeps_table(self, table: TableId) -> bool:
        """Return whether rows of this table can pass at all: by its name alone."""

    def captures(self, table: TableSchema) -> bool:
        """Return whether rows of this table version pass: by its name and its keys."""

    def keeps_schema_change(self, change: SchemaChange) -> bool:
        """Return whether this schema change goes downstream."""

    def check_where(self, table: TableSchema, where: str) -> None:
        """Make sure that an expression can choose rows of this table; raises BadEventFilter."""

    def rows(self, rows: Rows, snapshot: bool = False) -> Iterator[Rows]:
        """Yield what becomes of a chunk: the same, changed, several, or nothing.

        `snapshot`: they are the table's content at some moment, not changes of that moment.
        """
