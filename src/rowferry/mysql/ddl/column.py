"""Column and key definitions in DDL text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId
from rowferry.errors import BadStatement
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.type import accept_charset, read_default, read_type, with_charset


@dataclass(frozen=True, slots=True)
class Key:
    """A key as the text gives it, before its columns and name are settled.

    Attributes:
        prefixes: how much of each column is in the key, 0 for all of it; empty: all of all.
    """

    columns: tuple[str, ...]
    name: str = ""
    unique: bool = False
    primary: bool = False
    prefixes: tuple[int, ...] = ()


@dataclass(slots=True)
class _ColumnText:
    """What has been read of a column so far."""

    name: str
    type: SqlType
    attributes: dict[str, object] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=list)


def read_column(cursor: TokenCursor, charset: str, name: str = "") -> tuple[Column, list[Key]]:
    """Consume a column definition; its id is 0 until the table is put together.

    Args:
        cursor: stands at the column's name, or at its type if `name` is given.
        charset: the table's character set, or its collation.
        name: the column's name, where it has been read already.

    Returns:
        The column, and the keys that its attributes ask for (PRIMARY KEY, UNIQUE).
    """
    name = name or cursor.name()
    kind, serial = read_type(cursor, charset)
    column = _ColumnText(name, kind)
    if serial:
        _serial(column)
    while _attribute(cursor, column):
        pass
    return Column(0, name, column.type, **column.attributes), column.keys  # type: ignore[arg-type]


def _serial(column: _ColumnText) -> None:
    column.attributes |= {"nullable": False, "auto_increment": True}
    column.keys.append(Key((column.name,), unique=True))


def _attribute(cursor: TokenCursor, column: _ColumnText) -> bool:
    """Consume one column attribute; return whether there was one."""
    facts = column.attributes
    if cursor.accept("NOT", "NULL"):
        facts["nullable"] = False
    elif cursor.accept("NULL"):
        facts["nullable"] = True
    elif cursor.accept("SERIAL", "DEFAULT", "VALUE"):
        _serial(column)
    elif cursor.accept("DEFAULT"):
        value, expression = read_default(cursor, column.type, column.name)
        facts |= {"default": value, "expression": expression}
    elif cursor.accept("AUTO_INCREMENT"):
        facts |= {"auto_increment": True, "nullable": False}
    elif cursor.accept("COMMENT"):
        facts["comment"] = cursor.text()
    elif word := cursor.accept_any("INVISIBLE", "VISIBLE"):
        facts["invisible"] = word == "INVISIBLE"
    elif cursor.accept("UNIQUE"):
        cursor.accept("KEY")
        column.keys.append(Key((column.name,), unique=True))
    elif cursor.accept("PRIMARY", "KEY") or cursor.accept("KEY"):
        column.keys.append(Key((column.name,), unique=True, primary=True))
    elif cursor.at("AS") or cursor.at("GENERATED"):
        facts |= _generated(cursor)
    elif named := accept_charset(cursor):
        column.type = with_charset(column.type, named)
    else:
        return _attribute_without_meaning(cursor)
    return True


def _generated(cursor: TokenCursor) -> dict[str, object]:
    if cursor.accept("GENERATED"):
        cursor.expect("ALWAYS")
    cursor.expect("AS")
    if cursor.accept("ROW"):  # MariaDB's system versioning: the server fills these in
        return {"generated": "stored", "expression": f"ROW {cursor.take().word}"}
    text = cursor.parenthesised()
    word = cursor.accept_any("VIRTUAL", "STORED", "PERSISTENT")
    return {"generated": "virtual" if word in ("", "VIRTUAL") else "stored", "expression": text}


def _attribute_without_meaning(cursor: TokenCursor) -> bool:
    """Consume an attribute that says nothing about values; return whether there was one."""
    if cursor.accept("ON", "UPDATE"):
        cursor.name()
        if cursor.at("("):
            cursor.parenthesised()
    elif cursor.accept_any("COLUMN_FORMAT", "STORAGE", "SRID"):
        cursor.take()
    elif cursor.accept_any("ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE"):
        cursor.accept("=")
        cursor.text()
    elif cursor.accept_any("AUTO_RANDOM", "COMPRESSED"):
        if cursor.at("("):
            cursor.parenthesised()
    elif cursor.accept_any("CLUSTERED", "NONCLUSTERED"):
        pass
    elif cursor.accept("WITHOUT", "SYSTEM", "VERSIONING"):
        pass
    elif cursor.at("CONSTRAINT") or cursor.at("CHECK"):
        if cursor.accept("CONSTRAINT") and not cursor.at("CHECK"):
            cursor.name()
        _check(cursor)
    elif cursor.at("REFERENCES"):
        _references(cursor)
    else:
        return False
    return True


def _check(cursor: TokenCursor) -> None:
    cursor.expect("CHECK")
    cursor.parenthesised()
    cursor.accept("NOT", "ENFORCED") or cursor.accept("ENFORCED")


def _references(cursor: TokenCursor) -> None:
    cursor.expect("REFERENCES")
    cursor.qualified_name()
    if cursor.at("("):
        cursor.parenthesised()
    while cursor.accept("MATCH") or cursor.accept("ON"):
        if cursor.accept_any("DELETE", "UPDATE") and cursor.accept_any("SET", "NO"):
            pass
        cursor.take()


# --- keys ----------------------------------------------------------------------------------------

_LIMITED = frozenset({"char", "varchar", "binary", "varbinary"})
_KEY_STARTS = ("CONSTRAINT", "PRIMARY", "UNIQUE", "INDEX", "KEY", "FULLTEXT", "SPATIAL", "FOREIGN")


def at_key(cursor: TokenCursor) -> bool:
    """Return whether a key or constraint comes next, not a column."""
    if cursor.at("VECTOR", "INDEX") or cursor.at("VECTOR", "KEY") or cursor.at("PERIOD", "FOR"):
        return True
    return cursor.at_any(*_KEY_STARTS, "CHECK")


def read_key(cursor: TokenCursor) -> Key | str:
    """Consume a key or constraint of a table.

    Returns:
        The key; or, for what is no key, its first word: "FOREIGN", "CHECK" or "PERIOD".
    """
    name = ""
    if cursor.accept("CONSTRAINT") and not cursor.at_any(*_KEY_STARTS, "CHECK"):
        name = cursor.name()
    word = cursor.take().word
    if word in ("FOREIGN", "CHECK", "PERIOD"):
        if word == "CHECK":
            cursor.place -= 1
            _check(cursor)
        else:
            cursor.skip_to_comma()
        return word
    if word == "PRIMARY":
        cursor.expect("KEY")
        _key_name(cursor)
        return key_parts(cursor, "PRIMARY", unique=True, primary=True)
    if word not in ("INDEX", "KEY"):
        cursor.accept_any("INDEX", "KEY")
    cursor.accept("IF", "NOT", "EXISTS")
    return key_parts(cursor, _key_name(cursor) or name, unique=word == "UNIQUE")


def _key_name(cursor: TokenCursor) -> str:
    """Consume a key's name and its USING clause, both optional."""
    name = "" if cursor.at("(") or cursor.at("USING") else cursor.name()
    if cursor.accept("USING"):
        cursor.name()
    return name


