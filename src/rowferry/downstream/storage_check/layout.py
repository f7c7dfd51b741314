"""What is where: every object below the prefix, sorted by its place, and the rules of paths."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from typing import Protocol
from urllib.parse import unquote

from rowferry.downstream.storage_check.expected import ExpectedLayout
from rowferry.downstream.storage_check.rules import Rule, StorageFindings

# The writer's own marks, at the prefix itself: no part of the layout.
OWN_NAMES = frozenset({"rowferry.owner", "rowferry.lock", "rowferry.tmp"})
_NUMBER = re.compile(r"0|[1-9]\d{0,19}", re.ASCII)
_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?", re.ASCII)
_DATE_LENGTH = {"year": 4, "month": 7, "day": 10}
_DATA = re.compile(r"CDC(\d{6,20})\.([a-z]+)(\.gz|\.zst)?", re.ASCII)
_SCHEMA = re.compile(r"schema_(\d{1,20})_(\d{10})\.json", re.ASCII)


class ListedName(Protocol):
    """One name in a directory."""

    @property
    def name(self) -> str:
        """The last segment of its path."""

    @property
    def is_directory(self) -> bool:
        """Whether more is below it."""


class Content(Protocol):
    """An object's bytes."""

    @property
    def data(self) -> bytes:
        """All of them."""


class LayoutReader(Protocol):
    """Any storage: names in a directory, and objects."""

    def entries(self, directory: str) -> Iterable[ListedName]:
        """Return the names in a directory; "" is the prefix."""

    def get(self, path: str) -> Content | None:
        """Return an object; None: there is none."""


@dataclass(frozen=True, slots=True)
class SchemaPath:
    """A file in `meta/` that is named as schema files are."""

    path: str
    version: int
    checksum: int


@dataclass(frozen=True, slots=True)
class DataPath:
    """A data file."""

    path: str
    number: int
    name: str
    compression: str  # "", ".gz", ".zst"


@dataclass(slots=True)
class DataDirectory:
    """A directory with data files: of one table version, partition and date."""

    path: str
    version: int
    partition: str = ""
    date: str = ""
    has_index: bool = False
    files: list[DataPath] = field(default_factory=list)


@dataclass(slots=True)
class TableFiles:
    """All of one table (with an empty name: of one database)."""

    database: str
    table: str
    path: str
    schemas: list[SchemaPath] = field(default_factory=list)
    directories: list[DataDirectory] = field(default_factory=list)


@dataclass(slots=True)
class Survey:
    """All that was found."""

    has_metadata: bool = False
    tables: list[TableFiles] = field(default_factory=list)

    @property
    def data_files(self) -> int:
        """How many data files there are."""
        return sum(len(d.files) for t in self.tables for d in t.directories)


def survey(reader: LayoutReader, expected: ExpectedLayout, findings: StorageFindings) -> Survey:
    """List everything, by the rules of paths; what breaks them is noted and left out."""
    return _Surveyor(reader, expected, findings).prefix()


