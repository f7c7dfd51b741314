"""What the meta database promises to the loop, the supervisor and the faces.

Every method is one transaction. On raise nothing was changed, except that MetaUnavailable may also
mean that only the answer was lost: each call can then simply be repeated (see "On repeat").
Whatever takes a `Claim` is fenced: it fails with Fenced, and changes nothing, once another owner
has claimed the changefeed. A changefeed that is not stored: NoSuchChangefeed. Times are seconds
since 1970.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

from rowferry.change.plan import Plan
from rowferry.change.position import RangeProgress
from rowferry.change.published import PublishedBatch
from rowferry.change.quarantine import DivertedRow, ParkedKey, ParkedRow, RowPlace
from rowferry.change.resnapshot import Resnapshot
from rowferry.change.table import TableId, TableSchema
from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.spec.changefeed import ChangefeedSpec


@dataclass(frozen=True, slots=True)
class Lease:
    """Who has a changefeed now. It may have run out; see `expires_at`.

    Attributes:
        owner: the holder's name, the same wherever it is shown: a server's address, else host and
            process.
    """

    holder: Holder
    claimed_at: float
    expires_at: float
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Someone's wish that a changefeed stands still for a while; it ends by itself.

    Attributes:
        until: when it is over, whatever happens.
        place: of the source's log, where to stand; None: at the next border.
        reached: what the owner says of the place: "" (nothing yet), "at" (it is there), "past" (it
            was beyond it already) or "elsewhere" (it is one of another server).
        micro_batch: the last published one when the owner said so.
    """

    id: str
    until: float
    place: dict[str, Any] | None = None
    reached: str = ""
    micro_batch: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored, which servers of other versions read as well."""
        form = asdict(self)
        return {"stands" if key == "reached" else key: value for key, value in form.items()}

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Self:
        """Read what `to_json` gave."""
        return cls(**{"reached" if key == "stands" else key: value for key, value in form.items()})


@dataclass(frozen=True, slots=True)
class FeedRecord:
    """A changefeed as lists and answers show it.

    Attributes:
        micro_batch: number of the last published micro-batch; 0: none yet.
        watermark: everything up to this commit-ts was delivered; 0: nothing is known yet.
        error: the last error's words, empty without one; `error_code` likewise.
        cancel: someone asked for its removal at the next border.
        lease: the present holder; None: nobody runs it.
        hold: the last hold, which may be over; None: none, or it was ended.
        subscriber: for whose subscription to one table it was made; empty: for none.
        moved_at: when the watermark moved last; None: it has not, or nobody noted it.
        kept_until: until when the source keeps the log at the present position, as its last owner
            measured it; None: for ever, or nobody knows.
        resnapshots: tables that are read again, oldest first; of those that ended, the last ones.
        parked: how many rows its sink has refused, or wait behind such.
    """

    id: str
    state: FeedState
    spec: ChangefeedSpec
    spec_version: int
    created_at: float
    epoch: int
    micro_batch: int
    watermark: int
    error: str
    error_code: str
    cancel: bool
    lease: Lease | None
    hold: Hold | None = None
    subscriber: str = ""
    moved_at: float | None = None
    kept_until: float | None = None
    resnapshots: tuple[Resnapshot, ...] = ()
    parked: int = 0


@dataclass(frozen=True, slots=True)
class Subscribing:
    """A subscription to one table, for which a changefeed is made.

    Attributes:
        name: the subscriber's.
        table_id: 0: not known.
    """

    name: str
    table: TableId
    table_id: int = 0


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A row of `subscribe`: its secrets are masked, and `changefeed` is who carries it out."""

    cluster_id: int
    db_name: str
    table_name: str
    subscribe_name: str
    db_id: int | None
    table_id: int
    master_addrs: str
    sink: str
    cancel: int
    owner: str
    changefeed: str


@dataclass(frozen=True, slots=True)
class StoredState:
    """What a run needs to go on after the last published micro-batch.

    Attributes:
        position: the source's own state; empty: from the beginning.
        versions: of every captured table, the version in force at the watermark and all later ones.
        sink_state: the sink's own state; None: it never gave one.
        continues: whether anything was published since it began, or was reset.
        made_ms: when it was made.
    """

    position: dict[str, Any]
    ranges: tuple[RangeProgress, ...]
    versions: tuple[TableSchema, ...]
    watermark: int
    micro_batch: int
    sink_state: dict[str, Any] | None
    spec: ChangefeedSpec
    spec_version: int
    epoch: int
    continues: bool
    made_ms: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """One line of a changefeed's history."""

    at: float
    what: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FleetServer:
    """A process that runs changefeeds, as it last announced itself."""

    holder: Holder
    address: str
    seen_at: float


