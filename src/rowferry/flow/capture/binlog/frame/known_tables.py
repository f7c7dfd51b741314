"""The tables that the log has named so far, and which versions their rows have."""

from __future__ import annotations

from collections.abc import Collection

from rowferry.change.table import TableId, TableSchema
from rowferry.flow.capture.binlog.frame.scan import Maps


class KnownTables:
    """TABLE_MAPs with what is known of their tables.

    Attributes:
        maps: what the walk knows of them.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Ask about every table again: definitions or the filter's answer may have changed."""
        self.maps = Maps()
        self._schemas: list[TableSchema | None] = []
        self._names: list[TableId | None] = []

    def ask_about_others(self) -> None:
        """Ask about tables whose rows are not captured when they are named once more."""
        self.maps.forget_others()

    def put(
        self, body: bytes, name: TableId, schema: TableSchema | None, held: bool, mark: bool
    ) -> None:
        """Remember a TABLE_MAP. Rows without a schema, or `held` back, are not captured."""
        is_known = schema is not None
        self.maps.put(body, is_known and not held, mark, by_name=not (is_known or mark))
        self._schemas.append(schema)
        self._names.append(name if is_known else None)

    def of(self, slot: int) -> tuple[TableId, TableSchema]:
        """Return the log's name and the version of a captured table."""
        name, schema = self._names[slot], self._schemas[slot]
        assert name is not None and schema is not None
        return name, schema

    def hold(self, table_ids: Collection[int]) -> None:
        """Leave out the rows of these tables, and of no others."""
        for slot, schema in enumerate(self._schemas):
            if schema is not None:
                self.maps.captured[slot] = schema.table_id not in table_ids
