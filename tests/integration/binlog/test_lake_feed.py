"""A feed of MySQL and MariaDB into lake tables: snapshot, log, DDL, crashes; others read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from feed_kit import NAME, Feed, Scene, read_table, scene_of
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from rowferry.change.plan import Plan
from rowferry.change.resnapshot import Resnapshot, ResnapshotOutcome
from rowferry.change.table import TableId
from rowferry.change.typed_columns import typed
from rowferry.control.feed import under_way
from rowferry.control.lifecycle import Verb
from rowferry.control.operator.operations import Operations
from rowferry.errors import RowferryError, SchemaChangeRefused, SinkUnavailable
from rowferry.flow.capture.binlog.snapshot import rereads
from rowferry.moment import watched
from rowferry.testing.servers import Server


class LakeFeed(Feed):
    """A feed whose sink are Delta tables."""

    steps = ("put deletion vectors", "commit delta version", "delta version committed")

    def _sink_uri(self) -> str:
        return f"delta+file://{self.root}?fsync=false&optimize-after=6&checkpoint-interval=5"

    def lake(self, table: str) -> list[dict[str, Any]]:
        """A lake table's rows as delta-rs reads them."""
        found = DeltaTable(str(self.root / table.replace(".", "/")))
        query = QueryBuilder().register("t", found).execute("SELECT * FROM t")
        return _sorted(pa.table(query.read_all()))

    def has(self, table: str) -> bool:
        return (self.root / table.replace(".", "/")).exists()

    def micro_batches(self, table: str) -> list[Any]:
        """The micro-batch of each commit of rows."""
        history = DeltaTable(str(self.root / table.replace(".", "/"))).history()
        return [e["rowferry.micro-batch"] for e in history if e["operation"] == "MERGE"]

    def lake_differences(self) -> dict[str, Any]:
        """The tables that differ from the source's, with the rows of both."""
        differ = {}
        for schema in self._flow.capture.probe(self._flow.decide):
            plain = read_table(self.server, schema, [c.name for c in schema.visible])
            columns = [
                typed(plain.column(c.name).combine_chunks(), c, schema, native_times=True)
                for c in schema.visible
            ]
            names = [c.name for c in schema.visible]
            ours, theirs = self.lake(str(schema.id)), _sorted(pa.table(columns, names))
            if ours != theirs:
                differ[str(schema.id)] = (ours, theirs)
        return differ


class IcebergFeed(LakeFeed):
    """A feed whose sink are Iceberg tables."""

    steps = ("put position deletes", "commit iceberg snapshot", "iceberg snapshot committed")

    def _sink_uri(self) -> str:
        return f"iceberg+file://{self.root}?fsync=false&optimize-after=6&history=50"

    def _table(self, name: str) -> Table:
        place = self.root / "catalog.db"
        return SqlCatalog("rowferry", uri=f"sqlite:///{place}").load_table(name)

    def lake(self, table: str) -> list[dict[str, Any]]:
        """A lake table's rows as pyiceberg reads them."""
        return _sorted(self._table(table).scan().to_arrow())

    def has(self, table: str) -> bool:
        place = self.root / "catalog.db"
        return SqlCatalog("rowferry", uri=f"sqlite:///{place}").table_exists(table)

    def micro_batches(self, table: str) -> list[Any]:
        """The micro-batch of each commit of rows."""
        told = [s.summary for s in self._table(table).metadata.snapshots if s.summary]
        rows = [s for s in told if s.operation.value != "replace"]
        return [s.additional_properties["rowferry.micro-batch"] for s in rows]


def _sorted(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: [str(v) for v in row.values()])


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        yield found


