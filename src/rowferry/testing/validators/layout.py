"""P8: a storage directory keeps its promises while a feed writes it, and over restarts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rowferry.change.chunk import Rows
from rowferry.testing.feed import WatchedFeed, Where
from rowferry.testing.validators.delivery import NothingLostOrInvented
from rowferry.testing.validators.oracle import DeliveryOracle
from rowferry.testing.validators.validator import Validator

_DATA = re.compile(r"CDC(\d+)\.(?!index$)[A-Za-z0-9]+(?:\.gz|\.zst)?", re.ASCII)
_OWNER = "rowferry.owner"


@dataclass(slots=True)
class _File:
    """A data file as it was last seen; `stamp` tells whether it must be read again."""

    stamp: tuple[int, int, int]
    digest: bytes


class _Stored(NothingLostOrInvented):
    promise: ClassVar[str] = "P8"


class StorageLayout(Validator):
    """P8. Call `observe` as often as wanted while a feed runs, and `finish` at its end.

    In each directory the numbers from 1 to the one that `CDC.index` names exist, the index never
    goes back, and a number never gets other content. A file above the index is not visible yet:
    it may go, or change, only if a plan was discarded meanwhile. `metadata` never goes back, and
    (with an oracle and a decoder) everything at or below it is in visible files, each change once.

    Args:
        root: the directory of a `file://` sink.
        oracle: what the source did; None: contents are not compared with it.
        decode: reads a data file's rows, e.g. `rowferry.testing.storage.StorageDecoder`.
        allow_repeats: a change may stand in visible files more than once.
    """

    promise: ClassVar[str] = "P8"

    def __init__(
        self,
        root: Path,
        oracle: DeliveryOracle | None = None,
        decode: Callable[[Path], Iterable[Rows]] | None = None,
        allow_repeats: bool = False,
    ) -> None:
        super().__init__()
        self._root = root
        self._files: dict[Path, _File] = {}
        self._indexes: dict[Path, int] = {}
        self._indexes_before: dict[Path, int] = {}  # at the look before this one
        self._checkpoint = 0
        self._discards = 0
        self._doomed: set[Path] = set()  # not visible when a discard was seen: they may go later
        self._decode = decode
        self._fed: set[Path] = set()
        self._stored: _Stored | None = None
        if oracle is not None and decode is not None:
            self._stored = _Stored(oracle, allow_repeats)
            self._feed = WatchedFeed(oracle.facts, [self._stored])
        else:
            self.leave_unchecked("metadata against contents, repeats: no history or no decoder")

    def observe(self) -> None:
        """Look at the directory as it is now. Safe while a feed writes to it."""
        self._look(trust_stamps=True)

    def finish(self) -> None:
        """Look a last time, reading every file again."""
        self._look(trust_stamps=False)

    def _look(self, trust_stamps: bool) -> None:
        # In the reverse order of writing: what metadata covers must be found by the later steps.
        checkpoint = self._read_metadata()
        published = self._read_indexes()
        self._check_files(trust_stamps)
        self._check_numbers(published)
        if self._stored is not None:
            self._feed_visible(published)
            self._stored.note_resolved(checkpoint)
            for words in self._stored.failures:
                if words not in self.failures:
                    self.failures.append(words)
            self.failed = max(self.failed, len(self.failures))

    def _read_metadata(self) -> int:
        try:
            checkpoint_ts = json.loads((self._root / "metadata").read_bytes())["checkpoint-ts"]
        except FileNotFoundError:
            if self._checkpoint:
                self.fail("metadata is gone")
            return self._checkpoint
        except (ValueError, KeyError, TypeError) as err:
            self.fail(f"metadata cannot be read: {err}")
            return self._checkpoint
        if checkpoint_ts < self._checkpoint:
            self.fail(f"metadata went back from {self._checkpoint} to {checkpoint_ts}")
        self._checkpoint = max(checkpoint_ts, self._checkpoint)
        return self._checkpoint

    def _read_indexes(self) -> dict[Path, int]:
        last_numbers: dict[Path, int] = {}
        for path in self._root.rglob("meta/CDC.index"):
            directory = path.parent.parent
            text = path.read_text("utf-8", "replace")
            name = _DATA.fullmatch(text.removesuffix("\n"))
            if name is None:
                self.fail(f"{self._shown(path)} holds {text[:80]!r}, not a data file's name")
                continue
            last_numbers[directory] = int(name[1])
        for directory, number in self._indexes.items():
            if last_numbers.get(directory, 0) < number:
                now = last_numbers.get(directory, "nothing")
                self.fail(f"{self._shown(directory)}: CDC.index went back from {number} to {now}")
        self._indexes_before = dict(self._indexes)
        self._indexes.update(last_numbers)
        return last_numbers

    def _check_files(self, trust_stamps: bool) -> None:
        there: dict[Path, _File] = {}
        for path in self._root.rglob("CDC*"):
            if _DATA.fullmatch(path.name) is None:
                continue
            known = self._files.get(path)
            try:
                stat = path.stat()
                stamp = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
                if known is not None and trust_stamps and known.stamp == stamp:
                    there[path] = known
                else:
                    digest = hashlib.blake2b(path.read_bytes(), digest_size=16).digest()
                    there[path] = _File(stamp, digest)
            except FileNotFoundError:  # taken away while we looked: judged below
                continue
        # A discard is marked before its files go, so it must be asked for after looking.
        discards = self._read_discards()
        for path, known in self._files.items():
            # what was not visible may have been discarded, made anew and published since
            visible = _number(path) <= self._indexes_before.get(path.parent, 0)
            if not visible and (discards != self._discards or path in self._doomed):
                if path not in there or there[path].digest != known.digest:
                    self._doomed.discard(path)  # what comes now is another plan's
                continue
            if path not in there:
                self.fail(f"{self._shown(path)} is gone")
            elif there[path].digest != known.digest:
                self.fail(f"{self._shown(path)} got other content")
        if discards != self._discards:  # it may still be removing what was seen just now
            before = self._files
            self._doomed = {
                p for p, f in there.items() if p not in before or before[p].digest == f.digest
            }
        self._doomed = {p for p in self._doomed if _number(p) > self._indexes.get(p.parent, 0)}
        self._discards = discards
        self._files = there

    def _check_numbers(self, published: dict[Path, int]) -> None:
        there: dict[Path, set[int]] = {}
        for path in self._files:
            numbers = there.setdefault(path.parent, set())
            if _number(path) in numbers:
                self.fail(f"{self._shown(path.parent)}: number {_number(path)} has two files")
            numbers.add(_number(path))
        for directory, last in published.items():
            missing = set(range(1, last + 1)) - there.get(directory, set())
            if missing:
                few = ", ".join(map(str, sorted(missing)[:5]))
                self.fail(f"{self._shown(directory)}: no file has number {few} (index: {last})")

    def _feed_visible(self, published: dict[Path, int]) -> None:
        assert self._decode is not None
        visible = [p for p in self._files if _number(p) <= published.get(p.parent, 0)]
        for path in sorted(set(visible) - self._fed, key=lambda p: (str(p.parent), _number(p))):
            self._fed.add(path)
            line = 1
            for rows in self._decode(path):
                self._feed.note_rows(rows, Where(self._shown(path), line))
                line += len(rows)

    def _read_discards(self) -> int:
        try:
            return int(json.loads((self._root / _OWNER).read_bytes()).get("discards", 0))
        except (FileNotFoundError, ValueError):
            return self._discards

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._root))


def _number(path: Path) -> int:
    match = _DATA.fullmatch(path.name)
    return int(match[1]) if match else 0
