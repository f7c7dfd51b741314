"""Every error that a user can see, with its code and verdict.

    RowferryError
    ├── BadInput            RF-1xxx  the user must change something; nothing was written
    │   ├── UnknownOption, BadOption, BadConfigFile, BadUri, BadFilterRule, BadStatement, ...
    ├── StateError          RF-2xxx  the meta database says no (lease, epoch, versions)
    ├── SourceError         RF-3xxx  reading the source
    ├── SinkError           RF-4xxx  writing the sink
    ├── EncodeError         RF-5xxx  a value that a codec cannot write or read
    ├── StoreError          RF-6xxx  the reference store
    ├── EngineError         RF-7xxx  Spark
    └── ServerError         RF-8xxx  a Rowferry server, as its clients see it

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
    cure: ClassVar[str] = "Nothing yet: it is tried again. If it stays, read the server's log."
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
    cure = "Correct what the text names, then ask again."
    verdict = Verdict.STOP


class UnknownOption(BadInput):
    """A key that nobody knows here; the text lists the known ones."""

    code = "RF-1001"
    cure = "Remove the key, or correct it to one of those that the text lists."


class BadOption(BadInput):
    """A known key with a value of the wrong type or outside the allowed ones."""

    code = "RF-1002"
    cure = "Give the key one of the values that the text allows."


class BadConfigFile(BadInput):
    """A configuration file that cannot be read or parsed."""

    code = "RF-1003"
    cure = "Correct the file that the text names."


class BadUri(BadInput):
    """A source or sink URI that cannot be understood."""

    code = "RF-1004"
    cure = "Correct the URI; write special characters in it as %XX."


class BadFilterRule(BadInput):
    """A table filter rule with a syntax error."""

    code = "RF-1005"
    cure = "Correct the rule: DATABASE.TABLE, with * and ? as wildcards and ! to exclude."


class BadStatement(BadInput):
    """A statement that cannot be parsed, or a DDL text that does not fit the table."""

    code = "RF-1006"
    cure = "Correct the statement at the place that the text names."


class UnknownName(BadInput):
    """A source, codec or sink name that is not registered; the text lists the known ones."""

    code = "RF-1007"
    cure = "Use one of the names that the text lists."


class OptionsConflict(BadInput):
    """Two options that cannot be used together; the text gives the reason."""

    code = "RF-1008"
    cure = "Remove one of the two settings."


class LoginUnverified(BadInput):
    """A warning: a database was given the password, and nobody verified that it is the real one."""

    code = "RF-1035"
    cure = "Set ssl-mode=verify-identity and ssl-ca."


class WrittenOntoItself(OptionsConflict):
    """A changefeed whose sink is the server that it reads, under the names that it reads."""

    code = "RF-1025"
    cure = "Name another server, or give the tables a target-schema in sink.dispatchers."


class NoSuchTable(BadInput):
    """A table that was named exactly does not exist in the source."""

    code = "RF-1009"
    cure = "Correct the name, create the table first, or use a wildcard."


class NothingMatches(BadInput):
    """The filter rules of a new changefeed fit no table of the source."""

    code = "RF-1040"
    cure = "Correct the rules; --allow-empty runs all the same, for tables that are yet to come."


class SideChanges(BadInput):
    """A table was written to while it was compared, so nothing can be said about it."""

    code = "RF-1041"
    cure = "Compare with --online, or stop whoever writes."


class NoSuchVersion(BadInput):
    """A version of a lake's table that is asked for is not there: not yet, or not any more."""

    code = "RF-1062"
    cure = "Name a moment between those that the text gives."


class BadLayout(BadInput):
    """A rule for the files of lake tables that cannot be used, as written or for some table."""

    code = "RF-1061"
    cure = "Correct the rule in sink.lake.layouts, then update the changefeed and resume it."


class BadChangefeedId(BadInput):
    """A changefeed id with characters that are not allowed, or too long."""

    code = "RF-1010"
    cure = "Use letters, digits and single hyphens between them, 128 at most."


