"""Global transaction ids: which transactions of a server's log have been seen.

MySQL names a transaction UUID:NUMBER (or UUID:TAG:NUMBER) and keeps sets of them with gaps;
MariaDB names it DOMAIN-SERVER-NUMBER and keeps the last one of each domain. Both are values: what
adds to one returns a new one. Pure; nothing here talks to a server.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final, TypeAlias

from rowferry.errors import BadOption
from rowferry.mysql.session import Flavour

# Whole numbers with both ends inside, in order, with gaps between them.
Intervals: TypeAlias = tuple[tuple[int, int], ...]
Source: TypeAlias = tuple[str, str]

_LAST_NUMBER: Final = 2**63 - 2  # the end on the wire is exclusive and signed
_INTERVAL = re.compile(r"([0-9]{1,19})(?:\s*-\s*([0-9]{1,19}))?")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_UUID = re.compile(r"[0-9a-f]{8}(-?)[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}")
_MARIADB = re.compile(r"([0-9]{1,10})-([0-9]{1,10})-([0-9]{1,20})")


class GtidSet:
    """MySQL's transactions seen, as intervals of numbers for each UUID and tag."""

    __slots__ = ("_held",)

    def __init__(self, held: Mapping[Source, Intervals] | None = None) -> None:
        self._held: dict[Source, Intervals] = dict(held or {})

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Read a set as the server prints or takes it: `UUID:1-77:99,UUID:1-5:tag:1-3`.

        Raises:
            BadOption: the text is none.
        """
        gtids = cls()
        for part in filter(None, (part.strip() for part in text.split(","))):
            uuid, *rest = (word.strip() for word in part.lower().split(":"))
            tag, numbered = "", False
            for word in rest:
                interval = _INTERVAL.fullmatch(word)
                if interval:
                    first, last = int(interval[1]), int(interval[2] or interval[1])
                    gtids, numbered = gtids._read_range(uuid, first, last, tag, part), True
                elif _TAG.fullmatch(word) and (numbered or not tag):
                    tag, numbered = word, False
                else:
                    raise _no_set(part, f"{word!r} is neither an interval nor a tag")
            if not numbered:
                raise _no_set(part, "numbers are missing")
        return gtids

    def _read_range(self, uuid: str, first: int, last: int, tag: str, part: str) -> GtidSet:
        try:
            return self.add_range(uuid, first, last, tag)
        except ValueError as err:
            raise _no_set(part, str(err)) from None

    def add(self, uuid: str | bytes, number: int, tag: str = "") -> GtidSet:
        """Return the set with one more transaction; see `add_range`."""
        return self.add_range(uuid, number, number, tag)

    def add_range(self, uuid: str | bytes, first: int, last: int, tag: str = "") -> GtidSet:
        """Return the set with the transactions `first` to `last` of a UUID (text or 16 bytes).

        Raises:
            ValueError: no UUID, or numbers that cannot be.
        """
        if not 1 <= first <= last <= _LAST_NUMBER:
            raise ValueError(f"{first}-{last} is no interval of transaction numbers")
        source = (_uuid_text(uuid), tag)
        held = self._held.get(source, ())
        return GtidSet({**self._held, source: _with_interval(held, first, last)})

    def holds(self, uuid: str | bytes, number: int, tag: str = "") -> bool:
        """Return whether a transaction is in the set."""
        return _covers(self._held.get((_uuid_text(uuid), tag), ()), number, number)

    def contains(self, other: Gtids) -> bool:
        """Return whether every transaction of the other set is in this one.

        Never so for a position of the other kind of server.
        """
        if not isinstance(other, GtidSet):
            return False
        return all(
            _covers(self._held.get(source, ()), first, last)
            for source, intervals in other._held.items()
            for first, last in intervals
        )

    def union(self, other: GtidSet) -> GtidSet:
        """Return the transactions that are in either set."""
        held = dict(self._held)
        for source, intervals in other._held.items():
            for first, last in intervals:
                held[source] = _with_interval(held.get(source, ()), first, last)
        return GtidSet(held)

    def minus(self, other: GtidSet) -> GtidSet:
        """Return the transactions of this set that the other lacks."""
        left = {
            source: _without(intervals, other._held.get(source, ()))
            for source, intervals in self._held.items()
        }
        return GtidSet({source: intervals for source, intervals in left.items() if intervals})

    @property
    def is_empty(self) -> bool:
        """Whether no transaction is in the set."""
        return not self._held

    def encode(self) -> bytes:
        """Return the set as `COM_BINLOG_DUMP_GTID` carries it, its length not included.

        Sets without tags have the form that every server reads; a tag anywhere makes it the tagged
        form of MySQL 8.3 and later, which alone can hold one.
        """
        sources = sorted(self._held.items())
        tagged = any(tag for (_, tag), _ in sources)
        count = (1 << 56 | len(sources) << 8 | 1) if tagged else len(sources)
        parts = [struct.pack("<Q", count)]
        for (uuid, tag), intervals in sources:
            parts.append(bytes.fromhex(uuid.replace("-", "")))
            if tagged:
                parts.append(bytes([len(tag) << 1]) + tag.encode())
            parts.append(struct.pack("<Q", len(intervals)))
            parts.extend(struct.pack("<QQ", first, last + 1) for first, last in intervals)
        return b"".join(parts)

    def __str__(self) -> str:
        """As the server prints it, without its line breaks."""
        parts: list[str] = []
        before = ""
        for (uuid, tag), intervals in sorted(self._held.items()):
            if uuid != before:
                parts.append(f",{uuid}" if before else uuid)
                before = uuid
            if tag:
                parts.append(f":{tag}")
            parts.extend(f":{a}" if a == b else f":{a}-{b}" for a, b in intervals)
        return "".join(parts)

    def __repr__(self) -> str:
        return f"GtidSet({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GtidSet) and self._held == other._held

    def __hash__(self) -> int:
        return hash(frozenset(self._held.items()))


class GtidPosition:
    """MariaDB's transactions seen: the last one of each domain, with the server that wrote it."""

    __slots__ = ("_last",)

    def __init__(self, last: Mapping[int, tuple[int, int]] | None = None) -> None:
        self._last: dict[int, tuple[int, int]] = dict(last or {})

    @classmethod
    def parse(cls, text: str) -> GtidPosition:
        """Read a position as the server prints or takes it: `0-1-100,2-1-7`.

        Raises:
            BadOption: the text is none, or names a domain twice.
        """
        position = cls()
        for part in filter(None, (part.strip() for part in text.split(","))):
            words = _MARIADB.fullmatch(part)
            domain, server, number = map(int, words.groups()) if words else (-1, -1, -1)
            if not (0 <= domain < 2**32 and 0 <= server < 2**32 and 0 <= number < 2**64):
                raise BadOption(
                    f"{part!r} is no GTID of MariaDB; write DOMAIN-SERVER-NUMBER,… as in 0-1-100"
                )
            if domain in position._last:
                raise BadOption(f"{text!r} names domain {domain} twice; give its last GTID only")
            position = position.add(domain, server, number)
        return position

    def add(self, domain: int, server: int, number: int) -> GtidPosition:
        """Return the position after one more transaction, the newest of its domain."""
        return GtidPosition({**self._last, domain: (server, number)})

    def holds(self, domain: int, number: int) -> bool:
        """Return whether a transaction of a domain is at or before this position."""
        return domain in self._last and number <= self._last[domain][1]

    def contains(self, other: Gtids) -> bool:
        """Return whether this position is at or after the other one in each of its domains.

        Never so for a set of the other kind of server.
        """
        if not isinstance(other, GtidPosition):
            return False
        return all(self.holds(domain, number) for domain, (_, number) in other._last.items())

    def minus(self, other: GtidPosition) -> GtidPosition:
        """Return the domains in which this position is after the other one."""
        return GtidPosition(
            {
                domain: (server, number)
                for domain, (server, number) in self._last.items()
                if not other.holds(domain, number)
            }
        )

    @property
    def is_empty(self) -> bool:
        """Whether no domain has a transaction."""
        return not self._last

    def __str__(self) -> str:
        return ",".join(f"{domain}-{s}-{n}" for domain, (s, n) in sorted(self._last.items()))

    def __repr__(self) -> str:
        return f"GtidPosition({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GtidPosition) and self._last == other._last

    def __hash__(self) -> int:
        return hash(frozenset(self._last.items()))


