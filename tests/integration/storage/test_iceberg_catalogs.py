"""Iceberg tables in catalogs that are servers: PostgreSQL as a real one, and one that refuses."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote
from uuid import uuid4

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from iceberg_kit import IcebergLake
from lake_kit import FEED, PLAIN, Model, ordered
from rowferry.errors import BadOption, SinkUnavailable, SinkUnwritable
from rowferry.flow.sink.contract import Owner
from rowferry.testing.servers import Postgres


class PostgresLake(IcebergLake):
    """Tables in a directory that a PostgreSQL database knows."""

    def __init__(self, root: Path, server: Postgres) -> None:
        self.url = server.url("postgres")
        self.name = f"c{uuid4().hex}"
        self.opened: list[SqlCatalog] = []
        super().__init__(root, f"&catalog={quote(self.url, safe='')}&catalog-name={self.name}")

    def catalog(self) -> SqlCatalog:
        address = self.url.replace("postgresql://", "postgresql+psycopg://", 1)
        catalog = SqlCatalog(self.name, uri=address)
        self.opened.append(catalog)
        return catalog


def test_tables_in_postgresql(postgres_server: Postgres, tmp_path: Path) -> None:
    lake, model = PostgresLake(tmp_path, postgres_server), Model(PLAIN, 3)
    lake.sink.probe(Owner(FEED, 1))  # before anything is there
    lake.sink.close()
    lake.open()
    for _ in range(3):
        lake.step(PLAIN, model.changes(30))
        assert ordered(lake.rows(), ["id"]) == model.expected()
    lake.sink.close()
    lake.open()
    lake.step(PLAIN, model.changes(30))
    assert ordered(lake.rows(), ["id"]) == model.expected()
    lake.sink.close()
    for catalog in lake.opened:
        catalog.close()


def test_a_catalog_that_does_not_answer(postgres_server: Postgres, tmp_path: Path) -> None:
    """Its password is in no word about it."""
    for scheme in ("postgresql", "http"):
        uri = quote(f"{scheme}://u:hidden-word@127.0.0.1:1/d", safe="")
        lake = IcebergLake(tmp_path / scheme, f"&catalog={uri}")
        with pytest.raises(SinkUnavailable, match=f"the Iceberg catalog {scheme}://") as caught:
            lake.sink.probe(Owner(FEED, 1))
        assert "hidden-word" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_catalog_that_sends_its_clients_elsewhere(tmp_path: Path) -> None:
    """Nothing is sent there, least of all the login."""
    asked: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = b'{"defaults": {}, "overrides": {"uri": "http://127.0.0.2:9/"}}'
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        uri = quote(f"http://127.0.0.1:{server.server_port}", safe="")
        lake = IcebergLake(tmp_path, f"&catalog={uri}&catalog-token=t")
        with pytest.raises(BadOption, match="sends its clients to another host, '127.0.0.2'"):
            lake.sink.probe(Owner(FEED, 1))
        server.shutdown()
    assert len(asked) == 1 and asked[0].startswith("/v1/config")


def test_a_catalog_that_refuses_the_login(postgres_server: Postgres, tmp_path: Path) -> None:
    login, _, rest = postgres_server.url("postgres").partition("@")
    wrong = quote(f"{login.rpartition(':')[0]}:wrong-word@{rest}", safe="")
    lake = IcebergLake(tmp_path, f"&catalog={wrong}")
    with pytest.raises((SinkUnavailable, SinkUnwritable), match="password") as caught:
        lake.sink.probe(Owner(FEED, 1))
    assert "wrong-word" not in str(caught.value)