class BadDispatchRule(BadInput):
    """A partition or topic expression that cannot be used, as written or for some table."""

    code = "RF-1012"
    cure = "Correct the rule in sink.dispatchers, then update the changefeed and resume it."


class BadRoute(BadInput):
    """A table routing expression that cannot be used, or that sends two tables to one name."""

    code = "RF-1013"
    cure = "Correct target-schema and target-table, then update the changefeed and resume it."


class BadEventFilter(BadInput):
    """An event filter whose event, pattern or expression cannot be used."""

    code = "RF-1014"
    cure = "Correct the rule in filter.event-filters, then update the changefeed and resume it."


class BadIgnoredEvent(BadEventFilter):
    """An event filter's ignore-event with a kind of event that there is not."""

    code = "RF-1026"


class BadIgnoredStatement(BadEventFilter):
    """An event filter's ignore-sql with a pattern that cannot be read."""

    code = "RF-1027"


class NoSuchColumn(BadEventFilter):
    """An event filter's expression that names a column which a table does not have."""

    code = "RF-1028"


class BadColumnSelector(BadInput):
    """A column selector with a wrong pattern, or one that leaves a table without a key."""

    code = "RF-1015"
    cure = "Keep the table's key among the columns, then update the changefeed and resume it."


class BadTransform(BadInput):
    """A mask or a computed column that cannot be used, or not for one of the tables or values."""

    code = "RF-1050"
    cure = "Correct the rule that the text names, or leave the column or the table out."


class MaskLost(BadInput):
    """A column that was masked would go out as it is, because it or its table was changed."""

    code = "RF-1051"
    cure = "Make a changefeed whose rules name the column as it is now; nothing went out in clear."


class TargetUnfit(BadInput):
    """A table of the downstream that is missing, or that a table's rows do not fit into."""

    code = "RF-1016"
    cure = "Change the downstream's table as the text says, then resume the changefeed."


class TableNotActiveActive(BadInput):
    """A captured table that soft delete or the active-active mode cannot work with."""

    code = "RF-1024"
    cure = "Change the table, its marking or the filter as the text says, then resume."


class TargetTsTooEarly(BadInput):
    """A target-ts at or below the commit-ts at which the changefeed begins or stands."""

    code = "RF-1020"
    cure = "Give a target-ts above the start-ts and above the checkpoint, or none."


class TableIneligible(BadInput):
    """Tables without a usable key, which the user neither forces nor leaves out."""

    code = "RF-1011"
    cure = "Give the tables a key, or set ignore-ineligible-table or force-replicate."


class AccessDenied(BadInput):
    """A request without the server's token or a known user and password, or from another site."""

    code = "RF-1023"
    cure = "Send the token, or a user and password, that the server was started with."


class LoginDelayed(AccessDenied):
    """Too many logins from one address were wrong; the next one is not looked at yet."""

    code = "RF-1034"
    cure = "Wait as long as the text says, then send the right login."


class RoleTooLow(BadInput):
    """Somebody asks for more than the role of his login may do; nothing was done."""

    code = "RF-1033"
    cure = "Ask somebody with the role that the text names, or let the login be given it."


class RequestTooLarge(BadInput):
    """A request whose body is larger than a server reads."""

    code = "RF-1021"
    cure = "Send less: no request needs more than a mebibyte."


class NotSupported(BadInput):
    """A path of TiCDC's interface, known here, whose work has no counterpart."""

    code = "RF-1022"
    cure = "Leave it: there is nothing here that it could do."


class BadResnapshot(BadInput):
    """A table that is to be read again beside the stream cannot be, or not as asked."""

    code = "RF-1038"
    cure = "Do as the message says, and ask again."


class BadTrace(BadInput):
    """The changes of a row cannot be looked for as asked."""

    code = "RF-1044"
    cure = "Do as the message says, and ask again."


