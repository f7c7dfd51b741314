"""A place in the log between two stretches: what a stored position says of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from rowferry.change.json_form import FormRules, JsonForm, ListForm
from rowferry.flow.capture.binlog.client.gtid import GtidPosition, GtidSet, parse_gtids
from rowferry.mysql.session import Flavour

Gtids = GtidSet | GtidPosition

FIRST_OFFSET: Final = 4  # of every log file


@dataclass(frozen=True, slots=True)
class LeftOut(ListForm):
    """A table of which a prepared XA transaction has rows that were not captured."""

    xid: str
    database: str
    table: str


@dataclass(slots=True)
class LogPosition(JsonForm):
    """Where the log was read up to.

    Attributes:
        server: the identity of the server whose file and offset these are; on another one only the
            GTIDs count. So it is where `file` is empty.
        offset: the next event begins here.
        gtids: all transactions before it, as text; empty where the server keeps none.
        last_ts: the clock: the last commit-ts that was given, or the last watermark.
        txn_ts: commit-ts of the transaction that goes on here (behind a CREATE TABLE … SELECT);
            0: a border.
        prepared: XA transactions that were prepared and not yet ended: xid to segments' parts.
        txn_gtid: of that transaction; empty where it has none, and in positions of older versions.
        left_out: what is not remembered of XA transactions that were prepared and not yet ended.
    """

    FORM: ClassVar[FormRules] = FormRules(
        brief=True, kept=("file", "offset", "gtids", "last_ts", "txn_ts", "prepared")
    )

    flavour: Flavour
    server: str
    file: str = ""
    offset: int = FIRST_OFFSET
    gtids: str = ""
    last_ts: int = 0
    txn_ts: int = 0
    prepared: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    txn_gtid: str = ""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def executed(self) -> Gtids:
        """The GTIDs, parsed."""
        return parse_gtids(self.gtids, self.flavour)

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}" if self.file else f"GTID {self.gtids}"
