"""Other readers of the same log: the server's own tool, python-mysql-replication, Debezium."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mysql_load import Log
from report import Figure

from rowferry.mysql.session import Flavour
from rowferry.testing.servers import Server
from rowferry.testing.servers.packages import cache

LIMIT_S = 1200
JAVA_MEMORY = "-Xmx1g"
DEBEZIUM = Path(__file__).parent / "debezium"


def raw_copy(server: Server, log: Log, folder: Path, tries: int) -> Figure:
    """Let the server's own tool copy the log over the network to files: the limit."""
    name = "mysqlbinlog" if server.flavour is Flavour.MYSQL else "mariadb-binlog"
    command = [
        *server.packages.program(f"usr/bin/{name}"),
        "--no-defaults",
        "--read-from-remote-server",
        "--raw",
        f"--host={server.host}",
        f"--port={server.port}",
        f"--user={server.login.user}",
        f"--start-position={log.start}",
        f"--result-file={folder}/",
        log.file,
    ]
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for _ in range(tries):
        began = time.perf_counter()
        _run(command, {"MYSQL_PWD": server.login.password})
        found.append(time.perf_counter() - began)
        copied = folder / log.file
        if copied.stat().st_size < log.size:
            raise SystemExit(f"{name} copied {copied.stat().st_size} of {log.size} bytes")
        copied.unlink()
    best = min(found)
    return Figure(f"{name} --raw", log.changes / best, log.size / best / 1e6, other=_seconds(best))


def python_replication(server: Server, log: Log, most: int) -> Figure:
    """Count rows with python-mysql-replication, on the first part of a long log."""
    from pymysqlreplication import BinLogStreamReader  # type: ignore[import-untyped]
    from pymysqlreplication import row_event as rows_of

    login = server.login
    stream = BinLogStreamReader(
        connection_settings={
            "host": login.host,
            "port": login.port,
            "user": login.user,
            "passwd": login.password,
        },
        server_id=2_000_000_001,
        log_file=log.file,
        log_pos=log.start,
        resume_stream=True,
        only_events=[rows_of.WriteRowsEvent, rows_of.UpdateRowsEvent, rows_of.DeleteRowsEvent],
        enable_logging=False,
    )
    rows, place, began = 0, log.start, time.perf_counter()
    try:
        for event in stream:
            if event.schema != log.database:
                raise SystemExit(f"python-mysql-replication read {event.schema} first")
            rows += len(event.rows)
            place = stream.log_pos
            if rows >= most:
                break
        seconds = time.perf_counter() - began
    finally:
        stream.close()
    more = {"rows read": rows, **_seconds(seconds)}
    size = (place - log.start) / seconds / 1e6
    return Figure("python-mysql-replication", rows / seconds, size, other=more)


class Debezium:
    """Debezium's embedded engine: reads the same log from the same place, and counts events.

    It finds a stored offset (the workload's first place) and no schema history, which is what its
    snapshot mode `recovery` is for: it reads the tables' present definitions, which are those of
    the whole log, and goes on from the offset.
    """

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._built = _build()
        folder.mkdir(parents=True, exist_ok=True)

    def figures(self, log: Log) -> Iterator[Figure]:
        """Count events as the engine's own records, then as JSON text."""
        for json in (False, True):
            first, first_ms, rest, rest_ms, characters = self._count(log, json)
            seconds = max(rest_ms, 1) / 1000
            more = {"first event after s": round(first_ms / 1000, 1), **_seconds(seconds)}
            if json:
                more["MB of text"] = round(characters / 1e6)
            name = "Debezium, as JSON" if json else "Debezium, records only"
            rate = rest / seconds
            yield Figure(name, rate, rate * log.size / log.changes / 1e6, other=more)

    def _count(self, log: Log, json: bool) -> list[int]:
        settings = self._folder / "engine.properties"
        settings.touch(0o600)
        offsets = self._folder / "offsets"
        settings.write_text("".join(f"{k}={v}\n" for k, v in self._settings(log, json, offsets)))
        classes = f"{self._built}/libs/*:{self._built}/debezium-count-1.jar"
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        try:
            said = _run(["java", JAVA_MEMORY, quiet, "-cp", classes, "Count", str(settings)], {})
        finally:
            settings.unlink()
            offsets.unlink(missing_ok=True)
        return [int(n) for n in said.split()]

    def _settings(self, log: Log, json: bool, offsets: Path) -> Iterator[tuple[str, object]]:
        login = self._server.login
        is_mysql = self._server.flavour is Flavour.MYSQL
        name = "mysql.MySqlConnector" if is_mysql else "mariadb.MariaDbConnector"
        yield "name", "count"
        yield "topic.prefix", "count"
        yield "connector.class", f"io.debezium.connector.{name}"
        yield "database.hostname", login.host
        yield "database.port", login.port
        yield "database.user", login.user
        yield "database.password", login.password
        yield "database.server.id", 2_000_000_002
        yield "database.include.list", log.database
        yield "snapshot.mode", "recovery"
        yield "schema.history.internal", "io.debezium.relational.history.MemorySchemaHistory"
        yield "offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore"
        yield "offset.storage.file.filename", offsets
        yield "offset.flush.interval.ms", 60_000
        yield "include.schema.changes", "false"
        yield "tombstones.on.delete", "false"  # so that events are row changes
        yield "converter.schemas.enable", "false"  # the smaller and quicker JSON
        yield "max.batch.size", 8192  # larger than the default: quicker here
        yield "max.queue.size", 32_768
        yield "count.events", log.changes
        yield "count.json", str(json).lower()
        yield "count.file", log.file
        yield "count.offset", log.start
        yield "count.gtids", log.gtids


def _build() -> Path:
    """Build the counting program with Maven, once; returns the folder with it and its libraries."""
    built = cache().parent / "debezium"
    program, sources = built / "debezium-count-1.jar", [*DEBEZIUM.rglob("*.java")]
    newest = max(p.stat().st_mtime for p in [DEBEZIUM / "pom.xml", *sources])
    if not program.exists() or program.stat().st_mtime < newest:
        print("building the Debezium program with Maven", file=sys.stderr)
        where = ["-f", str(DEBEZIUM / "pom.xml"), f"-Dbuild.to={built}"]
        _run(["mvn", "-q", "-B", *where, "package"], {})
        program.touch()
    return built


def _seconds(seconds: float) -> dict[str, object]:
    return {"s": round(seconds, 2)}


def _run(command: list[str], more: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise SystemExit(f"{command[0]} is not on this machine; --without leaves it out") from None
    if done.returncode != 0:
        said = "\n".join([*done.stdout.splitlines(), *done.stderr.splitlines()][-12:])
        raise SystemExit(f"{command[0]} failed with code {done.returncode}:\n{said}")
    return done.stdout
