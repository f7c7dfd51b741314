"""A feed into OpenSearch in this process, step by step, with indexes of its own."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.operator.checks.prepare import prepare
from rowferry.control.store.sql_store import open_store
from rowferry.errors import RowferryError, Verdict
from rowferry.spark.job import InProcessRunner
from rowferry.testing.servers import OpenSearch, Server

PATIENCE_S = 600.0  # an upper bound for a machine under load, never reached by working code


class SearchScene:
    """A database at a source, and the prefix of what a feed makes of it."""

    def __init__(self, source: Server, target: OpenSearch, folder: Path) -> None:
        self.source, self.target, self._folder = source, target, folder
        self.database = f"search_{uuid4().hex[:12]}"
        self.notes = f"{self.database}-notes"
        self.name = self.database.replace("_", "-")
        self.address, self.scheme = target.address, "opensearch"
        self.login = self.authority = ""
        source.script(f"CREATE DATABASE {self.database}")
        self.meta = f"sqlite:///{folder}/{self.database}.db"
        self._store = open_store(self.meta)
        self._loop: Loop | None = None

    def close(self) -> None:
        """Leave nothing behind."""
        self.stop()
        self._store.close()
        self.source.script(f"DROP DATABASE IF EXISTS {self.database}")
        for name in (*self.indexes(), self.notes):
            self.target.ask("DELETE", f"/{quote(name)}?ignore_unavailable=true")

    def sql(self, *statements: str) -> None:
        """Run statements in one session, each in a transaction of its own unless it begins one."""
        with self.source.connect(self.database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def uri(self, query: str = "") -> str:
        own = f"ownership-index={self.notes}&number-of-replicas=0&backoff=1ms&max-backoff=5ms"
        return f"{self.scheme}://{self.login}{self.address}?{own}&{self.authority}&{query}"

    def run(self, query: str = "", config: str = "") -> None:
        """Begin, or do what another process would do, and deliver all that is there by now."""
        self.start(query, config)
        self.catch_up()

    def start(self, query: str = "", config: str = "") -> None:
        """Claim the changefeed."""
        self.stop()
        file = self._folder / f"{self.database}.toml"
        file.write_text(f"{config}\n[filter]\nrules = ['{self.database}.*']\n")
        feed = self._store.feed(self.name)
        prepared = prepare(
            self.source.uri,
            self.uri(query),
            file,
            self.name,
            stored=lambda name: feed.spec if feed else None,
        )
        if feed is None:
            self._store.create_changefeed(prepared.spec, 0)
        claim = self._store.claim(self.name, Holder.here(), time.time(), 0.0)
        now_ms = lambda: time.time_ns() // 1_000_000  # noqa: E731
        self._loop = Loop(self.name, prepared.flow, self._store, claim, InProcessRunner(), now_ms)

    def catch_up(self) -> list[RowferryError]:
        """Deliver all that is in the source by now; return what was tried again."""
        assert self._loop is not None
        clock = self.source.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
        wanted, end = int(str(clock)) << PHYSICAL_SHIFT, time.monotonic() + PATIENCE_S
        faults: list[RowferryError] = []
        while time.monotonic() < end:
            try:
                step = self._loop.step()
                if step.caught_up and step.watermark >= wanted:
                    return faults
            except RowferryError as err:
                if err.verdict is Verdict.STOP:
                    raise
                faults.append(err)
        raise AssertionError(faults[-1:])

    def stop(self) -> None:
        """Let connections go."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    # --- what is there ----------------------------------------------------------------------------

    def index(self, table: str) -> str:
        return f"{self.database}-{table}"

    def indexes(self) -> list[str]:
        """The names of all indexes that a feed has made here."""
        found = self.target.ask("GET", "/_cat/indices?format=json")
        names = sorted(one["index"] for one in found)
        return [n for n in names if n.startswith(f"{self.database}-") and n != self.notes]

    def documents(self, table: str) -> dict[str, Any]:
        return self.target.documents(self.index(table))

    def versions(self, table: str) -> dict[str, int]:
        """The version of each document."""
        found = self.target.ask("POST", f"/{self.index(table)}/_search?version=true&size=1000", {})
        return {hit["_id"]: hit["_version"] for hit in found["hits"]["hits"]}

    def fields(self, table: str) -> dict[str, Any]:
        found = self.target.ask("GET", f"/{self.index(table)}/_mapping")
        (facts,) = found.values()
        fields: dict[str, Any] = facts["mappings"]["properties"]
        return fields

    def assert_same(self, table: str, columns: Iterable[str] = ("id", "note")) -> int:
        """Compare an index with its table, row by row; return how many there are."""
        names = list(columns)
        rows = self.source.execute(f"SELECT {', '.join(names)} FROM {self.database}.{table}")
        wanted = {str(row[0]): [str(value) for value in row] for row in rows}
        found = self.documents(table)
        assert {k: [str(d.get(n)) for n in names] for k, d in found.items()} == wanted
        return len(wanted)
