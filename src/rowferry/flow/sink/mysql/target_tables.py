"""What the downstream's tables look like, and whether a source's rows fit into them."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rowferry.change.sqltype import KINDS, Kind, SqlType
from rowferry.change.table import MYSQL, Column, TableId, TableSchema
from rowferry.errors import BadInput, TargetLost, TargetUnfit
from rowferry.flow.encode.sql_rows.frame import quoted, quoted_table, written_columns
from rowferry.flow.sink.delivered_tables import lost
from rowferry.flow.sink.mysql.session import Session, StatementRefused
from rowferry.flow.sink.mysql.tidb_tables import ACTIVE_ACTIVE_OPTIONS, HIDDEN, check_types
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
from rowferry.mysql.ddl.type import has_charset
from rowferry.mysql.flavour import Flavour
from rowferry.mysql.type_facts import ddl_type, tells_apart

# What may hold a value of another kind without bending it.
_TAKES: Final = frozenset(
    {
        (Kind.JSON, Kind.TEXT),
        (Kind.TEXT, Kind.JSON),
        (Kind.ENUM, Kind.TEXT),
        (Kind.SET, Kind.TEXT),
        (Kind.FLOAT, Kind.DOUBLE),
        (Kind.INTEGER, Kind.DECIMAL),
        (Kind.YEAR, Kind.INTEGER),
        (Kind.DATE, Kind.DATETIME),
        (Kind.VECTOR, Kind.TEXT),
    }
)
_SHAPES: Final = frozenset(
    "point linestring polygon multipoint multilinestring multipolygon geomcollection "
    "geometrycollection".split()
)
_SCALED: Final = frozenset({Kind.DECIMAL, Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})
_ELEMENTS: Final = frozenset({"enum", "set"})  # compared by their numbers
_LONG_TEXTS: Final = frozenset({"varchar", "tinytext", "text", "mediumtext", "longtext"})


@dataclass(slots=True)
class TargetColumn:
    """One column of a table downstream; `needed`: a row cannot leave it out."""

    type_name: str
    type_text: str
    scale: int
    needed: bool
    collation: str = ""
    nullable: bool = True
    generated: bool = False


def read_tables(
    session: Session, names: Sequence[TableId]
) -> dict[TableId, TargetTable[TargetColumn]]:
    """Return those of the tables that are there, with names of columns in lower case.

    Tables whose names differ in case only are kept apart where the server does so.

    Raises as `Session.run`.
    """
    moment("list downstream tables")
    tables: dict[TableId, TargetTable[TargetColumn]] = {}
    for start in range(0, len(names), AT_ONCE):
        part = names[start : start + AT_ONCE]
        stored: dict[TableId, TargetTable[TargetColumn]] = {}  # by the names that the server has
        marks = ",".join(["(%s,%s)"] * len(part))
        values = [word for name in part for word in name]
        where = f"WHERE (TABLE_SCHEMA, TABLE_NAME) IN ({marks})"
        for row in session.ask(
            "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, "
            "NUMERIC_SCALE, DATETIME_PRECISION, IS_NULLABLE, COLUMN_DEFAULT, EXTRA, COLLATION_NAME "
            f"FROM information_schema.COLUMNS {where}",
            values,
        ):
            table = stored.setdefault(TableId(str(row[0]), str(row[1])), TargetTable())
            table.columns[str(row[2]).lower()] = _column(row[3:])
        for row in session.ask(
            "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART "
            f"FROM information_schema.STATISTICS {where} AND NON_UNIQUE = 0",
            values,
        ):
            name = TableId(str(row[0]), str(row[1]))
            if name in stored:
                key = stored[name].keys.setdefault(str(row[2]), set())
                # Texts that only begin alike are one to a key of their beginnings.
                length = f"({row[4]})" if row[4] is not None else ""
                key.add(str(row[3] or "").lower() + length)
        # A server that does not tell cases apart may store a name in another case.
        others = {folded(n): stored[n] for n in stored.keys() - set(names)}
        if others and not (stored.keys() >= set(part) or folds_names(session)):
            others = {}
        for name in part:
            own = stored.get(name) or others.get(folded(name))
            if own is not None:
                tables[name] = own
    return tables


def folded(name: TableId) -> TableId:
    """Return what names that differ in case only have in common."""
    return name.folded


def folds_names(session: Session) -> bool:
    """Return whether a server takes names of tables that differ in case for one.

    Raises as `Session.ask`.
    """
    moment("look how names compare downstream")
    return str(session.ask("SELECT @@lower_case_table_names")[0][0]) != "0"


def _refuse_one_name(session: Session, names: Collection[TableId]) -> None:
    """Raise TargetUnfit where two of the tables would be one here: each would have both's rows."""
    alike: dict[TableId, set[TableId]] = {}
    for name in names:
        alike.setdefault(folded(name), set()).add(name)
    several = sorted(sorted(group) for group in alike.values() if len(group) > 1)
    if several and folds_names(session):
        first, second = several[0][:2]
        raise TargetUnfit(
            f"{first} and {second} are one table to the downstream, which does not tell cases "
            "apart (lower_case_table_names): rows would overwrite each other; leave one out by "
            "filter.rules, or give it another name by target-table in sink.dispatchers"
        )


