"""A regular expression as a table of steps from byte to byte that ends where RE2's match ends.

A table is made only of what is understood with certainty: other patterns stay with RE2 itself, and
so do those that would need a large one. A wrong end would show what a mask should hide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rowferry.columnar.memory import Bytes, frozen

_Ranges: TypeAlias = tuple[tuple[int, int], ...]

_DEEPEST: Final = 20  # groups within groups
_MOST_NODES: Final = 2_000
_MOST_STATES: Final = 256
_MOST_WORK: Final = 200_000  # steps of making a table, some tenths of a second at most
_LAST: Final = 0x10FFFF
# Characters whose UTF-8 forms are equally long; those between are none.
_SPANS: Final = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, _LAST))
_MORE: Final = (0x80, 0xBF)  # bytes behind the first of a character
_DIGITS: Final = ((48, 57),)
_WORD: Final = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Final = ((9, 10), (12, 13), (32, 32))
_CLASSES: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t"}
_PUNCTUATION: Final = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~ ")
_NUMBER: Final = "(?:0|[1-9][0-9]{0,3})"
_COUNT: Final = re.compile(
    rf"(?:(?P<sign>[*+?])|\{{(?P<least>{_NUMBER})(?P<more>,(?P<most>{_NUMBER})?)?\}})(?P<lazy>\??)"
)

# What stands before a place: the three states in which a search can begin.
TEXT_BEGINS, NO_WORD, WORD = 0, 1, 2
_TEXT_ENDS: Final = 3  # what may stand behind it, besides the latter two
_MATCH: Final = 0  # the node of which a match consists


class _NotKnown(Exception):
    """The pattern is one for RE2."""


class _Fork(NamedTuple):
    """Two ways; a match by the first one is wanted more."""

    first: int
    second: int


class _Check(NamedTuple):
    """A way that is open where something holds: `^`, `$` or `b`, as patterns write it."""

    what: str
    after: int


class _Bytes(NamedTuple):
    """Ways over one byte each: from, to, and the node behind it."""

    ways: tuple[tuple[int, int, int], ...]


_Node: TypeAlias = _Fork | _Check | _Bytes | None


@dataclass(frozen=True, slots=True)
class Automaton:
    """Where matches end that begin at a known place.

    An entry of the table is twice the next state, plus one if a match ends before the byte. A state
    is the place of its row in the table; 0 is the one in which nothing more can match. The last
    class is that of the text's end.

    Attributes:
        classes: of each byte, its column in the table.
        kinds: of each byte, in which way a search begins behind it.
        table: the rows of all states, one behind the other.
        starts: the state in which a search begins, by what stands before it.
        begins: of each byte, whether a match behind the text's begin can begin with it.
    """

    classes: Bytes
    kinds: Bytes
    table: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.uint64]
    begins: Bytes


@lru_cache(maxsize=256)
def automaton_of(pattern: str) -> Automaton | None:
    """Return the table of a pattern that RE2 takes; None: it is one for RE2 only."""
    try:
        reader = _Reader(pattern)
        return _Table(reader.nodes, reader.entry).made()
    except (_NotKnown, UnicodeEncodeError):
        return None


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a pattern.

    Attributes:
        may_be_empty: whether it matches where no byte is.
        build: adds its nodes, given the node behind it; returns the one to begin with.
    """

    may_be_empty: bool
    build: Callable[[int], int]


