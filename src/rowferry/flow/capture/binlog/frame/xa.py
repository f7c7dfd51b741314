"""XA transactions: what is prepared waits here until it is committed or rolled back.

Their names are equal for the PREPARE event and the statements that end it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from rowferry.change.plan import Segment
from rowferry.change.table import TableId
from rowferry.errors import CorruptLog, EventUnknown
from rowferry.flow.capture.binlog.position import LeftOut

_TEXT = re.compile(
    r"XA\s+\w+\s+X'([0-9A-Fa-f]*)'\s*(?:,\s*X'([0-9A-Fa-f]*)')?\s*(?:,\s*(\d+))?", re.IGNORECASE
)


def statement_xid(sql: str) -> str:
    """Return the name in `XA COMMIT X'…',X'…',1`.

    Raises:
        EventUnknown: the statement has another form.
    """
    match = _TEXT.match(sql.strip())
    if not match:
        raise EventUnknown(f"the statement {sql!r} names no XA transaction that is understood")
    gtrid, bqual, number = match[1].lower(), (match[2] or "").lower(), match[3] or "1"
    return f"{gtrid},{bqual},{number}"


def prepared_xid(body: bytes) -> tuple[bool, str]:
    """Return whether a XA_PREPARE event commits at once, and the transaction's name."""
    if len(body) < 13:
        raise CorruptLog(f"a XA_PREPARE_LOG_EVENT of {len(body)} bytes is too short")
    number = int.from_bytes(body[1:5], "little")
    first, second = int.from_bytes(body[5:9], "little"), int.from_bytes(body[9:13], "little")
    if len(body) < 13 + first + second or first > 64 or second > 64:
        raise CorruptLog("a XA_PREPARE_LOG_EVENT has a name of a wrong length")
    gtrid, bqual = body[13 : 13 + first], body[13 + first : 13 + first + second]
    return bool(body[0]), f"{gtrid.hex()},{bqual.hex()},{number}"


class PreparedRows:
    """The rows of XA transactions: of the one that is open, and of those that are prepared.

    Attributes:
        inside: whether an XA transaction is open.
        parts: the segments of the open one.
    """

    def __init__(
        self, server: str, prepared: Mapping[str, Any], left_out: Iterable[LeftOut] = ()
    ) -> None:
        """Begin with what earlier stretches left prepared on `server`, and what they left out."""
        self._server = server
        self._prepared = dict(prepared)
        self._left_out = tuple(left_out)
        self._passed_over: dict[TableId, None] = {}
        self.inside = False
        self.parts: list[Segment] = []

    def to_json(self) -> dict[str, Any]:
        """Return what is prepared, for the position."""
        return dict(self._prepared)

    def left_out(self) -> tuple[LeftOut, ...]:
        """Return of which tables what is prepared has rows that are not remembered."""
        return self._left_out

    def begin(self) -> None:
        """Open one; what was begun and not prepared is forgotten."""
        self.inside, self.parts = True, []
        self._passed_over = {}

    def abandon(self) -> None:
        """Forget the open one, if one is."""
        self.inside, self.parts, self._passed_over = False, [], {}

    def pass_over(self, table: TableId) -> None:
        """Note that the open transaction has rows of a table that is not captured."""
        self._passed_over[table] = None

    def prepare(self, body: bytes) -> list[Segment]:
        """Take a XA_PREPARE event; returns what is committed by it at once."""
        at_once, xid = prepared_xid(body)
        parts = self.parts
        self.inside, self.parts = False, []
        if at_once:
            return parts
        self._prepared[xid] = [segment.to_json() for segment in parts]
        self._left_out += tuple(LeftOut(xid, *table) for table in self._passed_over)
        return []

    def end(
        self,
        sql: str,
        commit: bool,
        commit_ts: int,
        where: str,
        is_captured: Callable[[TableId], bool],
    ) -> list[Segment]:
        """Take XA COMMIT or XA ROLLBACK; returns what is committed by it.

        Raises:
            EventUnknown: rows are committed that are not known (any more).
        """
        xid = statement_xid(sql)
        if xid not in self._prepared:
            if not commit:
                return []
            raise EventUnknown(
                f"XA COMMIT {xid} at {where} ends a transaction that was prepared before "
                "this changefeed's log began, so its rows are not known; begin with an earlier "
                "start-position, or make a new changefeed"
            )
        forms = self._prepared.pop(xid)
        segments = [Segment.from_json(form) for form in forms] if commit else []
        passed_over = [TableId(one.database, one.table) for one in self._left_out if one.xid == xid]
        self._left_out = tuple(one for one in self._left_out if one.xid != xid)
        if commit and (now := next(filter(is_captured, passed_over), None)) is not None:
            raise EventUnknown(
                f"XA COMMIT {xid} at {where} ends a transaction that was prepared while {now} was "
                f"not captured, so its rows of it are not known; leave {now} out with filter.rules "
                "until the changefeed has passed this place, or make a new changefeed"
            )
        for part in segments:
            if part.read["server"] != self._server:
                raise EventUnknown(
                    f"XA COMMIT {xid} at {where} ends a transaction that was prepared on "
                    f"{part.read['server']}, before the failover; its rows are known only there: "
                    "let that server answer again, or make a new changefeed"
                )
        return [_committed(part, commit_ts) for part in segments]


class NoPreparedRows(PreparedRows):
    """Of a walk that looks for the place where a feed begins: no rows before it are wanted.

    What is prepared there is not known behind it, and whatever ends there is over.
    """

    def __init__(self, server: str) -> None:
        """Begin with nothing."""
        super().__init__(server, {})

    def prepare(self, body: bytes) -> list[Segment]:
        """Take a XA_PREPARE event, and remember nothing of it."""
        self.inside, self.parts = False, []
        return []

    def end(
        self,
        sql: str,
        commit: bool,
        commit_ts: int,
        where: str,
        is_captured: Callable[[TableId], bool],
    ) -> list[Segment]:
        """Take XA COMMIT or XA ROLLBACK of whatever it is."""
        return []


def _committed(part: Segment, commit_ts: int) -> Segment:
    """Return a prepared part as it is committed.

    Nothing of the prepared one is changed: positions of plans that are being carried out, and will
    be compared with what was recorded of them, hold it.
    """
    return replace(
        part,
        read={**part.read, "fixed_ts": commit_ts},
        first_commit_ts=commit_ts,
        last_commit_ts=commit_ts,
    )


def without_tables(parts: list[Segment], table_ids: Collection[int]) -> list[Segment]:
    """Return segments without the rows of these tables; those that have no others are left out."""
    return [kept for part in parts if (kept := _without(part, table_ids)).slices]


def _without(part: Segment, table_ids: Collection[int]) -> Segment:
    left = [place for place, one in enumerate(part.slices) if one.table_id not in table_ids]
    if len(left) == len(part.slices):
        return part
    now = {old: new for new, old in enumerate(left)}
    names = [[*name, now[place]] for *name, place in part.read["names"] if place in now]
    slices = tuple(part.slices[place] for place in left)
    return replace(part, read={**part.read, "names": names}, slices=slices)
