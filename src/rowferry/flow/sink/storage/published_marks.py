"""What `CDC.index` and `metadata` tell, and whether that is as much as was published."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from rowferry.errors import TargetLost, TargetWentBack
from rowferry.flow.sink.contract import RESTORE, Owner
from rowferry.flow.sink.storage.expire import may_be_removed
from rowferry.flow.sink.storage.files import Files, Stored
from rowferry.flow.sink.storage.index_file import Naming, metadata_content, read_metadata
from rowferry.flow.sink.storage.options import StorageSettings
from rowferry.flow.sink.storage.ownership import owner_lost
from rowferry.flow.sink.storage.paths import METADATA, OWNER, index_path
from rowferry.moment import moment


class PublishedMarks:
    """Reads the files that tell readers how far they may read."""

    def __init__(
        self,
        files: Files,
        naming: Naming,
        settings: StorageSettings,
        now: Callable[[], datetime],
    ) -> None:
        self._files = files
        self._naming = naming
        self._settings = settings
        self._now = now

    def number_in(self, stored: Stored | None, path: str) -> int:
        """Return the number that an index names; 0: there is none."""
        return self._naming.read_index(stored.data, self._files.shown(path)) if stored else 0

    def checkpoint_in(self, stored: Stored | None) -> int:
        """Return the commit-ts that `metadata` tells; -1: there is none."""
        return read_metadata(stored.data, self._files.shown(METADATA)) if stored else -1

    def require_delivered(self, owner: Owner) -> None:
        """Raise unless the files are here that say what was delivered."""
        moment("look for what was delivered")
        if self._files.get(OWNER) is None:
            raise owner_lost(self._files)
        self.require_metadata(self._files.get(METADATA), owner.delivered)

    def require_metadata(self, stored: Stored | None, delivered: int) -> None:
        """Raise where `metadata` tells less than was delivered."""
        checkpoint_ts = self.checkpoint_in(stored)
        if not delivered or checkpoint_ts >= delivered:
            return
        shown = self._files.shown(METADATA)
        if stored is None:
            raise TargetLost(
                f"{shown} is gone, which said that all is stored up to commit-ts {delivered}; if "
                f"all other files are there, put {metadata_content(delivered).decode()} into it "
                "and resume, or else begin anew: rowferry changefeed reset --snapshot"
            )
        raise TargetWentBack(
            f"{shown} says that all is stored up to commit-ts {checkpoint_ts} only, but it was "
            f"delivered up to {delivered}: older files were put in place"
        )

    def require_index(self, directory: str, number: int, known: int) -> None:
        """Raise where `CDC.index` tells less than `known`, which was published; 0: it told nothing.

        Directories of days so long ago that they are removed may be gone.
        """
        if number >= known or may_be_removed(directory, self._settings, self._now()):
            return
        shown = self._files.shown(index_path(directory))
        name = self._naming.data_name(known)
        if number:
            last_name = self._naming.data_name(number)
            raise TargetWentBack(
                f"{shown} names {last_name}, but files up to {name} were delivered: older files "
                f"were put in place; {RESTORE}"
            )
        raise TargetLost(
            f"{shown} is gone, which named {name}; if all files up to that are there, put the name "
            "into it and resume, or else begin anew: rowferry changefeed reset --snapshot"
        )
