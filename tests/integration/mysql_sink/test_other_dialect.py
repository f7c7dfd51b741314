"""A source that is no MySQL, into real servers: tables by structure, the rest refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.operator.checks.prepare import prepare
from rowferry.control.store.sql_store import open_store
from rowferry.errors import SchemaChangeRefused
from rowferry.registry import SOURCES
from rowferry.spark.job import InProcessRunner
from rowferry.testing.servers import Server

CATALOG, META = "other_dialect", "other_dialect_meta"
DATABASE = f"`{CATALOG}.public`"
COLUMNS = {
    "name": "character varying(20)",
    "paid": "boolean",
    "placed": "timestamp with time zone",
    "total": "numeric(12,2)",
    "photo": "bytea",
    "tags": "integer[]",
}


class Elephant:
    """A log, and a changefeed of it into a server."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._log = folder / "log"
        self._log.write_text("")
        self._lines = self.stamp = 0
        self.skipped = ""

    def append(self, *lines: dict[str, Any]) -> None:
        with self._log.open("a") as file:
            for line in lines:
                self._lines += 1
                self.stamp = (1_770_000_000_000 << PHYSICAL_SHIFT) + self._lines
                place = {"lsn": f"0/{self._lines}A", "ts": self.stamp, "oid": 7}
                file.write(json.dumps({**place, **line}) + "\n")

    def ddl(self, kind: str, name: str, text: str = "in its own words", **more: Any) -> None:
        table = [CATALOG, "public", name]
        self.append({"ddl": text, "kind": kind, "table": table, "key": ["name"], **more})

    def insert(self, *rows: dict[str, Any], oid: int = 7) -> None:
        self.append(*({"op": "INSERT", "after": row, "oid": oid} for row in rows))

    def deliver(self) -> None:
        """Run the changefeed until nothing is left, as a new process would."""
        config = self._folder / "feed.toml"
        skip = f"[sink.mysql-config]\nskip-ddl = ['{self.skipped}']\n" if self.skipped else ""
        config.write_text(f"[filter]\nrules = ['*.*']\n{skip}")
        sink = f"{self._server.uri}?meta-database={META}&create-tables=true"
        with closing(open_store(f"sqlite:///{self._folder}/meta.db")) as store:
            feed = store.feed("feed")
            known = feed.spec if feed else None
            made = prepare(f"elephant://{self._log}", sink, config, "feed", stored=lambda _: known)
            if feed is None:
                store.create_changefeed(made.spec, 0)
            else:
                store.update_spec("feed", made.spec)
            claim = store.claim("feed", Holder.here(), 1.0, 0.0)
            with closing(
                Loop("feed", made.flow, store, claim, InProcessRunner(), lambda: 1)
            ) as loop:
                while not loop.step().caught_up:
                    pass

    def ask(self, sql: str) -> list[tuple[str, ...]]:
        return [tuple(map(str, row)) for row in self._server.execute(sql)]


@pytest.fixture
def elephant(
    source_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Elephant]:
    monkeypatch.setitem(SOURCES._places, "elephant", "other_database:Elephant")
    clean = [f"DROP DATABASE IF EXISTS {name}" for name in (DATABASE, META)]
    source_server.script(*clean)
    yield Elephant(source_server, tmp_path)
    source_server.script(*clean)


def test_tables_are_made_by_structure_and_what_cannot_be_is_refused(elephant: Elephant) -> None:
    elephant.deliver()  # it begins before there is anything
    elephant.ddl("CREATE_TABLE", "orders", columns=COLUMNS)
    whole = {
        "paid": True,
        "placed": "2026-01-02 03:04:05.000006+00",
        "total": "12.50",
        "photo": "\\x00ff",
        "tags": [1, None],
    }
    # To that database three texts; many collations of a downstream take them for one.
    elephant.insert({"name": "a", **whole}, {"name": "A"}, {"name": "a "})
    elephant.deliver()
    rows = elephant.ask(
        "SELECT HEX(name), paid, placed, total, HEX(photo), JSON_LENGTH(tags) "
        f"FROM {DATABASE}.orders ORDER BY 1"
    )
    empty = ("None",) * 5
    assert rows == [
        ("41", *empty),
        ("61", "1", "2026-01-02 03:04:05.000006", "12.50", "00FF", "2"),
        ("6120", *empty),
    ]
    elephant.ddl("RENAME_TABLE", "sales", columns=COLUMNS)
    elephant.insert({"name": "b"})
    elephant.ddl("CREATE_TABLE", "gone", oid=8, columns=COLUMNS)
    elephant.ddl("DROP_TABLE", "gone", oid=8)
    elephant.deliver()
    assert elephant.ask(f"SHOW TABLES FROM {DATABASE}") == [("sales",)]
    assert elephant.ask(f"SELECT COUNT(*) FROM {DATABASE}.sales") == [("4",)]
    elephant.ddl("TRUNCATE_TABLE", "sales", columns=COLUMNS)
    elephant.insert({"name": "c"})
    elephant.deliver()
    assert elephant.ask(f"SELECT name FROM {DATABASE}.sales") == [("c",)]
    wider = {**COLUMNS, "note": "text"}
    elephant.ddl("ADD_COLUMN", "sales", "ALTER TABLE sales ADD note text", columns=wider)
    altered = elephant.stamp
    elephant.insert({"name": "d", "note": "new"})
    with pytest.raises(SchemaChangeRefused, match="ADD COLUMN comes from a source of the dialect"):
        elephant.deliver()
    elephant.ask(f"ALTER TABLE {DATABASE}.sales ADD note longtext")
    elephant.skipped = str(altered)
    elephant.deliver()
    assert elephant.ask(f"SELECT name, note FROM {DATABASE}.sales ORDER BY name") == [
        ("c", "None"),
        ("d", "new"),
    ]
