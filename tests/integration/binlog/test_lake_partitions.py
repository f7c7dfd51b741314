"""Partitioned lake tables of MySQL and MariaDB: rows move, DDL of the column stops the feed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from deltalake import DeltaTable
from feed_kit import Scene, scene_of
from test_lake_feed import IcebergFeed, LakeFeed

from rowferry.downstream.verify.local import ThreadRunner
from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.run import VerifyRequest, verify
from rowferry.downstream.verify.side import open_side
from rowferry.errors import BadLayout, SchemaChangeRefused
from rowferry.testing.servers import Server

RULES = """
[[sink.lake.layouts]]
matcher = ["*.sales"]
partition-by = [{by}]
target-file-size = "4MiB"
"""


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as made:
        yield made


def laid_out(scene: Scene, kind: type[LakeFeed], by: str) -> LakeFeed:
    folder = Path(mkdtemp(prefix="lake", dir=scene.folder))
    feed = kind(scene.server, folder, [f"{scene.database}.*"], config=RULES.format(by=by))
    scene._open.append(feed)
    return feed


@pytest.mark.parametrize(
    ("kind", "by", "names"),
    [
        pytest.param(LakeFeed, "'region'", ["region"], id="delta"),
        pytest.param(
            IcebergFeed,
            "'month(at)', 'bucket(4, id)'",
            ["at_month", "id_bucket"],
            id="iceberg",
        ),
    ],
)
def test_a_partitioned_table(scene: Scene, kind: type[LakeFeed], by: str, names: list[str]) -> None:
    scene.sql(
        "CREATE TABLE sales (id varchar(9) PRIMARY KEY, region varchar(9), at datetime(3), n int)",
        "CREATE TABLE plain (id int PRIMARY KEY)",
        "INSERT INTO plain VALUES (1)",
        "INSERT INTO sales VALUES ('a', 'north', '2024-01-31 23:59:59.999', 1), "
        "('b', 'south', '2024-02-01', 2), ('c', NULL, NULL, 3), ('d', 'north', '1969-12-31', 4)",
    )
    feed = laid_out(scene, kind, by)
    feed.catch_up()
    for turn in range(8):  # enough for small files to be merged
        scene.sql(
            f"INSERT INTO sales VALUES ('n{turn}', 'north', '2024-03-0{1 + turn}', 0)",
            "UPDATE sales SET region = IF(region = 'north', 'south', 'north'), "
            f"at = at + INTERVAL {turn} MONTH WHERE n > {turn % 3}",
            f"DELETE FROM sales WHERE id = 'n{turn - 3}'",
        )
        feed.catch_up()
    scene.sql("ALTER TABLE sales ADD COLUMN more int NOT NULL DEFAULT 5")
    feed.catch_up()
    assert feed.lake_differences() == {}
    table = f"{scene.database}.sales"
    if isinstance(feed, IcebergFeed):
        assert [f.name for f in feed._table(table).spec().fields] == names
    else:
        place = feed.root / table.replace(".", "/")
        assert list(DeltaTable(str(place)).metadata().partition_columns) == names
    a, b = open_side(scene.server.uri, 100), open_side(feed._sink_uri(), 100)
    request = VerifyRequest(Names.of([f"{scene.database}.*"], ()))
    assert [r.is_equal for r in verify(a, b, request, ThreadRunner())] == [True, True]

    # What stands in the log before the statement arrives; then it stops, and nothing is changed.
    column = "region" if kind is LakeFeed else "at"
    scene.sql(
        "INSERT INTO sales (id) VALUES ('last')",
        f"ALTER TABLE sales RENAME COLUMN {column} TO other",
        "INSERT INTO sales (id) VALUES ('behind')",
    )
    with pytest.raises(SchemaChangeRefused, match=f"'{column}' is renamed to 'other'.*reset"):
        feed.catch_up()
    keys = {row["id"] for row in feed.lake(table)}
    assert "last" in keys and "behind" not in keys


def test_a_column_that_is_not_there(scene: Scene) -> None:
    scene.sql("CREATE TABLE sales (id int PRIMARY KEY)")
    with pytest.raises(BadLayout, match="has no column 'region' to partition by"):
        laid_out(scene, LakeFeed, "'region'")
