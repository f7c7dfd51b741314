"""`spark.read` and `spark.readStream` with the format `rowferry`, on real servers."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from rowferry.change.table import TableId
from rowferry.errors import RowferryError, from_text
from rowferry.refstore.cluster import LocalCluster
from rowferry.spark.datasource import register
from rowferry.spark.session import close_session, open_session
from rowferry.spark.versions import LIMITS_MICRO_BATCHES
from rowferry.testing.servers import Server

PATIENCE_S = 600.0


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {"spark.sql.session.timeZone": "UTC"}
    found = open_session("test", tmp_path_factory.mktemp("spark"), "local[2]", settings)
    yield found  # nothing is registered: Spark finds the format by itself
    close_session(found)


@pytest.fixture
def source_server(request: pytest.FixtureRequest) -> Server:
    """MySQL; a test that names `mariadb` in its parameters runs there too: streams take long."""
    server: Server = request.getfixturevalue(f"{getattr(request, 'param', 'mysql')}_server")
    return server


BOTH = pytest.mark.parametrize("source_server", ["mysql", "mariadb"], indirect=True)


@pytest.fixture
def database(source_server: Server, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "_", request.node.name)[:60]
    source_server.execute(f"CREATE DATABASE {name}")
    return name


def changes(reader: Any, source: str, table: str, **options: str) -> DataFrame:
    given = reader.format("rowferry").option("source", source).option("table", table)
    found: DataFrame = given.options(**options).load()
    return found


class Query:
    """A stream into lists: the rows of each micro-batch, in the order of the log."""

    def __init__(self, spark: SparkSession, folder: Path, source: str, table: str) -> None:
        self._spark, self._folder = spark, folder
        self._source, self._table = source, table
        self.batches: dict[int, list[Row]] = {}
        self.repeats: list[tuple[list[Row], list[Row]]] = []  # what came first, and again
        self.fail_once = False

    def start(self, available_now: bool = False, **options: str) -> StreamingQuery:
        frame = changes(self._spark.readStream, self._source, self._table, **options)
        writer = frame.writeStream.foreachBatch(self._take)
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()

    def run(self, **options: str) -> None:
        """Read what is there and end."""
        self.start(available_now=True, **options).awaitTermination()

    def fail(self, start: Callable[[], StreamingQuery]) -> None:
        """Let a batch end badly behind its last row: it will be run again."""
        self.fail_once = True
        with pytest.raises(Exception, match="the sink is full"):
            start().awaitTermination(PATIENCE_S)

    def _take(self, frame: DataFrame, batch: int) -> None:
        rows = frame.orderBy("_commit_ts", "_seq").collect()
        if batch in self.batches:
            self.repeats.append((self.batches[batch], rows))
        self.batches[batch] = rows
        if self.fail_once and rows:
            self.fail_once = False
            raise RuntimeError("the sink is full")

    @property
    def rows(self) -> list[Row]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]


def wait(query: StreamingQuery, done: Callable[[], bool]) -> None:
    """Wait for something that a running query does."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        error = query.exception()
        if error is not None:
            raise error
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)


def ended_by(query: StreamingQuery) -> RowferryError:
    """Wait for a query's end; return the error of ours that ended it."""
    with pytest.raises(Exception, match="RF-") as raised:
        query.awaitTermination(PATIENCE_S)
    return refused(raised.value)


def refused(error: BaseException) -> RowferryError:
    words = str(error).split("=== Streaming Query ===")[0]
    if "_call_proxy" not in words:  # else Spark tells the way through the user's own function
        assert "Traceback" not in words and 'File "' not in words
    found = from_text(words)
    assert found is not None, str(error)
    return found


def carried_bytes(checkpoint: Path) -> list[str]:
    """Return what the offsets of a checkpoint hold of the log itself, for each segment."""
    files = [p for p in (checkpoint / "offsets").iterdir() if p.name.isdecimal()]
    lines = [line for file in files for line in file.read_text().splitlines()]
    offsets = [json.loads(line) for line in lines if '"segments"' in line]
    return [segment["payload"] for one in offsets for segment in one["segments"]]


# --- a table as it is ----------------------------------------------------------------------------