class BadQuarantine(BadInput):
    """Parked rows that are not there, or cannot be sent again as they are."""

    code = "RF-1060"
    cure = "Do as the message says: list the parked rows, drop them, or read the table again."


class MissingLibrary(BadInput):
    """A library of a source, a sink or the server that comes with an extra is not installed."""

    code = "RF-1029"
    cure = "Run the `pip install` line of the text, wherever Rowferry and its Spark workers run."


class NotAllowed(BadInput):
    """A file, an environment variable or an address that this server's operator did not allow."""

    code = "RF-1031"
    cure = "Ask the operator to start the server with the option that the text names."


class SecretsNeeded(BadInput):
    """New settings that would send stored secrets to another address."""

    code = "RF-1032"
    cure = "Write every password, key and token out in the same request, in place of ***."


# --- RF-2xxx: the meta database ------------------------------------------------------------------


class StateError(RowferryError):
    """The meta database refuses."""

    code = "RF-2000"
    cure = "Nothing yet: it is tried again. If it stays, run `rowferry meta check`."


class MetaUnavailable(StateError):
    """The meta database did not answer; the same call may work later."""

    code = "RF-2001"
    cure = "Bring the meta database back; changefeeds then go on by themselves."


class Fenced(StateError):
    """Another process took this changefeed over; this one must stop at once."""

    code = "RF-2002"
    cure = "Nothing: the changefeed runs on the server that took it over."
    verdict = Verdict.STOP


class LeaseHeld(StateError):
    """The changefeed is running elsewhere."""

    code = "RF-2003"
    cure = "Stop the process that the text names, or let it run the changefeed."
    verdict = Verdict.STOP


class SpecChanged(StateError):
    """The stored changefeed was made with other settings."""

    code = "RF-2004"
    cure = "Keep what cannot be changed, or make a new changefeed."
    verdict = Verdict.STOP


class MetaDamaged(StateError):
    """The meta database holds something that this version cannot read."""

    code = "RF-2005"
    cure = "Upgrade this program, or restore the meta database from a backup."
    verdict = Verdict.STOP


class IllegalMove(StateError):
    """The changefeed's state does not allow this; the text lists what it allows."""

    code = "RF-2006"
    cure = "Do first what the text asks for, such as pausing it."
    verdict = Verdict.STOP


class NoSuchChangefeed(StateError):
    """No changefeed of this id is stored."""

    code = "RF-2007"
    cure = "Correct the id; the list of changefeeds shows those that there are."
    verdict = Verdict.STOP


class ChangefeedExists(StateError):
    """A changefeed of this id is stored already."""

    code = "RF-2008"
    cure = "Use another id, or remove the other one first."
    verdict = Verdict.STOP


class PlanRefused(StateError):
    """The plan contradicts what is recorded: another one is pending, or its number is not next."""

    code = "RF-2009"
    cure = "Resume the changefeed. If it comes again, run `rowferry meta check`."
    verdict = Verdict.STOP


class SecretsLocked(StateError):
    """The secrets of a changefeed are encrypted with a key that is not here."""

    code = "RF-2010"
    cure = "Give --secret-key-file a file that holds the key which the text names."


class SecretMissing(StateError):
    """What a reference names (env:, file:, vault:) cannot be had; the same may work later."""

    code = "RF-2011"
    cure = "Put the secret where the reference says, or let this process read it there."


# --- RF-3xxx: sources ----------------------------------------------------------------------------


class SourceError(RowferryError):
    """Reading the source failed."""

    code = "RF-3000"
    cure = "Nothing yet: it is tried again. If it stays, look at the source."


class SourceUnavailable(SourceError):
    """The source did not answer; the same read may work later."""

    code = "RF-3001"
    cure = "Bring the source back, or correct its address; reading then goes on by itself."


class SnapshotGone(SourceError):
    """A snapshot version no longer exists (the leader moved); a new one must be made."""

    code = "RF-3002"
    cure = "Nothing: a new snapshot is made."
    verdict = Verdict.REPLAN


