"""Names for the calls that leave this process, so that a test can act between any two of them.

A feed talks to the outside through few doors: a query to the source, a read of its log, a call of
the meta database, a write to the sink, a job. Each call site is named once, `moment("list tables")`
just before the call; where a lost answer is not the same as no call, a second name follows it. In
production a name costs one look at an attribute. A test installs a hook with `watched`, and may do
there whatever the outside may do: write to the source, drop a table, take the changefeed over, or
raise what a lost connection would raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Hook: TypeAlias = Callable[[str], None]


class _Watch:
    """Whoever listens, in all threads of this process."""

    __slots__ = ("hook",)

    def __init__(self) -> None:
        self.hook: Hook | None = None


_watch = _Watch()


def moment(name: str) -> None:
    """Say that the next thing to happen is the call of this name."""
    hook = _watch.hook
    if hook is not None:
        hook(name)


@contextmanager
def watched(hook: Hook) -> Iterator[None]:
    """Call `hook` with each name, in the thread that comes there, until the block ends.

    What it raises is raised at the call's place.
    """
    before, _watch.hook = _watch.hook, hook
    try:
        yield
    finally:
        _watch.hook = before
