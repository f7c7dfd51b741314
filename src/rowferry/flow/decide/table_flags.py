"""Which tables have soft delete, which are active-active ones, and whether they fit the mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rowferry.change.sqltype import Kind
from rowferry.change.table import TableSchema
from rowferry.errors import BadFilterRule, TableNotActiveActive
from rowferry.flow.decide.table_filter import TableFilter
from rowferry.spec.active_active import ActiveActive
from rowferry.spec.changefeed import ChangefeedSpec

ORIGIN_TS: Final = "_tidb_origin_ts"
SOFT_DELETE_TIME: Final = "_tidb_softdelete_time"
COMMIT_TS: Final = "_tidb_commit_ts"
ACTIVE_ACTIVE_WORD: Final = "rowferry:active-active"
SOFT_DELETE_WORD: Final = "rowferry:soft-delete"
_TIMES: Final = frozenset({Kind.TIMESTAMP, Kind.DATETIME})


class TableFlags:
    """Says what a table version is: by its definition, its comment, or the changefeed's lists."""

    def __init__(self, spec: ChangefeedSpec, enabled: bool, case_sensitive: bool) -> None:
        """Read the lists; `enabled`: the active-active mode is on.

        Raises:
            BadFilterRule: one of them has a syntax error.
        """
        options = spec.options(ActiveActive)
        self._enabled = enabled
        self._active_active = _matcher(
            ActiveActive.active_active_tables.key, options.active_active_tables, case_sensitive
        )
        self._soft_delete = _matcher(
            ActiveActive.soft_delete_tables.key, options.soft_delete_tables, case_sensitive
        )

    def flagged(self, table: TableSchema) -> TableSchema:
        """Return a table with its flags set, checked; with no flag to set, the table itself.

        Raises:
            TableNotActiveActive: the table cannot do what its flags, or the mode, ask for.
        """
        active_active = (
            table.is_active_active_table
            or ACTIVE_ACTIVE_WORD in table.comment
            or (self._active_active is not None and self._active_active.matches_table(*table.id))
        )
        soft_delete = (
            table.is_soft_delete_table
            or SOFT_DELETE_WORD in table.comment
            or (self._soft_delete is not None and self._soft_delete.matches_table(*table.id))
        )
        if self._enabled:
            _check_active_active(table, active_active)
        elif active_active or soft_delete:
            require_column(table, SOFT_DELETE_TIME)
        if (active_active, soft_delete) == (
            table.is_active_active_table,
            table.is_soft_delete_table,
        ):
            return table
        return replace(
            table, is_active_active_table=active_active, is_soft_delete_table=soft_delete
        )


def require_column(table: TableSchema, name: str) -> None:
    """Refuse a table without a column that soft delete or the mode needs.

    Raises:
        TableNotActiveActive: it lacks the column.
    """
    if name not in table.by_name:
        what = "an active-active" if table.is_active_active_table else "a soft-delete"
        raise TableNotActiveActive(
            f"table {table.id} has no column {name}, which {what} table needs; add it, or take the "
            "table out by filter.rules"
        )


def _check_active_active(table: TableSchema, active_active: bool) -> None:
    if not active_active:
        raise TableNotActiveActive(
            f"table {table.id} is not an active-active table, and enable-active-active is on; add "
            f"it to active-active-tables, write {ACTIVE_ACTIVE_WORD} into its comment, or leave it "
            "out by filter.rules"
        )
    marked = replace(table, is_active_active_table=True)
    for name in (ORIGIN_TS, SOFT_DELETE_TIME, COMMIT_TS):
        require_column(marked, name)
    if not table.primary_key:
        raise TableNotActiveActive(
            f"table {table.id} has no primary key, by which clusters could tell its rows apart; "
            "add one, or leave it out by filter.rules"
        )
    time = table.column(SOFT_DELETE_TIME)
    if time.type.kind not in _TIMES or not time.nullable:
        raise TableNotActiveActive(
            f"table {table.id} has column {SOFT_DELETE_TIME} as {time.type.sql}"
            f"{'' if time.nullable else ' NOT NULL'}; change it to TIMESTAMP(6) NULL"
        )
    for name in (ORIGIN_TS, COMMIT_TS):
        column = table.column(name)
        if column.type.name != "bigint" or not column.type.unsigned:
            raise TableNotActiveActive(
                f"table {table.id} has column {name} as {column.type.sql}; change it to BIGINT "
                "UNSIGNED NULL"
            )


def _matcher(key: str, rules: tuple[str, ...], case_sensitive: bool) -> TableFilter | None:
    if not rules:
        return None
    try:
        return TableFilter(rules, case_sensitive)
    except BadFilterRule as err:
        raise BadFilterRule(f"{key}: {err.words}") from None
