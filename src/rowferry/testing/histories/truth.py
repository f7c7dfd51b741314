"""The truth: what the database itself shows after every statement, as changes of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rowferry.testing.histories.facts import (
    Ask,
    Image,
    Name,
    Rows,
    TableFacts,
    read_rows,
    read_tables,
)

JOURNAL: Name = ("h_journal", "journal")
OUTSIDE = "h_outside"  # a database that no feed captures


@dataclass(frozen=True, slots=True)
class Change:
    """What a statement did to the row of one key."""

    table: Name
    key: Any
    before: Image | None
    after: Image | None


@dataclass(frozen=True, slots=True)
class Effect:
    """A statement and all that it changed; `loose`: one key may have changed several times."""

    kind: str
    sql: str
    changes: tuple[Change, ...]
    loose: bool


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """Something that was committed at one moment.

    Attributes:
        number: its place in the history, from 0.
        token: what it wrote into the journal; 0: nothing.
        effects: of its statements, in order.
        ddl: its text, where it is one.
        tables: all tables afterwards.
        state: all rows afterwards.
    """

    number: int
    token: int
    effects: tuple[Effect, ...]
    tables: Mapping[Name, TableFacts]
    state: Mapping[Name, Rows]
    kind: str = "transaction"
    ddl: str = ""


@dataclass
class Truth:
    """The history so far: `steps[0]` is what was there at the beginning."""

    steps: list[CommittedStep] = field(default_factory=list)

    @property
    def last(self) -> CommittedStep:
        """The last step."""
        return self.steps[-1]

    def add(
        self,
        effects: list[Effect],
        tables: Mapping[Name, TableFacts],
        state: Mapping[Name, Rows],
        token: int = 0,
        kind: str = "transaction",
        ddl: str = "",
    ) -> None:
        """Note what was committed."""
        number = len(self.steps)
        self.steps.append(CommittedStep(number, token, tuple(effects), tables, state, kind, ddl))


class Observer:
    """Looks at all tables in one session."""

    def __init__(self, ask: Ask, databases: Callable[[], list[str]], hidden: set[Name]) -> None:
        self._ask = ask
        self._databases = databases
        self._hidden = hidden

    def tables(self) -> dict[Name, TableFacts]:
        """Return the tables as they are defined now."""
        all_tables = read_tables(self._ask, self._databases())
        return {name: table for name, table in all_tables.items() if name not in self._hidden}

    def rows(
        self, tables: Mapping[Name, TableFacts], known: Mapping[Name, Rows]
    ) -> dict[Name, Rows]:
        """Return the rows of all tables; what did not change is what was known."""
        by_table = {}
        for name, table in tables.items():
            old = known.get(name)
            new = read_rows(self._ask, table, old)
            unchanged = old is not None and len(old) == len(new)
            if unchanged and old is not None:
                unchanged = all(old.get(key) is image for key, image in new.items())
            by_table[name] = old if unchanged and old is not None else new
        return by_table


def differences(
    tables: Mapping[Name, TableFacts], old: Mapping[Name, Rows], new: Mapping[Name, Rows]
) -> tuple[Change, ...]:
    """Return what changed from one state to the next, in tables that did not."""
    changes: list[Change] = []
    for name in tables:
        before, after = old.get(name, {}), new.get(name, {})
        if before is after:
            continue
        for key in dict.fromkeys([*before, *after]):
            one, other = before.get(key), after.get(key)
            if one is not other:
                changes.append(Change(name, key, one, other))
    return tuple(changes)
