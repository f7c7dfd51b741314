"""Tables rebuilt on Spark from change files are the source's, also as of an earlier time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feed_kit import Feed, Scene, read_table, scene_of
from pyspark.sql import DataFrame, SparkSession
from run_kit import call

from page_examples import all_blocks
from rowferry.change.table import TableId
from rowferry.downstream.rebuild.stored_feed import open_storage
from rowferry.downstream.rebuild.table import TablePlan, plan_tables, rebuild_here
from rowferry.errors import BadInput, NoSuchTable, OptionsConflict
from rowferry.spark import rebuild_table
from rowferry.spark.session import close_session, open_session
from rowferry.testing.servers import Server

CSV = "force-replicate = true\n[sink.csv]\ninclude-commit-ts = true\noutput-old-value = true"
KINDS = {
    "csv": CSV,
    "canal-json": "force-replicate = true\n[sink]\nonly-output-updated-columns = true",
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    found = open_session("test", tmp_path_factory.mktemp("spark"), "local[2]")
    yield found
    close_session(found)


@pytest.fixture
def scene(mysql_server: Server, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(mysql_server, tmp_path, "rebuild_table") as found:
        yield found


def rows_of(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


class Source:
    """What the server has, in canonical values, to compare with."""

    def __init__(self, scene: Scene, feed: Feed) -> None:
        self._scene, self._feed = scene, feed

    def tables(self) -> dict[str, list[str]]:
        found = {}
        for schema in self._feed._flow.capture.probe(self._feed._flow.decide):
            if schema.id.database == self._scene.database:
                names = [c.name for c in schema.visible]
                found[schema.id.table] = rows_of(read_table(self._scene.server, schema, names))
        return found


def rebuilt(plans: list[TablePlan]) -> dict[str, list[str]]:
    return {p.lineage.table.table: rows_of(rebuild_here(p)) for p in plans}


def checkpoint(feed: Feed) -> int:
    feed.catch_up()
    return feed.loop.step().watermark or 0


def as_the_page_says(spark: SparkSession, folder: Path, table: str) -> DataFrame:
    """Carry out the page's Python on another folder and table."""
    (block,) = (b for b in all_blocks("python") if b.page == "reading-storage.md")
    text = block.text.replace("/changes", "/out").replace("shop.orders", table)
    session: dict[str, Any] = {"spark": spark, "folder": folder}
    exec(compile(text, str(block), "exec"), session)
    found: DataFrame = session["orders"]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_rebuilt(
    kind: str,
    scene: Scene,
    spark: SparkSession,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, n DECIMAL(10,2), v VARCHAR(20), e ENUM('a','b'), "
        "u BIGINT UNSIGNED, ts TIMESTAMP(3) NULL, b VARBINARY(9))",
        "CREATE TABLE parts (a INT, b VARCHAR(9), v INT, PRIMARY KEY (a, b)) "
        "PARTITION BY KEY (b) PARTITIONS 3",
        "CREATE TABLE bag (a INT, f DOUBLE)",
        "CREATE TABLE one (id INT PRIMARY KEY)",
        "CREATE TABLE two (id INT PRIMARY KEY)",
        "CREATE TABLE gone (id INT PRIMARY KEY)",
        *(f"INSERT INTO t (id, n, v) VALUES ({i}, {i} / 3, 'v{i}')" for i in range(40)),
        "INSERT INTO bag VALUES (1, 1.5), (1, 1.5), (2, NULL), (3, -0.25)",
        "INSERT INTO one VALUES (1), (11)",
        "INSERT INTO two VALUES (2)",
    )
    feed = scene.feed(config=KINDS[kind], protocol=kind)
    feed.catch_up()
    scene.sql(
        "INSERT INTO parts VALUES (1, 'x', 1), (2, 'y', 2), (3, 'z', 3)",
        "UPDATE parts SET b = 'moved' WHERE a = 1",
        "DELETE FROM parts WHERE a = 2",
        "UPDATE t SET v = CONCAT(v, '!'), e = 'b' WHERE id < 20",
        "DELETE FROM t WHERE id % 7 = 0",
        "INSERT INTO t VALUES (7, 7, 'again', 'a', 18446744073709551615, NOW(3), x'00ff')",
        "UPDATE t SET id = 100 WHERE id = 1",
        "DELETE FROM bag WHERE a = 1 LIMIT 1",
        "UPDATE bag SET f = 9 WHERE a = 2",
    )
    early, then = checkpoint(feed), Source(scene, feed).tables()
    scene.sql(
        "ALTER TABLE t ADD COLUMN w INT NOT NULL DEFAULT 5 FIRST, RENAME COLUMN v TO name",
        "UPDATE t SET w = 6 WHERE id = 100",
        "ALTER TABLE t MODIFY n VARCHAR(30), DROP COLUMN b",
        "INSERT INTO t (id, n) VALUES (200, 'text')",
        "RENAME TABLE one TO x, two TO one, x TO two",
        "INSERT INTO one VALUES (3)",
        "TRUNCATE TABLE parts",
        "INSERT INTO parts VALUES (9, 'new', 9)",
        "DROP TABLE gone",
        "RENAME TABLE t TO renamed",
        "DELETE FROM renamed WHERE id = 39",
    )
    feed.catch_up()
    now = Source(scene, feed).tables()
    config = tmp_path / "settings.toml"
    config.write_text(KINDS[kind])
    uri = f"file://{feed.root}?protocol={kind}"
    uri += "&enable-tidb-extension=true" if kind == "canal-json" else ""
    stored = open_storage(uri, config)

    assert rebuilt(plan_tables(stored)) == now
    assert rebuilt(plan_tables(stored, as_of=early)) == then
    with pytest.raises(NoSuchTable, match=r"tables there: .*\.renamed"):
        plan_tables(stored, [TableId(scene.database, "t")])

    bag = as_the_page_says(spark, feed.root.parent, f"{scene.database}.bag")
    assert sorted(map(tuple, bag.collect())) == [(1, 1.5), (2, 9.0), (3, -0.25)]
    if kind == "canal-json":  # the rest is the same code for both
        return
    old = rebuild_table.read_table(spark, uri, f"{scene.database}.t", early, config)
    rows = {row["id"]: row.asDict() for row in old.collect()}
    assert len(rows) == len(then["t"])
    assert rows[7]["u"] == 18446744073709551615 and rows[7]["b"] == b"\x00\xff"
    assert (rows[100]["v"], str(rows[100]["n"]), rows[100]["e"]) == ("v1!", "0.33", "b")
    parquet_and_print(scene, uri, config, tmp_path, now, capfd, monkeypatch, spark)


