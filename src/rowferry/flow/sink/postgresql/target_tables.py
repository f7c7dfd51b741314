"""What the downstream's tables look like, and whether a source's rows fit into them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import TargetLost, TargetUnfit
from rowferry.flow.sink.delivered_tables import lost
from rowferry.flow.sink.postgresql.names import check_names, names_of, quoted_table
from rowferry.flow.sink.postgresql.refusals import PostgresqlRefusal
from rowferry.flow.sink.postgresql.session import PostgresqlSession
from rowferry.flow.sink.sql.target_tables import (
    AT_ONCE,
    TargetTable,
    misfit_of_columns,
    misfit_of_keys,
    names_once,
    place_of,
    refuse_missing,
)
from rowferry.moment import moment

# Types that say of every value of a kind whether they take it; of others the server itself will.
_TAKES: Final = {
    Kind.FLOAT: {"float4", "float8", "numeric"},
    Kind.DOUBLE: {"float8", "numeric"},
    Kind.YEAR: {"int2", "int4", "int8", "numeric"},
    Kind.NUMERIC: {"numeric"},
    Kind.BINARY: {"bytea"},
    Kind.JSON: {"json", "jsonb"},
    Kind.DATE: {"date", "timestamp"},
    Kind.DATETIME: {"timestamp"},
    Kind.TIMESTAMP: {"timestamptz"},
    Kind.TIME: {"interval", "time"},
    Kind.BIT: {"bit", "varbit"},
}
_ANYTHING: Final = frozenset({"text", "varchar", "bpchar"})
_KNOWN: Final = _ANYTHING | set().union(*_TAKES.values()) | {"bool", "uuid", "inet", "timetz"}
_DIGITS: Final = {"tinyint": 3, "smallint": 5, "mediumint": 8, "int": 10, "bigint": 19}
_WIDTHS: Final = {"int2": 2, "int4": 4, "int8": 8}
_BYTES: Final = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}


@dataclass(frozen=True, slots=True)
class DownstreamColumn:
    """One column of a table downstream.

    Attributes:
        type_name: the name of its type in the catalog.
        type_text: the type in words.
        size: digits, characters or bits that it is limited to; -1: it is not.
        scale: digits behind the point, or of a second; -1: not limited.
        needed: a row cannot leave it out.
        exact: equal values are the same, byte by byte.
        computed: it gets its value from an expression.
    """

    type_name: str
    type_text: str
    size: int = -1
    scale: int = -1
    needed: bool = False
    exact: bool = True
    computed: bool = False


DownstreamTable: TypeAlias = TargetTable[DownstreamColumn]


def read_tables(
    session: PostgresqlSession, names: Sequence[TableId]
) -> dict[TableId, DownstreamTable]:
    """Return those of the tables that are there. Raises as `PostgresqlSession.run`."""
    moment("list downstream tables (PostgreSQL)")
    tables: dict[TableId, DownstreamTable] = {}
    for start in range(0, len(names), AT_ONCE):
        part = names[start : start + AT_ONCE]
        asked = [[n.database for n in part], [n.table for n in part]]
        wanted = "(n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
        for row in session.ask(
            "SELECT n.nspname, c.relname, a.attname, t.typname, format_type(a.atttypid, "
            "a.atttypmod), a.atttypmod, a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', "
            "COALESCE(l.collisdeterministic, true) AND t.typname <> 'citext', "
            "a.attgenerated <> '' "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
            " LEFT JOIN pg_type t ON t.oid = a.atttypid "
            "LEFT JOIN pg_collation l ON l.oid = a.attcollation "
            f"WHERE c.relkind IN ('r', 'p') AND {wanted}",
            asked,
        ):
            table = tables.setdefault(TableId(str(row[0]), str(row[1])), DownstreamTable())
            if row[2] is not None:
                table.columns[str(row[2])] = _column(row[3:])
        for database, name, index, column in session.ask(
            "SELECT n.nspname, c.relname, i.indexrelid::regclass::text, a.attname "
            "FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "CROSS JOIN unnest(i.indkey[0:i.indnkeyatts - 1]) AS k(number) "
            "LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number "
            f"AND a.attnum > 0 WHERE i.indisunique AND i.indpred IS NULL AND {wanted}",
            asked,
        ):
            own = tables.get(TableId(str(database), str(name)))
            if own is not None:
                own.keys.setdefault(str(index), set()).add(str(column or ""))
    return tables


def read_index_names(session: PostgresqlSession, table: TableId) -> set[str]:
    """Return the names of a table's indexes. Raises as `PostgresqlSession.run`."""
    moment("list downstream indexes (PostgreSQL)")
    rows = session.ask(
        "SELECT r.relname FROM pg_index i JOIN pg_class r ON r.oid = i.indexrelid "
        "JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s",
        tuple(table),
    )
    return {str(row[0]) for row in rows}


