"""A feed and a query with every version of Spark that Rowferry runs with: whether they work at all.

A version that is not there is fetched first. `make test-spark` tries all that uses Spark with each.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rowferry.testing.receiver import HttpReceiver
from rowferry.testing.servers import Server
from spark_releases import INSTALLED, OLDER, Spark, spark_of

ROWS = [(1, "milk"), (2, "tea"), (3, None)]
# Prints the rows that the data source gives, and the version, which must be the one asked for.
QUERY = """
import json, sys
from pathlib import Path
import pyspark
from rowferry.spark.session import close_session, open_session
source, table = sys.argv[1:]
spark = open_session("smoke", Path("spark"), "local[2]")
reader = spark.read.format("rowferry").option("source", source).option("table", table)
rows = sorted(tuple(row) for row in reader.load().select("id", "item", "_op").collect())
close_session(spark)
print(json.dumps({"release": pyspark.__version__, "rows": rows}))
"""


@pytest.fixture(params=[*OLDER, INSTALLED])
def spark(request: pytest.FixtureRequest) -> Spark:
    return spark_of(request.param)


def test_every_version_is_tried() -> None:
    from rowferry.spark.versions import NEWEST, OLDEST

    tried = sorted(tuple(map(int, name.split(".")[:2])) for name in [*OLDER, INSTALLED])
    assert tried == [(4, minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]


def test_a_feed_and_a_query(spark: Spark, mysql_server: Server, tmp_path: Path) -> None:
    shop = f"smoke_{spark.release.replace('.', '_')}"
    tables = [f"{shop}.{name}" for name in ("here", "there")]
    mysql_server.script(
        f"CREATE DATABASE {shop}",
        *(f"CREATE TABLE {table} (id INT PRIMARY KEY, item VARCHAR(9))" for table in tables),
        *(f"INSERT INTO {table} VALUES (1, 'milk'), (2, 'tea'), (3, NULL)" for table in tables),
    )
    (tmp_path / "feed.toml").write_text(f'[filter]\nrules = ["{shop}.*"]\n')
    # Two segments, so that rows are shuffled to their lanes.
    with HttpReceiver() as receiver:
        feed = ("--source", mysql_server.uri, "--sink-uri", receiver.uri, "--config", "feed.toml")
        in_tasks = ("--spark-only", "--spark-master", "local[2]")
        spark.ferry(tmp_path, "run", *feed, *in_tasks, "--until", "caught-up")
    sent = [row for request in receiver.taken for row in json.loads(request.body)]
    for name in ("here", "there"):
        rows = [row["after"] for row in sent if row.get("table") == name]
        assert sorted((row["id"], row["item"]) for row in rows) == ROWS
    query = spark.run(tmp_path, "-c", QUERY, mysql_server.uri, tables[0])
    assert query.returncode == 0, query.stdout
    assert json.loads(query.stdout.splitlines()[-1]) == {
        "release": spark.release,
        "rows": [[*row, "insert"] for row in ROWS],
    }
