"""The small files that make work visible are replaced by the owner, if they are as it saw them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rowferry.errors import SinkUnavailable
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.storage.files import Files, Staged, Stored, each
from rowferry.flow.sink.storage.index_file import metadata_content, metadata_of_epoch
from rowferry.flow.sink.storage.ownership import Ownership
from rowferry.flow.sink.storage.paths import METADATA
from rowferry.moment import moment

_TRIES = 10
_UNDER_A_LOCK = 128


class SmallFiles:
    """Index, schema and metadata files of one prefix."""

    def __init__(self, files: Files, ownership: Ownership) -> None:
        self._files = files
        self._ownership = ownership

    def put(
        self, contents: Mapping[str, bytes], wanted: Callable[[str, Stored | None], bool]
    ) -> None:
        """Write each content that is wanted in place of what is there now, as the owner.

        What is there is read before the owner is verified, and replaced only if still the same: so
        an owner that was replaced in between replaces nothing. On return all of it is durable.

        Raises:
            SinkUnavailable: somebody else changed one of the files meanwhile.
        """
        moment("read small files")
        if not contents:
            return
        old = dict(zip(contents, each(self._files, self._files.recall, contents), strict=True))
        staged: dict[str, Staged] = {}
        try:
            for path, data in contents.items():
                if wanted(path, old[path]):
                    staged[path] = self._files.stage(data)
            self._files.flush(staged.values())
            # A lock is held for a few files only, since tasks wait for it; without locks one look
            # is enough. Also who has nothing to write must hear that it was replaced.
            ready = list(staged)
            step = _UNDER_A_LOCK if self._files.has_locks else max(1, len(ready))
            for first in range(0, max(1, len(ready)), step):
                group = ready[first : first + step]
                moment("replace small files")
                with self._ownership.fenced():
                    each(self._files, lambda path: self._swap(path, staged[path], old[path]), group)
            self._files.settle()
            moment("small files replaced")
        finally:
            for content in staged.values():
                content.abandon()

    def _swap(self, path: str, content: Staged, expected: Stored | None) -> None:
        if not content.swap(path, expected):
            raise SinkUnavailable(
                f"{self._files.shown(path)} was changed by somebody else meanwhile"
            )

    def shut_out_older_owners(
        self, owner: Owner, checkpoint_in: Callable[[Stored | None], int]
    ) -> None:
        """Change `metadata`, so that an older owner that read it before now finds it changed.

        Whoever reads it after this finds the claim, too. Where there is none, it says that nothing
        is stored yet: an older owner may be about to create it.
        """
        moment("shut out older owners")
        for _ in range(_TRIES):
            stored = self._files.get(METADATA)
            checkpoint = checkpoint_in(stored)
            if self._files.has_locks and stored is None:
                return
            content = (
                metadata_content(checkpoint)
                if self._files.has_locks
                else metadata_of_epoch(max(checkpoint, 0), owner.epoch)
            )
            with self._ownership.fenced():
                if self._files.swap(METADATA, content, stored):
                    return
        raise SinkUnavailable(f"{self._files.shown(METADATA)} is changed by others all the time")