class _Reader:
    """Reads a pattern into nodes; what is not known here raises _NotKnown."""

    def __init__(self, pattern: str) -> None:
        self._text, self._at, self._depth = pattern, 0, 0
        self._dot: _Ranges = ((0, 9), (11, _LAST))
        if pattern.startswith("(?s)"):
            self._at, self._dot = 4, ((0, _LAST),)
        self.nodes: list[_Node] = [None]
        self._known: dict[_Node, int] = {}
        piece = self._choice()
        if self._at < len(pattern):
            raise _NotKnown
        self.entry = piece.build(_MATCH)

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        if self._at == len(self._text):
            raise _NotKnown
        self._at += 1
        return self._text[self._at - 1]

    def _add(self, node: _Node) -> int:
        if node not in self._known:
            self._known[node] = self._new(node)
        return self._known[node]

    def _new(self, node: _Node) -> int:
        if len(self.nodes) >= _MOST_NODES:
            raise _NotKnown
        self.nodes.append(node)
        return len(self.nodes) - 1

    # --- what a pattern consists of --------------------------------------------------------------

    def _choice(self) -> _Piece:
        rows = [self._row()]
        while self._next == "|":
            self._at += 1
            rows.append(self._row())

        def build(after: int) -> int:
            *entries, entry = [row.build(after) for row in rows]
            for first in reversed(entries):
                entry = self._add(_Fork(first, entry))
            return entry

        return _Piece(any(row.may_be_empty for row in rows), build)

    def _row(self) -> _Piece:
        pieces: list[_Piece] = []
        while self._next not in ("", "|", ")"):
            pieces.append(self._repeated(self._one()))

        def build(after: int) -> int:
            for piece in reversed(pieces):
                after = piece.build(after)
            return after

        return _Piece(all(piece.may_be_empty for piece in pieces), build)

    def _repeated(self, piece: _Piece) -> _Piece:
        match = _COUNT.match(self._text, self._at)
        if match is None:
            return piece
        self._at = match.end()
        if piece.may_be_empty or self._next in ("*", "+", "?", "{"):
            raise _NotKnown  # which of many empty matches is the first one?
        least, most = _counts(match)
        if most is not None and most < least:
            raise _NotKnown

        def fork(inside: int, after: int) -> _Fork:
            return _Fork(after, inside) if match["lazy"] else _Fork(inside, after)

        def build(after: int) -> int:
            entry, left = after, least
            if most is None:
                entry = self._new(None)
                inside = piece.build(entry)
                self.nodes[entry] = fork(inside, after)
                if least:
                    entry, left = inside, least - 1
            else:
                for _ in range(most - least):
                    entry = self._add(fork(piece.build(entry), after))
            for _ in range(left):
                entry = piece.build(entry)
            return entry

        return _Piece(least == 0, build)

    def _one(self) -> _Piece:
        char = self._take()
        match char:
            case "(":
                return self._group()
            case "[":
                return self._set(self._class())
            case ".":
                return self._set(self._dot)
            case "^" | "$":
                return self._check(char)
            case "\\":
                return self._escaped()
            case "*" | "+" | "?" | "{" | "}" | "]":
                raise _NotKnown
        return self._set(_single(char))

    def _group(self) -> _Piece:
        if self._next == "?":
            if not self._text.startswith("?:", self._at):
                raise _NotKnown
            self._at += 2
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _NotKnown
        piece = self._choice()
        self._depth -= 1
        if self._take() != ")":
            raise _NotKnown
        return piece

    def _escaped(self) -> _Piece:
        match self._next:
            case "A":
                check = "^"
            case "z":
                check = "$"
            case "b":
                check = "b"
            case _:
                ranges, _ = self._escape()
                return self._set(ranges)
        self._at += 1
        return self._check(check)

    def _escape(self) -> tuple[_Ranges, bool]:
        """Return what the letter behind a backslash means, and whether it is one character."""
        char = self._take()
        if char in "dwsDWS":
            ranges = _CLASSES[char.lower()]
            return (ranges if char.islower() else _others(ranges)), False
        if char not in _LETTERS and char not in _PUNCTUATION:
            raise _NotKnown
        return _single(_LETTERS.get(char, char)), True

    def _class(self) -> _Ranges:
        """Read a class of characters behind its bracket."""
        negative = self._next == "^"
        self._at += negative
        ranges: list[tuple[int, int]] = []
        begin = self._at
        while (char := self._take()) != "]" or self._at == begin + 1:
            if char == "-":
                if self._at > begin + 1 and self._next != "]" or self._next == "-":
                    raise _NotKnown
                ranges += _single(char)
                continue
            one, is_single = self._member(char)
            if self._next == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                other, is_other_single = self._member(self._take())
                if not is_single or not is_other_single or other[0][0] < one[0][0]:
                    raise _NotKnown
                one = ((one[0][0], other[0][0]),)
            ranges += one
        merged = _others(_others(ranges))
        return _others(merged) if negative else merged

    def _member(self, char: str) -> tuple[_Ranges, bool]:
        if char == "\\":
            return self._escape()
        if char in "[]-":  # named classes, and what is easily misread
            raise _NotKnown
        return _single(char), True

    # --- nodes -----------------------------------------------------------------------------------

    def _check(self, what: str) -> _Piece:
        return _Piece(True, lambda after: self._add(_Check(what, after)))

    def _set(self, ranges: _Ranges) -> _Piece:
        """Return one character out of a set, as its UTF-8 form."""
        forms = [form for low, high in ranges for form in _forms(low, high)]
        if not forms:
            raise _NotKnown

        def build(after: int) -> int:
            ways = []
            for (low, high), *rest in forms:
                to = after
                for span in reversed(rest):
                    to = self._add(_Bytes(((*span, to),)))
                ways.append((low, high, to))
            return self._add(_Bytes(tuple(ways)))

        return _Piece(False, build)


def _counts(match: re.Match[str]) -> tuple[int, int | None]:
    """Return how often something is there at least and at most; None: any number of times."""
    if sign := match["sign"]:
        return int(sign == "+"), 1 if sign == "?" else None
    least = int(match["least"])
    if match["more"] is None:
        return least, least
    return least, int(match["most"]) if match["most"] else None


def _single(char: str) -> _Ranges:
    char.encode()  # raises for a half of a surrogate pair
    return ((ord(char), ord(char)),)


def _others(ranges: Iterable[tuple[int, int]]) -> _Ranges:
    """Return all characters that are in none of the ranges."""
    free, begin = [], 0
    for low, high in sorted(ranges):
        if low > begin:
            free.append((begin, low - 1))
        begin = max(begin, high + 1)
    if begin <= _LAST:
        free.append((begin, _LAST))
    return tuple(free)