def parquet_and_print(
    scene: Scene,
    uri: str,
    config: Path,
    folder: Path,
    now: dict[str, list[str]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
) -> None:
    """The command, with the session that is there already."""
    monkeypatch.setattr(rebuild_table, "open_session", lambda *_: spark)
    monkeypatch.setattr(rebuild_table, "close_session", lambda _: None)
    words = ["table", "--from", uri, "--config", str(config)]
    name = f"{scene.database}.renamed"
    written = call(folder, capfd, monkeypatch, [*words, "--to", "lake", "--table", name])
    assert written.code == 0, written.err
    assert written.out.startswith(f"{name}: {len(now['renamed'])} rows in {folder}/lake/")
    found = pq.read_table(folder / "lake" / scene.database / "renamed")
    (plan,) = plan_tables(open_storage(uri, config), [TableId(scene.database, "renamed")])
    plain = ["w", "id", "n", "name", "ts"]  # the same values in Spark's types as in ours
    assert rows_of(found.select(plain)) == rows_of(rebuild_here(plan).select(plain))
    assert found.num_rows == len(now["renamed"]) > 30
    again = call(folder, capfd, monkeypatch, [*words, "--to", "lake"])
    assert again.code == 2 and "is there already" in again.err
    shown = call(folder, capfd, monkeypatch, [*words, "--table", f"{scene.database}.one"])
    assert shown.out.splitlines()[:3] == ["id", "2", "3"]
    assert f"{scene.database}.one: 2 rows, as of " in shown.out


def test_what_cannot_be_exact_is_refused(scene: Scene, tmp_path: Path) -> None:
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    feed = scene.feed(protocol="csv")
    feed.catch_up()
    stored = open_storage(f"file://{feed.root}")
    with pytest.raises(OptionsConflict, match="include-commit-ts"):
        plan_tables(stored, as_of=1 << 40)
    scene.sql(
        "UPDATE t SET v = 2",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (v)",
        "INSERT INTO t VALUES (1, 1)",
    )
    feed.catch_up()
    (plan,) = plan_tables(stored)
    with pytest.raises(BadInput, match="carry no old row"):
        rebuild_here(plan)
    feed.stop()
    other: dict[str, Any] = {"protocol": "canal-json"}
    feed = scene.feed(**other)
    feed.catch_up()
    plain = open_storage(f"file://{feed.root}?protocol=canal-json")
    with pytest.raises(OptionsConflict, match="end of that millisecond"):
        plan_tables(plain, as_of=1 << 40)
    (plan,) = plan_tables(plain, as_of=None)
    assert rebuild_here(plan).to_pylist() == [{"id": 1, "v": 1}, {"id": 1, "v": 2}]


def test_spark_reads_parquet_files_by_itself(scene: Scene, spark: SparkSession) -> None:
    """Types, NULLs and versions, also of a file without rows; no code of ours is asked."""
    scene.sql(
        "CREATE TABLE lake (id bigint unsigned PRIMARY KEY, d decimal(10,2), at datetime(3), "
        "ts timestamp(6) NULL, e enum('x','y'), b varbinary(4), f float)",
        "INSERT INTO lake VALUES (18446744073709551615, -1.25, '2024-02-29 01:02:03.125', "
        "'2024-02-29 01:02:03.123456', 'y', x'00ff', 1.5)",
    )
    feed = scene.feed(protocol="parquet")
    feed.catch_up()
    scene.sql(
        "INSERT INTO lake (id) VALUES (2)",
        "UPDATE lake SET e = 'x' WHERE id = 2",
        "ALTER TABLE lake ADD COLUMN more int",
        "INSERT INTO lake (id, more) VALUES (3, 7)",
        "DELETE FROM lake WHERE id = 2",
    )
    feed.catch_up()
    pattern = f"{feed.root}/{scene.database}/lake/*/*/CDC*.parquet"
    found = spark.read.option("mergeSchema", True).parquet(pattern)
    assert {f.name: f.dataType.simpleString() for f in found.schema} == {
        "_op": "string",
        "_commit_ts": "bigint",
        "_seq": "bigint",
        "id": "decimal(20,0)",
        "d": "decimal(10,2)",
        "at": "timestamp_ntz",
        "ts": "timestamp",
        "e": "string",
        "b": "binary",
        "f": "float",
        "more": "bigint",
    }
    told = "_op", "CAST(id AS STRING)", "CAST(d AS STRING)", "CAST(at AS STRING)"
    rest = "date_format(ts, 'HH:mm:ss.SSSSSS')", "e", "hex(b)", "f", "more"
    rows = found.orderBy("_commit_ts", "_seq").selectExpr(*told, *rest).collect()
    assert [tuple(row) for row in rows] == [
        ("insert", str(2**64 - 1), "-1.25", "2024-02-29 01:02:03.125", "01:02:03.123456", "y",
         "00FF", 1.5, None),
        ("insert", "2", *[None] * 7),
        ("update", "2", None, None, None, "x", None, None, None),
        ("insert", "3", *[None] * 6, 7),
        ("delete", "2", None, None, None, "x", None, None, None),
    ]  # fmt: skip
