"""The layout that each table of a lake shall have, and whether it still can."""

from __future__ import annotations

from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadLayout, SchemaChangeRefused
from rowferry.flow.dispatch.table_layouts import TableLayouts
from rowferry.flow.sink.lake.columns import LakeColumns, lake_kind
from rowferry.flow.sink.lake.partitioning import IDENTITY, FileLayout
from rowferry.flow.sink.lake.stored_columns import StoredColumns

_ANEW = "rowferry changefeed reset --snapshot, which fills the table anew"


class LakeLayouts:
    """Layouts by the rules of a changefeed; without rules all tables have the plain one.

    Args:
        rules: which rule a table has.
        file_size: of tables whose rule says none; 0: not given.
        transforms: whether tables can be partitioned by transforms of columns.
    """

    def __init__(
        self, rules: TableLayouts | None = None, file_size: int = 0, transforms: bool = True
    ) -> None:
        self._rules = rules
        self._file_size = file_size
        self._transforms = transforms
        self._known: dict[TableId, FileLayout] = {}

    def of(self, table: TableId) -> FileLayout:
        """Return the layout that a table shall have.

        Raises:
            BadLayout: its rule cannot be understood.
        """
        if table not in self._known:
            rule = self._rules.rule_of(table) if self._rules is not None else None
            if rule is None:
                self._known[table] = FileLayout((), self._file_size)
            else:
                size = rule.target_file_size or self._file_size
                path = rule.path("partition-by")
                self._known[table] = FileLayout.read(rule.partition_by, path, size)
        return self._known[table]

    def check(self, table: TableSchema, lake: LakeColumns) -> None:
        """Raise BadLayout where a table cannot have the partitions of its rule; with the cure."""
        layout = self.of(table.id)
        if not layout.fields:
            return
        kinds = {f.name: lake_kind(f.type) for f in lake.schema(table)}
        layout.check(kinds, str(table.id))
        names = {field.column for field in layout.fields}
        for field in layout.fields:
            if not self._transforms and field.transform != IDENTITY:
                raise BadLayout(
                    f"{table.id}: {field} is a transform, for which a Delta table needs a "
                    "generated column, whose values no changefeed computes; partition by a column "
                    "of the table, or write Iceberg tables"
                )
            if self._rules is not None and self._rules.is_masked(table.id, field.column):
                raise BadLayout(
                    f"{table.id}.{field.column} is masked, and partitions would not follow what "
                    "is in it; partition by another column"
                )
        if len(names) >= len(kinds):
            raise BadLayout(f"{table.id} has no column beside those to partition by; take one away")

    def require_same(self, layout: FileLayout, stored: list[str], shown: str) -> None:
        """Raise BadLayout where a table that has rows is partitioned by something else."""
        if layout.texts != stored:
            raise BadLayout(
                f"{shown} is partitioned by {_listed(stored)}, and its rule asks for "
                f"{_listed(layout.texts)}; change the rule in sink.lake.layouts back, or run "
                f"{_ANEW}"
            )


def require_columns(old: StoredColumns, new: StoredColumns, stored: list[str], table: str) -> None:
    """Raise where a schema change takes a column away that the table is partitioned by.

    Raises:
        SchemaChangeRefused: it is dropped, renamed or of another type; nothing was changed yet.
    """
    before = {f.name: f for f in old.fields}
    after = {f.physical: (f.name, f.kind) for f in new.fields}
    for field in FileLayout.read(stored).fields:
        column = before[field.column]
        now = after.get(column.physical)
        if now == (column.name, column.kind):
            continue
        what = "is dropped"
        if now is not None:
            what = f"is renamed to {now[0]!r}" if now[0] != column.name else f"becomes {now[1]}"
        raise SchemaChangeRefused(
            f"{table}: column {column.name!r} {what}, and the lake's table is partitioned by "
            f"{field}; correct its rule in sink.lake.layouts and run {_ANEW}, or undo the change "
            "in the source and skip it by an event filter"
        )


def _listed(texts: list[str]) -> str:
    return ", ".join(texts) or "nothing"
