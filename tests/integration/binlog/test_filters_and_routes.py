"""Event filters, column selectors and table routing together, from the log to the files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import Scene, Seen, scene_of

from rowferry.change.chunk import DdlKind, Op
from rowferry.errors import BadEventFilter, BadRoute
from rowferry.testing.servers import Server

CONFIG = """
[sink]
dispatchers = [{matcher = ["*.orders"], target-schema = "copy", target-table = "{table}_v2"}]
column-selectors = [{matcher = ["*.orders"], columns = ["*", "!secret"]}]

[[filter.event-filters]]
matcher = ["*.orders"]
ignore-event = ["truncate table"]
ignore-sql = ["add column hidden"]
ignore-insert-value-expr = "state = 'DRAFT' or total > 100"
ignore-update-only-columns = ["seen"]
"""


@pytest.fixture
def scene(mysql_server: Server, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(mysql_server, tmp_path, "filters_and_routes") as found:
        yield found


def test_from_the_log_to_the_files(scene: Scene) -> None:
    scene.sql(
        "CREATE TABLE orders (id INT PRIMARY KEY, state VARCHAR(9), total DECIMAL(9,2), "
        "secret TEXT, seen INT)",
        "CREATE TABLE plain (id INT PRIMARY KEY)",
        "INSERT INTO orders VALUES (1, 'new', 5, 's', 0), (2, 'draft', 5, 's', 0)",
    )
    feed = scene.feed(config=CONFIG)
    feed.catch_up()
    scene.sql(
        "INSERT INTO orders VALUES (3, 'Draft ', 1, 's', 0), (4, 'new', 100.01, 's', 0), "
        "(5, 'new', 100, 's', 0)",
        "UPDATE orders SET seen = 1",
        "UPDATE orders SET secret = 't', state = 'paid' WHERE id = 5",
        "INSERT INTO plain VALUES (1)",
        "ALTER TABLE orders ADD COLUMN hidden INT",
        "ALTER TABLE orders ADD COLUMN note INT",
        "INSERT INTO orders VALUES (6, 'new', 1, 's', 0, 1, 2)",
        "TRUNCATE TABLE orders",
        "INSERT INTO orders VALUES (7, 'new', 1, 's', 0, 1, 2)",
    )
    feed.catch_up()
    assert {p.name for p in feed.root.iterdir()} >= {"copy", scene.database}
    assert [p.name for p in (feed.root / scene.database).iterdir()] == ["plain"]
    changes = feed.changes("orders_v2")
    assert [_shown(c) for c in changes] == [
        "INSERT 1",
        "INSERT 5",
        "UPDATE 5",
        "INSERT 6",
        "INSERT 7",
    ]
    assert changes[0].after == {"id": 1, "state": "new", "total": "5.00", "seen": 0}
    assert list(changes[3].after or ()) == ["id", "state", "total", "seen", "hidden", "note"]
    assert len(feed.changes("plain")) == 1
    told = [t for t in feed.ddl("orders_v2") if t[0] is not DdlKind.CREATE_TABLE]
    assert told == [
        (DdlKind.ADD_COLUMN, "ALTER TABLE `copy`.`orders_v2` ADD COLUMN note INT"),
    ]


def test_the_file_of_a_dropped_table_has_its_columns(source_server: Server, tmp_path: Path) -> None:
    """Those that were written, of the name that was written, with widths as TiDB has them."""
    config = CONFIG.split("[[")[0]
    with scene_of(source_server, tmp_path, "dropped_columns") as scene:
        scene.sql(
            "CREATE TABLE orders (id INT UNSIGNED PRIMARY KEY, secret TEXT, a TINYINT UNSIGNED, "
            "b SMALLINT UNSIGNED, c MEDIUMINT UNSIGNED, d BIGINT UNSIGNED, e INT)",
        )
        feed = scene.feed(config=config)
        feed.catch_up()
        scene.sql("ALTER TABLE orders ADD COLUMN f INT UNSIGNED", "DROP TABLE orders")
        feed.catch_up()
        metas = (feed.root / "copy" / "orders_v2" / "meta").iterdir()
        files = {p.name: json.loads(p.read_bytes()) for p in metas}
    *_, altered, dropped = sorted(files)
    assert files[dropped]["Query"].startswith("DROP TABLE `copy`.`orders_v2`")
    assert files[dropped]["TableColumns"] == files[altered]["TableColumns"]
    assert dropped.split("_")[2] == altered.split("_")[2]  # one hash of the columns
    assert {c["ColumnName"]: c["ColumnPrecision"] for c in files[dropped]["TableColumns"]} == {
        "id": "10",
        "a": "3",
        "b": "5",
        "c": "8",
        "d": "20",
        "e": "11",
        "f": "10",
    }


def _shown(change: Seen) -> str:
    image = change.before if change.op is Op.DELETE else change.after
    return f"{change.op.name} {image['id'] if image else None}"


def test_refused_at_creation_and_later(scene: Scene) -> None:
    scene.sql("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
    rule = '[sink]\ndispatchers = [{matcher = ["*.*"], target-table = "all"}]'
    with pytest.raises(BadRoute, match="would both be written as"):
        scene.feed(config=rule)
    filters = '[[filter.event-filters]]\nmatcher = ["*.*"]\nignore-insert-value-expr = "v = 1"'
    with pytest.raises(BadEventFilter, match="there is no column 'v'"):
        scene.feed(config=filters)
    scene.sql("DROP TABLE b")
    feed = scene.feed(config=rule)
    feed.catch_up()
    scene.sql("CREATE TABLE b (id INT PRIMARY KEY)")
    with pytest.raises(BadRoute, match="would both be written as"):
        feed.catch_up()
    with pytest.raises(BadRoute):  # whoever runs it again is told the same
        feed.run()


def test_a_name_goes_to_another_table_where_the_log_says_so(scene: Scene) -> None:
    """In one stretch of the log, and read by a feed that begins anew behind it."""
    rule = '[sink]\ndispatchers = [{matcher = ["*.*"], target-table = "all"}]'
    scene.sql("CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    feed = scene.feed(config=rule)
    feed.catch_up()
    scene.sql(
        "INSERT INTO a VALUES (2)",
        "DROP TABLE a",
        "CREATE TABLE b (id INT PRIMARY KEY)",
        "DROP TABLE b",
        "CREATE TABLE c (id INT PRIMARY KEY)",
        "INSERT INTO c VALUES (3)",
        "RENAME TABLE c TO d",
        "INSERT INTO d VALUES (4)",
    )
    feed.catch_up()
    scene.sql("INSERT INTO d VALUES (5)")
    feed.run()
    feed.catch_up()
    assert [_shown(c) for c in feed.changes("all")] == [f"INSERT {i}" for i in range(1, 6)]