def _column(row: Sequence[object]) -> TargetColumn:
    name, text, scale, digits, nullable, default, extra, collation = row
    words = str(extra or "").lower()
    filled = default is not None or "auto_increment" in words or "generated" in words
    return TargetColumn(
        str(name).lower(),
        str(text),
        int(str(scale or digits or 0)),
        needed=str(nullable) == "NO" and not filled,
        collation=str(collation or ""),
        nullable=str(nullable) != "NO",
        generated="generated" in words.replace("default_generated", ""),
    )


def misfit(table: TableSchema, target: TargetTable[TargetColumn], tidb: bool = False) -> str:
    """Return why a table's rows do not fit into a table downstream, and the cure; "": they do."""
    written = [table.column(name) for name in written_columns(table)]
    hidden = HIDDEN if tidb else {}
    words = misfit_of_columns(
        table,
        written,
        target,
        _fits,
        {c.name.lower() for c in table.columns},
        str.lower,
        lambda name: hidden.get(name.lower(), "") or "add it there",
    )
    words = words or _misfit_of_fillings(table, target)
    if not words and not table.handle_key:
        words = _misfit_of_documents(written, table, target)
    if words or not table.handle_key:
        return words
    ours = [{c.lower() for c in i.columns} for i in table.indexes if i.primary or i.unique]
    if words := misfit_of_keys(table, ours, target, str.lower):
        return words
    for column in _merging_keys(table, target)[:1]:
        theirs = target.columns[column.name.lower()].collation
        words = (
            f"{place_of(table)} compares the key column {column.name!r} by {theirs}, which may "
            "take texts for one that are different to the source "
            f"({column.type.collation or table.dialect}): rows would overwrite each other; change "
            "its collation there to the source's, or to one that counts every character "
            "(utf8mb4_0900_bin, or utf8mb4_nopad_bin of MariaDB)"
        )
    return words


def _merging_keys(table: TableSchema, target: TargetTable[TargetColumn]) -> list[Column]:
    """Return columns of keys to whose collation downstream texts may be one that are not here."""
    merging = []
    keys = (i for i in table.indexes if i.primary or i.unique)
    for name in sorted({c.lower() for i in keys for c in i.columns}):
        column, there = table.column(name), target.columns.get(name)
        if there is None or not there.collation or there.type_name in _ELEMENTS:
            continue
        # To another dialect all texts are different ones.
        own = column.type.collation if table.dialect == MYSQL else "binary"
        if own and not tells_apart(there.collation, own):
            merging.append(column)
    return merging


def _misfit_of_fillings(table: TableSchema, target: TargetTable[TargetColumn]) -> str:
    """Return which column would hold what the source does not have, and the cure; "": none."""
    where = place_of(table)
    for column in table.columns:
        there = target.columns.get(column.name.lower())
        if there is None:
            continue
        if column.generated and not there.generated:
            return (
                f"{where} has column {column.name!r} as an ordinary one, and the source computes "
                "it, so that no row brings it; make it a generated column there, or drop it"
            )
        # Some servers take NULL for the time of day there.
        if column.nullable and not there.nullable and there.type_name == "timestamp":
            return (
                f"{where} has column {column.name!r} as NOT NULL, and the source's may be NULL; "
                "let it be NULL there"
            )
    return ""


def _misfit_of_documents(
    written: Iterable[Column], table: TableSchema, target: TargetTable[TargetColumn]
) -> str:
    """Return which text would not be found again in a table without a key, and the cure."""
    for column in written:
        there = target.columns[column.name.lower()]
        of_document = KINDS.get(there.type_name) is Kind.JSON
        if column.type.kind is Kind.TEXT and of_document:
            return (
                f"{place_of(table)} has column {column.name!r} as json, which is written in the "
                f"server's own way, and the source's is {column.type.sql}: without a key its rows "
                "are found by their texts, which are others there; make the column longtext "
                "there, with the source's texts in it, or give the table a key on both sides"
            )
    return ""