class LogLost(SourceError):
    """The log was compacted past our position: changes cannot be read any more."""

    code = "RF-3003"
    cure = "Reset the changefeed to a new snapshot, and let the source keep its log longer."
    verdict = Verdict.STOP


class CorruptLog(SourceError):
    """The source sent bytes that cannot be decoded; the text names the place."""

    code = "RF-3004"
    cure = "Read the same place with the source's own tools; skip it by a reset behind it."
    verdict = Verdict.STOP


class SourceMismatch(SourceError):
    """The source is not the one that this changefeed was created for."""

    code = "RF-3005"
    cure = "Give the changefeed the source that it was made for, or make a new one."
    verdict = Verdict.STOP


class SourceUnsupported(SourceError):
    """The source lacks something that this changefeed needs."""

    code = "RF-3006"
    cure = "Change the source's settings as the text says, then resume the changefeed."
    verdict = Verdict.STOP


class TableVersionUnknown(SourceError):
    """A row refers to a table version that was never recorded."""

    code = "RF-3007"
    cure = "Reset the changefeed to a new snapshot."
    verdict = Verdict.STOP


class LoginRefused(SourceError):
    """The source does not let this user in, or does not let it do what is needed."""

    code = "RF-3008"
    cure = "Grant what the text names, or correct user and password, then resume it."
    verdict = Verdict.STOP


class ReplicaIdTaken(SourceError):
    """Another replica reads the source's log with the same server id."""

    code = "RF-3009"
    cure = "Set another server-id, or 0 to have a free one chosen, then resume it."
    verdict = Verdict.STOP


class EventUnknown(SourceError):
    """The log holds an event, or a form of one, that is not understood; the text names it."""

    code = "RF-3010"
    cure = "Upgrade this program, or reset the changefeed behind the place in the text."
    verdict = Verdict.STOP


class SnapshotOutdated(SourceError):
    """A table was altered while its snapshot was read; the snapshot is planned anew."""

    code = "RF-3011"
    cure = "Nothing: the snapshot is planned anew."
    verdict = Verdict.REPLAN


class ResnapshotRefused(SourceError):
    """Rows of a table could not be read again as asked; the changefeed goes on without that."""

    code = "RF-3016"
    cure = "Ask again: rowferry changefeed resnapshot, with another --where or --keys."
    verdict = Verdict.REPLAN


class SourceMoved(SourceError):
    """Another server answers at the source's address; the stretch is planned anew by GTID."""

    code = "RF-3012"
    cure = "Nothing: reading goes on by GTID."
    verdict = Verdict.REPLAN


class TableAltered(SourceError):
    """A table was altered, emptied or dropped, and a Spark query on it cannot go on as it is."""

    code = "RF-3013"
    cure = "Start the query again with a new checkpoint."
    verdict = Verdict.STOP


class TableContradicted(SourceError):
    """The log describes a table otherwise than the server does, and no DDL tells why."""

    code = "RF-3014"
    cure = "Make a new changefeed, begin behind the place in the log, or leave the table out."
    verdict = Verdict.STOP


class OddAnswer(SourceError):
    """The source answers otherwise than its protocol allows, or with more than can be right."""

    code = "RF-3015"
    cure = "Find out who answers at the source's address; it is tried again."


# --- RF-4xxx: sinks ------------------------------------------------------------------------------


class SinkError(RowferryError):
    """Writing the sink failed."""

    code = "RF-4000"
    cure = "Nothing yet: it is tried again. If it stays, look at the sink."


class SinkUnavailable(SinkError):
    """The sink did not answer; the same write may work later."""

    code = "RF-4001"
    cure = "Bring the sink back, or correct its address; writing then goes on by itself."


class RowRejected(SinkError):
    """The sink refused this row for good; retrying cannot help."""

    code = "RF-4002"
    cure = "Correct the target so that it takes the row, then resume the changefeed."
    verdict = Verdict.STOP


