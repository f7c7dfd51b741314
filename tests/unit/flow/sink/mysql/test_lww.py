"""The statement that lets the newest row win, the triggers beside it, and the progress table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from rowferry.change.plan import Plan, Stretch
from rowferry.change.position import RangeProgress, Stage
from rowferry.change.table import TableId
from rowferry.errors import TargetUnfit
from rowferry.flow.sink.mysql.emulation import check_triggers, triggers
from rowferry.flow.sink.mysql.lww import newest_wins
from rowferry.flow.sink.mysql.progress_table import ProgressTable
from rowferry.flow.sink.mysql.session import DownstreamFacts, Session, StatementRefused
from rowferry.mysql.ddl.statement import parse_create
from rowferry.mysql.flavour import Flavour

A, B = TableId("shop", "a"), TableId("shop", "b")


def test_the_statement() -> None:
    table = parse_create(
        "CREATE TABLE `t``1` (n TEXT, id INT, k INT, g INT AS (k) STORED, "
        "_tidb_origin_ts BIGINT UNSIGNED, _tidb_softdelete_time TIMESTAMP(6) NULL, "
        "_tidb_commit_ts BIGINT UNSIGNED, PRIMARY KEY (id, k))",
        "s",
    )
    around, replaced = newest_wins(table)
    assert replaced is None
    lead = "INSERT INTO `s`.`t``1` (`n`,`id`,`k`,`_tidb_origin_ts`,`_tidb_softdelete_time`) VALUES "
    assert around.lead.decode() == lead
    assert around.end.decode() == (
        " ON DUPLICATE KEY UPDATE `n` = IF((@cond := (IFNULL(`s`.`t``1`.`_tidb_origin_ts`, "
        "`s`.`t``1`.`_tidb_commit_ts`) <= VALUES(`_tidb_origin_ts`))), VALUES(`n`), "
        "`s`.`t``1`.`n`), `_tidb_origin_ts` = IF(@cond, VALUES(`_tidb_origin_ts`), "
        "`s`.`t``1`.`_tidb_origin_ts`), `_tidb_softdelete_time` = IF(@cond, "
        "VALUES(`_tidb_softdelete_time`), `s`.`t``1`.`_tidb_softdelete_time`)"
    )


class Recorder:
    """A session that only writes down what it is asked."""

    def __init__(
        self,
        answers: Sequence[tuple[Any, ...]] = (),
        wide: bool = True,
        flavour: Flavour = Flavour.MARIADB,
    ) -> None:
        self.facts = DownstreamFacts(flavour, "", 1 << 20)
        self.said: list[tuple[str, tuple[object, ...]]] = []
        self._answers, self._wide = list(answers), wide

    def run(self, *statements: bytes) -> None:
        for statement in statements:
            self.said.append((statement.decode(), ()))
            if not self._wide and b"CREATE TABLE" in statement and b"utf8mb3" not in statement:
                raise StatementRefused(1071, "Specified key was too long", "here")

    def ask(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        self.said.append((sql, tuple(values)))
        return self._answers

    def written(self) -> dict[tuple[object, object], object]:
        """Return the checkpoint of each table that was written last."""
        for sql, values in reversed(self.said):
            if sql.startswith("INSERT"):
                return {
                    (values[i + 2], values[i + 3]): values[i + 4] for i in range(0, len(values), 5)
                }
        return {}


def plan(state: dict[str, Any] | None, mark: int | None) -> Plan:
    return Plan(1, 1, 0, Stretch((), (), {}, watermark=mark), sink_state=state)


def stretch(*ranges: tuple[int, TableId], gone: tuple[int, ...] = ()) -> Stretch:
    """A stretch after which the source has these ranges, beside those that it had."""
    rows = (RangeProgress(*table, 0, 0, one, "", "", Stage.LOG) for one, table in ranges)
    return Stretch((), (), {}, ranges=tuple(rows), gone_ranges=gone)


def session(found: Recorder) -> Session:
    return cast(Session, found)


def test_progress_is_written_at_once_and_then_sparsely() -> None:
    now = [100.0]
    table = ProgressTable("feed", "cluster-7", 30.0, clock=lambda: now[0])
    state = table.foresee(stretch((1, A), (2, B), (3, B)))
    seen = Recorder(wide=False)
    table.publish(session(seen), plan({"ranges": []}, 5))
    table.publish(session(seen), plan(state, None))
    assert seen.said == []  # nothing is reached, or nothing tracked: no table is made
    table.publish(session(seen), plan(state, 5))
    made = [sql for sql, _ in seen.said if sql.startswith("CREATE")]
    assert made[0] == "CREATE DATABASE IF NOT EXISTS tidb_cdc"
    assert made[-1].startswith("CREATE TABLE IF NOT EXISTS tidb_cdc.ticdcProgressTable (")
    assert "COMMENT='TiCDC synchronization progress table for HardDelete safety check'" in made[-1]
    assert seen.written() == {("shop", "a"): 5, ("shop", "b"): 5}
    assert seen.said[-1][1][:2] == ("default/feed", "cluster-7")
    count = len(seen.said)
    now[0] += 29
    table.publish(session(seen), plan(state, 6))
    assert len(seen.said) == count
    now[0] += 1
    table.publish(session(seen), plan(state, 7))
    assert len(seen.said) == count + 1
    assert seen.written() == {("shop", "a"): 7, ("shop", "b"): 7}


def test_progress_of_tables_whose_names_the_database_has_no_letters_for() -> None:
    """The database of the progress table has the server's own character set: latin1, maybe."""
    table = ProgressTable("feed", "c", 30.0, lambda: 0.0)
    seen = Recorder()
    state = table.foresee(stretch((1, TableId("店", "単"))))
    table.publish(session(seen), plan(state, 5))
    (made,) = (sql for sql, _ in seen.said if sql.startswith("CREATE TABLE"))
    assert "DEFAULT CHARSET=utf8mb3" in made


