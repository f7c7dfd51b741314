"""Finds transactions of a segment that was read before: where each begins, and its GTID.

It walks over the events of the segment as the planner did, with the clock that the planner had, so
that a transaction gets the commit-ts that its rows were delivered with. Rows are passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final
from uuid import UUID

from rowferry.change.plan import Segment
from rowferry.errors import CorruptLog
from rowferry.flow.capture.binlog.client.stream import LogStream, StartAt
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame import scan_kernels as k
from rowferry.moment import moment
from rowferry.mysql.session import Flavour, Login

_IMMEDIATE: Final = (
    1 << 55
) - 1  # bits of a commit time; the one above says that another time follows
_GTIDS: Final = (ev.GTID, ev.ANONYMOUS_GTID, ev.GTID_TAGGED, ev.MARIA_GTID)
_NOT_IN_FILES: Final = (27, 41)  # heartbeats tell how far the server is, and stand nowhere


def transaction_places(
    login: Login, segment: Segment, wanted: Collection[int]
) -> dict[int, dict[str, str]]:
    """Return file, offset and GTID of the transactions with these commit-ts, as far as known.

    Raises:
        SourceMoved: another server answers; its files have other offsets.
        RowferryError: the server does not have this part of the log any more.
    """
    read, open_ts = segment.read, segment.read["txn_ts"]
    places: dict[int, dict[str, str]] = {}
    missing = set(wanted)
    if read["fixed_ts"]:  # rows of an XA transaction: prepared here, committed elsewhere
        open_ts = read["fixed_ts"]
    if open_ts in missing:
        places[open_ts] = {"file": read["file"], "offset": str(read["from"])}
        missing.discard(open_ts)
    if not missing or read["fixed_ts"]:
        return places
    moment("look for transactions")
    flavour = Flavour.MARIADB if read["maria"] else Flavour.MYSQL
    start = StartAt(read["file"], read["from"])
    stream = LogStream(login, flavour, start, server=read["server"])
    try:
        for stamp, offset, gtid in _begins(stream, read):
            if stamp in missing:
                shown = {"gtid": gtid} if gtid else {}
                places[stamp] = {"file": read["file"], "offset": str(offset), **shown}
                missing.discard(stamp)
                if not missing:
                    break
    except CorruptLog:
        pass  # an event of several packets, which this walk does not join: the rest is not known
    finally:
        stream.close()
    return places


def _begins(stream: LogStream, read: dict[str, Any]) -> Iterator[tuple[int, int, str]]:
    """Yield commit-ts, offset and GTID of each transaction that begins in the segment."""
    offset, last_ts, tail = read["from"], read["last_ts"], stream.tail
    while offset < read["to"] and (event := stream.next_event()) is not None:
        code, size = event[4], len(event)
        low = int.from_bytes(event[13:17], "little")
        flags = int.from_bytes(event[17:19], "little")
        if code == ev.FORMAT:
            tail = 4 if ev.has_checksums(event[ev.HEADER :]) else 0
            continue
        begin = offset
        if low and not flags & 0x20 and code not in _NOT_IN_FILES:
            behind = (offset & ~0xFFFFFFFF) | low
            offset = behind if behind >= offset else behind + (1 << 32)
            begin = offset - size
        elif code not in (ev.ROTATE, *_NOT_IN_FILES) and not flags & 0x20:
            offset += size  # MariaDB does not tell where events inside a transaction end
        if code in _GTIDS:
            body = event[ev.HEADER : size - tail]
            commit_ms, gtid = _begin_facts(code, body, event)
            last_ts = k.tick(last_ts, commit_ms, read["clamp_ms"])
            yield last_ts, begin, gtid


def _begin_facts(code: int, body: bytes, event: bytes) -> tuple[int, str]:
    """Return when a transaction was committed, in milliseconds, and its GTID."""
    seconds, server = (int.from_bytes(event[at : at + 4], "little") for at in (0, 5))
    if code == ev.GTID_TAGGED:
        tagged = ev.parse_tagged_gtid(body)
        return tagged.commit_us // 1000, f"{UUID(bytes=tagged.uuid)}:{tagged.tag}:{tagged.number}"
    number = int.from_bytes(body[:8] if code == ev.MARIA_GTID else body[17:25], "little")
    if code == ev.MARIA_GTID:
        domain = int.from_bytes(body[8:12], "little")
        return seconds * 1000, f"{domain}-{server}-{number}"
    gtid = f"{UUID(bytes=body[1:17])}:{number}" if code == ev.GTID else ""
    if len(body) < 49 or body[25] != 2:
        return seconds * 1000, gtid
    commit_us = int.from_bytes(body[42:49], "little")
    if commit_us >> 55 & 1 and len(body) >= 56:
        return int.from_bytes(body[49:56], "little") // 1000, gtid
    return (commit_us & _IMMEDIATE) // 1000, gtid
