"""Micro-batches that are durable in a storage before the downstream has any row of them.

Below the changefeed's name each try at a micro-batch has a directory of its own,
`<micro-batch>-<epoch>-<try>`: `plan.json`, written first, and a file for each segment with its
packets, as the sink gets them. A try is complete when all of its segments are there; only then is
the first row written downstream. `reached-<epoch>.json` says which micro-batch the downstream has
whole. So whatever is lost at whatever moment, the downstream has the micro-batches up to the one
that is reached, and of the next one nothing, or a part of what a complete try holds.

Not every micro-batch ends at one point of the source: while rows of a table are read beside the
log, some tables are ahead of others. Such a one has no watermark, and is noted with commit-ts 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rowferry.change.plan import Plan, Segment, TableSlice, Topic
from rowferry.change.table import TableSchema
from rowferry.errors import SinkDamaged, SinkUnavailable, SinkUnwritable
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.flow.sink.packing import from_bytes, to_bytes
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

_FORMAT: Final = 1
_PLAN: Final = "plan.json"
_TRY: Final = re.compile(r"(\d{20})-(\d{10})-(\d{6})")
_REACHED: Final = re.compile(r"reached-(\d{10})\.json")
_PACKETS: Final = pa.schema(
    [
        ("number", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("messages", pa.large_binary()),
    ]
)


@dataclass(frozen=True, slots=True, order=True)
class Reached:
    """What the downstream has whole; `epoch` is of whoever noted it.

    Attributes:
        commit_ts: everything up to there is downstream; 0: some tables are ahead of others.
        farthest: the highest commit-ts up to which something may have been written.
        applied: `redo apply` noted it, not the changefeed.
        kind: of the sink.
        config: the settings of the sink, without secrets.
    """

    epoch: int
    micro_batch: int
    commit_ts: int
    farthest: int = field(default=0, compare=False)
    applied: bool = field(default=False, compare=False)
    kind: str = field(default="", compare=False)
    config: Mapping[str, Any] = field(default_factory=dict, compare=False)


class TryName(NamedTuple):
    """A try at a micro-batch: the order of the names is that of the tries."""

    micro_batch: int
    epoch: int
    number: int

    @property
    def directory(self) -> str:
        """Its directory below the changefeed's."""
        return f"{self.micro_batch:020d}-{self.epoch:010d}-{self.number:06d}"


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A complete try: all that is needed to write a micro-batch downstream.

    Attributes:
        plan: as readers of the sink see it; it cannot be read from the source any more.
        tables: the definition of each slice, as readers see it.
        kind: of the sink that it was made for.
        config: the settings of the sink, without secrets.
    """

    name: TryName
    plan: Plan
    tables: Mapping[TableSlice, TableSchema]
    kind: str
    config: Mapping[str, Any]

    @property
    def watermark(self) -> int:
        """The point of the source at which the downstream is when all of it is written; 0: none."""
        return self.plan.stretch.watermark or 0


class RedoLog:
    """The redo log of one changefeed: written by its owner and its tasks, read by `redo apply`."""

    def __init__(
        self,
        files: Files,
        changefeed: str,
        kind: str = "",
        config: Mapping[str, Any] | None = None,
        compression: str | None = None,
    ) -> None:
        """Ask nobody; `kind` and `config` are what is kept of the sink's settings."""
        self._files, self._changefeed = files, changefeed
        self._kind, self._config = kind, dict(config or {})
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._epoch = 0
        self._tries = 0
        self._reached = Reached(0, 0, 0)  # what was to be noted last
        self._is_noted = True
        self._farthest = 0
        self._begun: list[tuple[TryName, tuple[str, ...]]] = []  # with their files

    def __str__(self) -> str:
        return self._files.shown(self._changefeed)

    # --- the owner --------------------------------------------------------------------------------

    def probe(self) -> None:
        """Ask whether it can be written here; writes nothing.

        Raises:
            SinkUnwritable, SinkUnavailable: it cannot.
        """
        moment("probe redo log")
        try:
            self._files.check_writable()
        except (SinkUnwritable, SinkUnavailable) as err:
            raise type(err)(f"the redo log, consistent.storage: {err.words}") from err

    def open(self, owner: Owner) -> None:
        """Note what is reached, and remove what is not needed any more.

        Call it behind the sink's own `open`: nobody of an older epoch writes downstream then.
        """
        moment("open redo log")
        self._files.prepare()
        last = self.last_reached()
        plans = [kept for name in self.tries() if (kept := self._complete(name)) is not None]
        self._epoch, self._tries, self._begun = owner.epoch, 0, []
        self._farthest = max([last.farthest if last else 0, *(kept.watermark for kept in plans)])
        given_up = [] if owner.continues else [kept for kept in plans if not kept.watermark]
        if owner.continues and last is not None and last.micro_batch == owner.micro_batch + 1:
            # `redo apply` has completed what this owner will carry out again; see `all_kept`.
            self._note(last.micro_batch, last.commit_ts)
        else:
            point = self._point(last, owner.micro_batch, owner.delivered)
            self._note(owner.micro_batch, 0 if given_up else point)
        self._clear(owner.micro_batch + 1, owner.continues)

    def note_applied(self, epoch: int, last: Reached, kept: KeptPlan | None) -> None:
        """Note, with the epoch of `redo apply`, that the downstream has all that was kept."""
        self._epoch, self._farthest = epoch, last.farthest
        newest = kept or last
        self._kind, self._config = newest.kind, dict(newest.config)
        if kept is None:
            self._note(last.micro_batch, last.commit_ts, applied=True)
        else:
            self._note(kept.plan.micro_batch, kept.watermark, applied=True)
        self._clear(self._reached.micro_batch + 1)

    def catch_up(self, micro_batch: int, delivered: int) -> None:
        """Note what comes before a micro-batch, if its own note did not come.

        So the downstream is one micro-batch ahead of the log at most. `delivered` is the watermark
        that the changefeed has published.
        """
        last = self._reached
        if last.micro_batch < micro_batch - 1 or not self._is_noted:
            before = max(last.micro_batch, micro_batch - 1)
            self._note(before, self._point(last, before, delivered))

    def begin(self, plan: Plan, tables: Mapping[TableSlice, TableSchema], delivered: int) -> str:
        """Begin a try at a plan and return its directory, where tasks keep their segments.

        `delivered` is as `catch_up` has it.
        """
        self.catch_up(plan.micro_batch, delivered)
        self._tries += 1
        name = TryName(plan.micro_batch, self._epoch, self._tries)
        form = {
            "format": _FORMAT,
            "changefeed": self._changefeed,
            "plan": _without_source(plan).to_json(),
            "tables": [[one.to_json(), table.to_json()] for one, table in tables.items()],
            "sink": self._kind,
            "config": self._config,
        }
        segments = (f"{segment.ordinal}.arrow" for segment in plan.stretch.segments)
        self._begun.append((name, (*segments, _PLAN)))
        moment("keep plan in redo log")
        self._files.overwrite(self._path(name.directory, _PLAN), json.dumps(form).encode())
        if not plan.stretch.segments:
            self.all_kept(plan)
        return name.directory

    def all_kept(self, plan: Plan) -> None:
        """Say that a try is complete: from now on the downstream may have a part of it.

        Where `redo apply` has written all of it before, that counts no more.
        """
        self._farthest = max(self._farthest, plan.stretch.watermark or 0)
        if self._reached.micro_batch >= plan.micro_batch:
            self._note(plan.micro_batch - 1, 0)

    def reached(self, micro_batch: int, commit_ts: int | None) -> None:
        """Note that a micro-batch is whole downstream; what was kept of it is removed.

        `commit_ts` is the point of the source at which it is then; 0: at none, None: where it was.
        """
        self._note(micro_batch, self._reached.commit_ts if commit_ts is None else commit_ts)
        begun, self._begun = self._begun, []
        for name, files in begun:
            self._remove(name, files)

    # --- tasks ------------------------------------------------------------------------------------

    def keep(self, directory: str, segment: int, packets: Iterator[Packet]) -> None:
        """Keep the packets of a segment; on return they are durable."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _PACKETS, options=self._options) as stream:
            for packet in packets:
                messages = to_bytes(packet.messages)
                bounds = pa.array([0, messages.size], pa.int64()).buffers()[1]
                columns = [
                    pa.array([packet.number], pa.int32()),
                    pa.array([json.dumps(packet.topic.to_json())]),
                    pa.array([packet.partition], pa.int32()),
                    pa.Array.from_buffers(pa.large_binary(), 1, [None, bounds, messages]),
                ]
                stream.write_batch(pa.record_batch(columns, schema=_PACKETS))
        moment("keep segment in redo log")
        self._files.overwrite(
            self._path(directory, f"{segment}.arrow"), sink.getvalue().to_pybytes()
        )
        moment("segment kept in redo log")

    def packets(self, directory: str, segment: int) -> Iterator[Packet]:
        """Yield the packets of a segment in their order.

        Raises:
            SinkDamaged: the file is gone or cannot be read.
        """
        path = self._path(directory, f"{segment}.arrow")
        moment("read segment of redo log")
        stored = self._files.get(path)
        if stored is None:
            raise SinkDamaged(
                f"{self._files.shown(path)} of the redo log is gone; nobody but its changefeed may "
                "remove files there"
            )
        try:
            with pa.ipc.open_stream(pa.py_buffer(stored.data)) as stream:
                if stream.schema != _PACKETS:
                    raise ValueError("it has other columns")
                for batch in stream:
                    number, topic, partition = (batch.column(i)[0].as_py() for i in range(3))
                    messages = from_bytes(batch.column(3)[0].as_buffer())
                    place = Topic.from_json(json.loads(topic))
                    yield Packet(segment, number, place, partition, messages)
        except (pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError, IndexError) as err:
            raise SinkDamaged(f"{self._files.shown(path)} cannot be read: {err}") from err

    # --- whoever applies it -----------------------------------------------------------------------

    def last_reached(self) -> Reached | None:
        """Return what the downstream has whole; None: nothing was ever kept here."""
        notes = [self._read_reached(name) for name in self._reached_names()]
        return max(notes, default=None)

    def complete(self, micro_batch: int) -> KeptPlan | None:
        """Return the complete try at a micro-batch that reaches farthest; None: there is none.

        Tries may be at different plans, where one was given up; each of the complete ones may have
        been written downstream in part, and the one that reaches farthest covers the others. One
        that ends at no point of the source is covered by none.
        """
        plans: list[KeptPlan] = []
        for name in self.tries():
            if name.micro_batch == micro_batch and (kept := self._complete(name)) is not None:
                plans.append(kept)
        return max(
            plans, key=lambda one: (not one.watermark, one.watermark, one.name), default=None
        )

    def tries(self) -> list[TryName]:
        """Return all tries that left something."""
        moment("list redo log")
        names = [e.name for e in self._files.entries(self._changefeed) if e.is_directory]
        matches = [match for name in names if (match := _TRY.fullmatch(name))]
        return sorted(TryName(int(m[1]), int(m[2]), int(m[3])) for m in matches)

    # --- pieces -----------------------------------------------------------------------------------

    def _path(self, *parts: str) -> str:
        return "/".join((self._changefeed, *parts))

    def _point(self, last: Reached | None, micro_batch: int, delivered: int) -> int:
        """Return the point of the source at which the downstream is with a published micro-batch.

        `last` is the newest note, and may be of an earlier one. 0: at none, or nobody knows.
        """
        if last is None or last.micro_batch == micro_batch:
            return last.commit_ts if last else 0
        kept = self.complete(micro_batch)
        if kept is not None:
            return kept.watermark
        # Without a try it wrote no row, and has moved the watermark alone.
        is_next = last.micro_batch == micro_batch - 1
        return delivered if is_next and last.commit_ts else 0

    def _note(self, micro_batch: int, commit_ts: int, applied: bool = False) -> None:
        self._farthest = max(self._farthest, commit_ts)
        self._reached, self._is_noted = Reached(self._epoch, micro_batch, commit_ts), False
        form = {
            "format": _FORMAT,
            "micro_batch": micro_batch,
            "commit_ts": commit_ts,
            "farthest": self._farthest,
            "applied": applied,
            "sink": self._kind,
            "config": self._config,
        }
        moment("note what is reached in redo log")
        path = self._path(f"reached-{self._epoch:010d}.json")
        self._files.overwrite(path, json.dumps(form).encode())
        self._is_noted = True

    def _clear(self, following: int, continues: bool = True) -> None:
        """Remove older notes, and tries but those at the micro-batch that follows.

        Without `continues` there was a reset: what was kept before is of a plan that is no more.
        """
        moment("clear redo log")
        for name in self._reached_names():
            if _epoch_of(name) < self._epoch:
                self._files.delete(self._path(name))
        for one in self.tries():
            is_needed = one.micro_batch == following and (continues or one.epoch == self._epoch)
            if not is_needed and one.epoch <= self._epoch:
                self._remove(one)

    def _reached_names(self) -> list[str]:
        moment("look for notes in redo log")
        names = [e.name for e in self._files.entries(self._changefeed) if not e.is_directory]
        return [name for name in names if _REACHED.fullmatch(name)]

    def _read_reached(self, name: str) -> Reached:
        form = self._form(self._path(name))
        try:
            return Reached(
                _epoch_of(name),
                int(form["micro_batch"]),
                int(form["commit_ts"]),
                int(form["farthest"]),
                bool(form["applied"]),
                str(form["sink"]),
                dict(form["config"]),
            )
        except (KeyError, TypeError, ValueError) as err:
            raise self._damaged(self._path(name), err) from err

    def _complete(self, name: TryName) -> KeptPlan | None:
        """Return a try if all of it is there."""
        moment("list try in redo log")
        here = {e.name for e in self._files.entries(self._path(name.directory))}
        if _PLAN not in here:
            return None
        path = self._path(name.directory, _PLAN)
        form = self._form(path)
        try:
            plan = Plan.from_json(form["plan"])
            tables = {
                TableSlice.from_json(one): TableSchema.from_json(table)
                for one, table in form["tables"]
            }
            kept = KeptPlan(name, plan, tables, str(form["sink"]), dict(form["config"]))
        except (KeyError, TypeError, ValueError) as err:
            raise self._damaged(path, err) from err
        wanted = {f"{segment.ordinal}.arrow" for segment in plan.stretch.segments}
        return kept if wanted <= here else None

    def _form(self, path: str) -> dict[str, Any]:
        moment("read from redo log")
        stored = self._files.get(path)
        try:
            form = json.loads(stored.data if stored is not None else b"")
            if form["format"] != _FORMAT:
                raise ValueError(f"format {form['format']!r} is not known here")
        except (KeyError, TypeError, ValueError, RecursionError) as err:
            raise self._damaged(path, err) from err
        return dict(form)

    def _damaged(self, path: str, err: Exception) -> SinkDamaged:
        return SinkDamaged(f"{self._files.shown(path)} of the redo log cannot be read: {err}")

    def _remove(self, name: TryName, files: Iterable[str] = ()) -> None:
        """Remove a try; without `files`, all that lies there."""
        directory = self._path(name.directory)
        moment("remove from redo log")
        for file in files or [e.name for e in self._files.entries(directory)]:
            self._files.delete(f"{directory}/{file}")
        self._files.prune(directory)


def _epoch_of(name: str) -> int:
    match = _REACHED.fullmatch(name)
    return int(match[1]) if match else 0


def _without_source(plan: Plan) -> Plan:
    """Return a plan without what only the source understands; it is gone when this is needed."""

    def bare(segment: Segment) -> Segment:
        return replace(segment, read={}, payload=b"", near=())

    stretch = plan.stretch
    segments = tuple(bare(segment) for segment in stretch.segments)
    return plan.with_(
        outputs=(), stretch=replace(stretch, segments=segments, position={}, ranges=())
    )