@dataclass(frozen=True, slots=True)
class Sample:
    """What a changefeed did since the sample before; its owner writes them, every server reads.

    Attributes:
        at: when it was taken.
        lag_ms: how far the watermark is behind the source's clock; None: not known.
        seconds: time spent carrying out plans.
        retention_ms: how long the source keeps what was not read yet; None: not known.
        snapshots: of tables whose snapshot is under way, not more than some: name, done, all.
        totals: of all of them: tables done, all tables, done, all.
        unit: what they are counted in, `rows` or `parts`; empty: no snapshot is under way.
    """

    at: float
    lag_ms: int | None
    watermark: int
    rows: int
    bytes: int
    micro_batches: int
    seconds: float
    retention_ms: int | None = None
    snapshots: tuple[tuple[str, int, int], ...] = ()
    totals: tuple[int, int, int, int] = (0, 0, 0, 0)
    unit: str = ""


@dataclass(frozen=True, slots=True)
class TableCount:
    """What was delivered of one table since the changefeed captures it, as its owners counted.

    Attributes:
        last_ts: commit-ts of the last change; 0: there was none.
    """

    table: TableId
    rows: int
    bytes: int
    last_ts: int


@dataclass(frozen=True, slots=True)
class PastSchemaChange:
    """A schema change that was delivered."""

    at: float
    commit_ts: int
    table: TableId
    kind: str
    query: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a server logged about a changefeed; it holds no secrets."""

    at: float
    level: str
    server: str
    words: str


@dataclass(frozen=True, slots=True)
class FeedNews:
    """What an owner tells now and then, for those who watch.

    Attributes:
        tables: whole counts (not differences) of the tables that had rows since the last time.
        kept_until: see `FeedRecord`; None: it stays as it is.
    """

    tables: tuple[TableCount, ...] = ()
    kept_until: float | None = None


class MetaStore(Protocol):
    """The meta database. Safe for use from several threads and processes at once."""

    # --- changefeeds: what the operator asks for -------------------------------------------------

    def create_changefeed(
        self,
        spec: ChangefeedSpec,
        cluster_id: int = 0,
        subscribing: Subscribing | None = None,
        paused: bool = False,
    ) -> FeedRecord:
        """Store a new changefeed. `cluster_id` is the source's, where it has one.

        With `subscribing`, the table's row of `subscribe` is stored with it, and stays as long as
        the changefeed does, whatever becomes of the table. With `paused` it is stopped from its
        beginning: no server takes it before it is resumed.

        Raises:
            ChangefeedExists: the id is taken, also as a subscriber's name; or the subscriber has
                this table, or its name is the id of a changefeed that was made for nobody.
        """

    def subscribed(self, name: str) -> tuple[Subscribed, ...]:
        """Return the rows of `subscribe` with this `subscribe_name`, by cluster and table."""

    def feed(self, changefeed: str) -> FeedRecord | None:
        """Return one changefeed, or None."""

    def feeds(self) -> tuple[FeedRecord, ...]:
        """Return all changefeeds, by id."""

    def update_spec(
        self, changefeed: str, spec: ChangefeedSpec, since: int | None = None
    ) -> FeedRecord:
        """Store new settings as the next spec version; plans already recorded keep theirs.

        On repeat with equal settings: nothing changes.

        Raises:
            SpecChanged: the new settings were made from spec version `since`, and another one is in
                force by now.
        """

    def spec(self, changefeed: str, version: int) -> ChangefeedSpec:
        """Return the settings of one spec version, for running a recorded plan."""

    def remove(self, who: str | Claim) -> None:
        """Delete all that is stored of a changefeed but the epoch and a last line of history.

        With an id it is the operator's word: whoever runs it is fenced. A changefeed created later
        under the same id starts above all epochs of this one. On repeat: NoSuchChangefeed, or
        Fenced for a claim.
        """

    def move(self, who: str | Claim, verb: Verb, error: Exception | None = None) -> FeedState:
        """Change the state by a verb of the lifecycle, and return the new one.

        `error` is kept until the changefeed is normal again.

        Raises:
            IllegalMove: the present state does not allow it (an operator may have been faster).
        """

    def reset(
        self,
        changefeed: str,
        spec: ChangefeedSpec,
        why: str,
        snapshot: bool = False,
        since: int | None = None,
    ) -> FeedRecord:
        """Forget how far a changefeed is: the next run begins as `spec`'s source URI says.

        Position, progress rows, pending plan and watermark go; `spec` becomes the next spec
        version; micro-batch numbers, epochs, the sink's state and the state in the lifecycle stay.
        With `snapshot`, all will be delivered anew: nothing of it need be at the target any more,
        so the key `delivered` of the sink's state is emptied. Whoever still runs it is fenced.

        Raises:
            IllegalMove: it is in a state in which servers run it; pause it first.
            SpecChanged: as of `update_spec`.
        """

    def request_cancel(self, changefeed: str) -> None:
        """Ask the owner to stop at the next border and remove the changefeed."""

    def cancel_requested(self, changefeed: str) -> bool:
        """Return whether removal was asked for, also by `cancel = 1` set in `subscribe` by hand."""

    def hold(self, changefeed: str, hold: Hold, instead_of: str = "") -> None:
        """Ask the owner to stand still. `instead_of`: the caller's own hold until now.

        On repeat with the same id: nothing changes.

        Raises:
            IllegalMove: somebody else's hold is in force.
        """

    def end_hold(self, changefeed: str, hold: str) -> None:
        """Let the owner go on. Where that hold is not in force, nothing changes."""

    def answer_hold(self, claim: Claim, hold: str, reached: str) -> None:
        """Note where the owner stands. Where that hold is not in force, nothing changes."""

    def ask_resnapshot(self, changefeed: str, wanted: Resnapshot) -> None:
        """Ask the owner to read rows of a table again. On repeat with the same id: nothing changes.

        Raises:
            IllegalMove: too many are open already.
        """

    def cancel_resnapshot(self, changefeed: str, which: str) -> bool:
        """End an open one as cancelled; returns whether it was open."""

    def end_resnapshot(self, claim: Claim, ended: Resnapshot) -> None:
        """Note how one ended, by its id. Where it is not open any more, nothing changes."""

    # --- quarantine ------------------------------------------------------------------------------

    def park(self, claim: Claim, plan: Plan, rows: Sequence[DivertedRow]) -> None:
        """Store the rows that a pending plan parks, in their order, instead of earlier ones of it.

        They stay when it is published and go when it is discarded. On repeat: nothing changes.
        """

    def parked(
        self, changefeed: str, places: Collection[RowPlace] | None = None
    ) -> tuple[ParkedRow, ...]:
        """Return the parked rows in the order in which they were parked.

        Without `places`: all of them, without images; else those that are there, with them.

        Raises:
            SecretsLocked: an image is encrypted with a key that is not here.
        """

    def want_parked(self, changefeed: str, keys: Collection[ParkedKey]) -> int:
        """Ask the owner to send all rows of these keys again; returns how many there are."""

    def drop_parked(self, changefeed: str, places: Collection[RowPlace]) -> int:
        """Forget parked rows for good; the history names them. Returns how many there were."""

    # --- leases ----------------------------------------------------------------------------------

    def claim(
        self,
        changefeed: str,
        holder: Holder,
        now: float,
        ttl_s: float,
        stale_end: float | None = None,
    ) -> Claim:
        """Take the changefeed with a new epoch, one above every earlier one.

        A lease that ran out, was released, is this holder's own, or whose holder has certainly
        ended, is taken at once; so is one that still ends at `stale_end`, at which the caller has
        seen it for longer than leases last. On repeat: another epoch; the earlier claim is fenced.

        Raises:
            LeaseHeld: someone else runs it; the text names host, pid and since when.
        """

    def renew(self, claim: Claim, now: float) -> None:
        """Extend the lease to `now` plus its time to live. A released claim is Fenced."""

    def renew_all(self, claims: Sequence[Claim], now: float) -> tuple[Claim, ...]:
        """Extend the leases of many claims at once; returns those that are not in force any more.

        A released claim, or one of a changefeed that was removed, is not in force.
        """

    def release(self, claim: Claim, why: str = "") -> None:
        """Give the lease back. A claim that was already lost is released without a word.

        With `why`, the history says so.
        """

    # --- the loop --------------------------------------------------------------------------------

    def state(self, changefeed: str) -> StoredState:
        """Return what was published last; a pending plan is not part of it."""

    def position(self, changefeed: str) -> dict[str, Any]:
        """Return the source's own state, as `state` does, without all the rest of it."""

    def ranges(self, changefeed: str) -> tuple[RangeProgress, ...]:
        """Return how far each range is, as `state` does, without all the rest of it."""

    def record(self, claim: Claim, plan: Plan, versions: Sequence[TableSchema]) -> None:
        """Store new table versions, and the plan as pending.

        On repeat with the same plan: nothing changes.

        Raises:
            PlanRefused: another plan is pending, the number is not next, the spec version is not
                stored, or a table version is stored already with another definition.
        """

    def record_again(self, claim: Claim, plan: Plan) -> None:
        """Store the pending plan anew: its first run has found rows that it must park.

        On repeat: nothing changes.

        Raises:
            PlanRefused: no plan of this number is pending.
        """

    def pending(self, changefeed: str) -> Plan | None:
        """Return the plan that was recorded and neither published nor discarded."""

    def publish(self, claim: Claim, plan: Plan, position: dict[str, Any] | None = None) -> None:
        """Make the pending plan's end the changefeed's state, and clear it.

        `position` stands for the plan's own where tasks have found more than was planned.
        Position, changed progress rows, watermark (never back), micro-batch number, the rows of
        `subscribe`, and the sink's state (None keeps the earlier one) move together.
        On repeat with the plan published last: nothing changes.

        Raises:
            PlanRefused: this is not the plan that is pending.
        """

    def discard(
        self, claim: Claim, micro_batch: int, why: str, position: dict[str, Any] | None = None
    ) -> None:
        """Forget the pending plan of this number and note it. On repeat: nothing changes.

        With it the changefeed's position becomes `position`; None: it stays.

        Raises:
            PlanRefused: a plan of another number is pending.
        """

    # --- history and servers ---------------------------------------------------------------------

    def note(self, changefeed: str, what: str, details: Mapping[str, Any] | None = None) -> None:
        """Add a line to the changefeed's history; the oldest lines go when there are many."""

    def history(self, changefeed: str, limit: int = 100) -> tuple[Note, ...]:
        """Return the latest lines, newest first."""

    def announce(self, holder: Holder, address: str, now: float) -> None:
        """Say that this server is alive."""

    def servers(self, since: float = 0.0) -> tuple[FleetServer, ...]:
        """Return the servers seen at or after `since`, by host and pid."""

    def retire(self, holder: Holder) -> None:
        """Say that this server has left. On repeat: nothing changes."""

    def write_samples(self, samples: Mapping[str, Sample], keep_s: float = 86_400.0) -> None:
        """Store one sample for each changefeed named, and drop those that are older than that."""

    def fold_samples(self, changefeeds: Sequence[str], before: float) -> None:
        """Make one sample of all of each five minutes that have passed before a moment.

        It has their sums and the greatest lag, so that a day takes few rows. On repeat: nothing.
        """

    def samples(self, changefeed: str, since: float = 0.0) -> tuple[Sample, ...]:
        """Return the samples taken at or after `since`, oldest first."""

    def open_table_counts(self, claim: Claim) -> tuple[TableCount, ...]:
        """Return the counts from which a new owner goes on; of tables that left, none is kept."""

    def table_counts(self, changefeed: str) -> tuple[TableCount, ...]:
        """Return what was delivered of each table, by name."""

    def write_news(self, news: Mapping[Claim, FeedNews]) -> None:
        """Store what owners have to tell; of a claim that is not in force, nothing.

        On repeat: nothing changes.
        """

    def published_batches(self, changefeed: str) -> tuple[PublishedBatch, ...]:
        """Return the last micro-batches that had rows to read, oldest first; a bounded number.

        Of older ones, one stands for several. What was published before a reset stays.
        """

    def schema_changes(self, changefeed: str, limit: int = 100) -> tuple[PastSchemaChange, ...]:
        """Return the latest schema changes that were delivered, newest first."""

    def add_log_lines(self, lines: Mapping[str, Sequence[LogLine]]) -> None:
        """Keep log lines about changefeeds, oldest first; the oldest go when there are many.

        Of a changefeed that is not stored, nothing is kept. On repeat: they come twice.
        """

    def log_lines(self, changefeed: str, limit: int = 200) -> tuple[LogLine, ...]:
        """Return the latest lines that servers logged about a changefeed, newest first."""

    def close(self) -> None:
        """Let connections go."""
