"""The names of indexes: each table has one, and it is legal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rowferry.change.table import TableId
from rowferry.errors import BadInput

_MOST_BYTES: Final = 255
_PLACES: Final = re.compile(r"\{(schema|table)\}")
_ILLEGAL: Final = re.compile(r'[\\/*?"<>|\s,#:%\x00-\x1f\x7f]')
_LEGAL_RULE: Final = re.compile(r"(?:[^{}]|\{schema\}|\{table\})+")


def check_rule(rule: str) -> str:
    """Return a rule that can be used.

    Raises:
        ValueError: it has other places than {schema} and {table}, or letters no index may have.
    """
    plain = _PLACES.sub("", rule)
    if not _LEGAL_RULE.fullmatch(rule) or _ILLEGAL.search(plain) or plain != plain.lower():
        raise ValueError("it has a letter that no index may have, or another place in braces")
    if rule[0] in "-_+.":
        raise ValueError("no index may begin with '-', '_' or '+', nor one of ours with '.'")
    return rule


def index_name(rule: str, table: TableId) -> str:
    """Return the index of a table.

    Raises:
        BadInput: the name is longer than servers take.
    """
    parts = {"schema": _escaped(table.database), "table": _escaped(table.table)}
    name = _PLACES.sub(lambda match: parts[match[1]], rule)
    if name[0] in "-_+.":
        name = f"%{ord(name[0]):02x}{name[1:]}"
    if len(name.encode()) > _MOST_BYTES:
        raise BadInput(
            f"the index of table {table} would be {name[:60]}…, longer than {_MOST_BYTES} bytes; "
            "give the table a shorter name with table routing, or the option index another rule"
        )
    return name


def index_names(rule: str, tables: Iterable[TableId]) -> dict[TableId, str]:
    """Return the index of each table.

    Raises:
        BadInput: two tables would get the same one, or a name is too long.
    """
    names = {table: index_name(rule, table) for table in sorted(set(tables))}
    owners: dict[str, TableId] = {}
    for table, name in names.items():
        if owners.setdefault(name, table) != table:
            raise shared(name, owners[name], table)
    return names


def shared(name: str, first: TableId, second: TableId) -> BadInput:
    """Return the error for two tables with one index."""
    return BadInput(
        f"tables {first} and {second} would both be index {name}; give the option index a rule "
        "that tells them apart, route one of them to another name, or filter one of them out"
    )


def _escaped(name: str) -> str:
    """Return a part of a name in lower case, with `%xx` for what no index may have."""
    return _ILLEGAL.sub(
        lambda match: "".join(f"%{byte:02x}" for byte in match[0].encode()), name.lower()
    )
