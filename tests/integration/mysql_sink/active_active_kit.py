"""Two clusters with the same database, and a changefeed each way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

from mysql_sink_kit import MySqlFeed, Scene

from rowferry.change.table import TableId
from rowferry.flow.sink.mysql.emulation import triggers
from rowferry.testing.servers import Server

HIDDEN = (
    "_tidb_origin_ts BIGINT UNSIGNED, _tidb_softdelete_time TIMESTAMP(6) NULL, "
    "_tidb_commit_ts BIGINT UNSIGNED"
)
MARKED = "COMMENT='rowferry:active-active'"


class OneWay(Scene):
    """From one cluster to the other, into the same database there."""

    def __init__(
        self, source: Server, target: Server, folder: Path, database: str, number: str
    ) -> None:
        self.source, self.target, self._folder = source, target, folder
        self.relay = None
        self.number = number
        self.database = self.copy = database
        self.meta = f"{database}_meta"
        self._feeds: list[MySqlFeed] = []
        folder.mkdir()


class Clusters:
    """Two servers with one database of the same name; `there` and `back` lead between them."""

    def __init__(self, one: Server, other: Server, folder: Path, test: str) -> None:
        name = re.sub(r"\W+", "_", test).lower().strip("_")
        number = f"{crc32(name.encode()):x}"
        self.database = f"{name[:30]}_{number}"
        self.servers = (one, other)
        for server in self.servers:
            server.script(
                f"DROP DATABASE IF EXISTS {self.database}",
                f"DROP DATABASE IF EXISTS {self.database}_meta",
                f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4",
            )
        self.there = OneWay(one, other, folder / "there", self.database, f"there-{number}")
        self.back = OneWay(other, one, folder / "back", self.database, f"back-{number}")

    def both(self, *statements: str) -> None:
        """Run the same on both clusters, in sessions whose writes are their own."""
        for server in self.servers:
            server.script(f"USE {self.database}", *statements)

    def prepare(self, table: str, first_index: int = 1) -> None:
        """Make a table's triggers on both sides; the clusters' numbers follow each other."""
        for index, server in enumerate(self.servers, first_index):
            server.script(*triggers(TableId(self.database, table), ["id"], index))

    def feeds(self, config: str, query: str = "") -> tuple[MySqlFeed, MySqlFeed]:
        """Make both feeds; `{index}` in the configuration is the number of the source's cluster."""
        one = self.there.feed(query, config.replace("{index}", "1"))
        other = self.back.feed(query, config.replace("{index}", "2"))
        return one, other

    def close(self) -> None:
        """Stop the feeds."""
        self.there.close()
        self.back.close()


@contextmanager
def clusters_of(one: Server, other: Server, folder: Path, test: str) -> Iterator[Clusters]:
    """Two clusters that end with their block."""
    found = Clusters(one, other, folder, test)
    try:
        yield found
    finally:
        found.close()
