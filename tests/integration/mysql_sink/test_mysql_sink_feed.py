"""What a feed into a database does: keys, order, owners, statements, restarts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mysql_sink_kit import Runner, Scene, scene_of

from patience import until_it_fails
from rowferry.change.plan import Plan
from rowferry.errors import (
    Fenced,
    SchemaChangeRefused,
    SinkUnavailable,
    SnapshotGone,
    TargetWentBack,
)
from rowferry.flow.capture.binlog.decode import rows_events
from rowferry.flow.sink import packing
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.mysql import apply, lanes, schema_changes
from rowferry.flow.sink.mysql.session import Session, connect
from rowferry.moment import watched
from rowferry.testing.servers import MariaDb

TAKEN = (
    "CREATE TABLE taken (id int PRIMARY KEY, a int, b varchar(9) COLLATE utf8mb4_general_ci, "
    "note int, UNIQUE (a), UNIQUE (b))"
)


def test_values_of_unique_keys_go_from_row_to_row(scene: Scene) -> None:
    scene.both(
        TAKEN,
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, p int, "
        "FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
    )
    scene.sql(
        "INSERT INTO taken VALUES (1, 5, 'x', 0), (2, 6, 'y', 0), (4, 8, 'z', 0)",
        "INSERT INTO parent VALUES (1), (2)",
        "INSERT INTO child VALUES (1, 1), (2, 2), (3, 2)",
    )
    feed = scene.feed()
    feed.catch_up()
    assert scene.assert_same("taken", "parent", "child") == 8
    scene.sql(
        "UPDATE taken SET a = 7 WHERE id = 1",
        "INSERT INTO taken VALUES (3, 5, NULL, 1)",
        # Rows 2 and 4 swap theirs.
        "UPDATE taken SET a = 99 WHERE id = 2",
        "UPDATE taken SET a = 6, b = 'Y2' WHERE id = 4",
        "UPDATE taken SET a = 8, b = 'z' WHERE id = 2",
        # A key changes, and another row takes it.
        "UPDATE taken SET id = 10 WHERE id = 3",
        "INSERT INTO taken VALUES (3, 100, 'w', 2)",
        "DELETE FROM child WHERE p = 2",
        "DELETE FROM parent WHERE id = 2",
        "INSERT INTO parent VALUES (7)",
        "INSERT INTO child VALUES (2, 7)",
        # Row 1 gave a value away long ago; its last change comes last.
        "UPDATE taken SET note = 9 WHERE id = 1",
    )
    feed.catch_up()
    assert scene.assert_same("taken", "parent", "child") == 5 + 2 + 2
    assert feed.faults == []


def test_a_replay_at_any_point_gives_the_same_rows(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a table without a key, where exactly-once is asked for."""
    scene.both(TAKEN, "CREATE TABLE bare (n int, w varchar(20))")
    scene.sql("INSERT INTO taken VALUES (1, 1, 'a', 0), (2, 2, 'b', 0)")
    feed = scene.feed("exactly-once=true&max-txn-row=3", "force-replicate = true")
    feed.catch_up()
    whole, stumbled = lanes.Transactions.apply, 0
    for left in range(5):
        many = ", ".join(f"({left}, 'row {i}')" for i in range(10))
        scene.sql(
            f"INSERT INTO bare VALUES {many}",
            "DELETE FROM taken WHERE id = 1",
            f"INSERT INTO taken VALUES (1, {10 + left}, 'c{left}', 3)",
            "DELETE FROM bare WHERE w = 'row 3'",
        )
        turns = iter([*[True] * left, False])

        def fails(self: Any, *args: Any, turns: Iterator[bool] = turns) -> None:
            if not next(turns, True):
                raise SinkUnavailable("no answer")
            whole(self, *args)

        monkeypatch.setattr(lanes.Transactions, "apply", fails)
        feed.catch_up()
        stumbled += len(feed.faults)
        feed.faults.clear()
        feed.run()
        assert scene.assert_same("bare", "taken") == 9 * (left + 1) + 2
    assert stumbled == 5
    noted = f"SELECT COUNT(DISTINCT micro_batch) FROM {scene.meta}.rowferry_delivered"
    assert scene.target.execute(noted) == [("1",)]  # of the last one, which may come again