def _column(row: Sequence[object]) -> DownstreamColumn:
    name, text, modifier, needed, exact, computed = row
    size, scale = _limits(str(name), int(str(modifier)))
    return DownstreamColumn(
        str(name), str(text), size, scale, bool(needed), bool(exact), bool(computed)
    )


def _limits(name: str, modifier: int) -> tuple[int, int]:
    """Return what a type's modifier limits it to: see the types' own documentation."""
    if modifier < 0:
        return -1, -1
    match name:
        case "numeric":
            return (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
        case "varchar" | "bpchar":
            return modifier - 4, -1
        case "bit" | "varbit":
            return modifier, -1
        case "timestamp" | "timestamptz" | "time":
            return -1, modifier
        case "interval":
            digits = modifier & 0xFFFF
            return -1, digits if digits <= 6 else -1
    return -1, -1


def misfit(table: TableSchema, target: DownstreamTable) -> str:
    """Return why a table's rows do not fit into a table downstream, and the cure; "": they do."""
    visible = {c.name for c in table.visible}
    if words := misfit_of_columns(table, table.visible, target, _fits, visible):
        return words
    ours = [i.columns for i in table.indexes if i.primary or i.unique]
    if table.handle_key:
        if not set(table.handle_key) <= visible:
            return (
                f"table {table.id} has a virtual generated column in its key, which the log does "
                "not hold; give it another key, or leave the table out by a filter rule"
            )
        if words := misfit_of_keys(table, ours, target):
            return words
    if name := _blurred(table, ours, target):
        return (
            f"{place_of(table)} compares the key column {name!r} "
            f"({target.columns[name].type_text}) without case, accents or spaces at the end: rows "
            "would overwrite each other; give it a type and collation that tells all texts apart"
        )
    return ""


def _blurred(table: TableSchema, ours: Sequence[Collection[str]], target: DownstreamTable) -> str:
    """Return a column by which a unique key here takes different rows for one; "": none does."""
    blurred = {c.name for c in table.visible if not _is_exact(c.type, target.columns[c.name])}
    handle = set(table.handle_key)
    if blurred & handle:
        return min(blurred & handle)
    for key in target.keys.values():
        inside = [set(own) for own in ours if set(own) <= key]
        # Rows that differ in a key of the source differ in all that holds it.
        if inside and all(own & blurred for own in inside):
            return min(inside[0] & blurred)
    return ""


def _is_exact(ours: SqlType, there: DownstreamColumn) -> bool:
    """Return whether two values of a source's type that differ are different here, too."""
    if there.type_name == "bpchar":  # spaces at the end do not count, which CHAR does not have
        return there.exact and (ours.kind is not Kind.TEXT or ours.name == "char")
    return there.exact


def _fits(ours: SqlType, there: DownstreamColumn) -> bool:
    name, kind = there.type_name, ours.kind
    if name not in _KNOWN:
        return True  # a type that we know nothing of: the downstream itself will say
    if name in _ANYTHING:
        limited = kind is Kind.TEXT and ours.name in ("char", "varchar") and there.size >= 0
        return not limited or there.size >= (ours.size or 0)
    match kind:
        case Kind.INTEGER:
            return _whole_fits(ours, there)
        case Kind.DECIMAL:
            digits = (ours.size or 0) - ours.fraction_digits
            return name == "numeric" and _digits_fit(digits, ours.fraction_digits, there)
        case Kind.BIT:
            if name == "bool":
                return ours.size == 1
            wide = there.size < 0 or there.size >= (ours.size or 1)
            return name == "varbit" and wide or name == "bit" and there.size == ours.size
        case Kind.TEXT | Kind.ENUM | Kind.SET | Kind.VECTOR:
            return name in ("uuid", "inet", "json", "jsonb")
        case Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            exact = there.scale < 0 or there.scale >= ours.fraction_digits
            return name in _TAKES[kind] and exact
    return name in _TAKES.get(kind, ())


def _whole_fits(ours: SqlType, there: DownstreamColumn) -> bool:
    name = there.type_name
    if name == "numeric":
        digits = 20 if ours.unsigned and ours.name == "bigint" else _DIGITS[ours.name]
        return _digits_fit(digits, 0, there)
    if name == "bool":
        return ours.name == "tinyint" and ours.length == 1
    return name in _WIDTHS and _WIDTHS[name] >= _BYTES[ours.name] + ours.unsigned


def _digits_fit(before: int, behind: int, there: DownstreamColumn) -> bool:
    if there.size < 0:
        return True
    return there.scale >= behind and there.size - there.scale >= before


def check_rights(session: PostgresqlSession, table: TableSchema, target: DownstreamTable) -> None:
    """Ask whether rows may be written, without writing any.

    Raises:
        SinkUnwritable: they may not.
    """
    moment("try rights downstream (PostgreSQL)")
    name = quoted_table(table.written_as)
    columns = [c.name for c in table.visible if not target.columns[c.name].computed]
    every = names_of(columns)
    first = names_of(columns[:1])
    explained = (
        f"DELETE FROM {name} WHERE false",
        f"UPDATE {name} SET {first} = {first} WHERE false",
        f"INSERT INTO {name} ({every}) OVERRIDING SYSTEM VALUE SELECT {every} FROM {name} "
        "WHERE false",
    )
    try:
        for statement in explained:  # EXPLAIN asks for no privilege: these run, on no row
            session.run(statement)
    except PostgresqlRefusal as err:
        raise err.as_error(f"table {table.written_as}") from err


def require_there(session: PostgresqlSession, known: Collection[TableId]) -> None:
    """Raise TargetLost where tables are gone to which something was delivered."""
    if not known:
        return
    moment("look for delivered tables (PostgreSQL)")
    there = read_names(session, {t.database for t in known})
    gone = [t for t in known if t not in there]
    if gone:
        raise gone_tables(session, gone)


def read_names(session: PostgresqlSession, schemas: Collection[str]) -> set[TableId]:
    """Return the tables of schemas. Raises as `PostgresqlSession.run`."""
    moment("list downstream names (PostgreSQL)")
    rows = session.ask(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'p') AND n.nspname = ANY(%s)",
        (sorted(schemas),),
    )
    return {TableId(str(schema), str(name)) for schema, name in rows}


