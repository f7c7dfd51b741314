"""Requests that are sent again: a receiver gets all of them, and knows them by their keys."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from moment_kit import Killed

from rowferry.control.feed import service
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.store.sql_store import open_store
from rowferry.errors import SinkUnavailable
from rowferry.moment import watched
from rowferry.spark.job import InProcessRunner
from rowferry.testing.receiver import KEY, HttpReceiver, Refusal
from rowferry.testing.servers import MySql

PATIENCE_S = 120.0


class Poster:
    """A feed that posts, and the processes that run it, one after the other."""

    def __init__(self, server: MySql, receiver: HttpReceiver, folder: Path) -> None:
        self._server, self._receiver, self._folder = server, receiver, folder
        self._store = open_store(f"sqlite:///{folder}/meta.db")
        self._loops: list[Loop] = []
        server.script(
            "DROP DATABASE IF EXISTS posts",
            "CREATE DATABASE posts",
            "CREATE TABLE posts.t (id INT PRIMARY KEY)",
        )

    def board(self) -> Loop:
        """Begin as another process."""
        config = self._folder / "feed.toml"
        config.write_text("[filter]\nrules = ['posts.*']\n")
        patience = "max-retry=1&backoff=10ms&max-backoff=20ms&max-batch-rows=1"
        sink = f"http://127.0.0.1:{self._receiver.port}/?{patience}"
        prepared = service.prepare(self._server.uri, sink, config, "posts", stored=lambda _: None)
        if not self._loops:
            self._store.create_changefeed(prepared.spec, 0)
        now = time.time() + 7200 * len(self._loops)  # the lease of the one before has ended
        claim = self._store.claim("posts", Holder("elsewhere", 1, "", 0, str(now)), now, 3600)
        clock = lambda: time.time_ns() // 1_000_000  # noqa: E731
        found = Loop("posts", prepared.flow, self._store, claim, InProcessRunner(), clock)
        self._loops.append(found)
        return found

    def close(self) -> None:
        """Let connections go."""
        for loop in self._loops:
            loop.close()
        self._store.close()


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver() as found:
        yield found


@pytest.fixture
def poster(mysql_server: MySql, receiver: HttpReceiver, tmp_path: Path) -> Iterator[Poster]:
    found = Poster(mysql_server, receiver, tmp_path)
    yield found
    found.close()


def test_a_repeat_has_the_keys_of_the_first_try(
    poster: Poster, receiver: HttpReceiver, mysql_server: MySql
) -> None:
    first = poster.board()
    _catch_up(first)
    mysql_server.script("INSERT INTO posts.t VALUES (1), (2), (3)")
    _die_before_progress(first)
    _catch_up(poster.board())
    counts = Counter(request.body for request in receiver.taken)
    keys: dict[bytes, set[str]] = {}
    for request in receiver.taken:
        keys.setdefault(request.body, set()).add(request.headers[KEY])
    assert max(counts.values()) > 1, "nothing was sent twice"
    assert {len(some) for some in keys.values()} == {1}


def test_rows_that_a_receiver_refuses_for_a_while(
    poster: Poster, receiver: HttpReceiver, mysql_server: MySql
) -> None:
    loop = poster.board()
    _catch_up(loop)
    before = len(receiver.taken)
    refused: list[str] = []

    def refuse(name: str) -> None:
        if name == "run job" and not refused:
            refused.append(name)
            # To both tries of each request: lanes may post the rows side by side, and fewer would
            # leave each of them a try that succeeds.
            receiver.faults.extend([Refusal(503)] * 6)
        if name == "job done":
            receiver.faults.clear()  # a watermark that is refused, too, would send the rows again

    mysql_server.script("INSERT INTO posts.t VALUES (1), (2), (3)")
    end = time.monotonic() + PATIENCE_S
    with watched(refuse):
        while not refused or receiver.faults or len(receiver.taken) < before + 4:
            with suppress(SinkUnavailable):
                loop.step()
            assert time.monotonic() < end, "the rows never came"
    rows = b"".join(request.body for request in receiver.taken[before:])
    assert [n for n in (1, 2, 3) if b'"id":%d' % n not in rows.replace(b" ", b"")] == []


def _catch_up(loop: Loop) -> None:
    end = time.monotonic() + PATIENCE_S
    while not loop.step().caught_up:
        assert time.monotonic() < end, "the feed never caught up"


def _die_before_progress(loop: Loop) -> None:
    """Step until rows were sent, and die before that is stored."""

    def die(name: str) -> None:
        if name == "publish progress" and posted:
            raise Killed
        if name == "posted":
            posted.append(name)

    posted: list[str] = []
    with watched(die), pytest.raises(Killed):
        _catch_up(loop)
