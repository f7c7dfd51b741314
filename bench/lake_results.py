"""The results of a run into lake tables, in their file after each figure: a crash loses nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from report import Figure, load_average, machine


class Results:
    """The figures of one file, by name.

    Attributes:
        about: the machine, and how it was when its first figure was measured.

    Args:
        place: the file.
        go_on: keep what is in it; without it, the first figure begins it anew.

    Raises:
        SystemExit: the file is of another machine.
    """

    def __init__(self, place: Path, go_on: bool = False) -> None:
        self._place = place
        self._figures: dict[str, Figure] = {}
        self.about = machine()
        if go_on and place.exists():
            stored: dict[str, Any] = json.loads(place.read_text())
            found = [Figure(**one) for one in stored.pop("figures")]
            stored.pop("load_average_after", None)
            for what in ("cpu", "cores", "memory_gb"):
                if stored.get(what) != self.about[what]:
                    raise SystemExit(
                        f"{place} is of a machine with {what} = {stored.get(what)}, this one has "
                        f"{self.about[what]}: begin another file with --results"
                    )
            self.about = stored
            self._figures = {one.name: one for one in found}

    @property
    def figures(self) -> list[Figure]:
        """All of them, in the order in which they were first measured."""
        return list(self._figures.values())

    def has(self, *names: str) -> bool:
        """Return whether all of these were measured."""
        return self._figures.keys() >= set(names)

    def note(self, figure: Figure) -> None:
        """Add a figure, in place of one of that name, and write the file."""
        self._figures[figure.name] = figure
        whole = {
            **self.about,
            "load_average_after": load_average(),
            "figures": [asdict(one) for one in self.figures],
        }
        self._place.parent.mkdir(parents=True, exist_ok=True)
        part = self._place.with_name(f"{self._place.name}.part")
        part.write_text(json.dumps(whole, indent=2) + "\n")
        part.rename(self._place)
