"""What MySQL, MariaDB and TiDB know of a column type beside its values: codes, widths, collations.

The neutral types are in `rowferry.change.sqltype`; whoever writes or reads a form that has MySQL's
codes or widths in it (a protocol, a schema file, a DDL) asks here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rowferry.change.sqltype import Kind, SqlType


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """MySQL's type code, and its length where a DDL gives none."""

    code: int
    width: int | None = None


_LONG: Final = 4294967295
# By the neutral name. GEOMETRY is handled as BLOB and INET4/INET6/UUID as TEXT in every codec.
TYPE_FACTS: Final[dict[str, TypeFacts]] = {
    "tinyint": TypeFacts(1, 4),
    "smallint": TypeFacts(2, 6),
    "mediumint": TypeFacts(9, 9),
    "int": TypeFacts(3, 11),
    "bigint": TypeFacts(8, 20),
    "float": TypeFacts(4, 12),
    "double": TypeFacts(5, 22),
    "decimal": TypeFacts(246, 10),
    "bit": TypeFacts(16, 1),
    "char": TypeFacts(254, 1),
    "varchar": TypeFacts(15, 5),
    "tinytext": TypeFacts(249, 255),
    "text": TypeFacts(252, 65535),
    "mediumtext": TypeFacts(250, 16777215),
    "longtext": TypeFacts(251, _LONG),
    "binary": TypeFacts(254, 1),
    "varbinary": TypeFacts(15, 5),
    "tinyblob": TypeFacts(249, 255),
    "blob": TypeFacts(252, 65535),
    "mediumblob": TypeFacts(250, 16777215),
    "longblob": TypeFacts(251, _LONG),
    "date": TypeFacts(10),
    "datetime": TypeFacts(12),
    "timestamp": TypeFacts(7),
    "time": TypeFacts(11),
    "year": TypeFacts(13, 4),
    "enum": TypeFacts(247),
    "set": TypeFacts(248),
    "json": TypeFacts(245),
    "vector": TypeFacts(225),
    "geometry": TypeFacts(255, _LONG),
    "inet4": TypeFacts(254, 15),
    "inet6": TypeFacts(254, 39),
    "uuid": TypeFacts(254, 36),
}


def type_code(kind: SqlType) -> int:
    """Return MySQL's type code."""
    return TYPE_FACTS[kind.name].code


def display_width(kind: SqlType) -> int | None:
    """Return the length as given, else the default of MySQL and TiDB for the type."""
    facts = TYPE_FACTS.get(kind.name)
    width = facts.width if facts else None
    if kind.length is not None or width is None:
        return kind.length
    # A sign takes one place, except in BIGINT, where it is counted always.
    signless = kind.unsigned and kind.kind is Kind.INTEGER and kind.name != "bigint"
    return width - signless


def ddl_type(kind: SqlType) -> str:
    """Return the type as a DDL of MySQL writes it, e.g. `decimal(10,2) unsigned`."""
    return kind.written(_quoted)


def _quoted(element: str) -> str:
    return "'" + element.replace("\\", "\\\\").replace("'", "''") + "'"


_WORDS: Final = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET})
# A document as the server itself writes it: which order of keys, which spaces, which form of a
# number stands there depends on the server, and on whether it was stored as one.
_DOCUMENT: Final = ("CAST(CONVERT(JSON_EXTRACT(", ",'$') USING utf8mb4) AS BINARY)")


def same_value(kind: Kind, name: str) -> tuple[str, str] | None:
    """Return what stands before and behind a literal in the condition that a column equals it.

    Texts that differ in case, accents or spaces at the end are others; NULL equals NULL. None:
    servers differ in how such a column could be compared.

    Args:
        kind: of the column. An ENUM or SET is compared with the words that it stands for.
        name: the column's, as SQL writes it.
    """
    match kind:
        case Kind.VECTOR:
            return None
        case Kind.JSON:
            lead, end = _DOCUMENT
            return f"{lead}CONVERT({name} USING utf8mb4){end}<=>{lead}", end
        case _ if kind in _WORDS:
            return f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)<=>CAST(", " AS BINARY)"
    return f"{name}<=>", ""


def keeps_case(collation: str) -> bool:
    """Return whether texts that differ in case are different ones to a collation."""
    return not {"bin", "cs"}.isdisjoint(collation.split("_"))


_UNICODE: Final = frozenset({"utf8", "utf8mb3", "utf8mb4"})
_TO_THE_LAST: Final = frozenset({"binary", "nopad_bin", "0900_bin"})  # also spaces at the end
_NO_PAD: Final = frozenset({"binary", "nopad"})
_LEVELS: Final = frozenset({"ai", "as", "ci", "cs", "nopad"})


def tells_apart(collation: str, other: str) -> bool:
    """Return whether texts that differ to an `other` collation surely differ to this one."""
    charset, _, rest = collation.partition("_")
    if collation == other or (rest or charset) in _TO_THE_LAST:
        return True
    others_charset, _, others = other.partition("_")
    words, others_words = _words(rest), _words(others)
    # Texts that differ in nothing but spaces at their end are one where these are not counted.
    counted = _NO_PAD.isdisjoint({others_charset, *others_words}) or not _NO_PAD.isdisjoint(words)
    if rest == "bin" or not counted:
        return counted
    alike = charset == others_charset or {charset, others_charset} <= _UNICODE
    coarser = ("ai" in words and "as" in others_words) or ("ci" in words and "cs" in others_words)
    return alike and words - _LEVELS == others_words - _LEVELS and not coarser


def _words(rest: str) -> set[str]:
    # MariaDB takes MySQL's names for its own.
    return set(rest.replace("0900", "uca1400_nopad").split("_"))
