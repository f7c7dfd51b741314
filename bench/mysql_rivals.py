"""Other readers of the same log: the server's own tool, python-mysql-replication, Debezium."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
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
        run_tool(command, {"MYSQL_PWD": server.login.password})
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
            begin = {"count.file": log.file, "count.offset": log.start, "count.gtids": log.gtids}
            figure = self._figure(log.database, log.changes, json, "recovery", begin)
            figure.mb_per_s = figure.rows_per_s * log.size / log.changes / 1e6
            yield figure

    def snapshot(self, database: str, rows: int, json: bool) -> Figure:
        """Count the events of a snapshot of all tables of a database."""
        return self._figure(database, rows, json, "initial_only", {})

    def _figure(
        self, database: str, events: int, json: bool, mode: str, begin: Mapping[str, object]
    ) -> Figure:
        _, first_ms, rest, rest_ms, characters = self._count(database, events, json, mode, begin)
        seconds = max(rest_ms, 1) / 1000
        more = {"first event after s": round(first_ms / 1000, 1), **_seconds(seconds)}
        if json:
            more["MB of text"] = round(characters / 1e6)
        name = "Debezium, as JSON" if json else "Debezium, records only"
        return Figure(name, rest / seconds, other=more)

    def _count(
        self, database: str, events: int, json: bool, mode: str, begin: Mapping[str, object]
    ) -> list[int]:
        settings = self._folder / "engine.properties"
        settings.touch(0o600)
        offsets = self._folder / "offsets"
        own = {"count.events": events, "count.json": str(json).lower(), **begin}
        lines = [*self._settings(database, mode, offsets), *own.items()]
        settings.write_text("".join(f"{k}={v}\n" for k, v in lines))
        classes = f"{self._built}/libs/*:{self._built}/debezium-count-1.jar"
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        try:
            said = run_tool(
                ["java", JAVA_MEMORY, quiet, "-cp", classes, "Count", str(settings)], {}
            )
        finally:
            settings.unlink()
            offsets.unlink(missing_ok=True)
        return [int(n) for n in said.split()]

    def _settings(self, database: str, mode: str, offsets: Path) -> Iterator[tuple[str, object]]:
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
        yield "database.include.list", database
        yield "snapshot.mode", mode
        yield "schema.history.internal", "io.debezium.relational.history.MemorySchemaHistory"
        yield "offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore"
        yield "offset.storage.file.filename", offsets
        yield "offset.flush.interval.ms", 60_000
        yield "include.schema.changes", "false"
        yield "tombstones.on.delete", "false"  # so that events are row changes
        yield "converter.schemas.enable", "false"  # the smaller and quicker JSON
        yield "max.batch.size", 8192  # larger than the default: quicker here
        yield "max.queue.size", 32_768


def _build() -> Path:
    """Build the counting program with Maven, once; returns the folder with it and its libraries."""
    built = cache().parent / "debezium"
    program, sources = built / "debezium-count-1.jar", [*DEBEZIUM.rglob("*.java")]
    newest = max(p.stat().st_mtime for p in [DEBEZIUM / "pom.xml", *sources])
    if not program.exists() or program.stat().st_mtime < newest:
        print("building the Debezium program with Maven", file=sys.stderr)
        where = ["-f", str(DEBEZIUM / "pom.xml"), f"-Dbuild.to={built}"]
        run_tool(["mvn", "-q", "-B", *where, "package"], {})
        program.touch()
    return built


def _seconds(seconds: float) -> dict[str, object]:
    return {"s": round(seconds, 2)}


def run_tool(command: list[str], more: dict[str, str], limit_s: float = LIMIT_S) -> str:
    """Run a program with `more` in its environment, and return what it printed."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except FileNotFoundError:
        raise SystemExit(f"{command[0]} is not on this machine; --without leaves it out") from None
    if done.returncode != 0:
        said = "\n".join([*done.stdout.splitlines(), *done.stderr.splitlines()][-12:])
        raise SystemExit(f"{command[0]} failed with code {done.returncode}:\n{said}")
    return done.stdout
