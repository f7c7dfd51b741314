"""What the sink says to TiDB, to a stand-in that refuses what TiDB refuses."""

from __future__ import annotations

from typing import Any

import pytest
from tidb_stand_in import Cluster, Table

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Stretch
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import SinkUnwritable, TargetUnfit
from rowferry.flow.assemble import assemble
from rowferry.flow.sink.mysql import session as sessions
from rowferry.flow.sink.mysql.lww import newest_wins
from rowferry.flow.sink.mysql.session import Session, StatementRefused
from rowferry.flow.sink.mysql.statements import Around, upserting, upserting_on_tidb
from rowferry.flow.sink.mysql.tidb_tables import as_active_active
from rowferry.mysql import connection, snapshot_position
from rowferry.mysql import key_ranges as chunks
from rowferry.mysql.ddl.statement import parse_create
from rowferry.mysql.session import Flavour
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

HIDDEN = "_tidb_origin_ts BIGINT UNSIGNED, _tidb_softdelete_time TIMESTAMP(6) NULL"
CREATE = (
    f"CREATE TABLE t (id INT PRIMARY KEY, v TEXT, {HIDDEN}, _tidb_commit_ts BIGINT UNSIGNED) "
    "COMMENT='rowferry:active-active'"
)
MODE: dict[str, Any] = {"enable-active-active": True, "bdr-mode": True}
MADE = {"sink": {"mysql-config": {"create-tables": True}}}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    monkeypatch.setattr(connection, "GuardedClient", found.connect)
    return found


def flow_of(config: dict[str, Any]) -> Any:
    source, sink = Uri.parse("range://h:1", "source"), Uri.parse("tidb://u:p@h/", "sink")
    return assemble(ChangefeedSpec("f", source, sink, config))


def seen(config: dict[str, Any], sql: str = CREATE) -> TableSchema:
    found: TableSchema = flow_of(config).decide.seen_as(parse_create(sql, "shop"))
    return found


def in_tidb(cluster: Cluster, soft_delete: bool = True) -> None:
    columns = {"id": "int", "v": "text"}
    cluster.tables["shop.t"] = Table(columns, ("id",), soft_delete)


def connected(cluster: Cluster, for_rows: bool = True) -> Session:
    return sessions.connect(flow_of(MODE).sink._settings.login, for_rows=for_rows)


def test_every_session(cluster: Cluster) -> None:
    for for_rows in (False, True):
        found = connected(cluster, for_rows)
        assert found.facts.flavour is Flavour.TIDB  # whatever version it shows
        assert found.facts.lock == "FOR UPDATE" and not found.facts.judges_fence
        assert found.ask("SELECT @@tidb_cdc_write_source") == [("1",)]
        assert found.ask("SELECT @@tidb_translate_softdelete_sql") == [("0",)]
    assert not [sql for sql in cluster.sent if "/*!" in sql]
    cluster.has_soft_delete = False
    found = connected(cluster)
    assert found.ask("SELECT @@tidb_cdc_write_source") == [("1",)]


def test_sessions_that_read_rows() -> None:
    for sql in (chunks.TIDB_SETTINGS, snapshot_position.snapshot(Flavour.TIDB)):
        assert "/*!" not in sql and "READ ONLY" not in sql
    assert "/*T![softdelete] , tidb_translate_softdelete_sql = 0 */" in chunks.TIDB_SETTINGS


def test_an_active_active_table_is_taken(cluster: Cluster) -> None:
    in_tidb(cluster)
    flow_of(MODE).sink.check_tables([seen(MODE)])
    assert [sql for sql in cluster.sent if sql.startswith("EXPLAIN UPDATE")]