class _Surveyor:
    def __init__(
        self, reader: LayoutReader, expected: ExpectedLayout, findings: StorageFindings
    ) -> None:
        self._reader, self._expected, self._findings = reader, expected, findings

    def prefix(self) -> Survey:
        tree = Survey()
        for entry in self._entries(""):
            if entry.name in OWN_NAMES:
                continue
            if entry.is_directory:
                self._database(entry.name, tree)
            elif entry.name == "metadata":
                tree.has_metadata = True
            else:
                self._unknown(entry.name)
        return tree

    def _database(self, path: str, tree: Survey) -> None:
        name = self._name(path, path, at_top=True)
        own = TableFiles(name, "", path)
        tree.tables.append(own)
        for entry in self._entries(path):
            below = f"{path}/{entry.name}"
            if not entry.is_directory:
                self._unknown(below)
            elif entry.name == "meta":
                own.schemas = self._schemas(below)
            else:
                table = TableFiles(name, self._name(entry.name, below), below)
                tree.tables.append(table)
                self._table(table)

    def _table(self, table: TableFiles) -> None:
        for entry in self._entries(table.path):
            below = f"{table.path}/{entry.name}"
            if not entry.is_directory:
                self._unknown(below)
            elif entry.name == "meta":
                table.schemas = self._schemas(below)
            elif _NUMBER.fullmatch(entry.name) and int(entry.name) < 1 << 64:
                here = DataDirectory(below, int(entry.name))
                table.directories += self._version(here)
            else:
                self._findings.add(Rule.PATH_VERSION, below, "no table version")

    def _version(self, here: DataDirectory) -> list[DataDirectory]:
        """Return the directories with data of one table version."""
        directories: list[DataDirectory] = []
        for entry in self._leaf(here, directories):
            below = f"{here.path}/{entry.name}"
            inner = self._subdirectories(below)
            if self._is_date(entry.name, bool(inner)):
                self._dated(DataDirectory(below, here.version, "", entry.name), directories)
            elif not _NUMBER.fullmatch(entry.name):
                rule = Rule.PATH_DATE if entry.name[:1].isdigit() else Rule.UNKNOWN_OBJECT
                self._findings.add(rule, below, "neither a partition id nor a date directory")
            else:
                if self._expected.partitions is False:
                    words = "a partition directory, though enable-partition-separator is false"
                    self._findings.add(Rule.PATH_PARTITION, below, words)
                self._partition(DataDirectory(below, here.version, entry.name), directories)
        kinds = {bool(d.partition) for d in directories}
        if len(kinds) > 1:
            words = "some rows are in partition directories, others are not"
            self._findings.add(Rule.PATH_PARTITION, here.path, words)
        lengths = {len(d.date) for d in directories}
        if len(lengths) > 1 and self._expected.date_separator is None:
            self._findings.add(Rule.PATH_DATE, here.path, "date directories of several forms")
        return directories

    def _partition(self, here: DataDirectory, directories: list[DataDirectory]) -> None:
        for entry in self._leaf(here, directories):
            below = f"{here.path}/{entry.name}"
            if self._is_date(entry.name, False):
                self._dated(
                    DataDirectory(below, here.version, here.partition, entry.name), directories
                )
            else:
                self._findings.add(Rule.PATH_DATE, below, "no date directory")

    def _dated(self, here: DataDirectory, directories: list[DataDirectory]) -> None:
        if not _is_real(here.date):
            self._findings.add(Rule.PATH_DATE, here.path, "there is no such date")
        for entry in self._leaf(here, directories):
            self._unknown(f"{here.path}/{entry.name}")

    def _leaf(self, here: DataDirectory, directories: list[DataDirectory]) -> list[ListedName]:
        """Take in a directory's own files; return its directories but `meta`."""
        others = []
        for entry in self._entries(here.path):
            below = f"{here.path}/{entry.name}"
            if entry.is_directory and entry.name == "meta":
                for inner in self._entries(below):
                    if inner.name == "CDC.index" and not inner.is_directory:
                        here.has_index = True
                    else:
                        self._unknown(f"{below}/{inner.name}")
            elif entry.is_directory:
                others.append(entry)
            else:
                self._data_file(here, entry.name)
        if here.files or here.has_index:
            self._judge(here)
            directories.append(here)
        return others

    def _data_file(self, here: DataDirectory, name: str) -> None:
        path = f"{here.path}/{name}"
        if not name.startswith("CDC"):
            self._unknown(path)
            return
        named = _DATA.fullmatch(name)
        if named is None or int(named[1]) == 0 or named[2] != self._expected.kind.extension:
            words = f"not CDC<6 to 20 digits, from 1>.{self._expected.kind.extension}"
            self._findings.add(Rule.FILE_NAME, path, words)
            return
        here.files.append(DataPath(path, int(named[1]), name, named[3] or ""))

    def _judge(self, here: DataDirectory) -> None:
        here.files.sort(key=lambda f: f.number)
        wanted = self._expected.digits
        digits = {len(f.name.split(".")[0]) - 3 for f in here.files}
        if len(digits) > 1 or (wanted is not None and digits - {wanted}):
            rule = f"; file-index-digit is {wanted}" if wanted is not None else ""
            words = f"numbers of {', '.join(map(str, sorted(digits)))} digits{rule}"
            self._findings.add(Rule.FILE_NAME, here.path, words)
        separator = self._expected.date_separator
        if separator is not None and len(here.date) != _DATE_LENGTH.get(separator, 0):
            words = f"data without a {separator} directory"
            if separator == "none":
                words = "a date directory, though date-separator is none"
            self._findings.add(Rule.PATH_DATE, here.path, words)

    def _schemas(self, path: str) -> list[SchemaPath]:
        schemas = []
        for entry in self._entries(path):
            below = f"{path}/{entry.name}"
            named = None if entry.is_directory else _SCHEMA.fullmatch(entry.name)
            if named is None:
                self._findings.add(Rule.SCHEMA_NAME, below, "not schema_<version>_<hash>.json")
            else:
                schemas.append(SchemaPath(below, int(named[1]), int(named[2])))
        return sorted(schemas, key=lambda s: (s.version, s.path))

    def _is_date(self, name: str, has_below: bool) -> bool:
        """Return whether a directory's name is a date: four digits may be a partition's id."""
        if not _DATE.fullmatch(name):
            return False
        wanted = self._expected.date_separator
        if len(name) == _DATE_LENGTH["year"]:
            return wanted in (None, "year") and not has_below
        return True

    def _subdirectories(self, path: str) -> list[str]:
        return [e.name for e in self._entries(path) if e.is_directory and e.name != "meta"]

    def _name(self, segment: str, path: str, at_top: bool = False) -> str:
        """Return the name that a segment stands for."""
        name = "" if segment == "%00" else unquote(segment)
        if segment not in (_escaped(name), _percent(name) if at_top else ""):
            self._findings.add(Rule.PATH_NAME, path, f"{name!r} is written {_escaped(name)!r}")
        elif at_top and segment == _percent(name) != _escaped(name):
            if name != "metadata" and name not in OWN_NAMES:
                words = f"{name!r} is written {_escaped(name)!r}"
                self._findings.add(Rule.PATH_NAME, path, words)
        return name

    def _unknown(self, path: str) -> None:
        self._findings.add(Rule.UNKNOWN_OBJECT, path, "the layout has no such object")

    def _entries(self, path: str) -> list[ListedName]:
        return sorted(self._reader.entries(path), key=lambda e: e.name)


def parse_index(content: bytes) -> re.Match[str] | None:
    """Return number, extension and compression of the name that an index file holds."""
    return _DATA.fullmatch(content.decode("utf-8", "replace").removesuffix("\n"))


def _escaped(name: str) -> str:
    r"""Write a name as a path segment: `/`, `\`, `%`, control characters, and whole segments."""
    if not name:
        return "%00"
    if name in (".", "..", "meta"):
        return _percent(name)
    return "".join(
        _percent(c) if c in "/\\%" or unicodedata.category(c) == "Cc" else c for c in name
    )


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def _is_real(text: str) -> bool:
    match = _DATE.fullmatch(text)
    assert match is not None
    try:
        date(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    except ValueError:
        return False
    return True
