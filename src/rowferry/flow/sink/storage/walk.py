"""Every file of ours below a prefix, with what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.paths import STAGING, AnyPath, parse_path

_DEEPEST = 6  # database/table/version/partition/date/meta


def walk(
    files: Files, date_separator: str = "", named: Callable[[str], str] = str
) -> Iterator[tuple[str, AnyPath]]:
    """Yield path and meaning of each file that the layout knows, by name; others are passed.

    Args:
        files: where they are.
        date_separator: see `parse_path`.
        named: returns the name of the layout under which a path is looked at.
    """
    for path in sorted(p for p in files.paths(_DEEPEST) if not p.startswith(f"{STAGING}/")):
        kind = parse_path(named(path), date_separator)
        if kind is not None:
            yield path, kind
