"""Tables that are altered, renamed and dropped while their snapshot is under way or waited for.

Whatever was done meanwhile lies in the log behind what the feed has followed, and before what its
next snapshot shows. A reader has the source's tables all the same, in versions that go by the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import Feed, Scene, scene_of
from validator_kit import Watched, wrong_versions

from rowferry.change.chunk import DdlKind
from rowferry.flow.capture.binlog.snapshot import snapshots as snapshot
from rowferry.testing.servers import Server

ROWS = 500
# On `t` (id, v), of which a third was delivered, and `u`, which is like it and has two rows.
SEQUENCES: dict[str, tuple[str, ...]] = {
    "swapped, dropped and made anew": (
        "CREATE TABLE _t_gho LIKE t",
        "ALTER TABLE _t_gho ADD COLUMN n int",
        "RENAME TABLE t TO _t_del, _t_gho TO t",
        "DROP TABLE _t_del",
        "DROP TABLE t",
        "CREATE TABLE t (k varchar(9) PRIMARY KEY, other date)",
        "INSERT INTO t VALUES ('a', '2024-02-29')",
    ),
    "swapped with a copy": (
        "CREATE TABLE _t_new LIKE t",
        "ALTER TABLE _t_new MODIFY v text, ADD COLUMN n int DEFAULT 5",
        "INSERT INTO _t_new (id, v) SELECT id, v FROM t",
        "RENAME TABLE t TO _t_old, _t_new TO t",
        "INSERT INTO t VALUES (1000, 'x', 6)",
    ),
    "swapped with a copy that is alike": (
        "CREATE TABLE _t_new LIKE t",
        "INSERT INTO _t_new SELECT * FROM t WHERE id % 2 = 0",
        "RENAME TABLE t TO t_old, _t_new TO t",
        "INSERT INTO t VALUES (1000, 'x')",
        "DELETE FROM t_old WHERE id < 150",
    ),
    "two tables trade names": (
        "RENAME TABLE t TO c, u TO t, c TO u",
        "INSERT INTO t VALUES (1000, 'x')",
        "UPDATE u SET v = 'y' WHERE id % 50 = 0",
    ),
    "renamed twice and altered": (
        "RENAME TABLE t TO a",
        "ALTER TABLE a DROP COLUMN v",
        "RENAME TABLE a TO b",
        "INSERT INTO b VALUES (1000)",
    ),
    "renamed, and another one has the name": (
        "RENAME TABLE t TO a",
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(300))",
        "INSERT INTO t VALUES (1, 'one'), (450, 'new')",
    ),
    "dropped and made anew alike": (
        "DROP TABLE t",
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(300))",
        "INSERT INTO t VALUES (1, 'one'), (250, 'new')",
    ),
    "emptied and altered": (
        "UPDATE t SET v = 'z' WHERE id = 499",
        "TRUNCATE TABLE t",
        "INSERT INTO t VALUES (1, 'one')",
        "ALTER TABLE t MODIFY v text, ADD KEY (id)",
        "INSERT INTO t VALUES (2, 'two')",
    ),
    "altered and dropped": ("ALTER TABLE t MODIFY v text", "DROP TABLE t"),
    "altered there and back": (
        "ALTER TABLE t CHANGE v w varchar(300)",
        "UPDATE t SET w = 'changed' WHERE id % 3 = 0",
        "ALTER TABLE t CHANGE w v varchar(300)",
        "DELETE FROM t WHERE id = 499",
    ),
    "a column is renamed, and another one has its name": (
        "ALTER TABLE t CHANGE v w varchar(300), ADD COLUMN v varchar(300) DEFAULT 'new'",
        "UPDATE t SET v = 'x' WHERE id % 50 = 0",
    ),
    "a column is renamed, and later another one has its name": (
        "ALTER TABLE t CHANGE v w varchar(300)",
        "INSERT INTO t VALUES (1000, 'x')",
        "ALTER TABLE t ADD COLUMN v varchar(300) DEFAULT 'new' AFTER id",
    ),
    "two columns trade names": (
        "ALTER TABLE t ADD COLUMN w varchar(300) DEFAULT 'w'",
        "ALTER TABLE t CHANGE v w varchar(300), CHANGE w v varchar(300)",
        "ALTER TABLE t ADD COLUMN x int, ADD FOREIGN KEY (x) REFERENCES u (id)",
    ),
    "another key": (
        "ALTER TABLE t DROP PRIMARY KEY, ADD UNIQUE KEY first_of_all (id)",
        "INSERT INTO t VALUES (1000, 'x')",
    ),
}


@pytest.fixture
def scene(
    source_server: Server,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scene]:
    """A snapshot is read in many parts, one at a time."""
    monkeypatch.setattr(snapshot, "MOST_SEGMENTS", 1)
    monkeypatch.setattr(snapshot, "_LEAST_ROWS", 100)
    monkeypatch.setattr(snapshot, "_MOST_ROWS", 100)
    with scene_of(source_server, tmp_path, request.node.name) as found:
        found.sql(
            "CREATE TABLE u (id int PRIMARY KEY, v varchar(300))",
            "INSERT INTO u VALUES (7, 'seven'), (207, 'u')",
        )
        yield found


def make(scene: Scene, name: str) -> None:
    rows = ", ".join(f"({i}, 'row {i}')" for i in range(ROWS))
    scene.sql(
        f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(300))",
        f"INSERT INTO {name} VALUES {rows}",
    )


def half_way(scene: Scene, rules: list[str], source: str = "") -> Feed:
    """Return a feed that has delivered the first part of `t`."""
    make(scene, "t")
    feed = scene.feed(rules, source)
    feed.step_until(lambda step: step.rows > 0)
    assert 0 < len(feed.changes("t")) < ROWS
    return feed


def about_to_join(scene: Scene, rules: list[str]) -> Feed:
    """Return a feed to which `t` was announced, and not more."""
    make(scene, "start_t")
    feed = scene.feed([*rules, f"!{scene.database}.start_t"])
    feed.catch_up()
    scene.sql("RENAME TABLE start_t TO t")
    feed.step_until(lambda step: step.schema_changes > 0)
    assert feed.changes("t") == []
    return feed


def judged(feed: Feed, watched: Watched) -> None:
    """Deliver everything, and hold it against the source and the promises."""
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.stale() == []
    assert wrong_versions(feed.root, feed.codec) == []
    assert watched.failures() == []


@pytest.mark.parametrize("name", list(SEQUENCES))
@pytest.mark.parametrize("when", ["half way", "about to join"])
@pytest.mark.parametrize("paused", [True, False], ids=["paused", "running"])
def test_all_that_lies_between(scene: Scene, name: str, when: str, paused: bool) -> None:
    rules = [f"{scene.database}.*"]
    feed = half_way(scene, rules) if when == "half way" else about_to_join(scene, rules)
    watched = Watched(feed)
    if paused:
        feed.stop()
    scene.sql(*SEQUENCES[name])
    if paused:
        feed.run()
    judged(feed, watched)
    scene.sql("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY)", "DELETE FROM t LIMIT 1")
    judged(feed, watched)


# Statements after which a key that was reached has other rows behind it than before.
ORDERS = (
    "ALTER TABLE t MODIFY k varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "ALTER TABLE t MODIFY k varchar(20) CHARACTER SET latin1 COLLATE latin1_swedish_ci",
    "ALTER TABLE t MODIFY k varbinary(20)",
    "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (n, k)",
    "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (n)",
    "ALTER TABLE t DROP PRIMARY KEY, DROP COLUMN k, ADD COLUMN k int AUTO_INCREMENT PRIMARY KEY",
)


@pytest.mark.parametrize("statement", ORDERS)
@pytest.mark.parametrize("when", ["between two parts", "before a part is read", "paused"])
def test_another_order_of_the_key(scene: Scene, statement: str, when: str) -> None:
    """By its bytes every A comes before every a; by other collations they lie side by side."""
    rows = ", ".join(f"('{'Aa'[i % 2]}{i:03}', {ROWS - i})" for i in range(ROWS))
    key = "k varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    scene.sql(
        f"CREATE TABLE t ({key}, n int NOT NULL, PRIMARY KEY (k))", f"INSERT INTO t VALUES {rows}"
    )
    feed = scene.feed([f"{scene.database}.*"])
    feed.step_until(lambda step: step.rows > 0)
    watched = Watched(feed)
    if when == "before a part is read":
        pending = [statement]
        feed.runner.before = lambda plan: scene.sql(pending.pop()) if pending else None
    elif when == "paused":
        feed.stop()
        scene.sql(statement)
        feed.run()
    else:
        scene.sql(statement)
    judged(feed, watched)
    assert len(feed.rows("t")) == ROWS


@pytest.mark.parametrize("name", list(SEQUENCES)[:3])
@pytest.mark.parametrize("how", ["follow", "snapshot"])
def test_copies_are_not_captured(scene: Scene, name: str, how: str) -> None:
    """The filter keeps no name of an online schema change's own tables."""
    rules = [f"{scene.database}.*", f"!{scene.database}._t_*", f"!{scene.database}.t_old"]
    feed = half_way(scene, rules, f"online-schema-change={how}")
    watched = Watched(feed)
    feed.stop()
    statements = list(SEQUENCES[name])
    if how == "follow":  # a copy has the rows of the table whose name it takes
        statements = [s.replace(" WHERE id % 2 = 0", "") for s in statements]
    scene.sql(*statements)
    feed.run()
    judged(feed, watched)