# Column, and three values: large, small, odd.
TYPES = {
    "ti tinyint": ("127", "-128", "0"),
    "iu int unsigned": ("4294967295", "0", "7"),
    "bi bigint": ("9223372036854775807", "-9223372036854775808", "0"),
    "bu bigint unsigned": ("18446744073709551615", "0", "1"),
    "f float": ("1.5", "-0.25", "0"),
    "d double": ("1e300", "-1e-300", "0.1"),
    "n decimal(12,3)": ("123456789.125", "-0.001", "0"),
    "w decimal(60,2)": ("9" * 58 + ".99", "-1.00", "0"),
    "bt bit(9)": ("b'111111111'", "b'0'", "b'101'"),
    "e enum('red','grün','it''s')": ("'red'", "'grün'", "'it''s'"),
    "s set('a','b','c')": ("'a,c'", "''", "'b'"),
    "c char(5) charset latin1": ("'é'", "''", "'x y'"),
    "v varchar(50)": ("'🚢 ferry'", "''", "'a\\\\b\\n'"),
    "t longtext": ("repeat('ab', 40000)", "''", "'x'"),
    "vb varbinary(20)": ("x'00ff10'", "''", "'b'"),
    "b blob": ("x'deadbeef'", "''", "x'00'"),
    "da date": ("'9999-12-31'", "'0000-00-00'", "'1000-01-01'"),
    "dt datetime(6)": ("'9999-12-31 23:59:59.999999'", "'0000-00-00'", "'2024-02-29 01:02:03.4'"),
    "ts timestamp(3) null": ("'2037-01-19 03:14:07.999'", "'0000-00-00'", "'1970-01-02 00:00:01'"),
    "tm time(2)": ("'838:59:59'", "'-838:59:59'", "'00:00:00.05'"),
    "y year": ("2155", "1901", "0"),
    "j json": ("'{\"a\": [1, null]}'", "'1'", "'\"x\"'"),
}


def make_types(server: Server, database: str) -> list[str]:
    """Make a table of all types with four rows, the last of NULLs; return its columns."""
    names = [definition.split()[0] for definition in TYPES]
    rows = [f"({i + 1}, {', '.join(v[i] for v in TYPES.values())})" for i in range(3)]
    rows.append(f"(4, {', '.join('NULL' for _ in TYPES)})")
    server.script(
        "SET sql_mode = ''",
        f"CREATE TABLE {database}.t (id int PRIMARY KEY, {', '.join(TYPES)}) CHARSET utf8mb4",
        f"INSERT INTO {database}.t VALUES {', '.join(rows)}",
    )
    return ["id", *names]


def printed(server: Server, database: str, columns: list[str]) -> list[tuple[Any, ...]]:
    """Return what the server itself prints of the table; numbers are read as numbers."""
    shown = ", ".join("bt + 0" if c == "bt" else f"`{c}`" for c in columns)
    numbers = {"id", "ti", "iu", "bi", "bt", "y"}

    def value(column: str, text: Any) -> Any:
        if text is None or column in ("vb", "b"):
            return text
        if column in numbers:
            return int(text)
        if column in ("f", "d"):
            return float(text)
        return Decimal(text) if column in ("bu", "n") else text

    rows = server.execute(f"SELECT {shown} FROM {database}.t ORDER BY id")
    return [tuple(value(c, v) for c, v in zip(columns, row, strict=True)) for row in rows]


def test_a_batch_equals_the_table(
    spark: SparkSession, source_server: Server, database: str
) -> None:
    columns = make_types(source_server, database)
    frame = changes(spark.read, source_server.uri, f"{database}.t")
    assert frame.columns == [*columns, "_op", "_commit_ts", "_commit_time", "_seq", "_before"]
    found = frame.orderBy("id").collect()
    expected = printed(source_server, database, columns)
    for mine, theirs in zip(found, expected, strict=True):
        got = tuple(bytes(v) if isinstance(v, bytearray) else v for v in mine[: len(columns)])
        assert dict(zip(columns, got, strict=True)) == dict(zip(columns, theirs, strict=True))
    assert {(r["_op"], r["_before"]) for r in found} == {("insert", None)}
    assert len({r["_seq"] for r in found}) == len(found)


def test_times_as_sparks_own(spark: SparkSession, source_server: Server, database: str) -> None:
    make_types(source_server, database)
    frame = changes(spark.read, source_server.uri, f"{database}.t", temporal="native")
    types = dict(frame.select("da", "dt", "ts", "tm").dtypes)
    assert types == {"da": "date", "dt": "timestamp_ntz", "ts": "timestamp", "tm": "string"}
    # A session in UTC, and the instant as a number: what collect() shows depends on the machine.
    rows = frame.orderBy("id").selectExpr("da", "dt", "unix_millis(ts) AS ts").collect()
    assert [r["da"] for r in rows] == [date(9999, 12, 31), None, date(1000, 1, 1), None]
    last = datetime(9999, 12, 31, 23, 59, 59, 999999)
    assert [r["dt"] for r in rows] == [last, None, datetime(2024, 2, 29, 1, 2, 3, 400000), None]
    assert [r["ts"] for r in rows] == [2115947647999, None, 86401000, None]


