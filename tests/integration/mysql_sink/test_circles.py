"""A table is not written onto itself, by whatever way the sink leads to the server that is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rowferry.control.operator.checks.prepare import prepare
from rowferry.control.operator.ticdc_codes import ticdc_code
from rowferry.errors import WrittenOntoItself
from rowferry.testing.servers import MariaDb, Relay, Server

ITSELF = r"the sink is the server that is read, and circles\.t would be written onto itself"


def examined(source: str, sink: str, **route: str) -> None:
    """Check a changefeed of one table, as its creation does."""
    config = {
        "filter": {"rules": ["circles.*"]},
        "sink": {"dispatchers": [{"matcher": ["*.*"], **route}]} if route else {},
    }
    prepare(source, f"{sink}?create-tables=true", config, "circle")


def a_table(server: Server) -> None:
    server.script(
        "CREATE DATABASE IF NOT EXISTS circles",
        "CREATE TABLE IF NOT EXISTS circles.t (id int PRIMARY KEY)",
    )


def test_the_same_server(source_server: Server) -> None:
    """By its own address, another name, another scheme, and behind a proxy."""
    a_table(source_server)
    here = source_server.uri
    with Relay(source_server.port) as relay:
        proxy = here.replace(f":{source_server.port}/", f":{relay.port}/")
        ways = [
            (here, here),
            (here, here.replace("127.0.0.1", "localhost")),
            (here, here.replace("mysql://", "tidb://")),
            (here.replace("mysql://", "mariadb://"), here),
            (here, proxy),
            (proxy, here),
            (proxy.replace("mysql://", "mariadb://"), here.replace("mysql://", "tidb://")),
        ]
        for source, sink in ways:
            with pytest.raises(WrittenOntoItself, match=ITSELF) as told:
                examined(source, sink)
            assert ticdc_code(told.value) == (400, "CDC:ErrSameUpstreamDownstream")
        # Other tables of the same server are no circle; a name in other case is another table.
        examined(here, proxy, **{"target-schema": "circles_copy"})
        examined(here, proxy, **{"target-schema": "CIRCLES"})


def test_another_server_with_the_same_id(mariadb_server: MariaDb, tmp_path: Path) -> None:
    a_table(mariadb_server)
    (number,) = mariadb_server.execute("SELECT @@server_id")[0]
    folding = ["--lower-case-table-names=1"]
    with MariaDb.start(tmp_path / "other", int(str(number)), folding) as other:
        examined(mariadb_server.uri, other.uri)
        a_table(other)
        examined(other.uri, mariadb_server.uri)
        with pytest.raises(WrittenOntoItself, match=ITSELF):
            examined(other.uri, other.uri, **{"target-schema": "CIRCLES"})
