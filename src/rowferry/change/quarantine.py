"""Rows that a target refuses, parked with their cause; later changes of their keys wait behind.

A *key* here is a table's id and the text of a row's handle key. Tables whose keys cannot be
compared without their database (texts with collations, floats) have one key for all their rows,
`EVERY_KEY`: the whole table waits.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rowferry.change.chunk import Op
from rowferry.change.json_form import FormRules, JsonForm, ListForm
from rowferry.change.table import TableId
from rowferry.errors import QuarantineFull, RowsRefused

LOG = logging.getLogger(__name__)

EVERY_KEY: Final = "*"
LIMIT_BYTES: Final = 64 << 20  # of all parked rows of a changefeed, and of one micro-batch
ROW_BYTES: Final = 8 << 20  # of one row: what every meta database takes in one statement
KEY_SHAPE: Final = 16  # characters of a shape that speak for the key's columns
WAITS: Final = "waits behind an earlier change of its key"
REFUSALS_LOGGED: Final = "the log has what the target said of the last one"
_CAUSE_CHARACTERS: Final = 1000
_IN_ERROR: Final = 50  # refusals in one error; more are found by the next run


class ParkedKey(NamedTuple):
    """A key that has parked rows."""

    table_id: int
    key: str


@dataclass(frozen=True, slots=True, order=True)
class RowPlace(ListForm):
    """Which parked row: the micro-batch that parked it, and its place among that one's rows."""

    micro_batch: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.micro_batch}-{self.ordinal}"


@dataclass(frozen=True, slots=True)
class TableKeys(ListForm):
    """Keys of one table."""

    table_id: int
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RefusedKey(ListForm):
    """A key with a row that the target refuses, and why."""

    table_id: int
    key: str
    cause: str

    @property
    def parked_key(self) -> ParkedKey:
        """The key."""
        return ParkedKey(self.table_id, self.key)


@dataclass(frozen=True, slots=True)
class PlanQuarantine(JsonForm):
    """What a plan says about parked rows; it is recorded, so that a replay parks the same.

    Attributes:
        parked: keys, by table id, whose rows are parked instead of sent.
        refused: those of them that the target refused in this plan.
        again: parked rows that the plan sends again; they are forgotten when it is published.
        stays: keys whose rows the plan was to send again, and that were refused again.
        limit: how many rows its tasks may park, by the settings of now; not stored.
        parks: whether rows that are refused now are parked, by the settings of now; not stored.
    """

    FORM = FormRules(brief=True, unstored=("limit", "parks"))

    parked: tuple[TableKeys, ...] = ()
    refused: tuple[RefusedKey, ...] = ()
    again: tuple[RowPlace, ...] = ()
    stays: tuple[RefusedKey, ...] = ()
    limit: int = 0
    parks: bool = False

    @property
    def noted_keys(self) -> int:
        """How many refused keys a task may note; 0: the first one fails it."""
        return self.limit if self.parks else 0

    @property
    def is_of_retry(self) -> bool:
        """Whether the plan sends parked rows again, and nothing else."""
        return bool(self.again or self.stays)