def key_parts(cursor: TokenCursor, name: str, unique: bool = False, primary: bool = False) -> Key:
    """Consume `(column [(length)] [ASC | DESC], …)` and the key's options.

    A key over expressions cannot name rows, so it counts as not unique.
    """
    columns: list[str] = []
    prefixes: list[int] = []
    cursor.expect("(")
    while True:
        if cursor.at("("):
            cursor.parenthesised()
            unique = False
        else:
            columns.append(cursor.name())
            prefixes.append(_prefix(cursor))
        cursor.accept_any("ASC", "DESC")
        if not cursor.accept(","):
            break
    cursor.expect(")")
    cursor.skip_to_comma()
    return Key(tuple(columns), name, unique, primary, tuple(prefixes))


def _prefix(cursor: TokenCursor) -> int:
    if not cursor.accept("("):
        return 0
    length = cursor.whole()
    cursor.expect(")")
    return length


def _names_rows(key: Key, by_name: Mapping[str, Column]) -> bool:
    """Return whether a unique key tells rows apart by the whole values of its columns."""
    if key.primary or not key.unique:
        return key.unique
    return not any(
        length and not _holds_all(by_name[name.lower()].type, length)
        for name, length in zip(key.columns, key.prefixes, strict=False)
    )


def _holds_all(kind: SqlType, length: int) -> bool:
    """Return whether a prefix is as long as the column itself, which servers take as no prefix."""
    return kind.name in _LIMITED and kind.length is not None and length >= kind.length


def settle(
    table: TableId,
    columns: Sequence[Column],
    indexes: Sequence[Index],
    keys: Iterable[Key],
    whole_values: bool = False,
) -> tuple[tuple[Column, ...], tuple[Index, ...]]:
    """Add keys to a table's indexes: real column names, names and ids for all, one PRIMARY.

    Columns of the primary key become NOT NULL. With `whole_values`, a unique key over prefixes of
    columns counts as not unique, like one over expressions.

    Raises:
        BadStatement: duplicate columns or key names, unknown columns, or two primary keys.
    """
    by_name: dict[str, Column] = {}
    for column in columns:
        if by_name.setdefault(column.name.lower(), column) is not column:
            raise BadStatement(f"table {table}: column {column.name!r} is defined twice")
    if not by_name:
        raise BadStatement(f"table {table}: a table needs at least one column")
    all_indexes = list(indexes)
    for key in keys:
        for name in key.columns:
            if name.lower() not in by_name:
                raise BadStatement(f"table {table}: a key names the unknown column {name!r}")
        if key.primary and any(i.primary for i in all_indexes):
            raise BadStatement(f"table {table}: it already has a primary key")
        names = tuple(by_name[c.lower()].name for c in key.columns)
        taken = {i.name.lower() for i in all_indexes}
        name = "PRIMARY" if key.primary else key.name or _free_name(names, taken)
        if name.lower() in taken:
            raise BadStatement(f"table {table}: key {name!r} is defined twice")
        number = max((i.id for i in all_indexes), default=0) + 1
        unique = _names_rows(key, by_name) if whole_values else key.unique
        all_indexes.append(Index(number, name, names, unique, key.primary))
    primary = {c.lower() for i in all_indexes if i.primary for c in i.columns}
    solid = (replace(c, nullable=False) if c.name.lower() in primary else c for c in columns)
    return tuple(solid), tuple(all_indexes)


def _free_name(columns: tuple[str, ...], taken: set[str]) -> str:
    """Return MySQL's name for a key without one: its first column, numbered if that is taken."""
    stem = columns[0] if columns else "functional_index"
    name, number = stem, 2
    while name.lower() in taken | {"primary"}:
        name, number = f"{stem}_{number}", number + 1
    return name