def gone_tables(session: PostgresqlSession, gone: Collection[TableId]) -> TargetLost:
    """Return the error for tables that are missing. Raises as `PostgresqlSession.run`."""
    moment("list downstream schemas (PostgreSQL)")
    rows = session.ask("SELECT nspname FROM pg_namespace")
    return lost(gone, {str(row[0]) for row in rows}, session.place)


def check(
    session: PostgresqlSession,
    tables: Iterable[TableSchema],
    create: bool,
    known: Collection[TableId] = (),
) -> list[TableSchema]:
    """Judge tables; return those that are missing, where they may be.

    Raises:
        TargetLost: one is missing that is `known` to have been there.
        TargetUnfit: one is missing, or rows do not fit into it; the text names it and the cure.
        SinkUnwritable: a privilege is missing.
    """
    wanted = list(tables)
    for table in wanted:
        check_names(table)
    try:
        targets = read_tables(session, names_once(wanted))
        missing = [t for t in wanted if t.written_as not in targets]
        if gone := {t.written_as for t in missing} & set(known):
            raise gone_tables(session, gone)
    except PostgresqlRefusal as err:
        raise err.as_error("the downstream's tables") from err
    if not create:
        cure = "create it there (docs: postgresql), or set create-tables = true in "
        refuse_missing(missing, f"{cure}sink.postgresql-config")
    for table in wanted:
        target = targets.get(table.written_as)
        if target is not None:
            words = misfit(table, target)
            if words:
                raise TargetUnfit(words)
            check_rights(session, table, target)
    return missing
