"""A storage whose names were listed once: one request instead of one for each directory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from rowferry.downstream.storage_check.layout import Content

_DEEPEST = 64  # also what lies where nothing should be


class StorageListing(Protocol):
    """Any storage: all paths, and objects."""

    def paths(self, depth: int) -> Iterable[str]:
        """Yield the path of every object at most `depth` directories deep."""

    def get(self, path: str) -> Content | None:
        """Return an object; None: there is none."""


@dataclass(frozen=True, slots=True)
class _Named:
    name: str
    is_directory: bool


@dataclass(slots=True)
class _Directory:
    files: list[str] = field(default_factory=list)
    below: dict[str, _Directory] = field(default_factory=dict)


class Listing:
    """All names of a storage as they were when it was made; objects are read when asked for."""

    def __init__(self, storage: StorageListing) -> None:
        self._storage = storage
        self._top = _Directory()
        for path in storage.paths(_DEEPEST):
            *parents, name = path.split("/")
            here = self._top
            for parent in parents:
                here = here.below.setdefault(parent, _Directory())
            here.files.append(name)

    def entries(self, directory: str) -> list[_Named]:
        """Return the names in a directory; "" is the prefix."""
        here = self._top
        for part in directory.split("/") if directory else ():
            if part not in here.below:
                return []
            here = here.below[part]
        entries = [_Named(name, False) for name in here.files]
        return entries + [_Named(name, True) for name in here.below]

    def get(self, path: str) -> Content | None:
        """Return an object; None: there is none."""
        return self._storage.get(path)