def _forms(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield the UTF-8 forms of a range of characters: for each byte of them, from what to what."""
    if low <= 0x80 and high == _LAST:
        # Texts are known to be UTF-8, so that the first byte tells the rest.
        if low < 0x80:
            yield ((low, 0x7F),)
        yield from (((0xC2, 0xDF), _MORE), ((0xE0, 0xEF), _MORE, _MORE))
        yield ((0xF0, 0xF4), _MORE, _MORE, _MORE)
        return
    for first, last in _SPANS:
        if max(low, first) <= min(high, last):
            yield from _equally_long(max(low, first), min(high, last))


def _equally_long(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    for i in range(1, len(chr(low).encode())):
        rest = (1 << 6 * i) - 1  # the bits of the last bytes, which must go all the way
        if low & ~rest == high & ~rest:
            continue
        cut = (low | rest) + 1 if low & rest else high & ~rest
        if low & rest or high & rest != rest:
            yield from _equally_long(low, cut - 1)
            yield from _equally_long(cut, high)
            return
    yield tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))


class _Table:
    """Makes the table of nodes.

    A state is the list of nodes at which a match may be, those first that are wanted more, and what
    stands before the place. Where one of them is the match itself, those behind it are dropped.
    """

    def __init__(self, nodes: list[_Node], entry: int) -> None:
        self._nodes, self._entry, self._work = nodes, entry, 0
        checks = {node.what for node in nodes if isinstance(node, _Check)}
        self._kinds = np.full(256, NO_WORD, np.uint8)
        cuts = np.zeros(257, np.uint8)
        if "b" in checks:
            for low, high in _WORD:
                self._kinds[low : high + 1] = WORD
                cuts[[low, high + 1]] = 1
        for node in nodes:
            if isinstance(node, _Bytes):
                for low, high, _ in node.ways:
                    cuts[[low, high + 1]] = 1
        cuts[0] = 0
        self._classes = np.cumsum(cuts[:256], dtype=np.uint8)
        # A byte of each class; they all do the same.
        self._samples = [0, *np.flatnonzero(cuts[:256]).tolist()]
        self._width = len(self._samples) + 1
        self._numbers: dict[tuple[tuple[int, ...], int], int] = {}
        self._todo: list[tuple[tuple[int, ...], int]] = []

    def made(self) -> Automaton:
        """Return the table. Raises _NotKnown if it would be large."""
        starts = [self._number((self._entry,), kind) for kind in (TEXT_BEGINS, NO_WORD, WORD)]
        rows = [[0] * self._width]
        for state in self._todo:  # which grows meanwhile
            rows.append(self._row(*state))
        table = np.array(rows, np.uint64).ravel()
        for kind, start in enumerate(starts):
            if not table[start : start + self._width].any():
                starts[kind] = 0  # as behind the text's begin, where that is wanted
        columns = self._classes.astype(np.int64)
        begins = table[starts[NO_WORD] + columns] | table[starts[WORD] + columns]
        return Automaton(
            classes=frozen(self._classes),
            kinds=frozen(self._kinds),
            table=frozen(table),
            starts=frozen(np.array(starts, np.uint64)),
            begins=frozen((begins > 0).astype(np.uint8)),
        )

    def _number(self, nodes: tuple[int, ...], kind: int) -> int:
        if not nodes:
            return 0
        key = nodes, kind
        if key not in self._numbers:
            self._todo.append(key)
            if len(self._todo) > _MOST_STATES:
                raise _NotKnown
            self._numbers[key] = len(self._todo) * self._width
        return self._numbers[key]

    def _row(self, nodes: tuple[int, ...], before: int) -> list[int]:
        reached = {
            behind: self._reached(nodes, before, behind) for behind in (NO_WORD, WORD, _TEXT_ENDS)
        }
        row = []
        for byte in self._samples:
            kind = int(self._kinds[byte])
            ways, is_match = reached[kind]
            self._count(len(ways))
            after = dict.fromkeys(to for low, high, to in ways if low <= byte <= high)
            row.append(2 * self._number(tuple(after), kind) + is_match)
        return [*row, int(reached[_TEXT_ENDS][1])]

    def _reached(
        self, nodes: tuple[int, ...], before: int, behind: int
    ) -> tuple[list[tuple[int, int, int]], bool]:
        """Return the ways on from some nodes, and whether a match ends here."""
        ways: list[tuple[int, int, int]] = []
        stack, seen = list(reversed(nodes)), set[int]()
        while stack:
            place = stack.pop()
            if place in seen:
                continue
            seen.add(place)
            self._count(1)
            if place == _MATCH:
                return ways, True
            match self._nodes[place]:
                case _Fork(first, second):
                    stack += (second, first)
                case _Check(what, after):
                    if _holds(what, before, behind):
                        stack.append(after)
                case _Bytes(more):
                    ways += more
        return ways, False

    def _count(self, steps: int) -> None:
        self._work += steps
        if self._work > _MOST_WORK:
            raise _NotKnown


def _holds(what: str, before: int, behind: int) -> bool:
    if what == "^":
        return before == TEXT_BEGINS
    if what == "$":
        return behind == _TEXT_ENDS
    return (before == WORD) != (behind == WORD)
