"""Two clusters that write the same rows, MySQL and MariaDB; and what the mode refuses."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from active_active_kit import HIDDEN, MARKED, Clusters, OneWay, clusters_of
from mysql_sink_kit import MySqlFeed, Scene
from typer.testing import CliRunner

from page_examples import all_blocks, commands
from rowferry.change.plan import Plan
from rowferry.change.table import TableId
from rowferry.control.feed.loop import StepResult
from rowferry.control.fleet import measures
from rowferry.control.operator.checks.prepare import check_rules
from rowferry.control.operator.operations import Operations
from rowferry.control.operator.settings.table_rules import with_rules
from rowferry.errors import SinkUnavailable, SinkUnwritable, TableNotActiveActive, TargetUnfit
from rowferry.face.cli.main import app
from rowferry.flow.sink.mysql.emulation import triggers
from rowferry.spec.uri import Uri
from rowferry.testing.servers import MariaDb, MySql, Server
from rowferry.testing.validators import ClusterRow, ClustersConverge

ON = (
    "enable-active-active = true\nbdr-mode = true\nactive-active-emulation = true\n"
    "cluster-index = {index}\n"
)
NOW = "UNIX_TIMESTAMP(NOW(6))"
NOBODY = "mysql://u:p@127.0.0.1:1/"
KEYS = 6


@pytest.fixture
def clusters(
    mysql_server: MySql, mariadb_server: MariaDb, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Clusters]:
    with clusters_of(mysql_server, mariadb_server, tmp_path, request.node.name) as found:
        yield found


def content(server: Server, clusters: Clusters) -> dict[int, tuple[str | None, ...]]:
    """Return by key what both clusters must agree on, also when each row was written last."""
    rows = server.execute(
        "SELECT id, v, UNIX_TIMESTAMP(_tidb_softdelete_time), n, "
        f"IFNULL(_tidb_origin_ts, _tidb_commit_ts) FROM {clusters.database}.acc"
    )
    return {int(str(r[0])): tuple(None if v is None else str(v) for v in r[1:]) for r in rows}


def watch(judge: ClustersConverge, clusters: Clusters) -> None:
    """Show a judge what both clusters hold now."""
    for server in clusters.servers:
        rows = content(server, clusters).items()
        seen = {k: ClusterRow(int(str(r[3])), r[1] is not None, r[:3]) for k, r in rows}
        judge.observe(server.flavour.name, seen)


def work(server: Server, clusters: Clusters, dice: random.Random, skew_s: int) -> None:
    """Write some rows in a session whose clock is wrong."""
    put = "INSERT INTO acc (id, v, n) VALUES"
    key, other = dice.sample(range(KEYS), 2)
    now = f"SET timestamp = {server.execute(f'SELECT {NOW}')[0][0]} + ({skew_s})"
    value = f"'{dice.random()}'"
    statement = dice.choice(
        (
            f"{put} ({key}, {value}, 1) ON DUPLICATE KEY UPDATE v = VALUES(v), "
            "_tidb_softdelete_time = NULL",
            f"{put} ({key}, {value}, 1), ({other}, {value}, 1) ON DUPLICATE KEY UPDATE n = n + 1",
            f"UPDATE acc SET v = {value} WHERE id = {key}",
            f"UPDATE acc SET _tidb_softdelete_time = NOW(6) WHERE id = {key}",
        )
    )
    server.script(f"USE {clusters.database}", now, statement)


def settle(*feeds: MySqlFeed) -> None:
    """Carry everything over, both ways."""
    for feed in feeds:
        feed.catch_up()


def rows_of(feed: MySqlFeed) -> int:
    """Return how many rows a feed still finds to send."""
    found = 0
    for _ in range(3):
        step = feed.step()
        assert step is not None
        found += step.rows
    return found


def counted(feed: MySqlFeed) -> Counter[str]:
    """Count the rows and schema changes that a feed sends from now on."""
    found: Counter[str] = Counter()
    whole = feed.step

    def step() -> StepResult | None:
        done = whole()
        if done is not None:
            found.update(rows=done.rows, schema_changes=done.schema_changes)
        return done

    feed.step = step  # type: ignore[method-assign]
    return found


def test_two_clusters_converge(clusters: Clusters, seed: int) -> None:
    dice = random.Random(seed)
    clusters.both(
        f"CREATE TABLE acc (v TEXT, id INT PRIMARY KEY, n INT, {HIDDEN}) {MARKED}",
        f"CREATE TABLE quiet (id INT PRIMARY KEY, {HIDDEN}) {MARKED}",
    )
    clusters.prepare("acc")
    clusters.prepare("quiet")
    one, other = clusters.feeds(ON + "active-active-progress-interval = '1ms'\n")
    skews = (0, -90)  # the second cluster's clock is behind

    def stumble(plan: Plan) -> None:
        if dice.random() < 0.4:
            raise SinkUnavailable("rows were written, and nobody heard of it")

    one.runner.after = other.runner.after = stumble
    judge = ClustersConverge()
    for _ in range(6):
        for _ in range(12):
            side = dice.randrange(2)
            work(clusters.servers[side], clusters, dice, skews[side])
        dice.choice((one, other)).catch_up()
        watch(judge, clusters)
    settle(one, other, one)
    watch(judge, clusters)
    judge.settled()
    here, there = (content(server, clusters) for server in clusters.servers)
    assert here == there and len(here) >= KEYS - 1
    assert rows_of(one) == rows_of(other) == 0  # nothing is sent back

    # A delete wins over an older write that comes late, and stays.
    mysql, mariadb = clusters.servers
    first = f"USE {clusters.database}"
    put = "INSERT INTO acc (id, v) VALUES (77, 'x')"
    mysql.script(first, put)
    settle(one)
    mariadb.script(first, "UPDATE acc SET v = 'late' WHERE id = 77")
    mysql.script(
        first,
        f"SET timestamp = {mysql.execute(f'SELECT {NOW}')[0][0]} + 30",
        "UPDATE acc SET _tidb_softdelete_time = NOW(6) WHERE id = 77",
    )
    settle(other, one, other)
    here, there = (content(server, clusters) for server in clusters.servers)
    assert here == there
    value, deleted = here[77][:2]
    assert value == "x" and deleted is not None

    # What would leave no trace is refused: triggers let only the changefeeds do as they like.
    for wrong in ("UPDATE acc SET id = 78 WHERE id = 77", "DELETE FROM acc WHERE id = 0"):
        for server in clusters.servers:
            server.script(first, "UPDATE acc SET _tidb_softdelete_time = NULL WHERE id = 0")
            with pytest.raises(Exception, match="rowferry: "):
                server.script(first, wrong)
    settle(one, other, one)
    here = content(mariadb, clusters)
    assert content(mysql, clusters) == here

    # A row that is removed for good here stays there: deletes are not sent.
    watch(judge, clusters)
    mysql.script(first, "DELETE FROM acc WHERE id = 77")
    settle(one)
    assert content(mariadb, clusters) == here
    watch(judge, clusters)
    judge.settled()
    assert judge.failures == []

    progress = mariadb.execute(
        "SELECT upstreamID, database_name, table_name, checkpoint_ts FROM "
        f"tidb_cdc.ticdcProgressTable WHERE changefeed_id = 'default/{one.name}' ORDER BY 3"
    )
    uuid = mysql.execute("SELECT @@server_uuid")[0][0]
    names = ("acc", "quiet")  # also the one that has had no row yet
    assert [tuple(p[:3]) for p in progress] == [(uuid, clusters.database, n) for n in names]
    reached = one.store.state(one.name)
    assert all(0 < int(str(p[3])) <= reached.watermark for p in progress)

    # A table that is not made for it stops the feed before anything of it is written.
    mysql.script(first, "CREATE TABLE plain (id INT PRIMARY KEY)", "INSERT INTO plain VALUES (1)")
    with pytest.raises(TableNotActiveActive, match=r"\.plain is not an active-active table"):
        one.catch_up()


@pytest.mark.parametrize("way", ["there", "back"])
def test_conflicts_and_ignored_rows_are_counted(clusters: Clusters, way: str) -> None:
    """By what each kind of server answers, one row at a time and several in a statement."""
    clusters.both(f"CREATE TABLE acc (id INT PRIMARY KEY, v TEXT, {HIDDEN}) {MARKED}")
    clusters.prepare("acc")
    scene: OneWay = getattr(clusters, way)
    opposite = clusters.back if way == "there" else clusters.there
    number, other_number = ("1", "2") if way == "there" else ("2", "1")
    feed = scene.feed("", ON.replace("{index}", number))
    measured(feed)
    scene.sql("INSERT INTO acc (id, v) VALUES (1, 'a'), (2, 'a'), (3, 'a'), (4, 'a'), (5, 'a')")
    settle(feed)
    assert read_measures(feed) == {}  # they met nobody
    ahead = f"SET timestamp = {scene.target.execute(f'SELECT {NOW}')[0][0]} + 60"
    scene.at_target(ahead, "UPDATE acc SET v = 'theirs' WHERE id IN (2, 3)")
    scene.sql("UPDATE acc SET v = 'ours' WHERE id IN (1, 2, 4)")
    settle(feed)
    assert read_measures(feed) == {"won": 2, "lost": 1}
    scene.sql("UPDATE acc SET v = 'ours' WHERE id = 3")
    settle(feed)
    assert read_measures(feed) == {"won": 2, "lost": 2}
    scene.sql("UPDATE acc SET _tidb_softdelete_time = NOW(6) WHERE id = 5")
    settle(feed)
    assert read_measures(feed) == {"won": 3, "lost": 2}
    scene.sql("DELETE FROM acc WHERE id = 5")
    settle(feed)
    assert read_measures(feed) == {"won": 3, "lost": 2, "hard-delete": 1}
    # A snapshot of the other cluster has rows that it did not write: only its own two go back.
    reverse = opposite.feed("", ON.replace("{index}", other_number))
    measured(reverse)
    settle(reverse)
    assert read_measures(reverse) == {"won": 2, "foreign": 3}


def measured(feed: MySqlFeed) -> None:
    """Let the metrics of this process count what a feed does from now on."""
    whole = feed.step

    def step() -> StepResult | None:
        done = whole()
        if done is not None:
            measures.note_counts(feed.name, done.counts)
        return done

    feed.step = step  # type: ignore[method-assign]


def read_measures(feed: MySqlFeed) -> dict[str, int]:
    """Return the conflicts and the dropped rows of a feed, as a scraper reads them."""
    families = [f for m in (measures.CONFLICTS, measures.DROPPED) for f in m.collect()]
    return {
        next(v for k, v in s.labels.items() if k != "changefeed"): int(s.value)
        for s in (sample for family in families for sample in family.samples)
        if s.labels.get("changefeed") == feed.name and s.name.endswith("_total") and s.value
    }


def test_what_creation_refuses(clusters: Clusters) -> None:
    clusters.both(f"CREATE TABLE acc (id INT PRIMARY KEY, v TEXT, {HIDDEN}) {MARKED}")

    def refused(kind: type[Exception], words: str, config: str) -> None:
        feed = clusters.there.feed("", config)
        with pytest.raises(kind, match=words):
            feed.prepare()

    plain = ON.replace("active-active-emulation = true\n", "").replace("{index}", "1")
    refused(SinkUnwritable, "not TiDB", plain)
    emulated = ON.replace("{index}", "1")
    refused(TargetUnfit, "has no triggers for active-active", emulated)
    clusters.prepare("acc", first_index=0)
    refused(TargetUnfit, "have the cluster-index 1, as the source's", emulated)
    clusters.both("ALTER TABLE acc COMMENT=''")
    refused(TableNotActiveActive, r"\.acc is not an active-active table", emulated)
    clusters.both(f"ALTER TABLE acc {MARKED}, RENAME COLUMN _tidb_commit_ts TO c")
    refused(TableNotActiveActive, r"\.acc has no column _tidb_commit_ts", emulated)


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_source_that_does_not_stamp_is_refused(clusters: Clusters, way: str) -> None:
    """At its creation, and when tables join; a log that has such rows stops the feed."""
    made = f"(id INT PRIMARY KEY, v TEXT, {HIDDEN}) {MARKED}"
    clusters.both(f"CREATE TABLE acc {made}")
    scene: OneWay = getattr(clusters, way)
    config = ON.replace("{index}", "1")

    def prepare(server: Server, table: str, index: int) -> None:
        server.script(*triggers(TableId(clusters.database, table), ["id"], index))

    def refused(words: str) -> None:
        with pytest.raises(TableNotActiveActive, match=words):
            scene.feed("", config).prepare()

    prepare(scene.target, "acc", 2)
    refused(r"acc of the source has no triggers .*prepare \S+acc --key <column> --cluster-index 1`")
    prepare(scene.source, "acc", 3)
    refused(r"acc of the source have the cluster-index 3, and the changefeed 1; set cluster-index")
    prepare(scene.source, "acc", 1)
    # Rows that were there before the triggers say nothing, and win over none; who is first comes.
    before = "SET @rowferry_writes = 1"
    scene.sql(before, "INSERT INTO acc (id, v) VALUES (1, 'old'), (2, 'old')")
    scene.at_target("INSERT INTO acc (id, v) VALUES (1, 'newer')")
    feed = scene.feed("", config)
    feed.catch_up()

    def copied() -> list[tuple[str, str]]:
        rows = scene.target.execute(f"SELECT id, v FROM {scene.copy}.acc ORDER BY id")
        return [(str(k), str(v)) for k, v in rows]

    assert copied() == [("1", "newer"), ("2", "old")]
    scene.at_target("UPDATE acc SET v = 'here' WHERE id = 2")
    scene.sql("UPDATE acc SET v = 'new' WHERE id = 1")
    feed.catch_up()
    assert copied() == [("1", "new"), ("2", "here")]

    clusters.both(f"CREATE TABLE late {made}")
    prepare(scene.target, "late", 2)
    spec = feed.prepare().spec
    old, new = (with_rules(spec, [f"{clusters.database}.{t}"]) for t in ("acc", "*"))
    with pytest.raises(TableNotActiveActive, match=r"late of the source has no triggers"):
        check_rules(old, new)
    scene.sql(before, "UPDATE acc SET v = 'silent' WHERE id = 1")
    with pytest.raises(TableNotActiveActive, match=r"acc has a row in its log that no trigger"):
        feed.catch_up()
    assert copied() == [("1", "new"), ("2", "here")]


def test_a_row_with_the_zero_date_counts_as_there(clusters: Clusters) -> None:
    clusters.both(f"CREATE TABLE acc (id INT PRIMARY KEY, {HIDDEN}) {MARKED}")
    clusters.prepare("acc")
    zero = "0000-00-00 00:00:00"
    for server in clusters.servers:
        server.script(
            f"USE {clusters.database}",
            f"INSERT INTO acc (id, _tidb_softdelete_time) VALUES (1, '{zero}'), (2, NOW())",
        )
        for sql_mode in ("", "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE"):
            with pytest.raises(Exception, match="set _tidb_softdelete_time instead of deleting"):
                server.script(
                    f"SET sql_mode = '{sql_mode}'", f"DELETE FROM {clusters.database}.acc"
                )
        server.script(f"DELETE FROM {clusters.database}.acc WHERE id = 2")


def test_a_key_does_not_change_its_case(clusters: Clusters) -> None:
    """The row under its old key would be marked as deleted, which is the same row there."""
    key = "id VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY"
    clusters.both(f"CREATE TABLE acc ({key}, v INT, {HIDDEN}) {MARKED}")
    clusters.prepare("acc")
    for server in clusters.servers:
        server.script(
            f"USE {clusters.database}",
            "INSERT INTO acc (id) VALUES ('a')",
            "UPDATE acc SET id = 'a', v = 1",
        )
        with pytest.raises(Exception, match="instead of changing its key"):
            server.script(f"UPDATE {clusters.database}.acc SET id = 'A'")


def test_soft_delete_in_a_plain_copy(scene: Scene) -> None:
    time = "_tidb_softdelete_time"
    scene.both(f"CREATE TABLE t (id INT PRIMARY KEY, v TEXT, {time} TIMESTAMP(6) NULL)")
    scene.sql("INSERT INTO t (id, v) VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    feed = scene.feed(config="soft-delete-tables = ['*.t']\n")
    feed.catch_up()
    measured(feed)

    def copied() -> list[int]:
        feed.catch_up()
        return [int(str(r[0])) for r in scene.target.execute(f"SELECT id FROM {scene.copy}.t")]

    assert copied() == [1, 2, 3]
    scene.sql(f"UPDATE t SET {time} = NOW(6) WHERE id > 1", "UPDATE t SET v = 'x' WHERE id = 2")
    assert copied() == [1]
    scene.sql("DELETE FROM t WHERE id = 2", f"UPDATE t SET {time} = NULL WHERE id = 3")
    assert copied() == [1, 3]
    scene.sql("UPDATE t SET id = 4 WHERE id = 3", "DELETE FROM t WHERE id = 1")
    assert copied() == [1, 4]  # a DELETE only purges
    assert read_measures(feed) == {"hard-delete": 2, "deleted-row": 1}


def test_both_ways_without_the_mode(clusters: Clusters) -> None:
    """What a feed wrote is not sent back: rows, transactions, and DDLs that a server rewrites."""
    mysql, mariadb = clusters.servers
    first = f"USE {clusters.database}"
    clusters.both("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
    one, other = clusters.feeds("bdr-mode = true\n", "worker-count=3")
    sent = counted(one), counted(other)
    settle(one, other)
    mysql.script(first, "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    mariadb.script(first, "INSERT INTO t VALUES (11, 'a'), (12, 'b')")
    settle(one)
    mariadb.script(first, "INSERT INTO t VALUES (13, 'c')")  # others' rows stand between its own
    settle(other)
    mysql.script(first, "UPDATE t SET v = 'new' WHERE id = 11", "DELETE FROM t WHERE id = 2")
    mariadb.script(
        first,
        "ALTER TABLE t ADD COLUMN w INT DEFAULT 5",
        "CREATE TABLE gone (id INT PRIMARY KEY)",
        "INSERT INTO gone VALUES (1)",
    )
    settle(one, other)
    mariadb.script(
        first,
        "DROP TABLE gone",
        "CREATE TABLE gone (id INT PRIMARY KEY, again INT)",
        "INSERT INTO gone VALUES (2, 2)",
        "TRUNCATE TABLE gone",
        "INSERT INTO gone VALUES (3, 3)",
    )
    settle(other, one, other, one)
    clusters.there.assert_same("t", "gone")
    found = mysql.execute(f"SELECT id, again FROM {clusters.database}.gone")
    assert [tuple(map(str, row)) for row in found] == [("3", "3")]
    values = mysql.execute(f"SELECT v FROM {clusters.database}.t ORDER BY id")
    assert [str(v) for (v,) in values] == ["a", "c", "new", "b", "c"]
    assert [s["rows"] for s in sent] == [5, 6]
    assert [s["schema_changes"] for s in sent] == [0, 5]
    assert one.faults == other.faults == []


def test_nobody_waits_for_a_changefeed_that_is_removed(clusters: Clusters) -> None:
    """Its rows leave the progress table with it; those of one that was lost, by a command."""
    clusters.both(f"CREATE TABLE acc (id INT PRIMARY KEY, {HIDDEN}) {MARKED}")
    clusters.prepare("acc")
    scene = clusters.there
    feeds = [scene.feed("", ON.replace("{index}", "1")) for _ in range(2)]
    feeds[1].name += "-lost"
    for feed in feeds:
        feed.catch_up()
        feed.stop()

    def call(*words: str) -> str:
        done = CliRunner().invoke(app, ["active-active", *words, "--sink-uri", scene.target.uri])
        return done.output if done.exit_code == 0 else repr(done.exception)

    def waited() -> list[str]:
        lines = [line.split("\t") for line in call("progress").splitlines()]
        cluster = scene.source.execute("SELECT @@server_uuid")[0][0]
        mine = [line for line in lines if line[0].startswith(f"default/{feeds[0].name}")]
        assert all(line[1:3] == [cluster, "1 tables"] for line in mine)
        assert all(int(line[3].removeprefix("up to ")) > 1 << 50 for line in mine)
        return [line[0] for line in mine]

    assert waited() == [f"default/{feed.name}" for feed in feeds]
    assert Operations(feeds[0].store).remove(feeds[0].name) is not None
    lost = f"default/{feeds[1].name}"
    assert waited() == [lost]
    uuid = str(scene.source.execute("SELECT @@server_uuid")[0][0])
    assert "waits for no changefeed" in call("forget", lost, "elsewhere")
    *_, block = [b for b in all_blocks("sh") if b.page == "active-active.md"]
    shown, ended = ([*w[2:-2]] for w in commands(block))  # but for the name of the program
    assert shown == ["progress"] and ended[:2] == ["forget", "default/shop"]
    assert "is waited for no more" in call(ended[0], lost, uuid)
    assert waited() == []
    # A target that does not answer does not keep a changefeed from being removed.
    spec = feeds[1].prepare().spec
    feeds[1].store.update_spec(feeds[1].name, replace(spec, sink=Uri.parse(NOBODY, "sink")))
    assert Operations(feeds[1].store).remove(feeds[1].name) is not None
    assert feeds[1].store.feed(feeds[1].name) is None