@BOTH
def test_the_log_gives_the_same_values_as_the_table(
    spark: SparkSession, source_server: Server, database: str, tmp_path: Path
) -> None:
    columns = make_types(source_server, database)
    query = Query(spark, tmp_path, source_server.uri, f"{database}.t")
    query.run()
    assert len(query.rows) == 4
    # Deleted and inserted again: all values of all types come through the log, as both images.
    table = f"{database}.t"
    source_server.script(
        f"CREATE TEMPORARY TABLE {database}.kept AS SELECT * FROM {table}",
        f"DELETE FROM {table} ORDER BY id",
        f"INSERT INTO {table} SELECT * FROM {database}.kept ORDER BY id",
    )
    query.run()
    snapshot, deleted, inserted = query.rows[:4], query.rows[4:8], query.rows[8:]
    assert [r["_op"] for r in query.rows] == ["insert"] * 4 + ["delete"] * 4 + ["insert"] * 4
    for first, gone, new in zip(snapshot, deleted, inserted, strict=True):
        values = {c: first[c] for c in columns}
        assert {c: gone[c] for c in columns} == values
        assert gone["_before"].asDict() == values
        assert {c: new[c] for c in columns} == values


def test_a_table_without_a_key(
    spark: SparkSession, source_server: Server, database: str, tmp_path: Path
) -> None:
    source_server.script(
        f"CREATE TABLE {database}.t (a int)", f"INSERT INTO {database}.t VALUES (1), (1), (2)"
    )
    table = f"{database}.t"
    found = changes(spark.read, source_server.uri, table).collect()
    assert sorted(r["a"] for r in found) == [1, 1, 2]
    query = Query(spark, tmp_path, source_server.uri, table)
    assert "startingPosition = now" in ended_by(query.start()).words
    later = Query(spark, tmp_path / "later", source_server.uri, table)
    later.run(startingPosition="now")
    assert later.rows == []
    source_server.execute(f"INSERT INTO {table} VALUES (3)")
    later.run(startingPosition="now")
    assert [r["a"] for r in later.rows] == [3]


# --- streams -------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Changes rows at random, one transaction after the other, and notes what it did."""

    def __init__(self, server: Server, table: str) -> None:
        super().__init__()
        self._server, self._table = server, table
        self._rng = random.Random(7)
        self._enough = threading.Event()
        self.now: dict[int, int] = dict.fromkeys(range(50), 0)
        self.done: list[tuple[str, int, int, int | None]] = []  # op, id, value, value before
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with closing(self._server.connect()) as connection, connection.cursor() as cursor:
                while not self._enough.wait(0.005):
                    cursor.execute("BEGIN")
                    for _ in range(self._rng.randrange(1, 4)):
                        cursor.execute(self._next())
                    cursor.execute("COMMIT")
        except BaseException as err:
            self.error = err

    def _next(self) -> str:
        key, new = self._rng.randrange(80), len(self.done) + 1
        before = self.now.get(key)
        if before is None:
            self.now[key] = new
            self.done.append(("insert", key, new, None))
            return f"INSERT INTO {self._table} VALUES ({key}, {new}, 'new')"
        if self._rng.random() < 0.3:
            del self.now[key]
            self.done.append(("delete", key, before, before))
            return f"DELETE FROM {self._table} WHERE id = {key}"
        self.now[key] = new
        self.done.append(("update", key, new, before))
        return f"UPDATE {self._table} SET v = {new} WHERE id = {key}"

    def finish(self) -> None:
        self._enough.set()
        self.join()
        if self.error is not None:
            raise self.error


@BOTH
def test_a_stream_gives_every_change_once(
    spark: SparkSession, source_server: Server, database: str, tmp_path: Path
) -> None:
    table = f"{database}.t"
    rows = ", ".join(f"({i}, 0, 'old')" for i in range(50))
    source_server.script(
        f"CREATE TABLE {table} (id int PRIMARY KEY, v bigint, note varchar(9))",
        f"INSERT INTO {table} VALUES {rows}",
    )
    query = Query(spark, tmp_path, source_server.uri, table)
    query.fail(query.start)  # the very first batch: where it begins is not in the checkpoint
    running = query.start()
    wait(running, lambda: bool(query.repeats))
    assert len(query.rows) == 50
    writer = Writer(source_server, table)
    writer.start()
    try:
        wait(running, lambda: len(query.batches) > 2)
        running.stop()
        query.fail(query.start)
        received = len(query.batches)
        running = query.start()
        wait(running, lambda: len(query.batches) > received + 1)
    finally:
        writer.finish()
    running.stop()
    query.run()
    if not LIMITS_MICRO_BATCHES:
        query.run()  # the first one may have been a micro-batch that `stop` left, and no more
    assert set(carried_bytes(tmp_path / "checkpoint")) == {""}
    assert len(query.repeats) >= 2  # more, where `stop` came before a batch was noted as done
    assert all(first == again for first, again in query.repeats)
    log = query.rows[50:]
    seen = [(r["_op"], r["id"], r["v"], r["_before"] and r["_before"]["v"]) for r in log]
    assert seen == writer.done
    stamps = [r["_commit_ts"] for r in log]
    assert stamps == sorted(stamps)
    found = source_server.execute(f"SELECT id, v FROM {table} ORDER BY id")
    assert [(int(str(i)), int(str(v))) for i, v in found] == sorted(writer.now.items())


