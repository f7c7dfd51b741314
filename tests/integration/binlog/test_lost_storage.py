"""Files and objects that are gone stop a feed by name, and the cure brings all rows back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from feed_kit import NAME, Feed, scene_of

from rowferry.control.lifecycle import Verb
from rowferry.control.operator.operations import Operations
from rowferry.errors import TargetLost, Verdict
from rowferry.flow.sink.storage.files import Files
from rowferry.testing.servers import Minio, Server


def stopped(feed: Feed, words: str) -> None:
    """A run, and another one after a resume, end with this error."""
    for _ in range(2):
        feed.run()
        with pytest.raises(TargetLost, match=words) as said:
            feed.catch_up()
        assert said.value.verdict is Verdict.STOP


def reset(feed: Feed) -> None:
    """Do what the error says: `rowferry changefeed reset --snapshot`."""
    feed.stop()
    feed.store.move(NAME, Verb.PAUSE)
    Operations(feed.store).reset(NAME, snapshot=True)
    feed.store.move(NAME, Verb.RESUME)
    feed.run()


def test_a_directory(source_server: Server, tmp_path: Path) -> None:
    with scene_of(source_server, tmp_path, "lost_directory") as scene:
        scene.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
        feed = scene.feed()
        feed.catch_up()
        shutil.rmtree(feed.root)
        scene.sql("INSERT INTO t VALUES (3)")
        with pytest.raises(TargetLost, match=r"rowferry\.owner is gone"):
            feed.catch_up()
        stopped(feed, r"rowferry\.owner is gone, and perhaps all .*reset --snapshot")
        assert not feed.root.exists()
        reset(feed)
        feed.catch_up()
        assert [row["id"] for row in feed.rows("t")] == [1, 2, 3]
        for path in (feed.root / "metadata", next(feed.root.rglob("CDC.index"))):
            old = path.read_bytes()
            path.unlink()
            scene.sql("UPDATE t SET id = id + 10")
            stopped(feed, f"{path.name} is gone, which")
            path.write_bytes(old)
            feed.run()
            feed.catch_up()
        assert feed.differences() == ""


class ToBucket(Feed):
    """A feed to an S3 server."""

    uri: Callable[[], str]

    def _sink_uri(self) -> str:
        return self.uri()


def test_a_bucket(mysql_server: Server, s3_server: Minio, tmp_path: Path) -> None:
    with scene_of(mysql_server, tmp_path, "lost_bucket") as scene:
        scene.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
        ToBucket.uri = lambda self: s3_server.uri("lost/bucket", protocol="canal-json")
        feed = ToBucket(scene.server, tmp_path, [f"{scene.database}.*"])
        try:
            feed.catch_up()
            files: Files = feed.loop._flow.sink._files  # type: ignore[attr-defined]
            files.delete("metadata")
            stopped(feed, "metadata is gone, which")
            for path in list(files.paths(9)):
                files.delete(path)
            stopped(feed, r"rowferry\.owner is gone")
            assert list(files.paths(9)) == []
            reset(feed)
            feed.catch_up()
            kinds = {path.rpartition("/")[2][:3] for path in files.paths(9)}
            assert {"met", "row", "CDC", "sch"} <= kinds
        finally:
            feed.stop()
