"""Every file of ours below a prefix, with what it is."""

from __future__ import annotations

from collections.abc import Iterator

from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.paths import STAGING, AnyPath, parse_path

_DEEPEST = 6  # database/table/version/partition/date/meta


def walk(files: Files, date_separator: str = "") -> Iterator[tuple[str, AnyPath]]:
    """Yield path and meaning of each file that the layout knows, by name; others are passed."""
    for path in _paths(files, "", 0):
        found = parse_path(path, date_separator)
        if found is not None:
            yield path, found


def _paths(files: Files, directory: str, depth: int) -> Iterator[str]:
    for entry in files.entries(directory):
        path = f"{directory}/{entry.name}" if directory else entry.name
        if not entry.is_directory:
            yield path
        elif depth < _DEEPEST and path != STAGING:
            yield from _paths(files, path, depth + 1)
