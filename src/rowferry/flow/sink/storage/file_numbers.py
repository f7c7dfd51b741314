"""The last number of each directory: in the sink's state, in memory, and in CDC.index."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from rowferry.flow.sink.storage.files import Files, each
from rowferry.flow.sink.storage.measures import moved_on
from rowferry.flow.sink.storage.paths import META, index_path, parse_data_name
from rowferry.flow.sink.storage.published_marks import PublishedMarks
from rowferry.moment import moment

_KEPT_IN_STATE: Final = 256  # directories; the numbers of others are read from CDC.index again
_KEPT_IN_MEMORY: Final = 65536
_MANY: Final = 32  # directories whose numbers are not known
_LISTED_FOR_EACH: Final = 8


class FileNumbers:
    """Numbers that data files have used, by directory."""

    def __init__(self, files: Files, marks: PublishedMarks) -> None:
        self._files, self._marks = files, marks
        self._state: dict[str, int] = {}  # as of the last published plan
        self._last: dict[str, int] = {}  # the same, once CDC.index was asked; newest at the end

    def resume(self, state: dict[str, Any] | None) -> None:
        """Know what the last published plan knew."""
        self._state, self._last = _numbers_in(state), {}

    def last_of(self, directories: Sequence[str]) -> dict[str, int]:
        """Return the last number in use of each directory.

        Raises:
            TargetLost, TargetWentBack: an index that was published is gone, or is an older one.
        """
        self._survey(directories)
        numbers = each(self._files, self._last_number, directories)
        return dict(zip(directories, numbers, strict=True))

    def foresee(self, last: Mapping[str, int]) -> dict[str, Any]:
        """Return the sink's state once a plan is published that ends with these numbers."""
        return {"delivered": moved_on(self._state, last, _KEPT_IN_STATE)}

    def publish(self, last: Mapping[str, int], state: dict[str, Any] | None) -> None:
        """Take over the numbers of a published plan, and the state that it foresaw."""
        self._last = moved_on(self._last, last, _KEPT_IN_MEMORY)
        if state:
            self._state = moved_on(self._state, _numbers_in(state), _KEPT_IN_STATE)

    def ask_again(self, directory: str) -> None:
        """Believe CDC.index the next time. For use from several threads."""
        self._last.pop(directory, None)

    def forget(self, directories: Collection[str]) -> None:
        """Know nothing of directories that are gone for good."""
        self._last = {d: n for d, n in self._last.items() if d not in directories}
        self._state = {d: n for d, n in self._state.items() if d not in directories}

    def require_index(self, directory: str, number: int) -> None:
        """Refuse an index that says less than was published. Raises as `last_of`."""
        self._marks.require_index(directory, number, self._state.get(directory, 0))

    def _survey(self, directories: Sequence[str]) -> None:
        """Find the new ones among many directories with one list, as far as that is short."""
        moment("survey storage")
        unknown = [d for d in directories if d not in self._last]
        if len(unknown) < _MANY:
            return
        there = self._files.survey(_LISTED_FOR_EACH * len(unknown))
        if there is not None:
            used = {path.rpartition("/")[0].removesuffix(f"/{META}") for path in there}
            new = [d for d in unknown if d not in used]
            for directory in new:
                self.require_index(directory, 0)
            self._last.update((d, self._state.get(d, 0)) for d in new)

    def _last_number(self, directory: str) -> int:
        """Return the last number in use: published, or named by CDC.index.

        That one is used up also where its file is gone: a reader may have moved it away, and would
        not look for another one of that number.
        """
        moment("look for last number")
        known = self._last.get(directory)
        if known is not None:
            return known
        index = index_path(directory)
        recorded = self._marks.number_in(self._files.recall(index), index)
        self.require_index(directory, recorded)
        number = max(recorded, self._state.get(directory, 0))
        if not self._files.has_locks:
            number = max(number, self._last_taken(directory))
        self._last[directory] = number
        return number

    def _last_taken(self, directory: str) -> int:
        """Return the last number that has a file; above the index, discarded plans left them."""
        names = (parse_data_name(e.name) for e in self._files.entries(directory))
        return max((name[0] for name in names if name), default=0)


def _numbers_in(state: dict[str, Any] | None) -> dict[str, int]:
    """Return the last numbers of directories; `last` was their key in earlier versions."""
    stored = state or {}
    return dict(stored["delivered"] if "delivered" in stored else stored.get("last", {}))