Gtids: TypeAlias = GtidSet | GtidPosition


def parse_gtids(text: str, flavour: Flavour) -> Gtids:
    """Read the GTIDs of a server of that kind; empty text means none.

    Raises:
        BadOption: the text cannot be read; names the part at fault.
    """
    return GtidSet.parse(text) if flavour is Flavour.MYSQL else GtidPosition.parse(text)


def _no_set(part: str, why: str) -> BadOption:
    return BadOption(f"{part!r} is no GTID set of MySQL: {why}; write UUID:1-77,UUID:1-5:9")


def _uuid_text(uuid: str | bytes) -> str:
    """Return a UUID in lower case with its dashes; raises ValueError."""
    text = uuid.hex() if isinstance(uuid, bytes) else uuid.lower()
    if not _UUID.fullmatch(text):
        raise ValueError(f"{text!r} is no UUID")
    if "-" in text:
        return text
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _covers(intervals: Intervals, first: int, last: int) -> bool:
    place = bisect_right(intervals, (first, _LAST_NUMBER)) - 1
    return place >= 0 and last <= intervals[place][1]


def _with_interval(intervals: Intervals, first: int, last: int) -> Intervals:
    """Return the intervals with one more, merged with those that it meets or touches."""
    if intervals and intervals[-1][0] <= first <= intervals[-1][1] + 1:  # the usual: the next one
        start, end = intervals[-1]
        return (*intervals[:-1], (start, max(end, last)))
    low = bisect_right(intervals, (first, 0))
    if low and intervals[low - 1][1] >= first - 1:
        low -= 1
        first = intervals[low][0]
    high = bisect_right(intervals, (last + 1, _LAST_NUMBER))
    if high > low:
        last = max(last, intervals[high - 1][1])
    return (*intervals[:low], (first, last), *intervals[high:])


def _without(intervals: Intervals, gone: Intervals) -> Intervals:
    """Return the intervals less those of `gone`; one pass over both."""
    left: list[tuple[int, int]] = []
    place = 0
    for first, last in intervals:
        while place < len(gone) and gone[place][1] < first:
            place += 1
        at = place
        while at < len(gone) and gone[at][0] <= last:
            if gone[at][0] > first:
                left.append((first, gone[at][0] - 1))
            first = gone[at][1] + 1
            at += 1
        if first <= last:
            left.append((first, last))
    return tuple(left)
