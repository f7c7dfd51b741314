"""Every error that a user can see, with its code and verdict.

    RowferryError
    ├── BadInput            RF-1xxx  the user must change something; nothing was written
    │   ├── UnknownOption, BadOption, BadConfigFile, BadUri, BadFilterRule, BadStatement, ...
    ├── StateError          RF-2xxx  the meta database says no (lease, epoch, versions)
    ├── SourceError         RF-3xxx  reading the source
    ├── SinkError           RF-4xxx  writing the sink
    ├── EncodeError         RF-5xxx  a value that a codec cannot write or read
    ├── StoreError          RF-6xxx  the reference store
    └── EngineError         RF-7xxx  Spark

Doctrine: unknown errors retry with back-off; only errors marked STOP fail a changefeed; REPLAN
means that the recorded plan can never run again (its snapshot is gone): it is discarded and the
stretch is planned anew. `str(error)` is one line, `[RF-4001] words`, because only text crosses from
a Spark worker to the driver. Codes are never reused.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import ClassVar


class Verdict(Enum):
    """What the supervisor does about an error."""

    RETRY = "retry"
    STOP = "stop"
    REPLAN = "replan"


class RowferryError(Exception):
    """Something went wrong, and we know what: the text says it in one line."""

    code: ClassVar[str] = "RF-0000"
    verdict: ClassVar[Verdict] = Verdict.RETRY

    def __init__(self, words: str) -> None:
        self.words = " ".join(words.split())
        super().__init__(self.words)

    def __str__(self) -> str:
        return f"[{self.code}] {self.words}"

    def __reduce__(self) -> tuple[type[RowferryError], tuple[str]]:
        return (type(self), (self.words,))


# --- RF-1xxx: the user's words -------------------------------------------------------------------


class BadInput(RowferryError):
    """What the user asked for cannot be done as written; nothing was written or started."""

    code = "RF-1000"
    verdict = Verdict.STOP


class UnknownOption(BadInput):
    """A key that nobody knows here; the text lists the known ones."""

    code = "RF-1001"


class BadOption(BadInput):
    """A known key with a value of the wrong type or outside the allowed ones."""

    code = "RF-1002"


class BadConfigFile(BadInput):
    """A configuration file that cannot be read or parsed."""

    code = "RF-1003"


class BadUri(BadInput):
    """A source or sink URI that cannot be understood."""

    code = "RF-1004"


class BadFilterRule(BadInput):
    """A table filter rule with a syntax error."""

    code = "RF-1005"


class BadStatement(BadInput):
    """A DDL text that cannot be parsed or does not fit the table."""

    code = "RF-1006"


class UnknownName(BadInput):
    """A source, codec or sink name that is not registered; the text lists the known ones."""

    code = "RF-1007"


class OptionsConflict(BadInput):
    """Two options that cannot be used together; the text gives the reason."""

    code = "RF-1008"


class NoSuchTable(BadInput):
    """A table that was named exactly does not exist in the source."""

    code = "RF-1009"


class BadChangefeedId(BadInput):
    """A changefeed id with characters that are not allowed, or too long."""

    code = "RF-1010"


class BadDispatchRule(BadInput):
    """A partition or topic expression that cannot be used, as written or for some table."""

    code = "RF-1012"


class BadRoute(BadInput):
    """A table routing expression that cannot be used, or that sends two tables to one name."""

    code = "RF-1013"


class BadEventFilter(BadInput):
    """An event filter whose event, pattern or expression cannot be used."""

    code = "RF-1014"


class BadColumnSelector(BadInput):
    """A column selector with a wrong pattern, or one that leaves a table without a key."""

    code = "RF-1015"


class TableIneligible(BadInput):
    """Tables without a usable key, which the user neither forces nor leaves out."""

    code = "RF-1011"


# --- RF-2xxx: the meta database ------------------------------------------------------------------


class StateError(RowferryError):
    """The meta database refuses."""

    code = "RF-2000"


class MetaUnavailable(StateError):
    """The meta database did not answer; the same call may work later."""

    code = "RF-2001"


class Fenced(StateError):
    """Another process took this changefeed over; this one must stop at once."""

    code = "RF-2002"
    verdict = Verdict.STOP


class LeaseHeld(StateError):
    """The changefeed is running elsewhere."""

    code = "RF-2003"
    verdict = Verdict.STOP


class SpecChanged(StateError):
    """The stored changefeed was made with other settings."""

    code = "RF-2004"
    verdict = Verdict.STOP


class MetaDamaged(StateError):
    """The meta database holds something that this version cannot read."""

    code = "RF-2005"
    verdict = Verdict.STOP


class IllegalMove(StateError):
    """The changefeed's state does not allow this; the text lists what it allows."""

    code = "RF-2006"
    verdict = Verdict.STOP


class NoSuchChangefeed(StateError):
    """No changefeed of this id is stored."""

    code = "RF-2007"
    verdict = Verdict.STOP


class ChangefeedExists(StateError):
    """A changefeed of this id is stored already."""

    code = "RF-2008"
    verdict = Verdict.STOP


class PlanRefused(StateError):
    """The plan contradicts what is recorded: another one is pending, or its number is not next."""

    code = "RF-2009"
    verdict = Verdict.STOP


# --- RF-3xxx: sources ----------------------------------------------------------------------------


class SourceError(RowferryError):
    """Reading the source failed."""

    code = "RF-3000"


class SourceUnavailable(SourceError):
    """The source did not answer; the same read may work later."""

    code = "RF-3001"


class SnapshotGone(SourceError):
    """A snapshot version no longer exists (the leader moved); a new one must be made."""

    code = "RF-3002"
    verdict = Verdict.REPLAN