def test_the_table_that_another_filter_brings(scene: Scene) -> None:
    """It had another name at the place of the log, under which it was captured."""
    make(scene, "t")
    scene.sql("CREATE TABLE more (id int PRIMARY KEY)")
    feed = scene.feed([f"{scene.database}.t", f"{scene.database}.t_*"])
    feed.catch_up()
    watched = Watched(feed)
    feed.stop()
    scene.sql(
        "RENAME TABLE t TO t_1",
        "INSERT INTO t_1 VALUES (1000, 'x')",
        "RENAME TABLE t_1 TO w",
        "ALTER TABLE u ADD COLUMN n int",
        "INSERT INTO u VALUES (8, 'eight', 8)",
        "TRUNCATE TABLE more",
        "INSERT INTO more VALUES (1)",
        "ALTER TABLE more ADD COLUMN m int",
    )
    feed.run(rules=[f"{scene.database}.*"])
    judged(feed, watched)
    assert len(feed.rows("w")) == ROWS + 1


PARTITIONED = (
    "CREATE TABLE {} (id int PRIMARY KEY, v varchar(300)) PARTITION BY RANGE (id) "
    "(PARTITION p0 VALUES LESS THAN (200), PARTITION p1 VALUES LESS THAN MAXVALUE)"
)


@pytest.mark.parametrize("when", ["half way", "about to join"])
def test_an_exchange_of_partitions(scene: Scene, when: str) -> None:
    """Rows go from table to table unseen: both are read again, whatever had come of them."""
    rows = ", ".join(f"({i}, 'row {i}')" for i in range(ROWS))
    scene.sql("DELETE FROM u WHERE id > 199")
    name = "t" if when == "half way" else "start_t"
    scene.sql(PARTITIONED.format(name), f"INSERT INTO {name} VALUES {rows}")
    whole = "[sink]\nenable-partition-separator = false"  # MariaDB's log does not tell them
    feed = scene.feed([f"{scene.database}.*", f"!{scene.database}.start_t"], config=whole)
    if when == "half way":
        feed.step_until(lambda step: step.rows > 0)
        assert 0 < len(feed.changes("t")) < ROWS
    else:
        feed.catch_up()
        scene.sql("RENAME TABLE start_t TO t")
        feed.step_until(lambda step: step.schema_changes > 0)
    watched = Watched(feed)
    scene.sql("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE u", "DELETE FROM u WHERE id < 100")
    judged(feed, watched)
    assert len(feed.rows("u")) == 100
    assert len(feed.rows("t")) == ROWS - 199


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE p DROP PARTITION p0",
        "ALTER TABLE p REORGANIZE PARTITION p0, p1 INTO (PARTITION p0 VALUES LESS THAN (190), "
        "PARTITION p1 VALUES LESS THAN (200))",
        "ALTER TABLE p REMOVE PARTITIONING",
        "ALTER TABLE p PARTITION BY HASH (id) PARTITIONS 3",
    ],
)
@pytest.mark.parametrize("parts", [1, 4], ids=["in its first part", "before its last part"])
def test_other_partitions(
    mysql_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    change: str,
    parts: int,
) -> None:
    """MySQL's partitions are read one by one; rows that move between them are not missed."""
    monkeypatch.setattr(snapshot, "MOST_SEGMENTS", 1)
    monkeypatch.setattr(snapshot, "_LEAST_ROWS", 60)
    monkeypatch.setattr(snapshot, "_MOST_ROWS", 60)
    with scene_of(mysql_server, tmp_path, request.node.name) as scene:
        keys = ", ".join(f"({i})" for i in range(250))
        scene.sql(
            "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id) ("
            "PARTITION p0 VALUES LESS THAN (50), PARTITION p1 VALUES LESS THAN (200), "
            "PARTITION p2 VALUES LESS THAN MAXVALUE)",
            f"INSERT INTO p VALUES {keys}",
        )
        feed = scene.feed()
        feed.step_until(lambda step: len(feed.runner.segments("snapshot")) == parts)
        scene.sql(change, "INSERT INTO p VALUES (1000)")
        feed.catch_up()
        there = [
            int(str(row[0])) for row in scene.server.execute(f"SELECT id FROM {scene.database}.p")
        ]
        assert sorted(there_or_dropped(feed)) == sorted(there)


def there_or_dropped(feed: Feed) -> list[int]:
    """Return the keys of `p` since it was last emptied, but those that DROP PARTITION took."""
    kinds = [kind for kind, _ in feed.ddl("p")]
    versions = [f.document.table_version for f in feed.schema_files("p")]
    stamps = [v for v, k in zip(versions[-len(kinds) :], kinds, strict=True)] if kinds else []
    emptied = max(
        (s for s, k in zip(stamps, kinds, strict=True) if k is DdlKind.TRUNCATE_TABLE), default=0
    )
    found = {c.after["id"] for c in feed.changes("p") if c.after and c.commit_ts > emptied}
    if kinds and kinds[-1] is DdlKind.DROP_PARTITION:
        found = {i for i in found if i >= 50}
    return sorted(found)