def _fits(ours: SqlType, there: TargetColumn) -> bool:
    name = "geometry" if there.type_name in _SHAPES else there.type_name
    kind = KINDS.get(name)
    if kind is None:
        return True  # a type that we know nothing of: the downstream itself will say
    if kind in (Kind.FLOAT, Kind.DOUBLE) and "," in there.type_text:  # it rounds to its digits
        return ours.kind is kind and ours.scale is not None and there.scale >= ours.scale
    if kind is not ours.kind:
        return (ours.kind, kind) in _TAKES
    if name == "binary":  # it is filled up with zeros
        return ours.name == name and there.type_text.lower() == f"binary({ours.size})"
    if name == "char":  # it loses spaces at the end
        return ours.name not in _LONG_TEXTS
    return ours.kind not in _SCALED or there.scale >= ours.fraction_digits


def check_rights(session: Session, table: TableSchema) -> None:
    """Ask whether rows may be written, without writing any: EXPLAIN needs the same privileges.

    Raises:
        SinkUnwritable: they may not.
    """
    moment("try rights downstream")
    name = quoted_table(table.written_as)
    columns = [quoted(c) for c in written_columns(table)]
    keys = {quoted(c) for c in table.primary_key}  # TiDB may refuse to set these
    one = next((c for c in columns if c not in keys), columns[0])
    changed, every = f"{one} = {one}", ", ".join(columns)
    explained = (
        f"DELETE FROM {name} WHERE 1 = 0",
        f"UPDATE {name} SET {changed} WHERE 1 = 0",
        f"INSERT INTO {name} ({every}) SELECT {every} FROM {name} WHERE 1 = 0",
    )
    try:
        for statement in explained:
            session.run(f"EXPLAIN {statement}".encode())
    except StatementRefused as err:
        raise err.as_error(f"table {table.written_as}") from err


def require_there(session: Session, known: Collection[TableId]) -> None:
    """Raise TargetLost where tables are gone to which something was delivered."""
    if not known:
        return
    moment("look for delivered tables")
    databases = sorted({t.database for t in known})
    there: set[tuple[str, str]] = set()
    for start in range(0, len(databases), AT_ONCE):
        part = databases[start : start + AT_ONCE]
        marks = ",".join(["%s"] * len(part))
        asked = "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"
        rows = session.ask(f"{asked} WHERE TABLE_SCHEMA IN ({marks})", part)
        there |= {(str(row[0]).lower(), str(row[1]).lower()) for row in rows}
    gone = [t for t in known if (t.database.lower(), t.table.lower()) not in there]
    if gone:
        raise gone_tables(session, gone)


