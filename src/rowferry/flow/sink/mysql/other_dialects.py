"""Schema changes of sources that are no MySQL, in MySQL's words: made of their structure. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import MYSQL
from rowferry.errors import SchemaChangeRefused
from rowferry.flow.encode.sql_rows.frame import quoted, quoted_table
from rowferry.flow.sink.mysql.options import MysqlOptions
from rowferry.flow.sink.mysql.target_tables import create_statements


def statement_of(change: SchemaChange, collations: Callable[[], Container[str]]) -> str:
    """Return the statement that makes a schema change here; empty: an earlier one has made it.

    That of a source of MySQL's dialect is its own. Of another one, databases and tables are made,
    renamed, emptied and dropped; how rows that are there become those of an altered table, only the
    operator can say. `collations` returns those that the downstream has, if they are needed.

    Raises:
        SchemaChangeRefused: it cannot be said by what the change tells.
        BadInput: a column of a new table has an expression.
    """
    if change.dialect == MYSQL or not change.query:
        return change.query
    name = change.written_as
    former = change.previous_target or change.previous
    match change.kind:
        case DdlKind.CREATE_DATABASE:
            return f"CREATE DATABASE {quoted(name.database)}"
        case DdlKind.DROP_DATABASE:
            return f"DROP DATABASE {quoted(name.database)}"
        case DdlKind.CREATE_TABLE if change.schema is not None:
            return create_statements(change.schema, collations())[1]
        case DdlKind.DROP_TABLE:
            return f"DROP TABLE {quoted_table(name)}"
        case DdlKind.TRUNCATE_TABLE:
            return f"TRUNCATE TABLE {quoted_table(name)}"
        case DdlKind.RENAME_TABLE if former is not None:
            return f"RENAME TABLE {quoted_table(former)} TO {quoted_table(name)}"
    at, path = change.commit_ts, MysqlOptions.path
    what = change.kind.name.replace("_", " ")
    raise SchemaChangeRefused(
        f"table {change.table}: {what} comes from a source of the dialect {change.dialect}, whose "
        f"statement cannot run here: {' '.join(change.query.split())[:300]}; change the table here "
        f'by hand and set {path(MysqlOptions.skip_ddl)} = ["{at}"], or set '
        f'{path(MysqlOptions.replace_ddl)} = ["{at} <statement>"], and resume'
    )
