"""Tables as TiDB has them: what it has no type for, and active-active ones.

An active-active table of TiDB has the columns of the mode by itself, hidden; no statement can name
them in a definition, and no ALTER TABLE makes such a table out of another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rowferry.change.table import TableId, TableSchema
from rowferry.errors import SinkUnwritable, TargetUnfit
from rowferry.flow.encode.sql_rows.frame import quoted_table
from rowferry.flow.sink.mysql.session import Session, StatementRefused
from rowferry.moment import moment
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.head import read_head

ACTIVE_ACTIVE_OPTIONS: Final = " SOFTDELETE RETENTION 7 DAY ACTIVE_ACTIVE='ON'"
_ANEW: Final = f"make the table anew there, with CREATE TABLE …{ACTIVE_ACTIVE_OPTIONS}"
# The columns of the mode, and what to do where a table lacks one: TiDB lets not all be added.
HIDDEN: Final = {
    "_tidb_origin_ts": f"{_ANEW}, or leave it out by filter.rules",
    "_tidb_softdelete_time": f"{_ANEW}; or, without enable-active-active, add it as TIMESTAMP(6)",
    "_tidb_commit_ts": "TiDB makes it itself and takes none: set enable-active-active, or leave "
    "the table out by filter.rules",
}
_IS_ON: Final = "ACTIVE_ACTIVE='ON'"  # in SHOW CREATE TABLE, inside of a comment
_UNKNOWN_VARIABLE: Final = 1193
# What can hold the values of types that TiDB lacks.
_INSTEAD: Final = {
    "geometry": "LONGBLOB",
    "inet4": "VARCHAR(15)",
    "inet6": "VARCHAR(45)",
    "uuid": "CHAR(36)",
}


def check_types(table: TableSchema) -> None:
    """Refuse to make a table that TiDB cannot have as the source has it.

    Raises:
        TargetUnfit: a column has a type that TiDB lacks.
    """
    for column in table.columns:
        instead = _INSTEAD.get(column.type.name)
        if instead is not None:
            raise TargetUnfit(
                f"table {table.written_as} cannot be made as the source has it: TiDB has no type "
                f"for column {column.name!r} ({column.type.sql}); create the table there by hand, "
                f"with {instead} for it, or leave the table out by filter.rules"
            )


def check_knows_mode(session: Session) -> None:
    """Refuse a TiDB that has no active-active tables.

    Raises:
        SinkUnwritable: it has none.
        Refused, SinkUnavailable: as `Session.ask`.
    """
    moment("ask for soft delete downstream")
    try:
        session.ask("SELECT @@tidb_translate_softdelete_sql")
    except StatementRefused as err:
        if err.number != _UNKNOWN_VARIABLE:
            raise
        raise SinkUnwritable(
            f"{err.place} is a TiDB without active-active tables (it has no variable "
            "tidb_translate_softdelete_sql), which enable-active-active needs; use a version that "
            "has them"
        ) from err


def check_active_active(session: Session, tables: Iterable[TableId]) -> None:
    """Refuse tables of TiDB that are not active-active ones: local writes would not be stamped.

    Raises:
        TargetUnfit: one is an ordinary table.
        Refused, SinkUnavailable: as `Session.ask`.
    """
    for table in tables:
        moment("look for active-active downstream")
        if _IS_ON not in str(session.ask(f"SHOW CREATE TABLE {quoted_table(table)}")[0][1]).upper():
            raise TargetUnfit(
                f"table {table} of the downstream is no active-active table, and TiDB makes none "
                f"out of it; make it anew there, with CREATE TABLE …{ACTIVE_ACTIVE_OPTIONS} and "
                "without columns that begin with _tidb_"
            )


def as_active_active(sql: str) -> str:
    """Return a CREATE TABLE as TiDB takes it for an active-active table.

    Columns of the mode go, and the table's options come; all the rest stays as it is. A statement
    that lists no columns, or has the options already, is returned unchanged.

    Raises:
        BadStatement: the text is not one statement.
    """
    cursor = TokenCursor(sql)
    head = read_head(cursor, strict=False)
    begin = cursor.peek().end
    if (head.verb, head.subject) != ("CREATE", "TABLE") or not cursor.accept("("):
        return sql
    kept: list[str] = []
    while True:
        first = cursor.peek()
        cursor.skip_to_comma()
        end = cursor.take()
        if first.text.lower() not in HIDDEN:
            # The end of a line may end a comment.
            kept.append(sql[first.start : end.start].rstrip(" \t"))
        if end.word == ")":
            break
    rest = sql[end.end :]
    options = "" if "ACTIVE_ACTIVE" in rest.upper() else ACTIVE_ACTIVE_OPTIONS
    return f"{sql[:begin]}{', '.join(kept)}){options}{rest}"
