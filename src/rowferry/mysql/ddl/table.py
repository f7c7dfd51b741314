"""CREATE TABLE: a whole table definition from its text, and back to text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, Partitioning, TableId, TablePartition, TableSchema
from rowferry.errors import BadStatement
from rowferry.mysql.ddl.column import Key, at_key, read_column, read_key, settle
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.type import (
    accept_charset,
    charset_of_collation,
    collation_of,
    has_charset,
    narrowed,
)
from rowferry.mysql.type_facts import ddl_type, keeps_case

_DEFAULT_CHARSET = "utf8mb4"


@dataclass(slots=True)
class TableOptions:
    """The table options that mean something here; None: not given.

    Attributes:
        charset: a character set, or a collation.
    """

    charset: str | None = None
    comment: str | None = None
    auto_increment: int | None = None


def read_options(cursor: TokenCursor, options: TableOptions) -> None:
    """Consume table options up to a comma, PARTITION BY or the end; most say nothing about rows."""
    while not cursor.done() and not cursor.at_any(",", "PARTITION"):
        if charset := accept_charset(cursor):
            options.charset = narrowed(options.charset or "", charset)
        elif cursor.accept("COMMENT"):
            cursor.accept("=")
            options.comment = cursor.text()
        elif cursor.accept("AUTO_INCREMENT"):
            cursor.accept("=")
            options.auto_increment = cursor.whole()
        elif cursor.at_any("SELECT", "AS", "TABLE", "VALUES"):
            cursor.fail("columns that come from a query are not understood")
        elif cursor.at("("):
            cursor.parenthesised()
        else:
            cursor.take()


def read_definition(
    cursor: TokenCursor,
    table: TableId,
    next_id: Callable[[], int],
    charset: str = _DEFAULT_CHARSET,
    as_mysql: bool = False,
) -> TableSchema:
    """Consume what follows the name in CREATE TABLE: columns, keys, options, partitions.

    Args:
        cursor: stands after the name.
        table: the table's name.
        next_id: gives the table's id, then one for each partition.
        charset: of the table, or its collation, where the text names none.
        as_mysql: keys are numbered in the order of the text and those over prefixes name no rows;
            else keys of the table come before those of its columns, as in TiDB.
    """
    if not cursor.at("("):
        cursor.fail("expected ( and the columns")
    # The columns need the table's character set, which stands after them: read that first.
    body = cursor.place
    cursor.parenthesised()
    options = TableOptions()
    while not cursor.done() and not cursor.at("PARTITION"):
        read_options(cursor, options)
        cursor.accept(",")
    after, cursor.place = cursor.place, body
    charset = options.charset or charset
    columns, keys = _read_body(cursor, charset, as_mysql)
    cursor.place = after
    settled, indexes = settle(table, columns, (), keys, whole_values=as_mysql)
    active_active, soft_delete = marked_flags(cursor.sql)
    definition = TableSchema(
        table,
        next_id(),
        0,
        settled,
        indexes,
        charset=charset_of_collation(charset),
        collation=collation_of(charset),
        comment=options.comment or "",
        is_active_active_table=active_active,
        is_soft_delete_table=soft_delete,
    )
    if cursor.accept("PARTITION", "BY"):
        partitioning = _read_partitioning(cursor, definition, next_id)
        definition = replace(definition, partitioning=partitioning)
    cursor.finish()
    return definition


def _read_body(cursor: TokenCursor, charset: str, as_mysql: bool) -> tuple[list[Column], list[Key]]:
    """Consume the parenthesised list of columns and keys."""
    columns: list[Column] = []
    keys: list[Key] = []
    inline: list[Key] = keys if as_mysql else []
    cursor.expect("(")
    while True:
        if at_key(cursor):
            key = read_key(cursor)
            keys += [key] if isinstance(key, Key) else []
        else:
            column, own = read_column(cursor, charset)
            columns.append(replace(column, id=len(columns) + 1))
            inline += own
        if not cursor.accept(","):
            break
    cursor.expect(")")
    # The numbers of keys decide between two unique keys that could both name a row.
    return columns, keys if as_mysql else keys + inline


# --- partitions ----------------------------------------------------------------------------------


def _read_partitioning(
    cursor: TokenCursor, table: TableSchema, next_id: Callable[[], int]
) -> Partitioning:
    method = cursor.accept_any("HASH", "RANGE")
    if not method:
        cursor.fail("partitions are understood BY HASH (column) and BY RANGE (column)")
    if method == "RANGE":
        cursor.accept("COLUMNS")
    column = _partition_column(cursor, table, method)
    count = cursor.whole() if cursor.accept("PARTITIONS") else None
    if method == "HASH" and not cursor.at("("):
        names = [f"p{i}" for i in range(1 if count is None else count)]
        parts = [TablePartition(next_id(), name) for name in names]
    else:
        parts = read_partitions(cursor, method == "RANGE", next_id)
    if count is not None and count != len(parts) or not parts:
        raise BadStatement(f"table {table.id}: PARTITIONS {count} but {len(parts)} are defined")
    return check_partitions(table.id, Partitioning(method.lower(), column, tuple(parts)))


def _partition_column(cursor: TokenCursor, table: TableSchema, method: str) -> str:
    text = cursor.parenthesised()
    inner = TokenCursor(text)
    name = inner.name() if len(inner.tokens) == 1 else ""
    column = table.by_name.get(name.lower())
    if column is None:
        raise BadStatement(
            f"table {table.id}: PARTITION BY {method} ({text}): only one column is understood there"
        )
    if column.type.kind not in (Kind.INTEGER, Kind.YEAR):
        raise BadStatement(f"table {table.id}: partition column {name!r} is not an integer")
    return column.name


def read_partitions(
    cursor: TokenCursor, by_range: bool, next_id: Callable[[], int]
) -> list[TablePartition]:
    """Consume `(PARTITION p [VALUES LESS THAN (n) | MAXVALUE] …, …)`."""
    partitions: list[TablePartition] = []
    cursor.expect("(")
    while True:
        cursor.expect("PARTITION")
        name, bound = cursor.name(), None
        if by_range:
            cursor.expect("VALUES", "LESS", "THAN")
            bound = _bound(cursor)
        cursor.skip_to_comma()
        partitions.append(TablePartition(next_id(), name, bound))
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return partitions


def _bound(cursor: TokenCursor) -> int | None:
    if cursor.accept("MAXVALUE"):
        return None
    cursor.expect("(")
    bound = None if cursor.accept("MAXVALUE") else cursor.whole()
    cursor.expect(")")
    return bound


def check_partitions(table: TableId, partitioning: Partitioning) -> Partitioning:
    """Return the partitioning, or refuse it: names must differ and RANGE bounds must rise."""
    names: set[str] = set()
    for part in partitioning.partitions:
        if part.name.lower() in names:
            raise BadStatement(f"table {table}: partition {part.name!r} is defined twice")
        names.add(part.name.lower())
    if partitioning.method == "range":
        bounds = [
            float("inf") if p.less_than is None else p.less_than for p in partitioning.partitions
        ]
        for part, low, high in zip(partitioning.partitions[1:], bounds, bounds[1:], strict=False):
            if high <= low:
                raise BadStatement(
                    f"table {table}: partition {part.name!r} must have a higher bound than the one"
                    " before it"
                )
    return partitioning


# --- back to text --------------------------------------------------------------------------------


def quoted(name: str) -> str:
    """Return a name in back quotes."""
    return "`" + name.replace("`", "``") + "`"


def quoted_table(table: TableId) -> str:
    """Return a table's name in back quotes, with its database if it has one."""
    return ".".join(quoted(part) for part in table if part)


