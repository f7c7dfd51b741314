"""Column selectors: which columns of a table are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from rowferry.change.chunk import Rows, make_rows
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadColumnSelector, BadFilterRule
from rowferry.flow.decide.table_filter import NameFilter, TableFilter
from rowferry.spec.rules.dispatch import DispatchRule
from rowferry.spec.rules.filter import ColumnRule


@dataclass(frozen=True, slots=True)
class _Selector:
    rule: ColumnRule
    tables: TableFilter
    columns: NameFilter


class ColumnSelectors:
    """`[sink] column-selectors`; the first rule whose matcher fits a table counts."""

    def __init__(
        self,
        rules: Sequence[ColumnRule],
        case_sensitive: bool,
        dispatch: Sequence[DispatchRule] = (),
    ) -> None:
        """Read the rules.

        Args:
            rules: as the user wrote them.
            case_sensitive: whether matchers go by the case of tables' names.
            dispatch: rules whose columns must not be left out; empty for a sink without topics.

        Raises:
            BadColumnSelector: a pattern that cannot be used.
            BadFilterRule: a matcher with a syntax error.
        """
        self._selectors = [_read(rule, case_sensitive) for rule in rules]
        self._dispatch = [
            (r, TableFilter(r.matcher, case_sensitive)) for r in (dispatch if rules else ())
        ]

    def selected(self, table: TableId, names: Sequence[str]) -> list[str]:
        """Return those of a table's columns that are written, in their order."""
        for selector in self._selectors:
            if selector.tables.matches_table(*table):
                return [n for n in names if selector.columns.matches(n)]
        return list(names)

    def narrowed(self, table: TableSchema) -> TableSchema:
        """Return a table without the columns that are left out, and without their indexes.

        Raises:
            BadColumnSelector: neither the primary key nor a unique index stays whole, or a dispatch
                rule goes by a column that is left out.
        """
        names = {n.lower() for n in self.selected(table.id, [c.name for c in table.columns])}
        if len(names) == len(table.columns):
            return table
        columns = tuple(c for c in table.columns if c.name.lower() in names)
        whole = [i for i in table.indexes if all(c.lower() in names for c in i.columns)]
        if not any(i.primary or i.unique for i in whole):
            raise BadColumnSelector(
                f"{self._path(table.id)}: no primary key columns or unique key columns obtained "
                f"after filter out, table: {table.id}; add them to the selected columns"
            )
        if lost := [c for c in self._dispatched_by(table) if c.lower() not in names]:
            raise BadColumnSelector(
                f"{self._path(table.id)} leaves out {', '.join(lost)} of table {table.id}, by "
                "which a rule of sink.dispatchers finds the partition; select them, or change it"
            )
        return replace(table, columns=columns, indexes=tuple(whole))

    def _path(self, table: TableId) -> str:
        fit = (s.rule for s in self._selectors if s.tables.matches_table(*table))
        return next(fit).path("columns")

    def _dispatched_by(self, table: TableSchema) -> list[str]:
        """Return the columns by which the table's dispatch rule finds a row's partition."""
        rule = next((r for r, tables in self._dispatch if tables.matches_table(*table.id)), None)
        if rule is None:
            return []
        way = rule.partition.strip().lower()
        listed = rule.listed_columns()
        if listed is not None:
            named = list(listed)
        elif way == "columns":
            named = list(rule.columns)
        elif way in ("index-value", "rowid", "pk"):
            wanted = rule.index.lower()
            index = next((i for i in table.indexes if i.name.lower() == wanted), None)
            named = list(index.columns if index else table.handle_key)
        else:
            return []
        return [c for c in named if c.lower() in table.by_name]


def _read(rule: ColumnRule, case_sensitive: bool) -> _Selector:
    try:
        tables = TableFilter(rule.matcher, case_sensitive)
    except BadFilterRule as err:
        raise BadFilterRule(f"{rule.path('matcher')}: {err.words}") from None
    try:
        return _Selector(rule, tables, NameFilter(rule.columns))
    except ValueError as err:
        raise BadColumnSelector(f"{rule.path('columns')}: {err}") from None


def as_seen(rows: Rows, table: TableSchema) -> Rows:
    """Return the rows as rows of `table`, which has some of their columns under the same names."""
    if table is rows.table:
        return rows
    if len(table.columns) == len(rows.table.columns):
        return Rows(table, rows.batch, rows.physical_id, half=rows.half)
    kept = {c.name for c in table.columns}
    return make_rows(
        table,
        rows.batch.column("op"),
        rows.batch.column("commit_ts"),
        rows.batch.column("seq"),
        _with_columns(rows.before, kept),
        _with_columns(rows.after, kept),
        rows.physical_id,
        rows.half,
    )


def _with_columns(images: pa.StructArray, kept: set[str]) -> pa.StructArray:
    fields = [f for f in images.type if f.name in kept]
    arrays = [images.field(f.name) for f in fields]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=images.is_null())