def test_a_micro_batch_takes_no_more_than_is_allowed(
    spark: SparkSession, source_server: Server, database: str, tmp_path: Path
) -> None:
    table = f"{database}.t"
    source_server.script(f"CREATE TABLE {table} (id int PRIMARY KEY AUTO_INCREMENT, v mediumblob)")
    query = Query(spark, tmp_path, source_server.uri, table)
    limit = {"maxBytesPerTrigger": "1MiB"}
    if not LIMITS_MICRO_BATCHES:
        assert "needs Spark 4.2" in str(ended_by(query.start(**limit)))
        limit = {}
    query.run(**limit)
    source_server.script(*[f"INSERT INTO {table} (v) VALUES (repeat('x', 500000))"] * 60)
    query.run(**limit)
    sizes = [len(rows) for rows in query.batches.values() if rows]
    assert sum(sizes) == 60
    if LIMITS_MICRO_BATCHES:
        assert max(sizes) <= 20  # what had come from the server already is taken with it
    else:
        assert len(sizes) == 1


# --- alterations ---------------------------------------------------------------------------------


def test_an_altered_table_stops_the_stream_and_a_new_start_goes_on(
    spark: SparkSession, source_server: Server, database: str, tmp_path: Path
) -> None:
    table = f"{database}.t"
    source_server.script(
        f"CREATE TABLE {table} (id int PRIMARY KEY, v int)", f"INSERT INTO {table} VALUES (1, 1)"
    )
    query = Query(spark, tmp_path, source_server.uri, table)
    running = query.start()
    wait(running, lambda: len(query.rows) == 1)
    source_server.script(
        f"INSERT INTO {table} VALUES (2, 2)",
        f"ALTER TABLE {table} ADD INDEX (v)",
        f"INSERT INTO {table} VALUES (3, 3)",
    )
    wait(running, lambda: len(query.rows) == 3)
    source_server.script(
        f"INSERT INTO {table} VALUES (4, 4)",
        f"ALTER TABLE {table} ADD COLUMN w int DEFAULT 9",
        f"INSERT INTO {table} VALUES (5, 5, 5)",
    )
    error = ended_by(running)
    assert error.code == "RF-3013"
    assert re.search(
        rf"{table} was altered at commit-ts \d+ \(ALTER TABLE .*\), and this query has the "
        "columns of before; start it again",
        error.words,
    )
    assert [r["id"] for r in query.rows] == [1, 2, 3, 4]
    # Two more alterations before the next start: the rows between them have the columns of now.
    source_server.script(
        f"ALTER TABLE {table} DROP COLUMN v, ADD COLUMN x varchar(5)",
        f"INSERT INTO {table} VALUES (6, 6, 'x')",
        f"ALTER TABLE {table} MODIFY COLUMN w bigint",
        f"UPDATE {table} SET w = 60 WHERE id = 6",
    )
    query.run()
    later = [r.asDict(recursive=True) for r in query.rows[4:]]
    assert [(r["_op"], r["id"], r["w"], r["x"]) for r in later] == [
        ("insert", 5, 5, None),
        ("insert", 6, 6, "x"),
        ("update", 6, 60, "x"),
    ]
    assert "v" not in later[0]
    assert later[2]["_before"] == {"id": 6, "w": 6, "x": "x"}


