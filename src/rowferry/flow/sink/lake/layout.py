"""Where things are below the prefix of a lake.

    rowferry.owner            who writes here
    rowferry.progress         up to which commit-ts all tables are there
    <database>/<table>/       a table, in the layout of its format
    <database>/<table>/_rowferry/<data file>.run

Letters and digits of ASCII, `_`, `-` and `.` stand in paths as they are, all else as @XX.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final
from urllib.parse import quote

from rowferry.change.table import TableId
from rowferry.errors import SinkDamaged
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.paths import (
    LAKE_PROGRESS,
    database_directory,
    escape,
    unescape,
)
from rowferry.moment import moment

PROGRESS: Final = LAKE_PROGRESS
OWN_FILES: Final = "rowferry."
_SIGN: Final = "@"
_PROGRESS_KEYS: Final = (
    "checkpoint-ts",
    "micro-batch",
    "schema-changes",
    "incarnation",
    "number",
    "discards",
)


def table_directory(table: TableId) -> str:
    """Return where a table is."""
    return f"{tables_directory(table.database)}/{_place_of(escape(table.table))}"


def tables_directory(database: str) -> str:
    """Return where the tables of a database are."""
    place = _place_of(database_directory(database))
    # A database may be called as one of our files.
    return "@72" + place[1:] if place.startswith(OWN_FILES) else place


def table_at(directory: str) -> TableId:
    """Return the table that a directory is of."""
    database, _, table = directory.replace(_SIGN, "%").partition("/")
    return TableId(unescape(database), unescape(table))


def _place_of(escaped: str) -> str:
    """Return an escaped name with those signs only that readers leave as they are.

    A place is a path to some of them and a URI to others: each has its own rules for `%`, `#`, `?`,
    spaces and letters beyond ASCII.
    """
    return quote(escaped, safe="%").replace("~", "%7E").replace("%", _SIGN)


def table_directories(files: Files, mark: str, database: str = "") -> Iterator[str]:
    """Yield the directories of tables: those with a directory `mark` in them."""
    moment("list lake tables")
    above = [e.name for e in files.entries("") if e.is_directory] if not database else [database]
    for one in above:
        if one.startswith(OWN_FILES):
            continue
        for entry in files.entries(one):
            path = f"{one}/{entry.name}"
            if entry.is_directory and any(e.name == mark for e in files.entries(path)):
                yield path


def tree(files: Files, directory: str) -> Iterator[str]:
    """Yield the path of every file below a directory."""
    moment("list lake files")
    for entry in files.entries(directory):
        path = f"{directory}/{entry.name}"
        if entry.is_directory:
            yield from tree(files, path)
        else:
            yield path


@dataclass(frozen=True, slots=True)
class Progress:
    """How far everything is there.

    Attributes:
        checkpoint_ts: all tables hold all changes up to it.
        micro_batch: of which rows are there, with the first `changes` of its schema changes.
        incarnation: which filling of the lake `micro_batch` counts.
        number: of the last plan that was carried out, as names of data files have it.
        discards: how many plans were given up before the one of `micro_batch`.
    """

    checkpoint_ts: int = 0
    micro_batch: int = 0
    changes: int = 0
    incarnation: int = 0
    number: int = 0
    discards: int = 0

    def content(self) -> bytes:
        """Return the file's content; `read` reads it back."""
        values = (getattr(self, field.name) for field in fields(self))
        return json.dumps(dict(zip(_PROGRESS_KEYS, values, strict=True))).encode()

    @classmethod
    def read(cls, content: bytes, shown: str) -> Progress:
        """Read what `content` gave.

        Raises:
            SinkDamaged: it is something else.
        """
        try:
            form = json.loads(content)
            return cls(*(int(form[name]) for name in _PROGRESS_KEYS))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise SinkDamaged(
                f"{shown} does not say how far the lake's tables are; restore it as it was and "
                "resume, or begin anew: rowferry changefeed reset --snapshot"
            ) from None
