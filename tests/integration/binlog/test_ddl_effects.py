"""What statements do, as their text tells it, against what the server made of them."""

from __future__ import annotations

import re
from itertools import count

import pytest
from catalog_kit import Desk, comparable, desk
from ddl_statements import Case, cases

from rowferry.change.table import TableId, TableSchema
from rowferry.errors import RowferryError
from rowferry.flow.capture.binlog.ddl.statements import Effects, effects
from rowferry.testing.servers import Server

_USE = re.compile(r"use `[^`]*`; ")
_XID = re.compile(r" /\* xid=\d+ \*/$")


class Follower:
    """Follows the captured tables of a database by its log; names that begin with _ are not."""

    def __init__(self, here: Desk) -> None:
        self.here = here
        self.known: dict[TableId, TableSchema] = {}
        self.ids = count(1)
        self.settings = here.settings()

    def keeps(self, name: TableId) -> bool:
        return name.database == self.here.database and not name.table.startswith("_")

    def place(self) -> tuple[str, str]:
        mysql = self.here.facts.flavour.value == "mysql"
        row = self.here.run("SHOW BINARY LOG STATUS" if mysql else "SHOW MASTER STATUS")[0]
        return row[0], row[1]

    def logged(self, file: str, offset: str) -> list[str]:
        """Return the statements in the log from a place on."""
        events = self.here.run(f"SHOW BINLOG EVENTS IN '{file}' FROM {offset}")
        found = [e[5] for e in events if e[2] == "Query"]
        return [_XID.sub("", _USE.sub("", text)) for text in found]

    def follow(self, sql: str) -> Effects:
        """Apply one logged statement; tables that are not told are read."""
        found = effects(
            sql,
            self.here.database,
            self.known,
            self.keeps,
            lambda: next(self.ids),
            self.here.facts,
            self.settings,
        )
        if found is None:
            return Effects()
        for change in found.changes:
            if change.table.table:
                self.known.pop(change.previous or change.table, None)
                if change.schema is not None and self.keeps(change.table):
                    assert change.schema.version == 0
                    self.known[change.table] = change.schema
        for name in found.unread:
            if (table := self.here.table(name.table)) is not None:
                self.known[name] = table
        return found

    def run(self, case: Case) -> list[Effects]:
        """Run a statement on the server and follow what it logged."""
        place = self.place()
        self.here.run(case.sql)
        return [self.follow(text) for text in self.logged(*place)]

    def check(self) -> None:
        """Compare all captured tables with those that the server has."""
        there = {n: t for n, t in self.here.tables().items() if self.keeps(t.id)}
        mine = {n.table: t for n, t in self.known.items()}
        assert sorted(mine) == sorted(there)
        for name, table in mine.items():
            assert comparable(table) == comparable(there[name])


def test_every_statement_gives_what_the_server_has(source_server: Server) -> None:
    with desk(source_server) as here:
        follower = Follower(here)
        asked: list[str] = []
        listed = cases(here.facts.flavour.value)
        for case in listed:
            try:
                found = follower.run(case)
            except RowferryError as err:
                pytest.fail(f"{case.sql}: {err}")
            try:
                follower.check()
            except AssertionError as err:
                pytest.fail(f"{case.sql}\n{err}")
            if any(f.unread for f in found):
                asked.append(case.sql)
            assert any(f.unread for f in found) != case.told, case.sql
        assert len(asked) < len(listed) * 0.15
