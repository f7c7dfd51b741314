"""A cache for all tables of a process: one bound in bytes, whoever fills it."""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Container
from itertools import count
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


class SharedCache(Generic[V]):
    """Values by name, each in the part of one table; the least recently used make room.

    A part lets its values go when nobody holds it any more.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._lock = Lock()
        self._entries: OrderedDict[tuple[int, str], tuple[V, int]] = OrderedDict()
        self._names: dict[int, set[str]] = {}
        self._bytes = 0
        self._numbers = count()
        self._left: deque[int] = deque()

    @property
    def bytes(self) -> int:
        """How many bytes are held now."""
        with self._lock:
            self._sweep()
            return self._bytes

    def part(self) -> CachePart[V]:
        """Return a new part, which knows no names of others."""
        number = next(self._numbers)
        made = CachePart(self, number)
        weakref.finalize(made, self._leave, number).atexit = False
        return made

    def _get(self, number: int, name: str) -> V | None:
        with self._lock:
            known = self._entries.get((number, name))
            if known is None:
                return None
            self._entries.move_to_end((number, name))
            return known[0]

    def _put(self, number: int, name: str, value: V, size: int) -> None:
        with self._lock:
            self._sweep()
            self._drop(number, name)
            if size > self._most:
                return
            self._entries[number, name] = value, size
            self._names.setdefault(number, set()).add(name)
            self._bytes += size
            while self._bytes > self._most:
                self._drop(*next(iter(self._entries)))

    def _forget(self, number: int, names: Container[str], others: bool) -> None:
        with self._lock:
            self._sweep()
            for name in [n for n in self._names.get(number, ()) if (n in names) is not others]:
                self._drop(number, name)

    def _drop(self, number: int, name: str) -> None:
        known = self._entries.pop((number, name), None)
        if known is None:
            return
        self._bytes -= known[1]
        self._names[number].discard(name)

    def _sweep(self) -> None:
        while self._left:
            number = self._left.popleft()
            for name in list(self._names.get(number, ())):
                self._drop(number, name)
            self._names.pop(number, None)

    def _leave(self, number: int) -> None:
        """Let a part go; called wherever garbage is collected, also inside of the calls above."""
        self._left.append(number)
        if self._lock.acquire(blocking=False):
            try:
                self._sweep()
            finally:
                self._lock.release()


class CachePart(Generic[V]):
    """The values of one table. Any of them may be gone when it is asked for."""

    def __init__(self, cache: SharedCache[V], number: int) -> None:
        self._cache = cache
        self._number = number

    def get(self, name: str) -> V | None:
        """Return a value; None: it is not held."""
        return self._cache._get(self._number, name)

    def put(self, name: str, value: V, size: int) -> None:
        """Hold a value of so many bytes, in place of any other of this name."""
        self._cache._put(self._number, name, value, size)

    def forget(self, names: Container[str]) -> None:
        """Let the values of these names go."""
        self._cache._forget(self._number, names, others=False)

    def keep(self, names: Container[str]) -> None:
        """Let the values of all other names go."""
        self._cache._forget(self._number, names, others=True)
