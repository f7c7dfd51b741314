"""The list of planted defects, `planted.toml`, and how one is planted in a copy of the sources."""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("planted.toml")
PACKAGE = "rowferry"


class ListIsRotten(Exception):
    """The list no longer fits the sources: the text tells which entry, and why."""


@dataclass(frozen=True)
class Mutant:
    """One defect; `planted.toml` says what its fields mean."""

    id: str
    file: str
    promise: str
    breaks: str
    old: str
    new: str
    first: tuple[str, ...] = ()

    def planted_in(self, text: str) -> str:
        """Return a file's text with the defect in it.

        Raises:
            ListIsRotten: the old text does not stand in it exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise ListIsRotten(
                f"{self.id}: its old text stands {count} times in {self.file}, not once; look what "
                "became of the code, and plant the defect there"
            )
        return text.replace(self.old, self.new)


def read_list(path: Path = LIST) -> tuple[Mutant, ...]:
    """Return all defects, in the list's order."""
    with path.open("rb") as file:
        entries = tomllib.load(file)["mutant"]
    return tuple(Mutant(**{**e, "first": tuple(e.get("first", ()))}) for e in entries)


class Copy:
    """A copy of the sources, compiled kernels among them, in which one defect at a time stands."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "src"
        # With their times: compiled kernels and bytecode are believed by those.
        shutil.copytree(ROOT / "src", self.path, copy_function=shutil.copy2)

    @contextmanager
    def with_(self, mutant: Mutant) -> Iterator[None]:
        """Plant a defect, and take it out again."""
        place = self.path / PACKAGE / mutant.file
        about, text = place.stat(), place.read_text()
        place.write_text(mutant.planted_in(text))
        _forget_bytecode(place)
        try:
            yield
        finally:
            place.write_text(text)
            os.utime(place, ns=(about.st_atime_ns, about.st_mtime_ns))
            _forget_bytecode(place)


def _forget_bytecode(place: Path) -> None:
    """Two versions of a file may have one size, and be written in one second."""
    for compiled in (place.parent / "__pycache__").glob(f"{place.stem}.*.pyc"):
        compiled.unlink()