@pytest.mark.parametrize("for_purge", [True, False])
def test_tidb_gets_the_progress_where_its_purge_looks(for_purge: bool) -> None:
    table = ProgressTable("feed", "c", 30.0, lambda: 0.0, for_purge)
    seen = Recorder(flavour=Flavour.TIDB)
    table.resume(table.foresee(stretch((1, B))))
    table.publish(session(seen), plan(table.foresee(stretch((1, A))), 5))
    said = [(sql.split("(")[0].split("WHERE")[0], sql) for sql, _ in seen.said]
    names = ["ticdcProgressTable", "ticdc_progress_table"][: 1 + for_purge]
    assert [head for head, _ in said] == [
        "CREATE DATABASE IF NOT EXISTS tidb_cdc",
        *(f"CREATE TABLE IF NOT EXISTS tidb_cdc.{name} " for name in names),
        *(f"DELETE FROM tidb_cdc.{name} " for name in names),
        *(f"INSERT INTO tidb_cdc.{name} " for name in names),
    ]
    for _, sql in said[1:]:
        assert ("cluster_id" in sql) is ("ticdc_progress_table" in sql) is ("upstreamID" not in sql)
    if for_purge:
        assert "  cluster_id VARCHAR(128) NOT NULL,\n" in said[2][1]
        assert "PRIMARY KEY (changefeed_id, cluster_id, database_name, table_name)" in said[2][1]
        assert seen.said[-1][1] == seen.said[-2][1] == ("default/feed", "c", "shop", "a", 5)


def test_tables_that_are_gone_leave_the_progress_table() -> None:
    """Dropped, renamed or left out: none of their ranges is there, under no such name."""
    table = ProgressTable("feed", "c", 30.0, clock=lambda: 0.0)
    old, new = TableId("old", "c"), TableId("shop", "n")
    before = table.foresee(stretch((1, A), (2, B), (3, old), (4, old), (5, new)))
    table.resume(before)
    state = table.foresee(stretch((2, new), gone=(1, 3)))
    assert table.foresee(stretch()) == before  # until it is published
    seen = Recorder()
    table.publish(session(seen), plan(state, 9))
    removed = [(sql, values) for sql, values in seen.said if sql.startswith("DELETE")]
    assert removed == [
        (
            "DELETE FROM tidb_cdc.ticdcProgressTable WHERE changefeed_id = %s AND upstreamID = %s "
            "AND (database_name, table_name) IN ((%s,%s),(%s,%s))",
            ("default/feed", "c", "shop", "a", "shop", "b"),
        )
    ]
    assert seen.written() == {("old", "c"): 9, ("shop", "n"): 9}
    assert table.foresee(stretch()) == state


def test_tables_whose_long_names_begin_alike_have_triggers_of_their_own() -> None:
    tables = [TableId("shop", "n" * 60 + end) for end in ("a", "b", "c")]
    names = [
        {s.split(" BEFORE ")[0] for s in triggers(t, ["id"], 3) if s.startswith("CREATE")}
        for t in tables
    ]
    assert len(set().union(*names)) == 9
    assert all(len(name.split("`")[3]) <= 64 for one in names for name in one)


def test_triggers_that_are_missing_or_of_the_same_cluster() -> None:
    made = [s for s in triggers(A, ["id"], 3) if s.startswith("CREATE")]
    events = [s.split(" BEFORE ")[1].split()[0] for s in made]
    rows = [("SHOP", "a", event, body) for event, body in zip(events, made, strict=True)]
    check_triggers(session(Recorder(rows)), [A], 4)
    with pytest.raises(
        TargetUnfit, match=r"table shop\.b .*rowferry active-active prepare shop\.b"
    ):
        check_triggers(session(Recorder(rows)), [A, B], 4)
    with pytest.raises(TargetUnfit, match="have the cluster-index 3"):
        check_triggers(session(Recorder(rows)), [A], 3)
    with pytest.raises(TargetUnfit, match="has no triggers"):
        check_triggers(session(Recorder(rows[:1])), [A], 4)
