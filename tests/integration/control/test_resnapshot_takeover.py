"""`kill -9` of the server that reads a table again: another one goes on, and promises hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from rowferry.change.chunk import Op, Rows
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.table import TableId
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.sql_store import open_store
from rowferry.flow.assemble import assemble
from rowferry.testing.feed import WatchedFeed
from rowferry.testing.harness import ServerProcess, checkpoint, wait_for
from rowferry.testing.mysql_history import read_rows
from rowferry.testing.nemesis_judge import FACTS
from rowferry.testing.nemesis_watch import Sight, deliver_sights, see
from rowferry.testing.rebuild import compare, rebuild
from rowferry.testing.servers import MySql
from rowferry.testing.servers.child import free_ports
from rowferry.testing.storage import storage_changes
from rowferry.testing.validators import PerKeyOrder, StorageLayout, WatermarkHolds

WITHIN_S = 600.0
ROWS, AT_ONCE = 30_000, 5_000
TABLE = TableId("again", "t")


def test_the_second_server_goes_on(own_mysql: MySql, tmp_path: Path) -> None:
    own_mysql.script(
        "DROP DATABASE IF EXISTS again",
        "CREATE DATABASE again",
        "CREATE TABLE again.t (id int PRIMARY KEY, v varchar(200), n int)",
        "CREATE TABLE again.other (id int PRIMARY KEY)",
    )
    for first in range(0, ROWS, AT_ONCE):
        rows = ", ".join(f"({i}, '{'x' * 150}', 0)" for i in range(first, first + AT_ONCE))
        own_mysql.execute(f"INSERT INTO again.t VALUES {rows}")
    own_mysql.execute("ANALYZE TABLE again.t")
    out, url = tmp_path / "out", f"sqlite:///{tmp_path / 'meta.db'}"
    sink = f"file://{out}?protocol=canal-json&enable-tidb-extension=true&flush-interval=50ms"
    stop = threading.Event()

    def write() -> None:
        """Change, add and take rows, here and there, all the while."""
        with closing(own_mysql.connect("again")) as session, session.cursor() as cursor:
            for turn in range(1, 1 << 30):
                if stop.wait(0.01):
                    return
                at = turn * 7_919 % ROWS
                cursor.execute(f"UPDATE t SET n = {turn} WHERE id BETWEEN {at} AND {at + 3}")
                cursor.execute(f"DELETE FROM t WHERE id = {(at + 31) % ROWS}")
                cursor.execute(f"INSERT INTO t VALUES ({ROWS + turn}, 'new', {turn})")
                cursor.execute(f"INSERT INTO other VALUES ({turn})")

    with ExitStack() as held:
        store = held.enter_context(closing(open_store(url)))
        operations = Operations(store)
        config = {"filter": {"rules": ["again.*"]}}
        made = operations.create(Wanted(own_mysql.uri, sink, "feed", config))
        flow = assemble(made.feed.spec)
        layout, sights = StorageLayout(out), list[Sight]()

        def look() -> None:
            at = checkpoint(out)
            if at and (not sights or at != sights[-1].checkpoint_ts):
                sights.append(see(out, at))
                layout.observe()

        def until(done: Callable[[], bool], what: str) -> None:
            def looked() -> bool:
                look()
                return done()

            wait_for(looked, what, WITHIN_S, 0.02)

        servers = {}
        for place in range(2):
            rest, rpc = (f"127.0.0.1:{port}" for port in free_ports(2))
            words = ["--meta", url, "--spark-master", "local[1]"]
            words += ["--addr", rest, "--grpc-addr", rpc]
            servers[rest] = held.enter_context(ServerProcess(words, tmp_path / f"server{place}"))
        until(lambda: checkpoint(out) > 0, "the first snapshot")
        writer = threading.Thread(target=write)
        writer.start()
        held.callback(writer.join)
        held.callback(stop.set)
        operations.resnapshot("feed", "again.t")

        def amid() -> bool:
            (one,) = operations.resnapshots("feed")
            assert one.state in ("waiting", "running"), "it was over too soon"
            return one.rows > 0

        until(amid, "a part of the table")
        (begun,) = operations.resnapshots("feed")
        owner = operations.see("feed").server
        assert owner is not None
        servers[owner.address].kill()
        until(lambda: operations.resnapshots("feed")[0].state == "done", "its end")
        heir = operations.see("feed").server
        assert heir is not None and heir.address != owner.address
        (done,) = operations.resnapshots("feed")
        assert 0 < begun.rows < done.rows
        stop.set()
        writer.join()
        clock = own_mysql.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
        wanted = int(str(clock)) << PHYSICAL_SHIFT
        until(lambda: checkpoint(out) >= wanted, "all that was written")
        servers[heir.address].terminate()
        servers[heir.address].wait(WITHIN_S)
    facts, codec = FACTS["canal-json"], flow.encode
    order, marks = PerKeyOrder(facts), WatermarkHolds(facts)
    watched = WatchedFeed(facts, (order, marks))
    deliver_sights(out, codec, sights, watched)
    watched.finish()
    layout.finish()
    assert order.failures + marks.failures + layout.failures == []
    schemas = {t.id: t for t in flow.capture.probe(flow.decide)}
    rebuilt = rebuild(out, codec, {name: t.handle_key for name, t in schemas.items()})
    result = compare(rebuilt, {name: read_rows(own_mysql, t) for name, t in schemas.items()})
    assert result.same, str(result)
    changes = (c for c in storage_changes(out, codec) if isinstance(c, Rows))
    inserts = sum(int((c.op == Op.INSERT).sum()) for c in changes if c.table.id == TABLE)
    assert inserts > 2 * ROWS * 0.95  # all of it came a second time, what was deleted aside
