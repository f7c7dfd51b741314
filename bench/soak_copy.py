"""What arrived by HTTP or Kafka, applied as a plain reader would, and compared with the source."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

COLUMNS = ("id", "k", "c", "pad")  # those that every table has all the time
_NAME = r"(?:`?(\w+)`?\.)?`?(\w+)`?"
_RENAME = re.compile(rf"^RENAME TABLE {_NAME} TO {_NAME}", re.I)
_CLEAR = re.compile(rf"^(TRUNCATE(?: TABLE)?|DROP TABLE(?: IF EXISTS)?) {_NAME}", re.I)
Table = dict[str, int]  # a row's hash by its id


class Copy:
    """The tables of one changefeed. Repeats do no harm, as long as they are told by commit-ts.

    Everything at or below a watermark, and every row at or below a schema change, was here before:
    what comes again is left out. Else a repeated RENAME would swap tables back.
    """

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str], Table] = {}
        self.rows = 0
        self.repeats = 0
        self._past = 0
        self._schema_ts = 0
        self._statements: set[str] = set()

    def row(self, ts: int, table: tuple[str, str], gone: bool, row: Mapping[str, Any]) -> None:
        """Take a row: as it was, where it is gone, else as it is."""
        if ts <= max(self._past, self._schema_ts):
            self.repeats += 1
            return
        self.rows += 1
        found = self.tables.setdefault(table, {})
        if gone:
            found.pop(str(row["id"]), None)
        else:
            found[str(row["id"])] = digest(row[name] for name in COLUMNS)

    def schema_change(self, ts: int, database: str, query: str) -> None:
        """Follow a DDL."""
        if ts <= self._past or ts < self._schema_ts:
            self.repeats += 1
            return
        if ts > self._schema_ts:
            self._schema_ts, self._statements = ts, set()
        if query in self._statements:
            self.repeats += 1
            return
        self._statements.add(query)
        if found := _RENAME.match(query):
            old, new = (found[1] or database, found[2]), (found[3] or database, found[4])
            self.tables[new] = self.tables.pop(old, {})
        elif found := _CLEAR.match(query):
            self.tables.pop((found[2] or database, found[3]), None)

    def watermark(self, ts: int) -> None:
        """Note that everything up to here has arrived."""
        self._past = max(self._past, ts)

    def apply_json(self, body: bytes) -> None:
        """Take a request's body, as the HTTP sink sends it."""
        for one in json.loads(body):
            ts = one["commitTs"]
            match one.get("type"):
                case "watermark":
                    self.watermark(ts)
                case "ddl":
                    self.schema_change(ts, one["database"], one["query"])
                case _:
                    gone = one["op"] == "delete"
                    place = one["database"], one["table"]
                    self.row(ts, place, gone, one["before"] if gone else one["after"])

    def apply_canal(self, value: bytes) -> None:
        """Take a canal-json message with TiDB's extension."""
        one = json.loads(value)
        about = one["_tidb"]
        if "watermarkTs" in about:
            self.watermark(about["watermarkTs"])
        elif one["isDdl"]:
            self.schema_change(about["commitTs"], one["database"], one["sql"])
        else:
            place = one["database"], one["table"]
            for row in one["data"]:
                self.row(about["commitTs"], place, one["type"] == "DELETE", row)


def digest(values: Iterable[object]) -> int:
    """Return a hash of a row's values, whether numbers came as such or as text."""
    return hash(tuple(None if v is None else str(v) for v in values))


class Receiver:
    """Takes requests of many changefeeds, each at a path of its own that begins with its id.

    Attributes:
        copies: what arrived, by changefeed.
        slow_s: how long the answer to some changefeeds takes.
        failing: changefeeds that are answered 503.
        refused: how many requests were.
    """

    def __init__(self) -> None:
        self.copies: dict[str, Copy] = {}
        self.slow_s: dict[str, float] = {}
        self.failing: set[str] = set()
        self.refused = 0
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, path: str, body: bytes) -> int:
        """Apply a request; returns the status of the answer."""
        name = path.strip("/").partition("?")[0]
        if name in self.failing:
            self.refused += 1
            return 503
        time.sleep(self.slow_s.get(name, 0.0))
        with self._lock:
            self.copies.setdefault(name, Copy()).apply_json(body)
        return 204


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news: servers are killed here."""


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Post(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(receiver.take(self.path, body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Post
