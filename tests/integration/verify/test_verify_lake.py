"""A lake's tables compared with their source: every type, and rows that are wrong are found."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4

import pytest
from feed_kit import Scene, scene_of
from run_kit import call
from test_lake_feed import IcebergFeed, LakeFeed
from test_verify_sides import CHUNK_ROWS, COLUMNS, make_tables

from rowferry.downstream.verify.local import ThreadRunner
from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.run import VerifyRequest, verify
from rowferry.downstream.verify.side import open_side
from rowferry.errors import NoSuchVersion
from rowferry.testing.servers import Minio, MySql, Server

KINDS = pytest.mark.parametrize("kind", [LakeFeed, IcebergFeed], ids=["delta", "iceberg"])


def lake_feed(scene: Scene, kind: type[LakeFeed]) -> LakeFeed:
    folder = Path(mkdtemp(prefix="lake", dir=scene.folder))
    feed = kind(scene.server, folder, [f"{scene.database}.*"])
    scene._open.append(feed)
    return feed


@KINDS
def test_wrong_missing_and_extra_rows_are_found(
    kind: type[LakeFeed],
    source_server: Server,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scene_of(source_server, tmp_path, "vl") as scene:
        make_tables(source_server, "vl", turned=False)
        scene.sql(
            "DROP TABLE bare, words",
            "CREATE TABLE shapes (id varchar(9) PRIMARY KEY, g geometry)",
            "INSERT INTO shapes VALUES ('a', ST_GeomFromText('POINT(1 2)', 4326)), ('b', NULL)",
        )
        feed = lake_feed(scene, kind)
        feed.catch_up()
        scene.sql("UPDATE many SET v = concat('-', v) WHERE id < 70")
        feed.catch_up()
        command = ["verify", source_server.uri, feed._sink_uri(), "--tables", "vl.*"]
        command += ["--chunk-rows", str(CHUNK_ROWS), "--output", "json"]

        result = call(tmp_path, capfd, monkeypatch, command)
        tables = {t["table"]: t for t in json.loads(result.out)["tables"]}
        assert result.code == 0, [t for t in tables.values() if not t["equal"]]
        assert {n: t["rows"]["b"] for n, t in tables.items()} == {
            "vl.many": 1000, "vl.nothing": 0, "vl.shapes": 2, "vl.wide": 3
        }  # fmt: skip

        # Nobody tells the feed of what is not in the log.
        others = ", ".join(f"c{p} = {v[1]}" for p, v in enumerate(COLUMNS.values()))
        scene.sql(
            "SET sql_log_bin = 0",
            f"UPDATE wide SET {others} WHERE id = 1",
            "UPDATE shapes SET g = ST_GeomFromText('POINT(1 3)', 4326) WHERE id = 'a'",
            "UPDATE many SET v = 'wrong' WHERE id = 21",
            "INSERT INTO many VALUES (-1, 'missing in the lake')",
            "DELETE FROM many WHERE id = 35",
        )
        result = call(tmp_path, capfd, monkeypatch, command)
        tables = {t["table"]: t for t in json.loads(result.out)["tables"]}
        assert result.code == 1 and tables["vl.nothing"]["equal"]
        wide = tables["vl.wide"]
        # Days that no calendar has are NULL in a lake: these rows differ in nothing there.
        dates = {f"c{p}" for p, k in enumerate(COLUMNS) if k == "date"}
        assert wide["changed"] == 1
        assert set(wide["columns"]) == {f"c{p}" for p in range(len(COLUMNS))} - dates
        assert tables["vl.shapes"]["columns"] == {"g": 1}
        many = {s["key"]["id"]: (s["kind"], s.get("b")) for s in tables["vl.many"]["samples"]}
        assert many == {
            21: ("changed", {"v": "-n3"}), -1: ("only_in_a", None), 35: ("only_in_b", None)
        }  # fmt: skip


@KINDS
def test_while_the_feed_runs_and_as_of_a_moment(
    kind: type[LakeFeed], mysql_server: MySql, tmp_path: Path
) -> None:
    with scene_of(mysql_server, tmp_path, "lake_online") as scene:
        scene.sql(
            "CREATE TABLE t (id int PRIMARY KEY, v varchar(9))",
            "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        )
        feed = lake_feed(scene, kind)
        feed.catch_up()
        scene.sql("UPDATE t SET v = 'z' WHERE id = 1")
        feed.catch_up()
        uri = feed._sink_uri()
        early = open_side(uri, CHUNK_ROWS).reached  # type: ignore[union-attr]
        scene.sql("DELETE FROM t WHERE id = 2", "UPDATE t SET v = 'late' WHERE id = 3")

        def deliver(_: float) -> None:
            feed.catch_up()

        names = Names.of(["lake_online.*"], ())
        a, b = open_side(mysql_server.uri, CHUNK_ROWS), open_side(uri, CHUNK_ROWS)
        (once,) = verify(a, b, VerifyRequest(names), ThreadRunner())
        assert (once.only, once.changed, once.is_equal) == ([0, 1], 1, False)
        (online,) = verify(a, b, VerifyRequest(names, tries=3), ThreadRunner(), deliver)
        assert online.is_equal and online.tries == 2

        then = open_side(uri, CHUNK_ROWS, early)
        (back,) = verify(a, then, VerifyRequest(names), ThreadRunner())
        assert (back.only, back.changed) == ([0, 1], 1)
        for moment, words in ((early << 1, "not up to"), (5, "its first version is of commit-ts")):
            beyond = open_side(uri, CHUNK_ROWS, moment)
            with pytest.raises(NoSuchVersion, match=words):
                list(verify(a, beyond, VerifyRequest(names), ThreadRunner()))


class BucketFeed(LakeFeed):
    """A feed whose sink are partitioned Delta tables on MinIO."""

    uri = ""

    def _sink_uri(self) -> str:
        return self.uri


@pytest.mark.parametrize("scheme", ["delta+s3", "iceberg+s3"])
def test_partitioned_tables_in_a_bucket(
    scheme: str,
    mysql_server: MySql,
    s3_server: Minio,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scene_of(mysql_server, tmp_path, "lake_bucket") as scene:
        scene.sql(
            "CREATE TABLE t (id int PRIMARY KEY, town varchar(9), n int)",
            "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'a', 3)",
        )
        more = {"catalog": f"file://{tmp_path}/catalog.db"} if scheme == "iceberg+s3" else {}
        plain = s3_server.uri(f"lake-{uuid4().hex}", **more)
        monkeypatch.setattr(BucketFeed, "uri", plain.replace("s3://", f"{scheme}://", 1))
        rules = "[[sink.lake.layouts]]\nmatcher = ['*.t']\npartition-by = ['town']\n"
        feed = BucketFeed(mysql_server, tmp_path, ["lake_bucket.*"], config=rules)
        scene._open.append(feed)
        feed.catch_up()
        for town in ("c", "a", "d"):
            scene.sql(f"UPDATE t SET town = '{town}', n = n + 1 WHERE id < 3")
            feed.catch_up()
        command = ["verify", mysql_server.uri, feed.uri, "--tables", "lake_bucket.*"]
        equal = call(tmp_path, capfd, monkeypatch, command)
        assert (equal.code, "lake_bucket.t: equal, 3 rows" in equal.out) == (0, True), equal.err
        assert call(tmp_path, capfd, monkeypatch, ["lake", "optimize", feed.uri]).code == 0
        scene.sql("SET sql_log_bin = 0", "UPDATE t SET n = 0 WHERE id = 3")
        different = call(tmp_path, capfd, monkeypatch, command)
        assert different.code == 1 and "1 changed; columns n (1)" in different.out