def test_what_only_the_downstream_has_noted_is_not_written_twice(scene: Scene) -> None:
    """The process ends between the note of the downstream and that of the meta database."""
    scene.both("CREATE TABLE bare (n int)")
    feed = scene.feed("exactly-once=true", "force-replicate = true")
    feed.catch_up()
    scene.sql("INSERT INTO bare VALUES (1), (1), (2)")

    def end(name: str) -> None:
        if name == "publish progress":
            raise SinkUnavailable("the process has ended")

    with watched(end):
        until_it_fails(feed, "the process has ended")
    feed.run()
    feed.catch_up()
    assert scene.assert_same("bare") == 3
    # Another changefeed of this name counts its micro-batches from 1 again.
    feed.source = f"?start-ts={feed.loop.watermark}"
    feed.stop()
    delivered = f"{scene.meta}.rowferry_delivered"
    scene.target.execute(f"UPDATE {delivered} SET micro_batch = 1, segment = 99")
    feed.store.remove(feed.name)
    scene.sql("INSERT INTO bare VALUES (7)")
    feed.catch_up()
    assert scene.assert_same("bare") == 4


def test_a_replay_may_cut_packets_in_another_way(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.both("CREATE TABLE bare (n int, i int)")
    feed = scene.feed("exactly-once=true&max-txn-row=30", "force-replicate = true")
    feed.catch_up()
    whole = lanes.Transactions.apply
    monkeypatch.setattr(rows_events, "_ROWS", 64)  # a packet is whole chunks
    for left in range(1, 10, 4):
        scene.sql(
            f"INSERT INTO bare VALUES {', '.join(f'({left}, {i})' for i in range(200))}",
            f"DELETE FROM bare WHERE n = {left} AND i >= 100",
        )
        turns = iter([*[True] * left, False])

        def fails(self: Any, *args: Any, turns: Iterator[bool] = turns) -> None:
            if not next(turns, True):
                monkeypatch.setattr(packing, "PACKET_BYTES", 1 << 20)
                raise SinkUnavailable("no answer")
            whole(self, *args)

        monkeypatch.setattr(packing, "PACKET_BYTES", 200)
        monkeypatch.setattr(lanes.Transactions, "apply", fails)
        feed.catch_up()
        assert len(feed.faults) == 1
        feed.faults.clear()
        assert scene.assert_same("bare") == 100 * (left // 4 + 1)


def test_an_old_owner_writes_nothing_any_more(scene: Scene) -> None:
    scene.both("CREATE TABLE t (id int PRIMARY KEY)")
    feed = scene.feed()
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (1)")
    other = feed.prepare().flow.sink
    epoch = feed.epoch + 1

    def take_over(plan: Plan) -> None:
        other.open(Owner(feed.name, epoch), None)

    feed.runner.before = take_over
    with pytest.raises(Fenced, match=f"belongs to epoch {epoch}"):
        feed.catch_up()
    assert scene.target.execute(f"SELECT * FROM {scene.copy}.t") == []
    scene.sql("ALTER TABLE t ADD COLUMN n int")
    feed.runner.before = lambda plan: None
    with pytest.raises(Fenced):
        feed.catch_up()
    with pytest.raises(Fenced):
        other.open(Owner(feed.name, epoch - 1), None)
    assert len(scene.target.execute(f"SHOW COLUMNS FROM {scene.copy}.t")) == 1
    other.close()


def test_a_downstream_that_lost_what_it_confirmed(scene: Scene) -> None:
    """A replica that was promoted too early, or a backup: rows would be missing for ever."""
    scene.both("CREATE TABLE t (id int PRIMARY KEY)")
    feed = scene.feed()
    scene.sql("INSERT INTO t VALUES (1)")
    feed.catch_up()
    feed.run()
    feed.catch_up()  # it has everything
    fence = f"{scene.meta}.rowferry_fence"
    ((reached,),) = set(scene.target.execute(f"SELECT commit_ts FROM {fence}"))
    scene.target.execute(f"UPDATE {fence} SET commit_ts = 7")
    feed.run()
    with pytest.raises(
        TargetWentBack, match=f"up to commit-ts 7 and .* only.* up to commit-ts {reached} and"
    ):
        feed.catch_up()
    scene.target.execute(f"UPDATE {fence} SET commit_ts = {reached}")
    feed.run()
    scene.sql("INSERT INTO t VALUES (2)")
    feed.catch_up()
    assert scene.assert_same("t") == 2


def test_transactions_are_whole_downstream(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader sees both sides of every transfer, also of one too large to be held."""
    monkeypatch.setattr(lanes, "_HELD_BYTES", 2_000)
    scene.both(
        "CREATE TABLE a (id int PRIMARY KEY, n int)", "CREATE TABLE b (id int PRIMARY KEY, n int)"
    )
    feed = scene.feed("transaction-atomicity=global&max-txn-row=4")
    feed.catch_up()
    with scene.source.connect(scene.database) as connection, connection.cursor() as cursor:
        for turn in range(40):
            connection.begin()
            count = 120 if turn == 20 else 3
            rows = ", ".join(f"({turn * 1000 + i}, {turn})" for i in range(count))
            cursor.execute(f"INSERT INTO a VALUES {rows}")
            cursor.execute(f"INSERT INTO b VALUES {rows}")
            connection.commit()
    torn: list[object] = []
    stop = threading.Event()

    def watch() -> None:
        with scene.target.connect(scene.copy) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("SELECT (SELECT COUNT(*) FROM a) - (SELECT COUNT(*) FROM b)")
                found = cursor.fetchone()
                torn.extend(v for v in found or () if str(v) != "0")

    reader = threading.Thread(target=watch)
    reader.start()
    try:
        feed.catch_up()
    finally:
        stop.set()
        reader.join()
    assert torn == []
    assert scene.assert_same("a", "b") == 2 * (39 * 3 + 120)


def test_schema_changes_are_run_once_and_can_be_skipped_or_replaced(scene: Scene) -> None:
    scene.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    feed = scene.feed()
    feed.catch_up()
    scene.sql(
        "CREATE TABLE fresh (id int PRIMARY KEY, w varchar(20) DEFAULT 'it''s')",
        "INSERT INTO fresh (id) VALUES (1)",
        "ALTER TABLE t ADD COLUMN z timestamp(3) DEFAULT CURRENT_TIMESTAMP(3), ADD INDEX (n)",
        "INSERT INTO t VALUES (1, 2, '2020-01-01 10:00:00.5')",
        "RENAME TABLE fresh TO renamed",
        "INSERT INTO renamed VALUES (2, 'b')",
        "TRUNCATE TABLE t",
        "INSERT INTO t VALUES (5, 6, '2020-01-01 10:00:00.5')",
    )

    # The answer to each statement is lost once: it is found to have taken effect.
    whole = feed.lose_answers_of_schema_changes()
    feed.catch_up()
    assert whole() >= 4
    assert scene.assert_same("t", "renamed") == 3
    shown = scene.target.execute(f"SHOW CREATE TABLE {scene.copy}.t")[0][1]
    assert str(shown).count("KEY ") == 2  # the index has no name: a repeat would make another
    # A statement that only the downstream refuses.
    scene.at_target("INSERT INTO t VALUES (100, 6, NULL)")
    scene.sql("ALTER TABLE t ADD UNIQUE KEY un (n)", "INSERT INTO t (id) VALUES (7)")
    with pytest.raises(
        SchemaChangeRefused, match=r"Duplicate.*UNIQUE KEY un.*skip-ddl = \[\"\d+\"\]"
    ) as said:
        feed.catch_up()
    at = str(said.value).partition('skip-ddl = ["')[2].partition('"')[0]
    feed.config = f"""[sink.mysql-config]
replace-ddl = ["{at} ALTER TABLE {scene.copy}.t ADD KEY un (n)"]
"""
    scene.at_target("DELETE FROM t WHERE id = 100")
    feed.run()
    feed.catch_up()
    assert scene.assert_same("t") == 2
    scene.sql("ALTER TABLE t DROP COLUMN z")
    scene.at_target("CREATE VIEW v AS SELECT z FROM t", "ALTER TABLE t RENAME COLUMN z TO zz")
    feed.catch_up()  # there is no such column any more: it is as the statement wants it
    states = scene.target.execute(
        f"SELECT DISTINCT state FROM {scene.meta}.rowferry_schema_changes"
    )
    assert states == [("done",)]


def test_what_a_copy_lacks_keeps_the_rest_of_a_statement_from_nothing(same_kind: Scene) -> None:
    """Tables that the sink makes have no further indexes, nor constraints."""
    same_kind.sql(
        "CREATE TABLE t (id int PRIMARY KEY, n decimal(6,3), "
        "KEY i (n), KEY j (n, id), KEY k (id, n), "
        "CONSTRAINT c1 CHECK (n < 9), CONSTRAINT c2 CHECK (n < 8))",
        "INSERT INTO t VALUES (1, 1.234)",
    )
    feed = same_kind.feed("create-tables=true")
    feed.catch_up()
    same_kind.sql("ALTER TABLE t DROP INDEX i, MODIFY n decimal(6,1)")
    feed.catch_up()
    assert same_kind.assert_same("t") == 1, "values of rows that are there"
    same_kind.sql(
        "ALTER TABLE t DROP CONSTRAINT c1, DROP KEY k",
        "ALTER TABLE t DROP KEY j, ADD COLUMN c int NOT NULL DEFAULT 5, ADD KEY j (n)",
        "ALTER TABLE t DROP CONSTRAINT c2, ADD COLUMN d int DEFAULT 6",
        "INSERT INTO t VALUES (2, 2.5, 6, 7)",
    )
    feed.catch_up()
    assert same_kind.assert_same("t") == 2


def test_large_windows_are_applied_side_by_side(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletes before upserts; text keys that the downstream takes for equal keep their order."""
    used: set[int] = set()
    whole = apply.Transactions.apply

    def watched(self: apply.Transactions, *args: object, **more: object) -> None:
        used.add(threading.get_ident())
        whole(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(apply.Transactions, "apply", watched)
    text = "name varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, n int"
    scene.both(f"CREATE TABLE names ({text})", "CREATE TABLE t (id int PRIMARY KEY, n int)")
    rows = ", ".join(f"('name {i}', {i})" for i in range(600))
    scene.sql(f"INSERT INTO names VALUES {rows}", "INSERT INTO t VALUES (1, 1)")
    feed = scene.feed("max-txn-row=50&worker-count=4")
    feed.catch_up()
    assert scene.assert_same("names", "t") == 601
    scene.sql("UPDATE names SET name = UPPER(name)", "DELETE FROM names WHERE n % 7 = 0")
    scene.sql("UPDATE names SET n = n + 1")
    feed.catch_up()
    assert scene.assert_same("names", "t") == 601 - 86
    assert len(used) >= 2
    assert feed.faults == []


def test_missing_tables_are_made_where_that_is_asked_for(scene: Scene) -> None:
    scene.sql(
        "CREATE TABLE made (id bigint unsigned AUTO_INCREMENT, a varchar(20) CHARSET latin1, "
        "c decimal(10,3), d datetime(3), e enum('x','y'), f timestamp(6) NULL, g json, "
        "h int GENERATED ALWAYS AS (c * 2) STORED, PRIMARY KEY (id), UNIQUE KEY u (a, c))",
        "INSERT INTO made (a, c, d, e, f, g) VALUES ('ä', 1.5, NOW(3), 'y', NOW(6), '[1]')",
    )
    feed = scene.feed("create-tables=true")
    feed.catch_up()
    assert scene.assert_same("made") == 1
    scene.sql("UPDATE made SET c = 7")
    feed.catch_up()
    assert scene.assert_same("made") == 1
    assert isinstance(feed.runner, Runner)


def test_a_table_that_is_created_later_brings_its_database(scene: Scene) -> None:
    scene.target.script(f"DROP DATABASE {scene.copy}")
    feed = scene.feed("create-tables=true")
    feed.catch_up()
    scene.sql("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1), (2)")
    feed.catch_up()
    assert scene.assert_same("later") == 2


def test_what_a_discarded_beginning_has_shown_is_corrected(scene: Scene) -> None:
    """Rows of a plan that never ends stay downstream; the log behind their place corrects them."""
    scene.both("CREATE TABLE t (id int PRIMARY KEY)")
    scene.sql("INSERT INTO t VALUES (1), (2)")
    feed = scene.feed()

    def give_up(plan: Plan) -> None:
        raise SnapshotGone("somebody altered it")

    assert isinstance(feed.runner, Runner)
    feed.runner.after = give_up
    until_it_fails(feed, "somebody altered it")
    assert scene.target.execute(f"SELECT COUNT(*) FROM {scene.copy}.t") == [("2",)]
    feed.runner.after = lambda plan: None
    scene.sql("DELETE FROM t WHERE id = 1")
    feed.catch_up()
    assert scene.assert_same("t") == 1


def test_keys_that_keep_case_arrive_as_two_rows(scene: Scene) -> None:
    """MariaDB knows the one collation, not the other; in neither may two rows become one."""
    scene.sql(
        "CREATE TABLE kept (name varchar(20) COLLATE utf8mb4_bin PRIMARY KEY, v int)",
        "CREATE TABLE accents (name varchar(20) COLLATE utf8mb4_0900_as_cs PRIMARY KEY, v int)",
        "INSERT INTO kept VALUES ('rose', 1), ('Rose', 2), ('ROSE', 3)",
        "INSERT INTO accents VALUES ('resume', 1), ('résumé', 2), ('Resume', 3), ('resume ', 4)",
    )
    feed = scene.feed("create-tables=true")
    feed.catch_up()
    assert (scene.assert_same("kept"), scene.assert_same("accents")) == (3, 4)
    scene.sql(
        "UPDATE kept SET v = 5 WHERE name = 'Rose'",
        "DELETE FROM kept WHERE name = 'ROSE'",
        "DELETE FROM accents WHERE name = 'resume'",
        "INSERT INTO accents VALUES ('rÉsumé', 5)",
    )
    feed.catch_up()
    assert (scene.assert_same("kept"), scene.assert_same("accents")) == (2, 4)


def test_keys_of_tables_that_the_log_makes_stay_apart(scene: Scene) -> None:
    """A statement without a collation leaves it to the server, which has another one."""
    scene.both("CREATE TABLE t (id int PRIMARY KEY)")
    feed = scene.feed()
    feed.catch_up()
    scene.sql(
        "CREATE TABLE names (name varchar(9), n int DEFAULT 7, KEY (n), PRIMARY KEY (name))",
        "INSERT INTO names (name) VALUES ('a'), ('a '), ('s'), ('ß')",
    )
    feed.catch_up()
    assert scene.assert_same("names") == 4
    feed.run()
    scene.sql("DELETE FROM names WHERE name = 'a '", "UPDATE names SET n = 8 WHERE name = 's'")
    feed.catch_up()
    assert scene.assert_same("names") == 3


def test_rows_are_not_numbered_in_another_order(same_kind: Scene) -> None:
    """Who gives a table a key by numbers gets them from each server as its rows lie there."""
    same_kind.both(
        "CREATE TABLE bare (v int)",
        "CREATE TABLE keyed (k int PRIMARY KEY, v int)",
        "CREATE TABLE fresh (v int)",
    )
    same_kind.sql("INSERT INTO bare VALUES (1), (2)", "INSERT INTO keyed VALUES (3, 1), (1, 2)")
    feed = same_kind.feed("", "force-replicate = true")
    feed.catch_up()
    same_kind.sql(
        "UPDATE bare SET v = 5 WHERE v = 1",
        "ALTER TABLE keyed ADD COLUMN id int AUTO_INCREMENT UNIQUE",
        "ALTER TABLE fresh ADD COLUMN id int AUTO_INCREMENT PRIMARY KEY",
        "INSERT INTO fresh (v) VALUES (1)",
        "ALTER TABLE bare ADD COLUMN id int AUTO_INCREMENT PRIMARY KEY",
    )
    with pytest.raises(SchemaChangeRefused, match=r"other values here .*ADD COLUMN id"):
        feed.catch_up()
    assert same_kind.assert_same("keyed", "fresh") == 3
    same_kind.at_target("TRUNCATE TABLE bare")
    feed.run()
    feed.catch_up()
    assert same_kind.target.execute(f"SELECT * FROM {same_kind.copy}.bare") == []


def test_rows_are_not_filled_by_chance(mariadb_server: MariaDb, tmp_path: Path) -> None:
    """MySQL refuses such a statement itself."""
    with scene_of(mariadb_server, mariadb_server, tmp_path, "filled_by_chance") as scene:
        scene.both("CREATE TABLE t (id int PRIMARY KEY)")
        scene.sql("INSERT INTO t VALUES (1)")
        feed = scene.feed()
        feed.catch_up()
        scene.sql("ALTER TABLE t ADD COLUMN a int DEFAULT (1 + 1)")
        feed.catch_up()
        assert scene.assert_same("t") == 1
        scene.sql("ALTER TABLE t ADD COLUMN u varchar(36) DEFAULT UUID()")
        with pytest.raises(SchemaChangeRefused, match=r"other values here .*ADD COLUMN u"):
            feed.catch_up()


def test_letters_of_statements_that_the_notes_table_lacks(same_kind: Scene) -> None:
    same_kind.target.execute(f"CREATE DATABASE {same_kind.meta} CHARACTER SET latin1")
    same_kind.both("CREATE TABLE t (id int PRIMARY KEY)")
    feed = same_kind.feed()
    feed.catch_up()
    notes = f"{same_kind.meta}.rowferry_schema_changes"
    for name in ("名", "前"):
        same_kind.sql(f"ALTER TABLE t ADD COLUMN n{len(name)}{ord(name)} int COMMENT '{name}'")
        feed.catch_up()
        said = same_kind.target.execute(f"SELECT statement FROM {notes} ORDER BY commit_ts DESC")
        # A table that an earlier version has made is as it is.
        same_kind.target.execute(f"ALTER TABLE {notes} CONVERT TO CHARACTER SET latin1")
    assert "?" in str(said[0][0]) and "名" not in str(said[0][0])
    same_kind.assert_same("t")


def test_a_statement_may_take_longer_than_sessions_may_be_silent(
    same_kind: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_kind.both("CREATE TABLE t (id int PRIMARY KEY)")
    feed = same_kind.feed()
    feed.catch_up()
    same_kind.sql("ALTER TABLE t ADD COLUMN n int")
    sink: Any = feed.flow.sink
    run = sink._changes._execute
    silent: list[Session] = []  # while the statement runs
    allowed_s: list[int] = []

    def begin(*login: Any, **how: Any) -> Session:
        """Connect as to a server that ends soon who is silent."""
        session = connect(*login, **how)
        session.run(b"SET wait_timeout = 60")
        silent.append(session)
        return session

    def ask(change: Any, statement: str) -> None:
        allowed_s.extend(int(s.ask("SELECT @@wait_timeout")[0][0]) for s in silent)
        run(change, statement)

    sink._changes._execute = ask
    monkeypatch.setattr(schema_changes, "connect", begin)
    feed.catch_up()
    whole_day_s = 24 * 60 * 60  # ddl-timeout
    assert allowed_s == [whole_day_s, whole_day_s] and feed.faults == []


def test_a_filter_keeps_case_where_the_column_does(same_kind: Scene) -> None:
    same_kind.sql(
        "CREATE TABLE t (id int PRIMARY KEY, a varchar(9) COLLATE utf8mb4_bin, b varchar(9))"
    )
    same_kind.at_target(
        "CREATE TABLE t (id int PRIMARY KEY, a varchar(9), b varchar(9), c varchar(9))"
    )
    rule = "[[filter.event-filters]]\nmatcher = ['*.*']\nignore-insert-value-expr = "
    feed = same_kind.feed("", rule + "\"a = 'x' OR b = 'x'\"\n")
    feed.catch_up()
    same_kind.sql("INSERT INTO t VALUES (1, 'x', ''), (2, 'X', ''), (3, '', 'X')")
    feed.catch_up()
    same_kind.sql(
        "ALTER TABLE t ADD c varchar(9) COLLATE utf8mb4_bin, MODIFY a varchar(9)",
        "INSERT INTO t VALUES (4, 'X', '', ''), (5, '', '', 'x')",
    )
    feed.catch_up()
    found = same_kind.target.execute(f"SELECT id FROM {same_kind.copy}.t ORDER BY id")
    assert found == [("2",), ("5",)]
