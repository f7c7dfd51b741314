"""Rows that PostgreSQL refuses are parked; others flow, and a retry after the cure heals it."""

from __future__ import annotations

import pytest
from postgresql_kit import PostgresqlFeed, Scene

from rowferry.change.quarantine import WAITS
from rowferry.errors import RowRejected
from rowferry.moment import watched

PARKS = "on-bad-row = 'quarantine'\nforce-replicate = true"


def parked(feed: PostgresqlFeed) -> list[tuple[str, str, str]]:
    return [(r.table.table, r.key, r.op.name.lower()) for r in feed.store.parked(feed.name)]


def retry(feed: PostgresqlFeed) -> None:
    rows = feed.store.parked(feed.name)
    feed.store.want_parked(feed.name, {row.parked_key for row in rows})
    feed.catch_up()


def test_a_refused_row_waits_with_its_key_and_is_sent_again(each_kind: Scene) -> None:
    scene = each_kind
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, a varchar(20))",
        "CREATE TABLE wide (at datetime(3), d decimal(6,2), b binary(2), n int, "
        "PRIMARY KEY (at, d, b))",
        "CREATE TABLE word (k varchar(20) PRIMARY KEY, n int)",
        "INSERT INTO t VALUES (1, 10, 'x'), (2, 20, 'y')",
    )
    feed = scene.feed(config=PARKS)
    feed.catch_up()
    for table, bad in (("t", "a <> 'bad'"), ("wide", "n < 100"), ("word", "n < 100")):
        scene.pg(f"ALTER TABLE $.{table} ADD CONSTRAINT small CHECK ({bad})")
    scene.sql(
        "BEGIN",
        "UPDATE t SET u = 11, a = 'bad' WHERE id = 1",
        "UPDATE t SET u = 10 WHERE id = 2",  # row 1 has it downstream
        "INSERT INTO t VALUES (3, 30, 'bad'), (4, 40, 'z')",
        "INSERT INTO wide VALUES ('2024-01-02 03:04:05.678', 1.50, x'00ff', 500)",
        "INSERT INTO wide VALUES ('2024-01-02 03:04:05.678', 1.51, x'00ff', 1)",
        "INSERT INTO word VALUES ('a', 500), ('b', 1)",
        "COMMIT",
    )
    feed.catch_up()
    key = "2024-01-02 03:04:05.678,1.50,00ff"
    assert sorted(parked(feed)) == [
        *(("t", "1", "delete"), ("t", "1", "insert")),  # its other unique key has changed
        *(("t", "3", "insert"), ("wide", key, "insert")),
        *[("word", "*", "insert")] * 2,
    ]
    first = feed.store.parked(feed.name)[0]
    assert "row id = 1" in first.cause and "(SQLSTATE 23514)" in first.cause
    assert scene.pg("SELECT id, u, a FROM $.t WHERE id <> 1 ORDER BY id") == [
        (2, 10, "y"),
        (4, 40, "z"),
    ]
    assert scene.pg("SELECT n FROM $.wide") == [(1,)] and scene.pg("SELECT k FROM $.word") == []
    scene.sql("UPDATE t SET a = 'ok' WHERE id = 1", "UPDATE wide SET n = 2 WHERE n = 500")
    scene.sql("DELETE FROM t WHERE id = 4")
    feed.catch_up()
    assert [row.cause for row in feed.store.parked(feed.name)][-2:] == [WAITS, WAITS]
    retry(feed)  # what is refused once more stays
    assert sorted(set(parked(feed))) == [("t", "3", "insert"), ("word", "*", "insert")]
    for table in ("t", "wide", "word"):
        scene.pg(f"ALTER TABLE $.{table} DROP CONSTRAINT small")
    retry(feed)
    assert parked(feed) == []
    assert scene.pg("SELECT id, u, a FROM $.t ORDER BY id") == [
        (1, 11, "ok"),
        (2, 10, "y"),
        (3, 30, "bad"),
    ]
    assert scene.pg("SELECT n FROM $.wide ORDER BY n") == [(1,), (2,)]
    assert scene.pg("SELECT k, n FROM $.word ORDER BY k") == [("a", 500), ("b", 1)]


def test_what_is_taken_when_it_is_tried_again_is_not_parked(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, n int)", "CREATE TABLE bare (n int)")
    feed = scene.feed(config=PARKS)
    feed.catch_up()
    scene.pg("ALTER TABLE $.t ADD CONSTRAINT small CHECK (n < 100)")
    scene.sql("INSERT INTO t VALUES (1, 500)")

    def mend(name: str) -> None:
        if name == "look for refused rows (PostgreSQL)":
            scene.pg("ALTER TABLE $.t DROP CONSTRAINT small")

    with watched(mend):
        feed.catch_up()
    assert parked(feed) == [] and scene.pg("SELECT id, n FROM $.t") == [(1, 500)]
    scene.pg("ALTER TABLE $.bare ADD CONSTRAINT small CHECK (n < 100)")
    scene.sql("INSERT INTO bare VALUES (500)")
    with pytest.raises(RowRejected, match="without a key"):
        feed.catch_up()
    assert parked(feed) == []


def test_a_row_is_parked_among_those_of_many_tables(scene: Scene) -> None:
    """They need more staging tables than a connection keeps."""
    names = [f"t{number:02}" for number in range(20)]
    scene.sql(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, n int)" for name in names),
        *(f"INSERT INTO {name} VALUES (1, 1)" for name in names),
    )
    feed = scene.feed(config=PARKS)
    feed.catch_up()
    scene.pg("ALTER TABLE $.t19 ADD CONSTRAINT small CHECK (n < 100)")
    scene.sql(
        "BEGIN",
        *(f"DELETE FROM {name}" for name in names),
        *(f"INSERT INTO {name} VALUES (2, 2)" for name in names[:-1]),
        "INSERT INTO t19 VALUES (2, 200), (3, 3)",
        "COMMIT",
    )
    feed.catch_up()
    assert parked(feed) == [("t19", "2", "insert")] and feed.faults == []
    assert scene.pg("SELECT id, n FROM $.t19") == [(3, 3)]
    for name in names[:-1]:
        assert scene.pg(f"SELECT id, n FROM $.{name}") == [(2, 2)], name
