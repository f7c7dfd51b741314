"""The examples of docs/meta.md, carried out on SQLite, PostgreSQL and MySQL."""

from __future__ import annotations

import io
import re
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer

from page_examples import ROOT, all_blocks, commands, table_rows
from rowferry.change.plan import Plan, Stretch
from rowferry.change.position import RangeProgress, Stage
from rowferry.control.feed.lease import Holder
from rowferry.control.store.connection import Database
from rowferry.control.store.sql_store import SqlStore, open_store
from rowferry.control.store.tables import MetaTable
from rowferry.errors import BadInput
from rowferry.face.cli import main as cli
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import MySql, Postgres

PAGE = "meta.md"
PASSWORD = secrets.token_hex(8)
ON_PAGE = re.compile(r"postgresql://ferry:<password>@db:5432/rowferry")


def _statements(number: int) -> list[str]:
    block = [b for b in all_blocks("sql") if b.page == PAGE][number]
    text = block.text.replace("<password>", PASSWORD)
    return [line for line in text.splitlines() if line.strip()]


def _run(*words: str) -> str:
    out = io.StringIO()
    command: Any = typer.main.get_command(cli.app)
    with redirect_stdout(out):
        assert not command([*words], standalone_mode=False), out.getvalue()
    return out.getvalue()


@contextmanager
def _set_up(server: Postgres | MySql) -> Iterator[str]:
    """Follow the page's set-up; gives the URL that results."""
    try:
        for statement in _statements(0 if isinstance(server, Postgres) else 1):
            server.execute(statement.removesuffix(";"))
        scheme = "postgresql" if isinstance(server, Postgres) else "mysql"
        yield f"{scheme}://ferry:{PASSWORD}@{server.host}:{server.port}/rowferry"
    finally:
        server.execute("DROP DATABASE IF EXISTS rowferry")
        server.execute("DROP USER IF EXISTS ferry")


def _deliver(url: str) -> None:
    """Let a changefeed deliver something, so that there is something to see."""
    source, sink = (
        Uri.parse("range://127.0.0.1:4400", "source"),
        Uri.parse("file:///out?protocol=csv", "sink"),
    )
    part = RangeProgress("bank", "t", 7, 7, 1, "00", "ff", Stage.LOG, last_log_index=9)
    plan = Plan(1, 1, 0, Stretch((), (), {"at": 1}, (part,), (), 50))
    with closing(open_store(url)) as store:
        store.create_changefeed(ChangefeedSpec("bank", source, sink, {}))
        claim = store.claim("bank", Holder.here(), 0.0, 15.0)
        store.record(claim, plan, ())
        store.publish(claim, plan)


def _ask_for_removal(url: str) -> None:
    """Carry out what users may do with SQL."""
    subscribed, progress, cancel = _statements(2)
    database = Database(url)
    with closing(database), database.engine.begin() as connection:
        assert len(connection.exec_driver_sql(subscribed).all()) == 1
        assert connection.exec_driver_sql(progress).all() == [("bank", "t", 1, 9)]
    writer = SqlStore(database)
    assert not writer.cancel_requested("bank")
    with database.writing("write by hand") as session:
        session.connection().exec_driver_sql(cancel)
    assert writer.cancel_requested("bank")
    writer.close()


def test_a_reader_can_follow_the_page(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    postgres_server: Postgres,
    mysql_server: MySql,
) -> None:
    monkeypatch.chdir(tmp_path)
    _deliver("sqlite:///.rowferry/meta.db")
    words = [w for b in all_blocks("sh") if b.page == PAGE for w in commands(b)]
    assert [w[2] for w in words] == ["migrate", "check", "backup", "restore"]
    for server in (postgres_server, mysql_server):
        with _set_up(server) as url:
            said = [_run(*(ON_PAGE.sub(url, word) for word in one[1:])) for one in words]
            assert "empty -> " in said[0] and PASSWORD not in "".join(said)
            assert said[1].splitlines()[0].split("\t") == ["what", "rows", "findings"]
            assert said[2].startswith("meta.jsonl.gz: 1 changefeeds,")
            assert "1 changefeeds" in said[3]
            _ask_for_removal(url)
            with pytest.raises(BadInput, match="not empty"):
                _run("meta", "restore", "--meta", url, "meta.jsonl.gz")
        (tmp_path / "meta.jsonl.gz").unlink()
    _ask_for_removal("sqlite:///.rowferry/meta.db")


def test_a_finding_is_told_with_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/meta.db"
    monkeypatch.setenv("ROWFERRY_META", url)
    _deliver(url)
    assert "findings" in _run("meta", "check", "--output", "json")
    database = Database(url)
    with closing(database), database.writing("spoil") as session:
        session.connection().exec_driver_sql("UPDATE changefeeds SET epoch = 7")
    out = io.StringIO()
    command: Any = typer.main.get_command(cli.app)
    with redirect_stdout(out):
        assert command(["meta", "check"], standalone_mode=False) == 1
    assert "leases and epochs: changefeed bank is at epoch 7, its lease at 1" in out.getvalue()


@pytest.mark.parametrize("table", ["subscribe", "progress"])
def test_every_column_is_on_the_page(table: str) -> None:
    text = (ROOT / "docs" / PAGE).read_text()
    rows = table_rows(text, f"column of `{table}`|meaning")
    named = [name.strip("`") for cells in rows for name in cells[0].split(", ")]
    assert sorted(named) == sorted(MetaTable.metadata.tables[table].columns.keys())
