"""The layout: which path each file has, and what a path means, relative to the prefix.

    metadata
    <database>/meta/schema_<version>_<checksum>.json
    <database>/<table>/meta/schema_<version>_<checksum>.json
    <database>/<table>/<version>[/<partition id>][/<date>]/CDC<number>.<extension>[.gz|.zst]
    <database>/<table>/<version>[/<partition id>][/<date>]/meta/CDC.index

Names stand in paths as they are, in any script; what a path cannot hold is written as %XX.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from rowferry.change.position import physical_ms
from rowferry.errors import BadInput

METADATA = "metadata"
META = "meta"
INDEX_NAME = "CDC.index"
OWNER = "rowferry.owner"
LOCK = "rowferry.lock"
STAGING = "rowferry.tmp"
LAKE_PROGRESS = "rowferry.progress"  # of lake tables, which are at no path of this layout

_EMPTY = "%00"  # no name holds U+0000, so it can stand for the empty one
_WHOLE = frozenset({".", "..", META})
# Files at the prefix: a database of such a name would need a directory in their place.
_TOP = frozenset({METADATA, OWNER, LOCK, STAGING})
_DATE_FORMS = {"none": "", "year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d"}
_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?", re.ASCII)
_VERSION = re.compile(r"\d{1,20}", re.ASCII)
_DATA_NAME = re.compile(r"CDC(\d{6,20})\.([A-Za-z0-9]+(?:\.(?:gz|zst))?)", re.ASCII)
_SCHEMA_NAME = re.compile(r"schema_(\d{1,20})_(\d{10})\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class Metadata:
    """The file that says up to which commit-ts everything is stored."""


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """A table's (or, with an empty table, a database's) schema file."""

    database: str
    table: str
    version: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Directory:
    """Where the data files of one table version, partition and date are."""

    database: str
    table: str
    version: int
    physical_id: int | None = None
    date: str = ""

    @property
    def path(self) -> str:
        """The directory's path."""
        parts = [database_directory(self.database), escape(self.table), str(self.version)]
        if self.physical_id is not None:
            parts.append(str(self.physical_id))
        return "/".join([*parts, self.date] if self.date else parts)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A numbered data file."""

    directory: Directory
    number: int
    extension: str


@dataclass(frozen=True, slots=True)
class IndexFile:
    """The file that names the last visible data file of a directory."""

    directory: Directory


AnyPath: TypeAlias = DataFile | IndexFile | SchemaFile | Metadata


# --- names in paths ------------------------------------------------------------------------------


def escape(name: str) -> str:
    r"""Return a name as one path segment; `unescape` reads it back.

    Only `/`, `\`, `%`, control characters, and the whole segments `.`, `..`, `meta` and "" change.
    """
    if not name:
        return _EMPTY
    if "\0" in name:
        raise BadInput(f"the name {name!r} holds the character U+0000, which no path can")
    if name in _WHOLE:
        return _percent(name)
    if name.isprintable() and not any(c in name for c in "/\\%"):
        return name
    return "".join(_percent(c) if _is_special(c) else c for c in name)


def unescape(segment: str) -> str:
    """Return the name that a path segment stands for."""
    return "" if segment == _EMPTY else unquote(segment)


def database_directory(database: str) -> str:
    """Return a database's directory; names of files at the prefix are escaped whole."""
    return _percent(database) if database in _TOP else escape(database)


def _is_special(char: str) -> bool:
    return char in "/\\%" or unicodedata.category(char) == "Cc"


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


# --- building ------------------------------------------------------------------------------------


def date_text(commit_ts: int, separator: str, zone: ZoneInfo) -> str:
    """Return the commit date as a directory name; empty without a date separator."""
    form = _DATE_FORMS[separator]
    if not form:
        return ""
    return datetime.fromtimestamp(physical_ms(commit_ts) / 1000, zone).strftime(form)


def data_name(number: int, digits: int, suffix: str) -> str:
    """Return a data file's base name; `suffix` begins with a dot."""
    return f"CDC{number:0{digits}d}{suffix}"


def index_path(directory: str) -> str:
    """Return the path of a directory's index file."""
    return f"{directory}/{META}/{INDEX_NAME}"


def schema_directory(database: str, table: str) -> str:
    """Return where the schema files of a table (or, with an empty table, a database) are."""
    parts = (
        [database_directory(database), escape(table)] if table else [database_directory(database)]
    )
    return "/".join([*parts, META])


def schema_path(database: str, table: str, version: int, checksum: int) -> str:
    """Return a schema file's path."""
    return f"{schema_directory(database, table)}/schema_{version}_{checksum:010d}.json"


# --- reading -------------------------------------------------------------------------------------


def parse_data_name(name: str) -> tuple[int, str] | None:
    """Return number and extension of a data file's base name, or None if it is none."""
    match = _DATA_NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def is_schema_file(path: str) -> bool:
    """Return whether a path, at any depth, ends as schema files do."""
    parts = path.split("/")
    return len(parts) >= 2 and parts[-2] == META and _SCHEMA_NAME.fullmatch(parts[-1]) is not None


def parse_path(path: str, date_separator: str = "") -> AnyPath | None:
    """Return what a path is; None: none of ours.

    One directory of four digits below the version can be a year or a partition id. With
    `date_separator` given that is decided by it; without, it is taken as a year.
    """
    if path == METADATA:
        return Metadata()
    parts = path.split("/")
    if len(parts) < 3 or "" in parts:
        return None
    if is_schema_file(path):
        return _parse_schema(parts)
    if parts[-2:] == [META, INDEX_NAME]:
        directory = _parse_directory(parts[:-2], date_separator)
        return IndexFile(directory) if directory else None
    data = parse_data_name(parts[-1])
    directory = _parse_directory(parts[:-1], date_separator) if data else None
    return DataFile(directory, *data) if data and directory else None


def _parse_schema(parts: list[str]) -> SchemaFile | None:
    match = _SCHEMA_NAME.fullmatch(parts[-1])
    if match is None or len(parts) not in (3, 4):
        return None
    table = unescape(parts[1]) if len(parts) == 4 else ""
    return SchemaFile(unescape(parts[0]), table, int(match[1]), int(match[2]))


def _parse_directory(parts: list[str], date_separator: str) -> Directory | None:
    if not 3 <= len(parts) <= 5 or not _VERSION.fullmatch(parts[2]):
        return None
    rest, date = parts[3:], ""
    if rest and _is_date(rest[-1], date_separator):
        date = rest.pop()
    if len(rest) > 1 or not all(_VERSION.fullmatch(p) for p in rest):
        return None
    physical_id = int(rest[0]) if rest else None
    return Directory(unescape(parts[0]), unescape(parts[1]), int(parts[2]), physical_id, date)


def _is_date(text: str, separator: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    lengths = {"none": 0, "year": 4, "month": 7, "day": 10}
    return not separator or len(text) == lengths[separator]