@pytest.fixture(params=[LakeFeed, IcebergFeed], ids=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> type[LakeFeed]:
    found: type[LakeFeed] = request.param
    return found


def _feed(scene: Scene, kind: type[LakeFeed], tables: str = "*") -> LakeFeed:
    folder = Path(mkdtemp(prefix="lake", dir=scene.folder))
    found = kind(scene.server, folder, [f"{scene.database}.{tables}"])
    scene._open.append(found)
    return found


def test_snapshot_log_and_ddl(scene: Scene, kind: type[LakeFeed]) -> None:
    scene.sql(
        "CREATE TABLE t (id bigint unsigned PRIMARY KEY, v varchar(20), d decimal(10,2), "
        "at datetime(3), e enum('x','y'), ts timestamp(6) NULL)",
        "INSERT INTO t VALUES (1, 'a', -1.25, '2024-01-01 00:00:00', 'y', '2024-02-29 01:02:03'), "
        "(2, 'b', 0, NULL, 'x', NULL), (18446744073709551615, NULL, NULL, NULL, NULL, NULL)",
        "CREATE TABLE two (a int, b varchar(9), n int, PRIMARY KEY (a, b))",
        "INSERT INTO two VALUES (1, 'x', 1), (1, 'y', 2), (2, 'x', 3)",
        "CREATE TABLE hollow (id int PRIMARY KEY)",
    )
    feed = _feed(scene, kind)
    feed.catch_up()
    assert feed.lake_differences() == {}
    for turn in range(4):
        scene.sql(
            f"INSERT INTO t (id, v) VALUES ({10 + turn}, 'n')",
            f"UPDATE t SET v = 'turn {turn}' WHERE id = 1",
            f"UPDATE two SET n = n + {turn}, b = 'z{turn}' WHERE a = 1 AND n < 2",
            "DELETE FROM two WHERE a = 2",
            "INSERT INTO two VALUES (2, 'x', 5)",
        )
        feed.catch_up()
    scene.sql(
        "ALTER TABLE t ADD COLUMN more int NOT NULL DEFAULT 7, CHANGE COLUMN v w varchar(40)",
        "INSERT INTO t (id, w, more) VALUES (30, 'w', 8)",
        "ALTER TABLE t DROP COLUMN d",
        "UPDATE t SET w = 'x' WHERE id = 2",
        "RENAME TABLE two TO three, t TO two",
        "INSERT INTO two (id) VALUES (31)",
        "DELETE FROM three WHERE a = 1",
        "TRUNCATE TABLE three",
        "INSERT INTO three VALUES (7, 'q', 7)",
    )
    feed.catch_up()
    assert feed.lake_differences() == {}
    assert not feed.has(f"{scene.database}.t")


def test_killed_at_every_step(scene: Scene, kind: type[LakeFeed]) -> None:
    """What was recorded is carried out again; each micro-batch is in one commit."""
    scene.sql(
        "CREATE TABLE t (id varchar(20) PRIMARY KEY, n int)",
        "INSERT INTO t VALUES ('a', 1), ('b', 2), ('c', 3), ('still', 0)",
    )
    feed = _feed(scene, kind)
    feed.catch_up()
    for turn, step in enumerate(feed.steps):
        scene.sql(
            "UPDATE t SET n = n + 1 WHERE id <> 'still'",
            f"INSERT INTO t VALUES ('k{turn}', 0)",
            "UPDATE t SET id = CONCAT(id, 'x') WHERE id LIKE 'a%'",
        )

        def end(name: str, step: str = step) -> None:
            if name == step:
                raise SinkUnavailable("killed")

        with pytest.raises(RowferryError), watched(end):
            for _ in range(200):
                feed.loop.step()
        feed.run()
        feed.catch_up()
        assert feed.lake_differences() == {}
    batches = feed.micro_batches(f"{scene.database}.t")
    assert len(batches) == len(set(batches)) >= 4
    left: list[Plan] = []
    feed.runner.after = left.append
    scene.sql("DELETE FROM t WHERE n > 0")
    feed.catch_up()
    assert left and feed.lake_differences() == {}


def test_a_reset_leaves_nothing_that_the_source_has_lost(
    scene: Scene, kind: type[LakeFeed]
) -> None:
    """A type that the table cannot follow stops the feed; the cure in the words fills it anew."""
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(20))",
        "INSERT INTO t VALUES (1, 'a'), (2, '2024-01-01')",
        "CREATE TABLE emptied (id int PRIMARY KEY)",
        "INSERT INTO emptied VALUES (1)",
    )
    feed = _feed(scene, kind)
    feed.catch_up()
    scene.sql(
        "SET sql_log_bin = 0",
        "DELETE FROM t WHERE id = 1",
        "DELETE FROM emptied",
        "SET sql_log_bin = 1",
        "ALTER TABLE t CHANGE COLUMN v w date",
    )
    with pytest.raises(SchemaChangeRefused, match="reset --snapshot"):
        feed.catch_up()
    feed.stop()
    feed.store.move(NAME, Verb.PAUSE)
    Operations(feed.store).reset(NAME, snapshot=True)
    feed.store.move(NAME, Verb.RESUME)
    feed.run()
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (3, NULL)")
    feed.catch_up()
    assert feed.lake_differences() == {}
    assert len(feed.lake(f"{scene.database}.t")) == 2