def rename_sql(old: TableId, new: TableId) -> str:
    """Return the statement that renames a table; it means the same in every database."""
    return f"RENAME TABLE {quoted_table(old)} TO {quoted_table(new)}"


def literal(text: str) -> str:
    """Return a text literal; what is not text (a binary default) becomes a hex literal."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"x'{text.encode('utf-8', 'surrogateescape').hex()}'"
    escaped = text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\\0")
    return "'" + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\x1a", "\\Z") + "'"


def create_sql(table: TableSchema) -> str:
    """Return a CREATE TABLE statement that `parse_create` reads back as the same definition.

    Of collations those are written that keep case, since keys depend on them; servers know the
    others by many names. Ids are not part of SQL text, nor are foreign keys and checks part of a
    `TableSchema`.
    """
    lines = [column_sql(c, table) for c in table.columns]
    lines += [index_sql(i) for i in table.indexes]
    text = f"CREATE TABLE {quoted_table(table.id)} (\n  " + ",\n  ".join(lines) + "\n)"
    text += f" DEFAULT CHARSET={table.charset}"
    text += f" COLLATE={table.collation}" if keeps_case(table.collation) else ""
    text += f" COMMENT={literal(table.comment)}" if table.comment else ""
    text += flags_sql(table.is_active_active_table, table.is_soft_delete_table)
    return text + (_partitions_sql(table.partitioning) if table.partitioning else "")


def column_sql(column: Column, table: TableSchema) -> str:
    """Return a column as CREATE TABLE and ALTER TABLE write it."""
    kind = column.type
    text = f"{quoted(column.name)} {ddl_type(kind)}"
    if has_charset(kind):
        text += _charset_sql(kind, table)
    if column.generated:
        text += f" GENERATED ALWAYS AS ({column.expression or 'NULL'}) {column.generated.upper()}"
    text += "" if column.nullable else " NOT NULL"
    if not column.generated and (column.default is not None or column.expression):
        text += f" DEFAULT {_default_sql(column)}"
    text += " AUTO_INCREMENT" if column.auto_increment else ""
    text += " INVISIBLE" if column.invisible else ""
    return text + (f" COMMENT {literal(column.comment)}" if column.comment else "")


def _charset_sql(kind: SqlType, table: TableSchema) -> str:
    """Return what tells a column's character set and collation apart from the table's."""
    own, tables = (c if keeps_case(c) else "" for c in (kind.collation, table.collation))
    same = kind.charset == table.charset
    if same and own == tables:
        return ""
    return f" CHARACTER SET {kind.charset}" + (f" COLLATE {own}" if own else "")


def _default_sql(column: Column) -> str:
    value, kind = column.default, column.type.kind
    if column.expression:
        return f"({column.expression})"
    if kind is Kind.BIT:
        return f"b'{value:b}'"
    if not isinstance(value, str):
        return repr(value)
    computed = kind in (Kind.DATETIME, Kind.TIMESTAMP) and value.startswith("CURRENT_TIMESTAMP")
    return value if computed else literal(value)


def index_sql(index: Index) -> str:
    """Return a key as CREATE TABLE and ALTER TABLE write it."""
    columns = ", ".join(quoted(c) for c in index.columns)
    if index.primary:
        return f"PRIMARY KEY ({columns})"
    return f"{'UNIQUE ' if index.unique else ''}KEY {quoted(index.name)} ({columns})"


def _partitions_sql(partitioning: Partitioning) -> str:
    head = f"\nPARTITION BY {partitioning.method.upper()} ({quoted(partitioning.column)})"
    parts = (_partition_sql(p, partitioning.method) for p in partitioning.partitions)
    return f"{head} ({', '.join(parts)})"


def _partition_sql(part: TablePartition, method: str) -> str:
    if method == "hash":
        return f"PARTITION {quoted(part.name)}"
    bound = "MAXVALUE" if part.less_than is None else f"({part.less_than})"
    return f"PARTITION {quoted(part.name)} VALUES LESS THAN {bound}"


def copied(table: TableSchema, name: TableId, next_id: Callable[[], int]) -> TableSchema:
    """Return the same definition as a new table: a new id, and new ones for its partitions."""
    table_id = next_id()
    return replace(table, id=name, table_id=table_id, partitioning=_renumbered(table, next_id))


def _renumbered(table: TableSchema, next_id: Callable[[], int]) -> Partitioning | None:
    if table.partitioning is None:
        return None
    return with_new_ids(
        table.partitioning, [p.name for p in table.partitioning.partitions], next_id
    )


def with_new_ids(
    partitioning: Partitioning, names: Sequence[str], next_id: Callable[[], int]
) -> Partitioning:
    """Return the partitioning with new physical ids for the named partitions."""
    wanted = {n.lower() for n in names}
    parts = (
        replace(p, physical_id=next_id()) if p.name.lower() in wanted else p
        for p in partitioning.partitions
    )
    return replace(partitioning, partitions=tuple(parts))


# Quoted text and plain comments are matched only to be left alone: a comment mark inside of the one
# is not a comment, and a quote inside of the other begins no text.
_MARKED: Final = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`[^`]*`"""
    r"""|/\*(?!!|M!|T!\[).*?\*/|(?:--(?=\s)|\#)[^\n]*|/\*T!\[[^\]]*\](.*?)\*/""",
    re.DOTALL,
)
_ACTIVE_ACTIVE: Final = re.compile(r"\bACTIVE_ACTIVE\s*=?\s*'ON'", re.IGNORECASE)
_SOFT_DELETE: Final = re.compile(r"\bSOFTDELETE\s*=?\s*(RETENTION\b|'ON')", re.IGNORECASE)


def marked_flags(sql: str) -> tuple[bool, bool]:
    """Return whether CREATE TABLE makes an active-active table, and one with soft delete."""
    if "/*T![" not in sql:
        return False, False
    marked = " ".join(match[1] for match in _MARKED.finditer(sql) if match[1] is not None)
    active_active = _ACTIVE_ACTIVE.search(marked) is not None
    return active_active, _SOFT_DELETE.search(marked) is not None


def flags_sql(active_active: bool, soft_delete: bool) -> str:
    """Return what `marked_flags` reads, as the end of a statement."""
    marks = " /*T![softdelete] SOFTDELETE RETENTION 7 DAY */" if soft_delete else ""
    return marks + (" /*T![active_active] ACTIVE_ACTIVE='ON' */" if active_active else "")