def test_what_the_mode_refuses(cluster: Cluster) -> None:
    in_tidb(cluster, soft_delete=False)
    with pytest.raises(TargetUnfit, match=r"no column '_tidb_origin_ts' .*make the table anew"):
        flow_of(MODE).sink.check_tables([seen(MODE)])
    kinds = {"_tidb_origin_ts": "bigint unsigned", "_tidb_softdelete_time": "timestamp(6)"}
    cluster.tables["shop.t"].columns.update(kinds)  # ordinary ones, that nobody would clear
    with pytest.raises(TargetUnfit, match=r"shop\.t .*is no active-active table.*ACTIVE_ACTIVE"):
        flow_of(MODE).sink.check_tables([seen(MODE)])
    cluster.has_soft_delete = False
    with pytest.raises(SinkUnwritable, match="a TiDB without active-active tables"):
        flow_of(MODE).sink.check_tables([seen(MODE)])


OPTIONS = "SOFTDELETE RETENTION 7 DAY ACTIVE_ACTIVE='ON'"


@pytest.mark.parametrize(
    ("sql", "number"),
    [
        ("CREATE TABLE a (id INT PRIMARY KEY, _tidb_origin_ts BIGINT UNSIGNED)", 1063),
        ("CREATE TABLE a (id INT PRIMARY KEY, _tidb_softdelete_time TIMESTAMP NULL)", 1063),
        ("CREATE TABLE a (id INT PRIMARY KEY, _tidb_softdelete_time TIMESTAMP(6) NULL)", 0),
        ("CREATE TABLE a (id INT PRIMARY KEY, _tidb_commit_ts BIGINT UNSIGNED)", 1166),
        (f"CREATE TABLE a (id INT, _tidb_softdelete_time TIMESTAMP(6) NULL) {OPTIONS}", 1060),
        (f"CREATE TABLE a (id INT, _tidb_commit_ts BIGINT UNSIGNED) {OPTIONS}", 1166),
        ("ALTER TABLE shop.t ADD COLUMN _tidb_origin_ts BIGINT UNSIGNED", 1063),
        ("ALTER TABLE shop.t ADD COLUMN _tidb_commit_ts BIGINT UNSIGNED", 1166),
        ("EXPLAIN UPDATE shop.t SET `id` = `id` WHERE 1 = 0", 1235),
        ("EXPLAIN UPDATE shop.t SET `v` = `v` WHERE 1 = 0", 0),
        ("SET tidb_translate_softdelete_sql = 1;SELECT _tidb_softdelete_time FROM shop.t", 1815),
        ("SELECT _tidb_softdelete_time FROM shop.t", 0),
        ("SET tidb_unknown = 1", 1193),
    ],
)
def test_the_stand_in_refuses_what_tidb_refused(cluster: Cluster, sql: str, number: int) -> None:
    """Each of these was tried on a TiDB with active-active tables."""
    in_tidb(cluster)
    session = connected(cluster)
    try:
        session.run(*(part.encode() for part in sql.split(";")), joined=False)
    except StatementRefused as err:
        assert err.number == number
    else:
        assert number == 0


def test_a_plain_copy_that_lacks_a_column_of_the_mode(cluster: Cluster) -> None:
    cluster.tables["shop.t"] = Table({"id": "int"}, ("id",))
    for column, cure in (
        ("_tidb_origin_ts BIGINT UNSIGNED", "make the table anew"),
        ("_tidb_softdelete_time TIMESTAMP(6) NULL", r"add it as TIMESTAMP\(6\)"),
        ("_tidb_commit_ts BIGINT UNSIGNED", "TiDB makes it itself"),
        ("other INT", "; add it there"),
    ):
        table = seen({}, f"CREATE TABLE t (id INT PRIMARY KEY, {column})")
        with pytest.raises(TargetUnfit, match=cure):
            flow_of({}).sink.check_tables([table])


def test_tables_are_made(cluster: Cluster) -> None:
    flow = flow_of(MODE | MADE)
    table = seen(MODE | MADE)
    flow.sink.check_tables([table])
    flow.sink._judge(Stretch((), (), {}), [table])
    made = cluster.tables["shop.t"]
    assert made.soft_delete and made.key == ("id",) and set(made.columns) == {"id", "v"}