def test_columns_stay_the_same_where_a_definition_is_read_anew(
    scene: Scene, kind: type[LakeFeed]
) -> None:
    """Only the server tells what a foreign key does; but no column becomes another one by it."""
    scene.sql(
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE t (id int PRIMARY KEY, a varchar(9), b varchar(9), o int)",
        "INSERT INTO t VALUES (1, 'a1', 'b1', NULL), (2, 'a2', 'b2', NULL)",
    )
    feed = _feed(scene, kind)
    feed.catch_up()
    scene.sql("ALTER TABLE t DROP COLUMN a")
    feed.catch_up()
    scene.sql("ALTER TABLE t ADD FOREIGN KEY (o) REFERENCES other (id)")
    feed.catch_up()
    assert feed.lake_differences() == {}
    scene.sql(
        "ALTER TABLE t CHANGE b c varchar(9), ADD n int DEFAULT 5 AFTER id, ADD p int, "
        "ADD FOREIGN KEY (p) REFERENCES other (id)"
    )
    feed.catch_up()
    scene.sql("INSERT INTO t (id, c) VALUES (3, 'c3')")
    feed.catch_up()
    assert feed.lake_differences() == {}


def test_columns_stay_the_same_in_a_copy_that_a_tool_makes(
    scene: Scene, kind: type[LakeFeed]
) -> None:
    """A tool's copy has a new column in the middle; one with another name may be any."""
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY, a varchar(9), b varchar(9))",
        "INSERT INTO t VALUES (1, 'a1', 'b1'), (2, 'a2', 'b2')",
    )
    feed = _feed(scene, kind, "t")
    feed.catch_up()
    scene.sql(
        "CREATE TABLE _t_gho LIKE t",
        "ALTER TABLE _t_gho ADD COLUMN n varchar(9) DEFAULT 'x' AFTER id",
        "INSERT INTO _t_gho (id, a, b) SELECT id, a, b FROM t",
        "RENAME TABLE t TO _t_del, _t_gho TO t",
    )
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (3, 'n3', 'a3', 'b3')")
    feed.catch_up()
    assert feed.lake_differences() == {}
    scene.sql(
        "DROP TABLE _t_del",
        "CREATE TABLE _t_gho LIKE t",
        "ALTER TABLE _t_gho DROP COLUMN a, CHANGE COLUMN b c varchar(9)",
        "INSERT INTO _t_gho SELECT id, n, b FROM t",
        "RENAME TABLE t TO _t_del, _t_gho TO t",
    )
    with pytest.raises(SchemaChangeRefused, match="'c': it may be an earlier column"):
        feed.catch_up()


def test_a_table_read_again(
    scene: Scene, kind: type[LakeFeed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come as upserts of their keys, also by a part that dies at any step of its commit."""
    monkeypatch.setattr(rereads, "_LEAST_ROWS", 40)
    for name in ("_LEAST_PART_BYTES", "_FIRST_PART_BYTES", "_MOST_PART_BYTES"):
        monkeypatch.setattr(under_way, name, 1)
    rows = ", ".join(f"({i}, 0)" for i in range(200))
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, n int)", f"INSERT INTO t VALUES {rows}")
    feed = _feed(scene, kind)
    feed.catch_up()
    feed.store.ask_resnapshot("feed", Resnapshot("1", TableId(scene.database, "t")))
    steps = list(feed.steps)
    parts = 0

    def write(plan: Plan) -> None:
        nonlocal parts
        if plan.stretch.segments and plan.stretch.segments[0].reread:
            parts += 1
            scene.sql(
                f"UPDATE t SET n = {parts} WHERE id % 3 = {parts % 3}",
                f"DELETE FROM t WHERE id = {parts * 40}",
                f"INSERT INTO t VALUES ({1000 + parts}, 0)",
            )

    def end(name: str) -> None:
        if parts and steps and name == steps[0]:
            del steps[0]
            raise SinkUnavailable("killed")

    feed.runner.before = write
    while any(one.is_open for one in feed.resnapshots()):
        try:
            with watched(end):
                feed.loop.step()
        except SinkUnavailable:
            feed.run()
    feed.catch_up()
    assert [r.outcome for r in feed.resnapshots()] == [ResnapshotOutcome.DONE]
    assert (steps, parts > 4) == ([], True)
    assert feed.lake_differences() == {}