class SinkUnwritable(SinkError):
    """The target cannot be written (permissions, not a directory, read-only)."""

    code = "RF-4003"
    cure = "Give the permission that is missing, then resume the changefeed."
    verdict = Verdict.STOP


class SinkOwned(SinkError):
    """The target belongs to another changefeed."""

    code = "RF-4004"
    cure = "Use a target of its own for each changefeed."
    verdict = Verdict.STOP


class SinkDamaged(SinkError):
    """A file of ours at the target was changed or damaged by someone else."""

    code = "RF-4005"
    cure = "Repair or remove the file that the text names, then resume the changefeed."
    verdict = Verdict.STOP


class FileConflict(SinkError):
    """A data file of our number exists with other content."""

    code = "RF-4006"
    cure = "Find out who else writes there; remove the file, then resume the changefeed."
    verdict = Verdict.STOP


class SchemaRefused(SinkError):
    """The schema registry refused a schema, e.g. because older readers could not read it."""

    code = "RF-4007"
    cure = "Set the subject's compatibility so that it takes the schema, then resume it."
    verdict = Verdict.STOP


class TopicRefused(SinkError):
    """A topic that is missing, has too few partitions, or cannot take one more table."""

    code = "RF-4008"
    cure = "Create or widen the topic, or correct the dispatch rules, then resume it."
    verdict = Verdict.STOP


class SchemaChangeRefused(SinkError):
    """The downstream refuses a DDL; it can be skipped or replaced."""

    code = "RF-4011"
    cure = "Make it possible, or set skip-ddl or replace-ddl, then resume the changefeed."
    verdict = Verdict.STOP


class TargetWentBack(SinkError):
    """The downstream no longer has all that it has confirmed."""

    code = "RF-4012"
    cure = "Reset the changefeed to the commit-ts that the text names, or to a new snapshot."
    verdict = Verdict.STOP


class TargetLost(SinkError):
    """Something is gone at the target, or was made anew, to which this changefeed has delivered.

    Going on would leave all that it held missing for good.
    """

    code = "RF-4013"
    cure = "Restore it as it was and resume, or reset the changefeed to a new snapshot."
    verdict = Verdict.STOP


class ExchangedBefore(SinkError):
    """Tables were exchanged by an earlier run, and what is to be applied comes before that."""

    code = "RF-4014"
    cure = "Go on behind it with --from, or drop the tables and begin anew."
    verdict = Verdict.STOP


class QuarantineFull(SinkError):
    """More rows were refused by the sink than the quarantine may hold."""

    code = "RF-4020"
    cure = "Correct the target, retry or drop parked rows, or raise quarantine-limit; then resume."
    verdict = Verdict.STOP


class RowsRefused(SinkError):
    """Rows that cannot be sent, found before anything behind them went out; they are parked."""

    code = "RF-4021"
    cure = "Nothing: the rows are parked, and the micro-batch is carried out without them."
    verdict = Verdict.STOP


class PlanDiscarded(SinkError):
    """The plan was discarded while its tasks still ran; its files must not appear any more."""

    code = "RF-4010"
    cure = "Nothing: the stretch is planned anew."
    verdict = Verdict.REPLAN


# --- RF-5xxx: codecs -----------------------------------------------------------------------------


class EncodeError(RowferryError):
    """A value cannot be written in this format."""

    code = "RF-5000"
    cure = "Choose another protocol, or leave the column out by a column selector."
    verdict = Verdict.STOP


class MessageTooLarge(EncodeError):
    """A row whose message is longer than the queue takes."""

    code = "RF-5002"
    cure = "Raise max-message-bytes, or set large-message-handle, then resume it."
    verdict = Verdict.STOP


class DecodeError(RowferryError):
    """Bytes are not what this format allows; the text names the place."""

    code = "RF-5001"
    cure = "Read the bytes with the protocol and options that they were written with."
    verdict = Verdict.STOP


# --- RF-6xxx: the reference store ----------------------------------------------------------------


class StoreError(RowferryError):
    """The reference store refused a request."""

    code = "RF-6000"
    cure = "Correct the request as the text says."
    verdict = Verdict.STOP