def gone_tables(session: Session, gone: Collection[TableId]) -> TargetLost:
    """Return the error for tables that must be there, and are not. Raises as `Session.run`."""
    moment("list downstream databases")
    rows = session.ask("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
    return lost(gone, {str(row[0]) for row in rows}, session.place)


def check(
    session: Session,
    tables: Iterable[TableSchema],
    create: bool,
    known: Collection[TableId] = (),
) -> list[TableSchema]:
    """Judge tables; return those that are missing, where they may be.

    Raises:
        TargetLost: one is missing that is `known` to have been there.
        TargetUnfit: one is missing, rows do not fit into it, or two of them would be one; the text
            names it and the cure.
        SinkUnwritable: a privilege is missing.
    """
    wanted = list(tables)
    try:
        _refuse_one_name(session, {*known, *names_once(wanted)})
        targets = read_tables(session, names_once(wanted))
        missing = [t for t in wanted if t.written_as not in targets]
        if gone := {t.written_as for t in missing} & set(known):
            raise gone_tables(session, gone)
    except StatementRefused as err:
        raise err.as_error("the downstream's tables") from err
    if not create:
        cure = "create it there as the source has it, or set create-tables = true in "
        refuse_missing(missing, f"{cure}sink.mysql-config")
    tidb = session.facts.flavour is Flavour.TIDB
    for table in wanted:
        if tidb and table.written_as not in targets:
            check_types(table)
        if table.written_as in targets:
            words = misfit(table, targets[table.written_as], tidb)
            if words:
                raise TargetUnfit(words)
            check_rights(session, table)
    return missing


# --- making tables -------------------------------------------------------------------------------


def known_collations(session: Session) -> frozenset[str]:
    """Return the collations that a downstream has, by all their names."""
    moment("list downstream collations")
    listed = "SELECT * FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
    return frozenset(str(name) for row in session.ask(listed) for name in row)


def create_statements(
    table: TableSchema, collations: Container[str], tidb_active_active: bool = False
) -> list[str]:
    """Return statements that make a table's database and the table, where they are missing.

    Texts are compared as at the source where the downstream knows how; where it does not, those of
    keys are compared by all their characters, so that no two rows become one.

    Args:
        table: to be made as the source has it.
        collations: those that the downstream has.
        tidb_active_active: it becomes an active-active table of TiDB.

    Raises:
        BadInput: a column has an expression that cannot be written down.
    """
    keys = {c.lower() for i in table.indexes if i.unique or i.primary for c in i.columns}
    left_out = HIDDEN if tidb_active_active else {}
    made = [c for c in table.columns if c.name.lower() not in left_out]
    parts = [_definition(table, c, c.name.lower() in keys, collations) for c in made]
    for index in table.indexes:
        kind = "PRIMARY KEY" if index.primary else "UNIQUE KEY" if index.unique else ""
        if kind:
            name = "" if index.primary else f" {quoted(index.name)}"
            columns = ", ".join(quoted(c) for c in index.columns)
            parts.append(f"{kind}{name} ({columns})")
    comment = f" COMMENT={_text(table.comment)}" if table.comment else ""
    return [
        f"CREATE DATABASE IF NOT EXISTS {quoted(table.written_as.database)}",
        f"CREATE TABLE IF NOT EXISTS {quoted_table(table.written_as)} ({', '.join(parts)}) "
        f"DEFAULT CHARSET={table.charset}{comment}"
        f"{ACTIVE_ACTIVE_OPTIONS if tidb_active_active else ''}",
    ]


def recollate(session: Session, table: TableSchema) -> list[str]:
    """Return what makes a table that was made just now compare texts of its keys as the source.

    A statement that names no collation leaves it to the server, or the database, that runs it.

    Raises:
        BadInput: the downstream has no collation for a column.
        Refused, SinkUnavailable: as `Session.run`.
    """
    target = read_tables(session, [table.written_as]).get(table.written_as)
    merging = _merging_keys(table, target) if target else []
    if not merging:
        return []
    collations = known_collations(session)
    parts = [f"MODIFY {_definition(table, c, True, collations)}" for c in merging]
    return [f"ALTER TABLE {quoted_table(table.written_as)} {', '.join(parts)}"]


def _definition(
    table: TableSchema, column: Column, in_key: bool, collations: Container[str]
) -> str:
    words = f"{quoted(column.name)} {ddl_type(column.type)}"
    charset, collation = column.type.charset, column.type.collation
    foreign = table.dialect != MYSQL
    if has_charset(column.type) and charset not in ("", "binary"):
        words += f" CHARACTER SET {charset}"
        if collation in collations:
            words += f" COLLATE {collation}"
        elif in_key and (collation or foreign):
            strict = _strictest(charset, collations)
            if not tells_apart(strict, "binary" if foreign else collation):
                raise BadInput(
                    f"key column {column.name!r} of table {table.written_as}: the downstream has "
                    f"no collation of {charset} that counts spaces at the end, as the source does; "
                    "create the table there by hand"
                )
            words += f" COLLATE {strict}"
    if column.generated:
        if not column.expression or foreign:
            raise BadInput(f"column {column.name!r} is generated by an unknown expression")
        words += f" AS ({column.expression}) {column.generated.upper()}"
    words += "" if column.nullable else " NOT NULL"
    if column.nullable and column.type.kind is Kind.TIMESTAMP:
        words += " NULL"
    return words + (f" COMMENT {_text(column.comment)}" if column.comment else "")


def _strictest(charset: str, collations: Container[str]) -> str:
    """Return the collation to which the fewest texts are the same."""
    # MariaDB's and MySQL's; all others ignore spaces at the end.
    strict = (f"{charset}_nopad_bin", f"{charset}_0900_bin")
    return next((name for name in strict if name in collations), f"{charset}_bin")


def _text(words: str) -> str:
    return "'" + words.replace("\\", "\\\\").replace("'", "''") + "'"
