"""A feed of a database, read back from Kafka or from files and applied to another database."""

from __future__ import annotations

from pathlib import Path

import pytest
from consume_kit import Changefeed
from run_kit import call

from rowferry.flow.sink.storage.reader import StoredSchema, read_storage
from rowferry.testing.servers import Kafka, MariaDb, MySql, SchemaRegistryServer

KINDS = [
    "canal-json&enable-tidb-extension=true",
    "canal-json",
    "open-protocol",
    "avro",
    "simple&encoding-format=avro",
    "file",
    "parquet",
]
FILES = {
    "file": "canal-json&enable-tidb-extension=true",
    "parquet": "parquet",
}
IMAGES = '[sink.parquet]\nlayout = "images"\n'  # a table without a key needs old rows
TOPICS = (
    '[sink]\ndispatchers = [{{matcher = ["*.*"], topic = "{database}_{{schema}}_{{table}}", '
    'partition = "pk"}}]\n'
)
TABLES = (
    "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), d DECIMAL(10,2), b VARBINARY(10), "
    "e ENUM('x','y'), s SET('p','q'), ts TIMESTAMP(3) NULL, f FLOAT, j LONGTEXT, "
    "u BIGINT UNSIGNED, g INT AS (id * 2) STORED, bits BIT(9))",
    "CREATE TABLE pair (a VARCHAR(10), b INT AUTO_INCREMENT, v TEXT, PRIMARY KEY (b, a))",
    "CREATE TABLE keyless (a INT, f FLOAT, b VARCHAR(5))",
)
FIRST = (
    "INSERT INTO t (id, name, d, b, e, s, ts, f, j, u, bits) VALUES "
    "(1, 'a%s', 1.50, x'00ff', 'y', 'p,q', '2024-01-02 03:04:05.678', 1.1, '{\"a\": 1}', "
    "18446744073709551615, 257), (2, 'ß', -2, '', 'x', '', NULL, NULL, NULL, 0, 0)",
    "INSERT INTO pair VALUES ('k', 1, 'one'), ('k', 2, 'two'), ('k', 0, 'none')",
    "INSERT INTO keyless VALUES (1, 1.1, 'x'), (1, 1.1, 'x'), (2, NULL, NULL)",
)
THEN = (
    "INSERT INTO t (id, name) VALUES (3, 'c'), (4, 'd')",
    "UPDATE t SET name = 'zz', f = 2.5 WHERE id = 1",
    "DELETE FROM t WHERE id = 2",
    "UPDATE t SET id = 7 WHERE id = 3",
    "UPDATE pair SET a = 'l' WHERE b = 2",
    "DELETE FROM keyless LIMIT 1",
    "UPDATE keyless SET b = 'y' WHERE a = 2",
)
# After a schema change; `%s` is whether the format carries it.
AFTER = ("INSERT INTO t (id, name, z) VALUES (10, 'c', 9)", "UPDATE t SET z = 8 WHERE id = 4")


