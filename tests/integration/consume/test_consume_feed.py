"""A feed of a database, read back from Kafka or from files and applied to another database."""

from __future__ import annotations

from pathlib import Path

import pytest
from consume_kit import Changefeed
from run_kit import call

from rowferry.testing.servers import Kafka, MariaDb, MySql, Registry

KINDS = ["canal-json&enable-tidb-extension=true", "canal-json", "open-protocol", "avro", "file"]
TABLES = (
    "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), d DECIMAL(10,2), b VARBINARY(10), "
    "e ENUM('x','y'), s SET('p','q'), ts TIMESTAMP(3) NULL, f FLOAT, j LONGTEXT, "
    "u BIGINT UNSIGNED, g INT AS (id * 2) STORED, bits BIT(9))",
    "CREATE TABLE pair (a VARCHAR(10), b INT, v TEXT, PRIMARY KEY (b, a))",
    "CREATE TABLE keyless (a INT, f FLOAT, b VARCHAR(5))",
)
FIRST = (
    "INSERT INTO t (id, name, d, b, e, s, ts, f, j, u, bits) VALUES "
    "(1, 'a%s', 1.50, x'00ff', 'y', 'p,q', '2024-01-02 03:04:05.678', 1.1, '{\"a\": 1}', "
    "18446744073709551615, 257), (2, 'ß', -2, '', 'x', '', NULL, NULL, NULL, 0, 0)",
    "INSERT INTO pair VALUES ('k', 1, 'one'), ('k', 2, 'two')",
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
    schema_registry: Registry,
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
    source.script(use, *tables, *FIRST[: len(tables)])
    target.script(use, *tables)
    config = tmp_path / "feed.toml"
    config.write_text(
        f'force-replicate = {str(with_keyless).lower()}\n[filter]\nrules = ["{database}.*"]\n'
        + ("" if kind == "file" else "[sink]\ndispatchers = [")
        + (
            ""
            if kind == "file"
            else f'{{matcher = ["*.*"], topic = "{database}_{{schema}}_{{table}}"'
        )
        + ("" if kind == "file" else ', partition = "pk"}]\n')
    )
    if kind == "file":
        sink = f"file://{tmp_path}/out?protocol=canal-json&enable-tidb-extension=true"
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