@dataclass(frozen=True, slots=True)
class DivertedRow(JsonForm):
    """A change that a task parks: it goes to the driver with the receipts.

    Attributes:
        table: its name at the source.
        shape: of the table version that the images have; rows of another shape do not fit.
        image: the change as one Arrow IPC stream of one row.
    """

    FORM = FormRules(spread=("table",))

    table: TableId
    table_id: int
    version: int
    physical_id: int | None
    key: str
    op: int
    commit_ts: int
    shape: str
    image: bytes


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A change in quarantine, as the meta database holds it.

    Attributes:
        cause: why it is here: the target's words, or that it waits.
        size: bytes of its image.
        wanted: somebody asked to send it again.
        image: empty unless it was asked for.
    """

    place: RowPlace
    table: TableId
    table_id: int
    version: int
    physical_id: int | None
    key: str
    op: Op
    commit_ts: int
    shape: str
    cause: str
    size: int
    parked_at: float
    wanted: bool = False
    image: bytes = b""

    @property
    def parked_key(self) -> ParkedKey:
        """The key that it belongs to."""
        return ParkedKey(self.table_id, self.key)


class RefusedRows:
    """Refused keys that a task finds, until they are taken. Safe for several threads.

    Nothing may be noted before `begin`: refusals then stop the changefeed.
    """

    def __init__(self) -> None:
        self._limit = 0
        self._lock = threading.Lock()
        self._keys: dict[ParkedKey, RefusedKey] = {}

    def __reduce__(self) -> tuple[type[RefusedRows], tuple[()]]:
        return RefusedRows, ()  # what is found belongs to one process

    def begin(self, limit: int) -> None:
        """Forget what a task that failed has left; take in at most `limit` keys from now on."""
        with self._lock:
            self._limit, self._keys = limit, {}

    def allow(self, limit: int) -> None:
        """Take in at most `limit` keys from now on, and keep what was noted."""
        with self._lock:
            self._limit = limit

    @property
    def is_open(self) -> bool:
        """Whether refusals are noted here."""
        return self._limit > 0

    def add(self, refusal: RefusedKey) -> None:
        """Take in a refusal; of each key the first one counts.

        Raises:
            QuarantineFull: there are too many.
        """
        with self._lock:
            if refusal.parked_key not in self._keys and len(self._keys) >= self._limit:
                LOG.warning("more rows than may be parked are refused: %s", refusal.cause)
                raise too_many(self._limit, REFUSALS_LOGGED)
            self._keys.setdefault(refusal.parked_key, refusal)

    def take(self) -> tuple[RefusedKey, ...]:
        """Return what was found since the last call."""
        with self._lock:
            taken, self._keys = self._keys, {}
        return tuple(taken.values())


def as_error(refused: Collection[RefusedKey]) -> RowsRefused:
    """Return refusals as an error: only its text crosses from a task to the driver."""
    each: dict[ParkedKey, RefusedKey] = {}
    for one in refused:
        each.setdefault(one.parked_key, one)
    some = list(each.values())[:_IN_ERROR]
    return RowsRefused(f"{len(each)} rows:{json.dumps([one.to_json() for one in some])}")


def refusals_in(error: RowsRefused) -> tuple[RefusedKey, ...]:
    """Return what `as_error` was given; of very many, the first ones."""
    forms, _ = json.JSONDecoder().raw_decode(error.words.partition(":")[2])
    return tuple(RefusedKey.from_json(form) for form in forms)


def too_many(limit: int, why: str) -> QuarantineFull:
    """Return the error for a micro-batch with more bad rows than may be parked.

    Everybody who sees the changefeed sees it: `why` must not be a target's words.
    """
    return QuarantineFull(
        f"one micro-batch has more than {limit} rows (or {LIMIT_BYTES >> 20} MiB) for the "
        f"quarantine; {why}"
    )


def cause_of(words: str) -> str:
    """Return a cause as it is stored."""
    plain = words.replace("\0", "\\0")  # PostgreSQL's texts have no such character
    return plain if len(plain) <= _CAUSE_CHARACTERS else plain[:_CAUSE_CHARACTERS] + "…"


def by_table(keys: Iterable[ParkedKey]) -> tuple[TableKeys, ...]:
    """Return keys as a plan has them, in a fixed order."""
    tables: dict[int, set[str]] = {}
    for table_id, key in keys:
        tables.setdefault(table_id, set()).add(key)
    return tuple(
        TableKeys(table_id, tuple(sorted(tables[table_id]))) for table_id in sorted(tables)
    )


def places_in(segment: Mapping[str, Any]) -> list[RowPlace]:
    """Return the parked rows that a segment sends again, by its own word for what it reads."""
    return [RowPlace.from_json(form) for form in segment["rows"]]


def covers(keys: Collection[str], key: str) -> bool:
    """Return whether parked keys of a table hold a key back."""
    return EVERY_KEY in keys or key in keys