@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_applied_elsewhere_gives_equal_tables(
    kind: str,
    mysql_server: MySql,
    mariadb_server: MariaDb,
    kafka_broker: Kafka,
    schema_registry: SchemaRegistryServer,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = mysql_server, mariadb_server
    database = f"consume_{KINDS.index(kind)}"
    with_keyless = kind != "avro"
    tables = TABLES if with_keyless else TABLES[:2]
    # Messages do not tell all of a type, so the target's tables are there before.
    for server in (source, target):
        server.script(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    use = f"USE {database}"
    zero = "SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'"
    source.script(use, zero, *tables, *FIRST[: len(tables)])
    target.script(use, *tables)
    config = tmp_path / "feed.toml"
    config.write_text(
        f'force-replicate = {str(with_keyless).lower()}\n[filter]\nrules = ["{database}.*"]\n'
        + (IMAGES if kind == "parquet" else "")
        + ("" if kind in FILES else TOPICS.format(database=database))
    )
    if kind in FILES:
        sink = f"file://{tmp_path}/out?protocol={FILES[kind]}"
    else:
        sink = f"kafka://{kafka_broker.bootstrap}/{database}?protocol={kind}&partition-num=3"
    if kind == "avro":
        sink += f"&schema-registry={schema_registry.url}"
    feed = Changefeed(tmp_path, database.replace("_", "-"), source.uri, sink, config)
    try:
        feed.catch_up()
        source.script(use, *(THEN if with_keyless else THEN[:5]))
        feed.catch_up()
        source.script(use, "ALTER TABLE t ADD COLUMN z INT", *AFTER)
        feed.catch_up()
    finally:
        feed.close()

    said = call(
        tmp_path,
        capfd,
        monkeypatch,
        ["consume", sink, "--config", str(config), "--until", "end", "--apply", target.uri],
    )
    assert said.code == 0, said.err
    assert "0 repeats, 0 violations" in said.err
    assert ("1 schema changes" in said.err) is (kind != "avro"), said.err
    assert "wait for" not in said.err
    assert said.out == ""
    for name in ("t", "pair", *(["keyless"] if with_keyless else [])):
        columns = source.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s "
            "AND table_name = %s ORDER BY ordinal_position", database, name,
        )  # fmt: skip
        listed = ", ".join(f"`{c}`" for (c,) in columns)
        query = f"SELECT {listed} FROM {database}.{name} ORDER BY {listed}"
        assert target.execute(query) == source.execute(query), name


DEFINED = (
    "CREATE TABLE parts (id INT PRIMARY KEY, v DOUBLE) PARTITION BY RANGE (id) "
    "(PARTITION low VALUES LESS THAN (10), PARTITION high VALUES LESS THAN (20))",
    "CREATE TABLE single (id INT PRIMARY KEY, v DOUBLE)",
    "INSERT INTO parts VALUES (1, 1.5), (11, 11)",
    "INSERT INTO single VALUES (5, 55)",
    "ALTER TABLE parts EXCHANGE PARTITION low WITH TABLE single",
    "UPDATE parts SET v = 56 WHERE id = 5",
    "INSERT INTO single VALUES (2, 2)",
    "CREATE TABLE {other}.twin LIKE single",
    "INSERT INTO {other}.twin VALUES (3, 3)",
    "ALTER TABLE single RENAME TO lonely",
    "RENAME TABLE lonely TO {other}.moved",
    "INSERT INTO {other}.moved VALUES (4, 4)",
    "ALTER TABLE {other}.twin ADD COLUMN w INT, RENAME TO here",
    "DROP TABLE IF EXISTS nothing",
    "CREATE DATABASE {gone}",
    "CREATE TABLE {gone}.brief (id INT PRIMARY KEY)",
    "CREATE TABLE {gone}.empty (id INT PRIMARY KEY, v VARCHAR(5))",
    "INSERT INTO {gone}.brief VALUES (1)",
    "DROP DATABASE {gone}",
)


@pytest.mark.parametrize("kind", ["open-protocol", "file"])
def test_statements_mean_elsewhere_what_they_meant_here(
    kind: str,
    mysql_server: MySql,
    mariadb_server: MariaDb,
    kafka_broker: Kafka,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is run once, in its table's own database, whatever the source's session was in."""
    name = f"defined_{kind[:4]}"
    other, gone, servers = f"{name}_b", f"{name}_c", (mysql_server, mariadb_server)
    for server in servers:
        for database in (name, other):
            server.script(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    config = tmp_path / "feed.toml"
    config.write_text(f'[filter]\nrules = ["{name}*.*"]\n')
    sink = f"file://{tmp_path}/out?protocol=csv"
    if kind != "file":
        sink = f"kafka://{kafka_broker.bootstrap}/{name}?protocol={kind}&partition-num=2"
    feed = Changefeed(tmp_path, name.replace("_", "-"), mysql_server.uri, sink, config)
    try:
        feed.catch_up()
        mysql_server.script(f"USE {name}", *(s.format(other=other, gone=gone) for s in DEFINED))
        feed.catch_up()
    finally:
        feed.close()
    words = ["consume", sink, "--config", str(config), "--until", "end"]
    said = call(tmp_path, capfd, monkeypatch, [*words, "--apply", mariadb_server.uri])
    assert said.code == 0, said.err
    listed = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema "
    tables, applied = (s.execute(f"{listed} IN (%s, %s)", name, other) for s in servers)
    assert sorted(map(tuple, tables)) == sorted(map(tuple, applied))
    assert len(tables) == 3
    for database, table in tables:
        query = f"SELECT * FROM {database}.{table} ORDER BY id"
        first, second = (server.execute(query) for server in servers)
        assert first == second, table
    if kind == "file":
        told = [s.document for s in read_storage(tmp_path / "out") if isinstance(s, StoredSchema)]
        # One statement, one version; and a table that is gone again was there for its rows.
        (both,) = (d.table_version for d in told if "EXCHANGE" in d.query)
        assert [d.table for d in told if d.table_version == both] == ["parts", "single"]
        for table in ("brief", "empty"):
            verbs = [d.query.split()[0] for d in told if d.table == table and d.query]
            assert verbs == ["CREATE", "DROP"], table