def test_ddls_make_tables(cluster: Cluster) -> None:
    cluster.role = "secondary"
    table = seen(MODE)
    change = SchemaChange(
        commit_ts=1 << 60,
        kind=DdlKind.CREATE_TABLE,
        query=CREATE,
        table=TableId("shop", "t"),
        schema=table,
    )
    sent = CREATE.replace("TABLE t", "TABLE shop.t")
    with pytest.raises(
        StatementRefused, match="Incorrect column specifier for column '_tidb_origin_ts'"
    ):
        flow_of({}).sink._changes._execute(change, sent)
    flow_of(MODE).sink._changes._execute(change, sent)
    assert cluster.tables["shop.t"].soft_delete
    assert set(cluster.tables["shop.t"].columns) == {"id", "v"}


@pytest.mark.parametrize(
    ("sql", "made"),
    [
        (
            "CREATE TABLE IF NOT EXISTS `a`.`b` (id INT, `_tidb_commit_ts` BIGINT UNSIGNED, "
            "d DECIMAL(5,2) DEFAULT 0, _TIDB_ORIGIN_TS bigint, PRIMARY KEY (id)) ENGINE=InnoDB "
            "PARTITION BY HASH (id)",
            "CREATE TABLE IF NOT EXISTS `a`.`b` (id INT, d DECIMAL(5,2) DEFAULT 0, PRIMARY KEY "
            "(id)) SOFTDELETE RETENTION 7 DAY ACTIVE_ACTIVE='ON' ENGINE=InnoDB "
            "PARTITION BY HASH (id)",
        ),
        (
            "CREATE TABLE a (id INT PRIMARY KEY, -- of all, everywhere\n"
            "  v INT -- a, b\n , _tidb_commit_ts BIGINT UNSIGNED # ours\n, w INT # the last\n)",
            "CREATE TABLE a (id INT PRIMARY KEY, v INT -- a, b\n, w INT # the last\n) SOFTDELETE "
            "RETENTION 7 DAY ACTIVE_ACTIVE='ON'",
        ),
        ("CREATE TABLE a LIKE b", "CREATE TABLE a LIKE b"),
        ("CREATE TABLE a (LIKE b)", "CREATE TABLE a (LIKE b)"),
        (
            "CREATE TABLE a (id INT) /*T![active_active] ACTIVE_ACTIVE='ON' */",
            "CREATE TABLE a (id INT) /*T![active_active] ACTIVE_ACTIVE='ON' */",
        ),
    ],
)
def test_statements_that_make_tables(sql: str, made: str) -> None:
    assert as_active_active(sql) == made


def test_rows(cluster: Cluster) -> None:
    in_tidb(cluster)
    session = connected(cluster)
    table = seen(MODE)

    def run(around: Around) -> None:
        session.run(around.lead + b"(1, 'a', 5, NULL)" + around.end)

    run(newest_wins(table)[0])
    run(upserting_on_tidb(table)[0])  # with the mode off
    with pytest.raises(StatementRefused) as found:
        run(upserting(table)[0])
    assert found.value.number == 1235
    keys_alone = parse_create("CREATE TABLE k (a INT, b INT, PRIMARY KEY (a, b))", "shop")
    assert upserting_on_tidb(keys_alone)[0].end == upserting(keys_alone)[0].end


def test_the_right_of_sync_points(cluster: Cluster) -> None:
    on = {"enable-sync-point": True}
    flow_of(on).sink.check_tables([])
    cluster.may_set_globals = False
    with pytest.raises(SinkUnwritable, match="GRANT SYSTEM_VARIABLES_ADMIN"):
        flow_of(on).sink.check_tables([])
    flow_of({}).sink.check_tables([])


def test_types_that_tidb_lacks(cluster: Cluster) -> None:
    table = seen(MADE, "CREATE TABLE t (id INT PRIMARY KEY, place GEOMETRY)")
    with pytest.raises(TargetUnfit, match=r"shop\.t .*no type for column 'place'.*LONGBLOB"):
        flow_of(MADE).sink.check_tables([table])
