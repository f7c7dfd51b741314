"""The notes of changefeeds in the cluster: who writes which index, who runs, and how far it is.

A changefeed has one document, which is written over the one that was read and no other
(`if_seq_no`), and one for each of its indexes, which only the first that comes can make.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rowferry.errors import Fenced, SinkOwned, SinkUnwritable, TargetLost, TargetWentBack
from rowferry.flow.sink.contract import RESTORE, Owner
from rowferry.flow.sink.search.client import Answer, Cluster

_TRIES: Final = 100
_AT_ONCE: Final = 1000
_MAPPING: Final = {
    "settings": {"number_of_shards": 1, "auto_expand_replicas": "0-1"},
    "mappings": {"dynamic": False, "properties": {"changefeed": {"type": "keyword"}}},
}


@dataclass(frozen=True, slots=True)
class FeedNote:
    """What a changefeed has noted.

    Attributes:
        changes_begun: the plan whose schema changes were begun last, by a name of its own.
        changes_done: how many of them are done, the first ones.
    """

    epoch: int
    micro_batch: int = 0
    commit_ts: int = 0
    changes_begun: str = ""
    changes_done: int = 0
    place: tuple[int, int] | None = None  # sequence number and primary term of what was read


class IndexOwnership:
    """The notes of one changefeed."""

    def __init__(self, cluster: Cluster, changefeed: str) -> None:
        self._cluster, self._changefeed = cluster, changefeed
        self._index = cluster.settings.options.ownership_index

    # --- the changefeed ---------------------------------------------------------------------------

    def read(self) -> FeedNote | None:
        """Return the changefeed's note; None: there is none."""
        answer = self._cluster.ask("GET", (self._index, "_doc", self._feed_id))
        if not answer.is_good:
            return None
        own = answer.body["_source"]
        return FeedNote(
            int(own["epoch"]),
            int(own["micro_batch"]),
            int(own["commit_ts"]),
            str(own["changes_begun"]),
            int(own.get("changes_done", 0)),  # older notes lack it
            (answer.body["_seq_no"], answer.body["_primary_term"]),
        )

    def check_epoch(self, epoch: int) -> FeedNote | None:
        """Return the note of a changefeed that nobody else has taken over.

        Raises:
            Fenced: somebody with a higher epoch has.
        """
        note = self.read()
        if note is not None and note.epoch > epoch:
            raise Fenced(
                f"{self._cluster.settings.shown}: changefeed {self._changefeed!r} was taken over "
                f"with epoch {note.epoch}; this process has {epoch}"
            )
        return note

    def claim(self, owner: Owner) -> None:
        """Note that this owner runs the changefeed; older ones are refused from then on.

        Raises:
            Fenced: somebody with a higher epoch was here.
            TargetLost: what this changefeed has noted is gone.
            TargetWentBack: less is noted than was delivered.
        """
        if self.check_epoch(owner.epoch) is None and not owner.continues:
            self._make()
        self._check_reached(owner)

        def claimed(note: FeedNote | None) -> FeedNote:
            return replace(note, epoch=owner.epoch) if note else FeedNote(owner.epoch)

        self._change(owner.epoch, claimed)

    def begin_changes(self, epoch: int, plan: str) -> None:
        """Note that all rows of a plan are there, and its schema changes begin."""

        def begun(note: FeedNote | None) -> FeedNote:
            return replace(note or FeedNote(epoch), changes_begun=plan, changes_done=0)

        self._change(epoch, begun)

    def end_change(self, epoch: int, plan: str, number: int) -> None:
        """Note that a plan's schema changes are done up to this one, counted from 1."""

        def ended(note: FeedNote | None) -> FeedNote:
            old = note or FeedNote(epoch)
            done = old.changes_done if old.changes_begun == plan else 0
            return replace(old, changes_begun=plan, changes_done=max(done, number))

        self._change(epoch, ended)

    def reach(self, epoch: int, micro_batch: int, commit_ts: int | None) -> None:
        """Note how far the changefeed is; it never goes back."""

        def reached(note: FeedNote | None) -> FeedNote:
            old = note or FeedNote(epoch)
            return replace(
                old,
                micro_batch=max(old.micro_batch, micro_batch),
                commit_ts=max(old.commit_ts, commit_ts or 0),
            )

        self._change(epoch, reached)

    def _check_reached(self, owner: Owner) -> None:
        if not owner.continues:
            return
        note = self.read()
        where = f"{self._cluster.settings.shown}: index {self._index}"
        if note is None:
            raise TargetLost(
                f"{where} knows nothing of changefeed {self._changefeed!r}, which has delivered "
                f"up to commit-ts {owner.delivered}: it was deleted, or another cluster took its "
                f"place; {RESTORE}"
            )
        if note.commit_ts < owner.delivered or note.micro_batch < owner.micro_batch:
            raise TargetWentBack(
                f"{where} has the changes of changefeed {self._changefeed!r} up to commit-ts "
                f"{note.commit_ts} and micro-batch {note.micro_batch} only, but they were "
                f"delivered up to {owner.delivered} and {owner.micro_batch}: it was restored, or "
                "another cluster took its place"
            )

    def _change(self, epoch: int, change: Any) -> None:
        """Write a new note over the one that is there; if another came between, look again."""
        for _ in range(_TRIES):
            note = self.check_epoch(epoch)
            new = change(note)
            if new == note:
                return
            query = {"op_type": "create"}
            if note is not None and note.place is not None:
                query = {"if_seq_no": str(note.place[0]), "if_primary_term": str(note.place[1])}
            form = {
                "changefeed": self._changefeed,
                "epoch": new.epoch,
                "micro_batch": new.micro_batch,
                "commit_ts": new.commit_ts,
                "changes_begun": new.changes_begun,
                "changes_done": new.changes_done,
            }
            answer = self._cluster.ask("PUT", (self._index, "_doc", self._feed_id), form, query)
            if answer.is_good:
                return
            if answer.status != 409:
                raise _refused(self._cluster, f"writing a note to index {self._index}", answer)
        raise self._cluster.unavailable(f"index {self._index}: others write the same note")

    def _make(self) -> None:
        """Make the index of notes where it is missing."""
        answer = self._cluster.ask("PUT", (self._index,), _MAPPING)
        if not answer.is_good and answer.kind != "resource_already_exists_exception":
            raise _refused(self._cluster, f"making index {self._index}", answer)

    @property
    def _feed_id(self) -> str:
        return f"changefeed:{self._changefeed}"

    # --- indexes ----------------------------------------------------------------------------------

    def check_free(self, names: Sequence[str]) -> None:
        """Ask whether indexes may be this changefeed's; writes nothing.

        Raises:
            SinkOwned: another changefeed writes one of them.
        """
        for start in range(0, len(names), _AT_ONCE):
            ids = [f"index:{name}" for name in names[start : start + _AT_ONCE]]
            answer = self._cluster.ask("POST", (self._index, "_mget"), {"ids": ids})
            if not answer.is_good:  # there are no notes yet
                return
            for one in answer.body["docs"]:
                if one.get("found") and one["_source"]["changefeed"] != self._changefeed:
                    raise self._owned(one["_id"], one["_source"]["changefeed"])

    def take(self, name: str) -> None:
        """Note that an index is this changefeed's.

        Raises:
            SinkOwned: it is another one's.
        """
        path = (self._index, "_doc", f"index:{name}")
        form = {"changefeed": self._changefeed}
        answer = self._cluster.ask("PUT", path, form, {"op_type": "create"})
        if answer.is_good:
            return
        there = self._cluster.ask("GET", path)
        if not there.is_good:
            raise _refused(self._cluster, f"writing a note to index {self._index}", answer)
        if there.body["_source"]["changefeed"] != self._changefeed:
            raise self._owned(f"index:{name}", there.body["_source"]["changefeed"])

    def let_go(self, names: Iterable[str]) -> None:
        """Note that indexes are nobody's any more."""
        for name in names:
            self._cluster.ask("DELETE", (self._index, "_doc", f"index:{name}"))

    def leave(self) -> None:
        """Take away all notes of this changefeed; what was delivered stays."""
        self._cluster.ask("POST", (self._index, "_refresh"))
        query = {"query": {"term": {"changefeed": self._changefeed}}}
        how = {"conflicts": "proceed", "refresh": "true"}
        self._cluster.ask("POST", (self._index, "_delete_by_query"), query, how)

    def _owned(self, note: str, other: str) -> SinkOwned:
        name = note.removeprefix("index:")
        return SinkOwned(
            f"{self._cluster.settings.shown}: index {name} belongs to changefeed {other!r}; remove "
            "that changefeed, give the option index another rule, or, if it is gone, delete the "
            f"document {note} of index {self._index}"
        )


def _refused(cluster: Cluster, doing: str, answer: Answer) -> SinkUnwritable:
    return SinkUnwritable(
        f"{cluster.settings.shown}: {doing} is refused ({answer.status}: "
        f"{cluster.hidden(str(answer.body))})"
    )
