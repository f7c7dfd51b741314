"""Reading a sink from a place to an end: checked, put in order, handed on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from rowferry.change.chunk import Change, Rows, SchemaChange, Watermark
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.downstream.consume.arrival import (
    Arrival,
    ArrivedRow,
    ArrivedStatement,
    Where,
    row_changes,
)
from rowferry.downstream.consume.checks import Checks, ConsumeFindings
from rowferry.downstream.consume.partitions import PartitionCheck
from rowferry.downstream.consume.replay import ChangeReplay
from rowferry.downstream.consume.storage import (
    is_storage,
    placed_changes,
    stored_files,
    written_spec,
)
from rowferry.errors import BadOption, BadUri, DecodeError
from rowferry.flow.assemble import format_of
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.flow.encode.contract import Codec, CommitTime, Format, StoredFormat
from rowferry.flow.sink.kafka.options import read_settings
from rowferry.flow.sink.storage.options import StorageOptions
from rowferry.registry import SINKS
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.rules.dispatch import dispatch_rules

if TYPE_CHECKING:
    from rowferry.downstream.consume.kafka_topics import TopicMessage, TopicReader

_MILLISECOND: Final = (1 << PHYSICAL_SHIFT) - 1


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """What to read, and how far.

    Attributes:
        sink_uri: where the changefeed wrote; a Kafka URI may name several topics, with commas.
        config: the changefeed's configuration file; with one, partitions are checked by its rules.
        after_ts: rows at or below this commit-ts are read and checked, and not handed on.
        at_end: begin behind what is there now (Kafka).
        until_ts: end when everything up to this commit-ts was handed on.
        until_end: end when everything that is there was read.
    """

    sink_uri: str
    config: Path | None = None
    after_ts: int = 0
    at_end: bool = False
    until_ts: int | None = None
    until_end: bool = False


class Taker(Protocol):
    """Takes changes in an order that can be applied."""

    def take(self, changes: Iterable[Arrival]) -> None:
        """Take some; on return they are dealt with."""


@dataclass(slots=True)
class ConsumeOutcome:
    """What a run found.

    Attributes:
        watermark: everything up to here was handed on; 0 where the format has none.
        waiting: changes that arrived and no watermark has passed.
        notes: what could not be checked, in words.
    """

    findings: ConsumeFindings
    watermark: int = 0
    waiting: int = 0
    notes: list[str] = field(default_factory=list)


def consume(
    request: ConsumeRequest,
    takers: Callable[[ConsumeFindings], Iterable[Taker]],
    stop: threading.Event,
    tell: Callable[[ConsumeOutcome], None] = lambda outcome: None,
    secrets: SecretSources = NO_STORE,
) -> ConsumeOutcome:
    """Read until the end that was asked for, or until `stop`.

    Args:
        request: what to read.
        takers: makes those who get the changes, each in turn; faults of theirs count as findings.
        stop: ends the run at the next border.
        tell: hears of the progress.
        secrets: where the values of references come from.

    Raises:
        BadInput: the request cannot be understood.
        SinkError: what is to be read or written cannot be reached.
        DecodeError: something there is not of the format; names the place.
    """
    spec, notices = written_spec(request.sink_uri, request.config)
    spec = secrets.resolved_sink(spec)
    codec = format_of(spec)
    scheme = spec.sink.scheme
    queued = is_queue(scheme)
    if not queued and not is_storage(scheme):
        known = ", ".join([*SINKS.installed(is_queue), *SINKS.installed(is_storage)])
        raise BadUri(f"{scheme}:// cannot be read back; known: {known}")
    _refuse_unclear_times(request, codec)
    outcome = ConsumeOutcome(ConsumeFindings(), notes=notices)
    run = _Run(request, outcome, list(takers(outcome.findings)))
    if queued:
        run.read_topics(spec, cast(Codec, codec), stop, tell)
    else:
        run.read_storage(spec, codec, stop, tell)
    return outcome


def _refuse_unclear_times(request: ConsumeRequest, codec: Format) -> None:
    """Refuse a border that rows do not tell exactly: some would be on the wrong side of it."""
    # Formats of messages tell it, too, although no tables can be rebuilt of them.
    commit_time: CommitTime = getattr(codec, "commit_time", CommitTime("exact"))
    if commit_time.exactness == "exact":
        return
    for option, border in (("--from", request.after_ts), ("--until", request.until_ts)):
        if border and commit_time.exactness == "none":
            raise BadOption(
                f"{option} {border}: rows do not tell when they were committed, because "
                f"{commit_time.why}"
            )
        if border and ~border & _MILLISECOND:
            raise BadOption(
                f"{option} {border}: {commit_time.why}; {border | _MILLISECOND} is the end of that "
                "millisecond"
            )


class _Run:
    """One run: where arrivals meet checks, the replay and the takers."""

    def __init__(
        self, request: ConsumeRequest, outcome: ConsumeOutcome, takers: list[Taker]
    ) -> None:
        self._request, self._outcome, self._takers = request, outcome, takers
        self._checks = Checks(outcome.findings, not request.at_end)

    # --- storage ---------------------------------------------------------------------------------

    def read_storage(
        self,
        spec: ChangefeedSpec,
        codec: Format,
        stop: threading.Event,
        tell: Callable[[ConsumeOutcome], None],
    ) -> None:
        """Read a storage once, in the order in which its files are replayed."""
        if self._request.at_end:
            raise BadOption("--from end: a storage is read from its beginning")
        why = codec.unseen_moves if isinstance(codec, StoredFormat) else ""
        if why and spec.options(StorageOptions).output_raw_change_event:
            self._outcome.notes.append(
                f"output-raw-change-event with {why}: an update that changes a key does not tell "
                "the old one, whose row stays where it is applied"
            )
        for where, change in placed_changes(stored_files(spec), codec):
            if stop.is_set():
                return
            if isinstance(change, Watermark):
                self._outcome.watermark = change.commit_ts
                continue
            ready: list[Arrival] = []
            for arrival in _arrivals(change, where, numbered=True):
                if isinstance(arrival, ArrivedRow):
                    self._checks.note_row(arrival)
                elif arrival.change.query:
                    self._checks.note_statement(arrival)
                ready.append(arrival)
            self._hand_on(ready)
            tell(self._outcome)

    # --- topics ----------------------------------------------------------------------------------

    def read_topics(
        self,
        spec: ChangefeedSpec,
        codec: Codec,
        stop: threading.Event,
        tell: Callable[[ConsumeOutcome], None],
    ) -> None:
        """Read topics until the end that was asked for."""
        marked = codec.encode_watermark(Watermark(1), 0) is not None
        if self._request.until_ts is not None and not marked:
            raise BadOption(
                f"--until {self._request.until_ts}: this feed carries no watermarks, so nothing "
                "tells when all up to there has arrived; use --until end"
            )
        named = [name for name in spec.sink.path.strip("/").split(",") if name]
        rules = DispatchRules(spec, named[0] if named else "", codec.TRAITS.one_table_per_topic)
        check = PartitionCheck(spec, rules, self._outcome.findings)
        wanted = _wanted(spec, rules, named)
        # Imported here: its library comes with an extra, which readers of files need not have.
        from rowferry.downstream.consume.kafka_topics import TopicReader

        reader = TopicReader(read_settings(spec), wanted, named, self._request.at_end)
        try:
            topics = reader.partitions.items()
            replay = ChangeReplay(_container(t, n) for t, count in topics for n in range(count))
            while not stop.is_set() and not self._reached(replay, reader):
                new, messages = reader.read()
                for place in new:
                    replay.include(_container(*place))
                straight: list[Arrival] = []
                for message in messages:
                    decoded = _decoded(codec, message)
                    if self._request.config is not None:
                        _check_partitions(check, decoded, message, reader.partitions)
                    for arrival, seen in self._arrive(decoded, message, replay):
                        if marked:
                            replay.add(arrival, seen)
                        else:
                            straight.append(arrival)
                self._hand_on(straight + replay.ready(self._request.until_ts))
                self._outcome.watermark, self._outcome.waiting = replay.resolved, replay.waiting
                tell(self._outcome)
        finally:
            reader.close()
        self._outcome.notes += [f"{n} rows unchecked: {why}" for why, n in check.unchecked.items()]

    def _reached(self, replay: ChangeReplay, reader: TopicReader) -> bool:
        if self._request.until_ts is not None:
            return replay.resolved >= self._request.until_ts
        return self._request.until_end and reader.at_end

    def _arrive(
        self, decoded: list[Change], message: TopicMessage, replay: ChangeReplay
    ) -> Iterator[tuple[Arrival, bool]]:
        """Check one message; yield its rows and schema changes, and whether they were seen."""
        where = Where(_container(message.topic, message.partition), message.offset)
        for change in decoded:
            if isinstance(change, Watermark):
                self._checks.note_watermark(change.commit_ts, where)
                replay.mark(where.container, change.commit_ts)
                continue
            for arrival in _arrivals(change, where):
                if isinstance(arrival, ArrivedRow):
                    yield arrival, self._checks.note_row(arrival)
                elif not self._checks.note_statement(arrival):  # once is enough
                    yield arrival, False

    def _hand_on(self, arrivals: list[Arrival]) -> None:
        until = self._request.until_ts
        kept = [
            a
            for a in arrivals
            if a.commit_ts > self._request.after_ts or not a.commit_ts
            if until is None or a.commit_ts <= until
        ]
        if kept:
            for taker in self._takers:
                taker.take(kept)


def is_queue(scheme: str) -> bool:
    """Return whether sinks of such a URI write to topics that can be read here."""
    sink = SINKS.load(scheme)
    if not sink.TRAITS.has_topics:
        return False
    # Imported here: its library comes with an extra, which readers of files need not have.
    from rowferry.flow.sink.kafka.sink import KafkaSink

    return issubclass(sink, KafkaSink)


def _wanted(spec: ChangefeedSpec, rules: DispatchRules, named: list[str]) -> Callable[[str], bool]:
    """Return which topics are read: those named, or the named one and those of the rules."""

    def wanted(topic: str) -> bool:
        if topic in named or len(named) > 1 or topic.startswith("__"):
            return topic in named
        return any(r.topic and rules.may_reach(r, topic) for r in dispatch_rules(spec))

    return wanted


def _container(topic: str, partition: int) -> str:
    return f"{topic}[{partition}]"


def _decoded(codec: Codec, message: TopicMessage) -> list[Change]:
    try:
        return list(codec.decode_message(message.key, message.value))
    except DecodeError as err:
        where = f"{_container(message.topic, message.partition)}@{message.offset}"
        raise DecodeError(f"{where}: {err.words}") from None


def _check_partitions(
    check: PartitionCheck, decoded: list[Change], message: TopicMessage, partitions: dict[str, int]
) -> None:
    topic = message.topic
    for change in decoded:
        if isinstance(change, Rows):
            check.note(change, topic, message.partition, partitions[topic], message.offset)


def _arrivals(change: Change, where: Where, numbered: bool = False) -> Iterator[Arrival]:
    match change:
        case Rows():
            yield from row_changes(change, where, numbered)
        case SchemaChange():
            yield ArrivedStatement(change, where)
