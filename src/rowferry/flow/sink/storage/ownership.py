"""Who may write below a prefix: one changefeed, and of it the highest epoch only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rowferry.errors import (
    Fenced,
    FileConflict,
    PlanDiscarded,
    SinkOwned,
    SinkUnavailable,
    TargetLost,
)
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.storage.files import Files, Stored, walk
from rowferry.flow.sink.storage.index_file import OwnerMark
from rowferry.flow.sink.storage.paths import (
    LAKE_PROGRESS,
    METADATA,
    OWNER,
    Metadata,
    SchemaFile,
)
from rowferry.moment import moment

_TRIES = 10


class Ownership:
    """The owner's mark of one prefix, and the checks against it.

    Every change of published content happens inside `fenced`: under the prefix's lock, after the
    mark was read there. So an owner that was replaced fails before it changes anything.

    Where the storage has no locks, an owner may be replaced while it is inside. Then three rules
    keep what was published: whatever is to be replaced is read before `fenced` and replaced only if
    still the same; a new owner changes `metadata` after its claim, so that no replacement of it
    begun before succeeds; and numbers of discarded plans stay taken, by empty files.
    """

    def __init__(self, files: Files, table_of: Callable[[str], str | None] | None = None) -> None:
        """Watch over a prefix.

        `table_of` returns a table at the target that a changefeed of a name has made, as users
        know it; None: there is none. It is asked where no mark tells whose the prefix is. Without
        it there are no tables.
        """
        self._files = files
        self._table_of = table_of
        self._owner: Owner | None = None

    def _table_made_by(self, changefeed: str) -> str | None:
        return None if self._table_of is None else self._table_of(changefeed)

    def probe(self, owner: Owner) -> None:
        """Raise SinkOwned or SinkDamaged if this owner may not write here; writes nothing."""
        moment("probe owner mark")
        mark = self._read()
        if mark is None:
            self._refuse_foreign_content()
            return
        self._refuse_other_changefeed(mark, owner)
        if mark.owner.epoch > owner.epoch:
            raise SinkOwned(
                f"{self._files.shown('')} was written by changefeed {owner.changefeed!r} at epoch "
                f"{mark.owner.epoch}, ours is {owner.epoch}: it belongs to an earlier changefeed "
                "of that name, or runs elsewhere; choose another sink URI or delete the directory"
            )

    def claim(self, owner: Owner) -> bool:
        """Write the mark, taking over from a lower epoch; return whether there was none before.

        Raises:
            SinkOwned: another changefeed's output is here.
            SinkUnwritable: a new prefix is in a store that does not compare before it writes.
            Fenced: a higher epoch has claimed it.
            SinkUnavailable: others change the mark all the time.
        """
        moment("claim storage")
        with self._files.locked():
            for _ in range(_TRIES):
                stored = self._files.get(OWNER)
                mark = self._parse(stored.data) if stored else None
                if mark is None:
                    self._refuse_foreign_content()
                    if (table := self._table_made_by(owner.changefeed)) is not None:
                        raise self._unmarked(table)
                    self._files.check_compares()
                    mark = OwnerMark(owner)
                self._refuse_other_changefeed(mark, owner)
                self._refuse_newer(mark, owner)
                content = replace(mark, owner=owner).content()
                if stored and stored.data == content or self._files.swap(OWNER, content, stored):
                    self._owner = owner
                    return stored is None
        raise SinkUnavailable(f"{self._files.shown(OWNER)} is changed by others all the time")

    def require_mark(self, table: str) -> None:
        """Raise SinkOwned if nothing tells whose a table is but the name of a changefeed.

        Other meta databases may have a changefeed of that name.
        """
        moment("look for owner mark")
        if self._read() is None:
            raise self._unmarked(table)

    @contextmanager
    def fenced(self) -> Iterator[OwnerMark]:
        """Hold the lock, as the owner.

        Raises:
            Fenced: somebody else has claimed the prefix since.
        """
        owner = self._claimed()
        with self._files.locked():
            yield self._verified(owner)[0]

    def _verified(self, owner: Owner) -> tuple[OwnerMark, Stored]:
        """Return the mark, which must be this owner's."""
        stored = self._files.get(OWNER)
        if stored is None:
            raise owner_lost(self._files)
        mark = self._parse(stored.data)
        if mark.owner.changefeed != owner.changefeed or _is_namesake(mark, owner):
            raise Fenced(
                f"{self._files.shown('')} now belongs to changefeed {mark.owner.changefeed!r}"
                + (" of another meta database" if _is_namesake(mark, owner) else "")
            )
        self._refuse_newer(mark, owner)
        return mark, stored

    def discard_count(self) -> int:
        """Return how many plans were discarded here; raises TargetLost where no mark tells it."""
        mark = self._read()
        if mark is None:
            raise owner_lost(self._files)
        return mark.discards

    def count_discard(self) -> None:
        """Shut out the tasks of every plan made so far: `admit` refuses them from now on."""
        moment("count discard")
        owner = self._claimed()
        with self._files.locked():
            for _ in range(_TRIES):
                mark, stored = self._verified(owner)
                content = replace(mark, discards=mark.discards + 1).content()
                if self._files.swap(OWNER, content, stored):
                    return
        raise SinkUnavailable(f"{self._files.shown(OWNER)} is changed by others all the time")

    def _claimed(self) -> Owner:
        if self._owner is None:
            raise Fenced(f"{self._files.shown('')} was not claimed; open the sink first")
        return self._owner

    @contextmanager
    def admit(self, discards: int) -> Iterator[None]:
        """Let a task of a plan made after that many discards create files, many tasks at once.

        Raises:
            PlanDiscarded: the plan was discarded meanwhile.
            TargetLost: the owner's mark is gone.
        """
        with self._files.locked(shared=True):
            self._refuse_discarded(discards)
            try:
                yield
            except FileConflict:
                # Without locks the discard may have come, and taken the number, meanwhile.
                self._refuse_discarded(discards)
                raise

    def _refuse_discarded(self, discards: int) -> None:
        now = self.discard_count()
        if now != discards:
            raise PlanDiscarded(
                f"{self._files.shown('')}: this plan was made before a discard "
                f"({discards} of {now}); its files are not written any more"
            )

    def _read(self) -> OwnerMark | None:
        stored = self._files.get(OWNER)
        return self._parse(stored.data) if stored else None

    def _parse(self, content: bytes) -> OwnerMark:
        return OwnerMark.read(content, self._files.shown(OWNER))

    def _refuse_other_changefeed(self, mark: OwnerMark, owner: Owner) -> None:
        if mark.owner.changefeed != owner.changefeed:
            raise SinkOwned(
                f"{self._files.shown('')} belongs to changefeed {mark.owner.changefeed!r}; choose "
                f"another sink URI for {owner.changefeed!r}, or remove that changefeed and delete "
                "the directory"
            )
        if _is_namesake(mark, owner):
            raise SinkOwned(
                f"{self._files.shown('')} belongs to another changefeed {owner.changefeed!r}, of "
                "another meta database or of earlier; choose another sink URI or delete the "
                "directory"
            )

    def _refuse_newer(self, mark: OwnerMark, owner: Owner) -> None:
        if mark.owner.epoch > owner.epoch:
            raise Fenced(
                f"{self._files.shown('')} was taken over: it is at epoch {mark.owner.epoch}, "
                f"ours is {owner.epoch}"
            )

    def _refuse_foreign_content(self) -> None:
        if self._files.exists(LAKE_PROGRESS):
            raise self._unmarked(self._files.shown(LAKE_PROGRESS))
        foreign = METADATA if self._files.exists(METADATA) else None
        if foreign is None:
            known_files = (
                p for p, kind in walk(self._files) if isinstance(kind, Metadata | SchemaFile)
            )
            foreign = next(known_files, None)
        if foreign is not None:
            raise SinkOwned(
                f"{self._files.shown('')} holds the output of another feed "
                f"({self._files.shown(foreign)}); choose an empty directory, or restore {OWNER} "
                "if it is this changefeed's own"
            )

    def _unmarked(self, place: str) -> SinkOwned:
        return SinkOwned(
            f"{place} was written by a changefeed, and {self._files.shown(OWNER)}, which says by "
            "which one, is gone; choose another sink URI, or delete all lake tables there, or "
            "restore that file if they are this changefeed's own"
        )


def _is_namesake(mark: OwnerMark, owner: Owner) -> bool:
    """Return whether a mark with an owner's name is certainly not its own."""
    theirs, ours = mark.owner.made_ms, owner.made_ms
    return mark.owner.changefeed == owner.changefeed and 0 not in (theirs, ours) and theirs != ours


def owner_lost(files: Files) -> TargetLost:
    """Return the error for a prefix that has lost its owner's mark, alone or with all else."""
    return TargetLost(
        f"{files.shown(OWNER)} is gone, and perhaps all that this changefeed has written beside "
        "it; restore it as it was and resume, or delete what is left and begin anew: rowferry "
        "changefeed reset --snapshot"
    )
