"""Sync points on a real TiDB: what they say of its past, who may write them, and `verify` there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from mysql_sink_kit import Scene

from rowferry.downstream.verify.local import ThreadRunner
from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.run import TableResult, VerifyRequest, verify
from rowferry.downstream.verify.side import DatabaseSide, open_side
from rowferry.downstream.verify.sync_points import newest, read_at_newest
from rowferry.downstream.verify.views import PastViews
from rowferry.errors import NotSupported, SinkUnwritable
from rowferry.testing.servers import TiDb

ON = "enable-sync-point = true\nsync-point-interval = '30s'\n"


def side(server_uri: str) -> DatabaseSide:
    found = open_side(re.sub("^mysql", "tidb", server_uri), 100)
    assert isinstance(found, DatabaseSide) and found.is_tidb
    return found


@contextmanager
def a_user(server: TiDb, *grants: str) -> Iterator[str]:
    """A user with some privileges; yields the login of a URI."""
    server.script("CREATE USER 'few'@'%' IDENTIFIED BY 'pass'", *(f"{g} TO 'few'" for g in grants))
    try:
        yield "few:pass"
    finally:
        server.script("DROP USER 'few'")


def compared(scene: Scene, a: DatabaseSide, b: DatabaseSide, *routes: str) -> TableResult:
    request = VerifyRequest(Names.of([f"{scene.copy}.t"], routes), (), 100)
    (found,) = verify(a, b, request, ThreadRunner(threads=2))
    return found


def test_a_sync_point_is_a_moment_of_the_downstream(scene: Scene, tidb_server: TiDb) -> None:
    scene.both("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
    scene.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    feed = scene.feed(config=ON)
    feed.catch_up()
    b = side(tidb_server.uri)
    mark, then = newest(b, feed.name)
    assert mark <= feed.store.state(feed.name).watermark
    assert tidb_server.execute("SELECT @@global.tidb_external_ts") == [(str(then),)]
    scene.sql("INSERT INTO t VALUES (3, 'c')", "UPDATE t SET v = 'x'")
    feed.catch_up()
    # A cluster's own cleaner notes this; a TiDB without one does not let the past be read.
    noted = "'tikv_gc_safe_point', '20200101-00:00:00 +0000', ''"
    tidb_server.execute(f"REPLACE INTO mysql.tidb VALUES ({noted})")
    # Now and then, the same table: read both, by two views of one server.
    now, past = side(tidb_server.uri), side(tidb_server.uri)
    past.views = PastViews(then)
    found = compared(scene, past, now)
    assert found.rows == (2, 3) and found.only == [0, 1] and found.changed == 2
    assert read_at_newest(now, b, feed.name) == (mark, then)
    with pytest.raises(NotSupported, match="has no sync points of changefeed default/nobody"):
        newest(b, "nobody")


def test_the_privilege_is_asked_for(scene: Scene, tidb_server: TiDb) -> None:
    scene.both("CREATE TABLE t (id INT PRIMARY KEY)")
    before = tidb_server.execute("SELECT @@global.tidb_external_ts")
    tables = f"GRANT ALL ON {scene.copy}.*", f"GRANT ALL ON {scene.meta}.*"
    with a_user(tidb_server, *tables, "GRANT ALL ON tidb_cdc.*") as login:
        feed = scene.feed(config=ON)
        feed.login = login
        with pytest.raises(SinkUnwritable, match="GRANT SYSTEM_VARIABLES_ADMIN"):
            feed.prepare()
        tidb_server.script("GRANT SYSTEM_VARIABLES_ADMIN ON *.* TO 'few'")
        feed.prepare()
        assert tidb_server.execute("SELECT @@global.tidb_external_ts") == before
        scene.sql("INSERT INTO t VALUES (1)")
        feed.catch_up()
        assert newest(side(tidb_server.uri), feed.name)[1] > int(str(before[0][0]))
