"""The receiver on the page about HTTP keeps what the source has."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from pathlib import Path
from typing import Any

from http_feed_kit import Ferry

from rowferry.change.table import TableId
from rowferry.refstore.client import Store

PAGE = Path(__file__).parents[3] / "docs" / "http.md"


def test_the_pages_receiver(source: str, store: Store, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    page: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec"), page)
    server = page["receiver"](str(tmp_path / "rows.db"), 0)
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    table = TableId("http_page", "t")
    store.ddl(f"CREATE DATABASE {table.database}")
    store.ddl(f"CREATE TABLE {table} (id bigint PRIMARY KEY, note varchar(20))")
    try:
        with store.transaction() as work:
            work.insert(table, [{"id": k, "note": f"n{k}"} for k in range(20)])
        uri = f"http://127.0.0.1:{server.server_address[1]}/changes?max-batch-rows=3&tenant=7"
        ferry = Ferry(source, store, tmp_path, table.database, uri)
        with store.transaction() as work:
            work.update(table, [{"id": 3, "note": None}])
            work.delete(table, [{"id": 4}])
        store.ddl(f"ALTER TABLE {table} ADD COLUMN v bigint")
        ferry.catch_up()
        ferry.close()
        server_rows = _rows(tmp_path / "rows.db")
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
    wanted = {json.dumps({"id": r["id"]}): r["note"] for r in store.scan(table).to_pylist()}
    assert {k: v["note"] for k, v in server_rows.items()} == wanted
    assert len(wanted) == 19


def _rows(path: Path) -> dict[str, Any]:
    database = sqlite3.connect(path)
    try:
        found = database.execute("SELECT key, value FROM rows WHERE name = 'http_page.t'")
        return {key: json.loads(value) for key, value in found}
    finally:
        database.close()