def test_rows_that_vanish_without_a_change_are_told_once(
    spark: SparkSession, source_server: Server, database: str, tmp_path: Path
) -> None:
    table = f"{database}.t"
    source_server.script(
        f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)"
    )
    query = Query(spark, tmp_path, source_server.uri, table)
    query.run()
    source_server.script(f"TRUNCATE TABLE {table}", f"INSERT INTO {table} VALUES (2)")
    error = ended_by(query.start())
    assert error.code == "RF-3013"
    assert "lost rows" in error.words
    query.run()
    assert [r["id"] for r in query.rows] == [1, 2]


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"table": "nope.t"}, "RF-1009", "table = nope.t: mysql://"),
        ({"table": ""}, "RF-1002", "the option table is missing"),
        ({"tabel": "a.b"}, "RF-1001", "did you mean 'table'?"),
        ({"source": "mysql://nobody@127.0.0.1:1/"}, "RF-3001", "127.0.0.1:1"),
    ],
)
def test_bad_options_are_told_in_one_line(
    spark: SparkSession, mariadb_server: Server, options: dict[str, str], code: str, words: str
) -> None:
    given = {"source": mariadb_server.uri, "table": "a.b", **options}
    with pytest.raises(Exception, match=code) as raised:
        spark.read.format("rowferry").options(**given).load()
    error = refused(raised.value)
    assert error.code == code
    assert words in error.words
    password = mariadb_server.login.password
    assert str(password) not in str(raised.value)


def test_registering_what_spark_knows_changes_nothing(spark: SparkSession) -> None:
    for _ in range(2):
        register(spark)


def test_columns_given_by_hand_are_refused(spark: SparkSession, mariadb_server: Server) -> None:
    mariadb_server.script("CREATE DATABASE by_hand", "CREATE TABLE by_hand.t (id int PRIMARY KEY)")
    given = {"source": mariadb_server.uri, "table": "by_hand.t"}
    frame = spark.read.format("rowferry").options(**given).schema("id int").load()
    with pytest.raises(Exception, match="RF-3013") as raised:
        frame.collect()
    assert "without .schema" in refused(raised.value).words


# --- another source ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("store"), 2) as found:
        yield found


def make_items(cluster: LocalCluster, database: str) -> tuple[TableId, str]:
    """Make a table of ten rows in two ranges; return its name and the source's URI."""
    item = TableId(database, "item")
    with cluster.store() as store:
        store.ddl(f"CREATE DATABASE {database}")
        columns = "id bigint PRIMARY KEY, price decimal(8,2), at datetime"
        store.ddl(f"CREATE TABLE {item} ({columns})", ranges=2, handles=(0, 9))
        at = "2024-05-06 07:08:09"
        with store.transaction() as work:
            work.insert(item, [{"id": i, "price": f"{i}.50", "at": at} for i in range(10)])
    return item, f"range://{cluster.master_address}"


def test_a_range_store(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    item, source = make_items(cluster, "shop")
    found = changes(spark.read, source, str(item), temporal="native").orderBy("id").collect()
    assert [(r["id"], str(r["price"])) for r in found] == [(i, f"{i}.50") for i in range(10)]
    assert {r["at"] for r in found} == {datetime(2024, 5, 6, 7, 8, 9)}
    query = Query(spark, tmp_path, source, str(item))
    query.run()
    late = Query(spark, tmp_path / "late", source, str(item))
    late.run(startingPosition="now")
    assert (len(query.rows), len(late.rows)) == (10, 0)
    with cluster.store() as store, store.transaction() as work:
        work.update(item, [{"id": 3, "price": "9.99"}])
        work.delete(item, [{"id": 8}])
    for one in (query, late):
        one.run(startingPosition="now")
        rows = [(r["_op"], r["id"], r["price"], r["_before"]["price"]) for r in one.rows[-2:]]
        assert sorted(rows) == [
            ("delete", 8, Decimal("8.50"), Decimal("8.50")),
            ("update", 3, Decimal("9.99"), Decimal("3.50")),
        ]
    assert (len(query.rows), len(late.rows)) == (12, 2)
    with cluster.store() as store:
        store.ddl(f"ALTER TABLE {item} ADD COLUMN note varchar(9)")
        with store.transaction() as work:
            work.insert(item, [{"id": 20, "note": "new"}])
    query.run()
    assert (query.rows[-1]["id"], query.rows[-1]["note"]) == (20, "new")


def test_a_plan_that_can_never_be_read_again_is_told_with_the_cure(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    item, source = make_items(cluster, "moved")
    query = Query(spark, tmp_path, source, str(item))
    query.fail(query.start)
    with cluster.store() as store:
        for one in store.ranges(item):
            store.move_leader(one.range_id)  # snapshots stay behind
    error = ended_by(query.start())
    assert error.code == "RF-3002"
    assert "remove the newest file in `offsets`" in error.words
    offsets = tmp_path / "checkpoint" / "offsets"
    for name in ("0", ".0.crc"):
        (offsets / name).unlink()
    query.run()
    assert sorted(r["id"] for r in query.rows) == list(range(10))