class StoreUnavailable(StoreError):
    """The reference store did not answer."""

    code = "RF-6001"
    cure = "Start the reference store, or correct its address."
    verdict = Verdict.RETRY


class TransactionAborted(StoreError):
    """The transaction was rolled back (a conflict, or given up as abandoned); try it again."""

    code = "RF-6002"
    cure = "Run the transaction again."
    verdict = Verdict.RETRY


class StoreDamaged(StoreError):
    """A file of the reference store is damaged beyond its torn tail."""

    code = "RF-6003"
    cure = "Remove the store's directory and start it anew."


class StoreRefused(StoreUnavailable):
    """A server of the reference store and we do not let each other in: token or certificate."""

    code = "RF-6004"
    cure = "Give all servers and clients of the store the same authority and a known token."


# --- RF-7xxx: Spark ------------------------------------------------------------------------------


class EngineError(RowferryError):
    """Spark could not run a job."""

    code = "RF-7000"
    cure = "Nothing yet: it is tried again. If it stays, read Spark's log."


class TaskFailed(EngineError):
    """A task ended without an error of ours (a worker died, memory ran out); it is tried again."""

    code = "RF-7001"
    cure = "Nothing yet: it is tried again. If it stays, give the workers more memory."


class NoJava(EngineError):
    """No usable Java was found."""

    code = "RF-7002"
    cure = "Install a Java runtime, or set JAVA_HOME to one."
    verdict = Verdict.STOP


class WrongSpark(EngineError):
    """The PySpark that Python finds is of a version that Rowferry does not know."""

    code = "RF-7003"
    cure = "Install a version that the message names; mind PYTHONPATH, which may hide it."
    verdict = Verdict.STOP


class SparkMasterAway(EngineError):
    """No Spark master answers at the address that was given."""

    code = "RF-7004"
    cure = "Start the Spark master, or name one that runs with --spark-master; local[*] needs none."


# --- RF-8xxx: a server, as its clients see it ----------------------------------------------------


class ServerError(RowferryError):
    """A Rowferry server did not answer as one does."""

    code = "RF-8000"
    cure = "Check that the address is one of a Rowferry server; read its log."


class ServerUnavailable(ServerError):
    """No Rowferry server answers at the address; the same request may work later."""

    code = "RF-8001"
    cure = "Start a server with `rowferry server`, or name a running one with --server."


class NoSyncPoint(ServerError):
    """Two places could not be brought to one moment to be compared."""

    code = "RF-8002"
    cure = "Try again when the changefeed has caught up, or give it more time."


class ServerBusy(ServerError):
    """The server carries out as many requests as it may at once; nothing was done."""

    code = "RF-8003"
    cure = "Ask again in a few seconds."


class AnswerLate(ServerError):
    """What was asked for takes longer than an answer may; it may still come to its end."""

    code = "RF-8004"
    cure = "Look at the changefeed before asking again; check that source and sink answer."


# --- text ⇄ error --------------------------------------------------------------------------------


def _tree(root: type[RowferryError]) -> dict[str, type[RowferryError]]:
    by_code = {root.code: root}
    for child in root.__subclasses__():
        for code, error in _tree(child).items():
            if by_code.setdefault(code, error) is not error:
                raise TypeError(f"{code} is used twice")
    return by_code


BY_CODE: dict[str, type[RowferryError]] = _tree(RowferryError)
_TAG = re.compile(r"\[(RF-\d{4})\] ([^\n]*)")


def cure_of(code: str) -> str:
    """Return what to do about the error of a code; empty: no such code."""
    error = BY_CODE.get(code)
    return error.cure if error else ""


def from_text(text: str) -> RowferryError | None:
    """Return the error whose one-line text stands last in `text`, or None."""
    tags = _TAG.findall(text)
    if not tags:
        return None
    code, words = tags[-1]
    error = BY_CODE.get(code)
    return error(words) if error else None