class LogLost(SourceError):
    """The log was compacted past our position: changes cannot be read any more."""

    code = "RF-3003"
    verdict = Verdict.STOP


class CorruptLog(SourceError):
    """The source sent bytes that cannot be decoded; the text names the place."""

    code = "RF-3004"
    verdict = Verdict.STOP


class SourceMismatch(SourceError):
    """The source is not the one that this changefeed was created for."""

    code = "RF-3005"
    verdict = Verdict.STOP


class SourceUnsupported(SourceError):
    """The source lacks something that this changefeed needs."""

    code = "RF-3006"
    verdict = Verdict.STOP


class TableVersionUnknown(SourceError):
    """A row refers to a table version that was never recorded."""

    code = "RF-3007"
    verdict = Verdict.STOP


class LoginRefused(SourceError):
    """The source does not let this user in, or does not let it do what is needed."""

    code = "RF-3008"
    verdict = Verdict.STOP


class ReplicaIdTaken(SourceError):
    """Another replica reads the source's log with the same server id."""

    code = "RF-3009"
    verdict = Verdict.STOP


class EventUnknown(SourceError):
    """The log holds an event, or a form of one, that is not understood; the text names it."""

    code = "RF-3010"
    verdict = Verdict.STOP


class SnapshotOutdated(SourceError):
    """A table was altered while its snapshot was read; the snapshot is planned anew."""

    code = "RF-3011"
    verdict = Verdict.REPLAN


class SourceMoved(SourceError):
    """Another server answers at the source's address; the stretch is planned anew by GTID."""

    code = "RF-3012"
    verdict = Verdict.REPLAN


class TableAltered(SourceError):
    """A table was altered, emptied or dropped, and a Spark query on it cannot go on as it is."""

    code = "RF-3013"
    verdict = Verdict.STOP


# --- RF-4xxx: sinks ------------------------------------------------------------------------------


class SinkError(RowferryError):
    """Writing the sink failed."""

    code = "RF-4000"


class SinkUnavailable(SinkError):
    """The sink did not answer; the same write may work later."""

    code = "RF-4001"


class RowRejected(SinkError):
    """The sink refused this row for good; retrying cannot help."""

    code = "RF-4002"
    verdict = Verdict.STOP


class SinkUnwritable(SinkError):
    """The target cannot be written (permissions, not a directory, read-only)."""

    code = "RF-4003"
    verdict = Verdict.STOP


class SinkOwned(SinkError):
    """The target belongs to another changefeed."""

    code = "RF-4004"
    verdict = Verdict.STOP


class SinkDamaged(SinkError):
    """A file of ours at the target was changed or damaged by someone else."""

    code = "RF-4005"
    verdict = Verdict.STOP


class FileConflict(SinkError):
    """A data file of our number exists with other content."""

    code = "RF-4006"
    verdict = Verdict.STOP


class SchemaRefused(SinkError):
    """The schema registry refused a schema, e.g. because older readers could not read it."""

    code = "RF-4007"
    verdict = Verdict.STOP


class TopicRefused(SinkError):
    """A topic that is missing, has too few partitions, or cannot take one more table."""

    code = "RF-4008"
    verdict = Verdict.STOP


class PlanDiscarded(SinkError):
    """The plan was discarded while its tasks still ran; its files must not appear any more."""

    code = "RF-4010"
    verdict = Verdict.REPLAN


# --- RF-5xxx: codecs -----------------------------------------------------------------------------


class EncodeError(RowferryError):
    """A value cannot be written in this format."""

    code = "RF-5000"
    verdict = Verdict.STOP


class MessageTooLarge(EncodeError):
    """A row whose message is longer than the queue takes."""

    code = "RF-5002"
    verdict = Verdict.STOP


class DecodeError(RowferryError):
    """Bytes are not what this format allows; the text names the place."""

    code = "RF-5001"
    verdict = Verdict.STOP


# --- RF-6xxx: the reference store ----------------------------------------------------------------


class StoreError(RowferryError):
    """The reference store refused a request."""

    code = "RF-6000"
    verdict = Verdict.STOP


class StoreUnavailable(StoreError):
    """The reference store did not answer."""

    code = "RF-6001"
    verdict = Verdict.RETRY


class TransactionAborted(StoreError):
    """The transaction was rolled back (a conflict, or given up as abandoned); try it again."""

    code = "RF-6002"
    verdict = Verdict.RETRY


class StoreDamaged(StoreError):
    """A file of the reference store is damaged beyond its torn tail."""

    code = "RF-6003"


# --- RF-7xxx: Spark ------------------------------------------------------------------------------


class EngineError(RowferryError):
    """Spark could not run a job."""

    code = "RF-7000"


class TaskFailed(EngineError):
    """A task ended without an error of ours (a worker died, memory ran out); it is tried again."""

    code = "RF-7001"


class NoJava(EngineError):
    """No usable Java was found."""

    code = "RF-7002"
    verdict = Verdict.STOP


# --- text ⇄ error --------------------------------------------------------------------------------


def _tree(root: type[RowferryError]) -> dict[str, type[RowferryError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        for code, error in _tree(child).items():
            if found.setdefault(code, error) is not error:
                raise TypeError(f"{code} is used twice")
    return found


BY_CODE: dict[str, type[RowferryError]] = _tree(RowferryError)
_TAG = re.compile(r"\[(RF-\d{4})\] ([^\n]*)")


def from_text(text: str) -> RowferryError | None:
    """Return the error whose one-line text stands last in `text`, or None."""
    found = _TAG.findall(text)
    if not found:
        return None
    code, words = found[-1]
    error = BY_CODE.get(code)
    return error(words) if error else None
