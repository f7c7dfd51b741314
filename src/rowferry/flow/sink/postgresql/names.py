"""Names and literals as PostgreSQL's SQL writes them. Pure."""

from __future__ import annotations

import hashlib
from typing import Final

from rowferry.change.table import TableId, TableSchema
from rowferry.errors import TargetUnfit

LONGEST: Final = 63  # bytes; the server cuts what is longer, without a word
_DIGEST: Final = 10  # characters
_SYSTEM_COLUMNS: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: TableId) -> str:
    """Return a table's whole name: its schema is called like the source's database."""
    return f"{quoted(table.database)}.{quoted(table.table)}"


def literal(words: str) -> str:
    """Return a text as SQL writes it, the same for every `standard_conforming_strings`."""
    doubled = words.replace("'", "''")
    return "E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in words else f"'{doubled}'"


def names_of(names: tuple[str, ...] | list[str]) -> str:
    """Return names as a list of SQL."""
    return ", ".join(map(quoted, names))


def shortened(name: str) -> str:
    """Return a name of our own making so that it is not cut: a long one ends with its digest."""
    if len(name.encode()) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return name.encode()[: LONGEST - _DIGEST - 1].decode(errors="ignore") + "_" + digest


def index_name(table: str, index: str) -> str:
    """Return what an index is called: the tables and indexes of a schema share their names.

    So the table leads, and the digest of both names follows: `post_tag` may be a table.
    """
    digest = hashlib.sha256(f"{table}\0{index}".encode()).hexdigest()[:_DIGEST]
    most = LONGEST - _DIGEST - 1
    return f"{table}_{index}".encode()[:most].decode(errors="ignore") + "_" + digest


def check_names(table: TableSchema) -> None:
    """Refuse names that PostgreSQL would cut, or cannot have.

    Raises:
        TargetUnfit: with the name and the cure.
    """
    where = f"table {table.written_as}"
    for what, name in (("schema", table.written_as.database), ("table", table.written_as.table)):
        if len(name.encode()) > LONGEST:
            raise TargetUnfit(
                f"{where}: the {what} name {name!r} has more than {LONGEST} bytes, which "
                "PostgreSQL would cut; give it a shorter one by a routing rule"
            )
    for column in table.visible:
        if len(column.name.encode()) > LONGEST or column.name in _SYSTEM_COLUMNS:
            why = (
                f"has more than {LONGEST} bytes, which PostgreSQL would cut"
                if column.name not in _SYSTEM_COLUMNS
                else "is that of a system column of PostgreSQL"
            )
            raise TargetUnfit(
                f"{where}: the column name {column.name!r} {why}; rename it at the source, or "
                "leave it out by sink.column-selectors"
            )
