"""One thin slice through every real server: a feed from each source, and one into each sink.

Rows that are there, rows that come, change and go, a column that is added, a restart. What a reader
has at the end, who knows the format and nothing of the product, must be what the source has.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from object_store_kit import files_at
from playwright.sync_api import expect
from pyiceberg.catalog.rest import RestCatalog
from web_kit import Fleet, filled, started_browser

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.lifecycle import FeedState
from rowferry.control.operator.checks.prepare import prepare
from rowferry.control.operator.operations import Operations
from rowferry.control.store.sql_store import open_store
from rowferry.face.about import About
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import serve
from rowferry.spark.job import InProcessRunner
from rowferry.testing.harness import RunProcess, wait_for
from rowferry.testing.receiver import HttpReceiver
from rowferry.testing.servers import (
    IcebergRest,
    Kafka,
    ObjectServer,
    OpenSearch,
    Postgres,
    Pulsar,
    SchemaRegistryServer,
    Server,
)
from rowferry.testing.servers.__main__ import FETCHED
from rowferry.testing.servers.queues.amazon import REGION, Amazon
from rowferry.testing.servers.queues.nats_server import PASSWORD, USER
from rowferry.testing.servers.queues.queue_server import QueueServer

NAME = "slice"
LOGIN = f"{USER}:{PASSWORD}@"
PATIENCE_S = 600.0  # an upper bound for a machine under load, never reached by working code
Rows = dict[str, dict[str, str | None]]  # by id; values as text


@dataclass(frozen=True)
class Target:
    """Where a feed goes, and what a reader has there."""

    uri: str
    read: Callable[[], Rows]
    config: str = ""


# --- what readers have ---------------------------------------------------------------------------


def of_table(server: Server, place: str) -> Rows:
    columns = [str(c[0]) for c in server.execute(f"SHOW COLUMNS FROM {place}")]
    rows = server.execute(f"SELECT {', '.join(columns)} FROM {place}")
    texts = [[None if v is None else str(v) for v in row] for row in rows]
    return {str(t[0]): dict(zip(columns, t, strict=True)) for t in texts}


def of_canal_json(lines: Iterable[bytes]) -> Rows:
    """Apply messages in order. A row from before a column was added lacks it: it is NULL."""
    found: Rows = {}
    for line in lines:
        message = json.loads(line)
        for row in [] if message["isDdl"] else message["data"]:
            if message["type"] == "DELETE":
                del found[row["id"]]
            else:
                found[row["id"]] = {"price": None, **row}
    return found


def of_files(contents: dict[str, bytes]) -> Rows:
    """Read data files in the order in which they apply: by version, then by number."""
    names = [n for n in contents if re.search(r"/CDC\d+\.json$", n)]
    names.sort(key=lambda n: (int(n.split("/")[-2]), n))
    return of_canal_json(line for n in names for line in contents[n].split(b"\r\n") if line)


def of_avro(broker: Kafka, registry: SchemaRegistryServer, topic: str) -> Rows:
    found: Rows = {}
    with SchemaRegistryClient({"url": registry.url}) as client:
        read = AvroDeserializer(client)
        for message in broker.read_all(topic):
            key: Any = read(message.key, SerializationContext(topic, MessageField.KEY))
            row: Any = read(message.value, SerializationContext(topic, MessageField.VALUE))
            if row is None:
                del found[str(key["id"])]
            else:
                texts = {n: None if v is None else str(v) for n, v in row.items()}
                found[str(key["id"])] = {"price": None, **texts}
    return found


# --- sinks: each is given the servers that it names ----------------------------------------------

CANAL: Final = "protocol=canal-json"


def to_folder(stack: ExitStack, database: str, folder: Path) -> Target:
    root = folder / "out"

    def read() -> Rows:
        paths = [p for p in root.rglob("*") if p.is_file()]
        return of_files({p.relative_to(root).as_posix(): p.read_bytes() for p in paths})

    return Target(f"file://{root}?{CANAL}&date-separator=none", read)


def to_objects(stack: ExitStack, database: str, folder: Path, server: ObjectServer) -> Target:
    uri = server.uri(database, **{"protocol": "canal-json", "date-separator": "none"})

    def read() -> Rows:
        files = files_at(uri)
        found = {p: files.get(p) for p in files.paths(9)}
        return of_files({p: stored.data for p, stored in found.items() if stored is not None})

    return Target(uri, read)


def to_kafka(stack: ExitStack, database: str, folder: Path, broker: Kafka) -> Target:
    uri = f"kafka://{broker.bootstrap}/{database}?{CANAL}&partition-num=1"
    return Target(uri, lambda: of_canal_json(m.value or b"" for m in broker.read_all(database)))


def to_pulsar(stack: ExitStack, database: str, folder: Path, broker: Pulsar) -> Target:
    place = f"persistent://public/default/{database}"
    more = f"{CANAL}&partition-num=1&web-service-url={broker.web_url}"
    uri = f"pulsar://{broker.address}/{place}?{more}"
    return Target(uri, lambda: of_canal_json(m.value or b"" for m in broker.read_all(database)))


def to_queue(
    stack: ExitStack, database: str, folder: Path, server: QueueServer, kind: str, login: str = ""
) -> Target:
    uri = f"{kind}://{login}{server.address}/{database}?{CANAL}&partition-num=1"
    return Target(uri, lambda: of_canal_json(m.value or b"" for m in server.read_all(database)))


def to_amazon(stack: ExitStack, database: str, folder: Path, server: Amazon) -> Target:
    more = f"&endpoint={server.endpoint}&access-key=of&secret-access-key=tests"
    uri = f"kinesis://{REGION}/{database}?{CANAL}&partition-num=1{more}"
    return Target(uri, lambda: of_canal_json(m.value or b"" for m in server.read_all(database)))


def to_avro(
    stack: ExitStack, database: str, folder: Path, broker: Kafka, registry: SchemaRegistryServer
) -> Target:
    uri = f"kafka://{broker.bootstrap}/{database}?protocol=avro&schema-registry={registry.url}"
    return Target(f"{uri}&partition-num=1", lambda: of_avro(broker, registry, database))


def to_http(stack: ExitStack, database: str, folder: Path) -> Target:
    receiver = stack.enter_context(HttpReceiver())

    def read() -> Rows:
        return of_canal_json(
            line for r in receiver.once() for line in r.body.split(b"\n") if line.strip()
        )

    return Target(f"{receiver.uri}?{CANAL}", read)


def to_mysql(stack: ExitStack, database: str, folder: Path, target: Server) -> Target:
    copy, notes = f"{database}_copy", f"{database}_meta"
    for name in (copy, notes):
        target.script(f"DROP DATABASE IF EXISTS {name}")
        stack.callback(target.script, f"DROP DATABASE IF EXISTS {name}")
    made = "[sink.mysql-config]\ncreate-tables = true\n"
    route = f"[[sink.dispatchers]]\nmatcher = ['*.*']\ntarget-schema = '{copy}'\n"
    uri = f"{target.uri}?meta-database={notes}"
    return Target(uri, lambda: of_table(target, f"{copy}.orders"), made + route)


def to_opensearch(stack: ExitStack, database: str, folder: Path, server: OpenSearch) -> Target:
    index, notes = f"{database}-orders", f"{database}-notes"
    stack.callback(server.ask, "DELETE", f"/{index},{notes}?ignore_unavailable=true")

    def read() -> Rows:
        found: Rows = {}
        for row in server.documents(index).values():
            texts = {n: None if v is None else str(v) for n, v in row.items()}
            found[str(row["id"])] = {"price": None, **texts}
        return found

    uri = f"opensearch://{server.address}?ownership-index={notes}&number-of-replicas=0"
    return Target(uri, read)


def to_iceberg(stack: ExitStack, database: str, folder: Path, server: IcebergRest) -> Target:
    catalog = stack.enter_context(closing(RestCatalog("slice", uri=server.url)))

    def forget() -> None:
        for name in catalog.list_tables(database):
            catalog.drop_table(name)

    def read() -> Rows:
        rows = catalog.load_table((database, "orders")).scan().to_arrow().to_pylist()
        texts = [{n: None if v is None else str(v) for n, v in row.items()} for row in rows]
        return {str(row["id"]): row for row in texts}

    stack.callback(forget)
    uri = f"iceberg+file://{folder}/out?fsync=false&catalog={quote(server.url, safe='')}"
    return Target(uri, read)


# --- meta databases ------------------------------------------------------------------------------


def in_file(stack: ExitStack, database: str, folder: Path) -> str:
    return f"sqlite:///{folder}/meta.db"


def in_postgres(stack: ExitStack, database: str, folder: Path, server: Postgres) -> str:
    server.execute(f"CREATE DATABASE {database}")
    stack.callback(server.execute, f"DROP DATABASE {database} WITH (FORCE)")
    return server.url(database)


def in_mysql(stack: ExitStack, database: str, folder: Path, server: Server) -> str:
    name = f"{database}_store"
    server.script(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    stack.callback(server.script, f"DROP DATABASE {name}")
    return f"{server.uri}{name}?ssl-mode=disabled"


@dataclass(frozen=True)
class Slice:
    """A source, a sink and a meta database; each with the fixtures that are its servers."""

    source: str
    sink: tuple[Callable[..., Target], tuple[str, ...]]
    meta: tuple[Callable[..., str], tuple[str, ...]] = (in_file, ())

    @property
    def servers(self) -> set[str]:
        """The fixtures of all its servers."""
        return {self.source, *self.sink[1], *self.meta[1]}


SLICES: Final = {
    "mysql-file": Slice("mysql_server", (to_folder, ())),
    "mariadb-file": Slice("mariadb_server", (to_folder, ())),
    "mariadb11-file": Slice("mariadb11_server", (to_folder, ())),
    "mysql-s3": Slice("mysql_server", (to_objects, ("s3_server",))),
    "mariadb-gcs": Slice("mariadb_server", (to_objects, ("gcs_server",))),
    "mysql-azure": Slice("mysql_server", (to_objects, ("azure_server",))),
    "mariadb-kafka-postgres": Slice(
        "mariadb_server", (to_kafka, ("kafka_broker",)), (in_postgres, ("postgres_server",))
    ),
    "mysql-pulsar": Slice("mysql_server", (to_pulsar, ("pulsar_broker",))),
    "mysql-redis": Slice("mysql_server", (partial(to_queue, kind="redis"), ("redis_server",))),
    "mariadb-nats": Slice(
        "mariadb_server", (partial(to_queue, kind="nats", login=LOGIN), ("nats_server",))
    ),
    "mysql-rabbitmq": Slice(
        "mysql_server", (partial(to_queue, kind="rabbitmq", login=LOGIN), ("rabbitmq_broker",))
    ),
    "mariadb-kinesis": Slice("mariadb_server", (to_amazon, ("amazon_server",))),
    "mysql-avro": Slice("mysql_server", (to_avro, ("kafka_broker", "schema_registry"))),
    "mysql-http-mysql": Slice("mysql_server", (to_http, ()), (in_mysql, ("mysql_server",))),
    "mariadb-opensearch": Slice("mariadb_server", (to_opensearch, ("opensearch_server",))),
    "mariadb11-iceberg": Slice("mariadb11_server", (to_iceberg, ("iceberg_rest",))),
    "mysql-mariadb": Slice("mysql_server", (to_mysql, ("mariadb_server",))),
    "mariadb-mysql": Slice("mariadb_server", (to_mysql, ("mysql_server",))),
}


# --- the feed ------------------------------------------------------------------------------------


class Feed:
    """A changefeed in this process; `run` again is what another process would do."""

    def __init__(self, source: Server, target: Target, database: str, meta: str, at: Path) -> None:
        self._source, self._target = source, target
        self._config = at / "feed.toml"
        self._config.write_text(f"{target.config}\n[filter]\nrules = ['{database}.*']\n")
        self._store = open_store(meta)
        self._loop: Loop | None = None

    def run(self) -> None:
        """Begin, and deliver all that is in the source by now."""
        self.stop()
        feed = self._store.feed(NAME)
        prepared = prepare(
            self._source.uri,
            self._target.uri,
            self._config,
            NAME,
            stored=lambda name: feed.spec if feed else None,
        )
        if feed is None:
            self._store.create_changefeed(prepared.spec, 0)
        claim = self._store.claim(NAME, Holder.here(), time.time(), 0.0)
        runner = InProcessRunner()
        loop = Loop(NAME, prepared.flow, self._store, claim, runner, _now_ms)
        self._loop = loop
        clock = self._source.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
        wanted = int(str(clock)) << PHYSICAL_SHIFT

        def caught_up() -> bool:
            step = loop.step()
            return step.caught_up and step.watermark >= wanted

        wait_for(caught_up, "all that is in the source", PATIENCE_S, 0.0)

    def stop(self) -> None:
        """Let connections go."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def close(self) -> None:
        """End for good."""
        self.stop()
        self._store.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


BEFORE: Final = (
    "CREATE TABLE orders (id int PRIMARY KEY, note varchar(40))",
    "INSERT INTO orders VALUES (1, 'was there'), (2, 'will change'), (3, 'will go'), (4, NULL)",
)
AFTER: Final = (
    "INSERT INTO orders VALUES (5, 'came'), (6, 'came and went')",
    "UPDATE orders SET note = 'has changed, ß€' WHERE id = 2",
    "DELETE FROM orders WHERE id IN (3, 6)",
    "ALTER TABLE orders ADD COLUMN price int",
    "INSERT INTO orders VALUES (7, 'with a price', 70)",
)


def write(server: Server, database: str, statements: Iterable[str]) -> None:
    with server.connect(database) as connection, connection.cursor() as cursor:
        for sql in statements:
            cursor.execute(sql)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.mark.parametrize("name", SLICES)
def test_a_feed(
    request: pytest.FixtureRequest, stack: ExitStack, name: str, tmp_path: Path
) -> None:
    def servers(fixtures: tuple[str, ...]) -> list[Any]:
        return [request.getfixturevalue(f) for f in fixtures]

    chosen, database = SLICES[name], f"slice_{name.replace('-', '_')}"
    source: Server = request.getfixturevalue(chosen.source)
    source.script(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    stack.callback(source.script, f"DROP DATABASE {database}")
    target = chosen.sink[0](stack, database, tmp_path, *servers(chosen.sink[1]))
    meta = chosen.meta[0](stack, database, tmp_path, *servers(chosen.meta[1]))
    write(source, database, BEFORE)
    feed = Feed(source, target, database, meta, tmp_path)
    stack.callback(feed.close)
    feed.run()
    assert {r["id"]: r["note"] for r in target.read().values()} == {
        "1": "was there",
        "2": "will change",
        "3": "will go",
        "4": None,
    }
    write(source, database, AFTER)
    feed.run()
    found = of_table(source, f"{database}.orders")
    assert sorted(found) == ["1", "2", "4", "5", "7"]
    assert target.read() == found


def test_a_feed_by_spark(mysql_server: Server, stack: ExitStack, tmp_path: Path) -> None:
    """The command that users run, once."""
    database = "slice_by_spark"
    mysql_server.script(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    stack.callback(mysql_server.script, f"DROP DATABASE {database}")
    write(mysql_server, database, (*BEFORE, *AFTER))
    config = tmp_path / "feed.toml"
    config.write_text(f"[filter]\nrules = ['{database}.*']\n")
    target = to_folder(stack, database, tmp_path)
    arguments = ["--source", mysql_server.uri, "--sink-uri", target.uri, "--config", str(config)]
    arguments += ["--meta", f"sqlite:///{tmp_path}/meta.db", "--until", "caught-up"]
    with RunProcess(arguments, tmp_path / "work") as process:
        assert process.wait(PATIENCE_S) == 0, process.printed()
    assert target.read() == of_table(mysql_server, f"{database}.orders")


def test_the_page_in_a_browser(stack: ExitStack, tmp_path: Path) -> None:
    """It shows what is stored, and a button changes it."""
    store = open_store(f"sqlite:///{tmp_path}/meta.db")
    stack.callback(store.close)
    ahead = time.time() + 3600  # so that nothing grows old while the machine is slow
    filled(store, ahead)
    Fleet(store, ahead)
    about = About("10.0.4.11:8300", "0.1.0", time.time(), "instance-1")
    serving = stack.enter_context(serve(create_app(Operations(store), about), "127.0.0.1:0"))
    page = stack.enter_context(started_browser()).new_page()
    page.set_default_timeout(PATIENCE_S * 1000)
    page.goto(f"{serving.url}/")
    expect(page.locator("tr.feed")).to_have_count(7)
    page.get_by_role("button", name="Pause orders-search").click()

    def stopped() -> bool:
        feed = store.feed("orders-search")
        return feed is not None and feed.state is FeedState.STOPPED

    wait_for(stopped, "the changefeed is stopped", PATIENCE_S)
    expect(page.locator('tr[data-id="orders-search"] .badge')).to_have_text("stopped")


# --- all of them ---------------------------------------------------------------------------------


def fixtures_of(conftest: str) -> dict[str, str]:
    """Return the server that each fixture of the suite gives: its class's name."""
    return dict(re.findall(r"^def (\w+)\(servers: Servers\) -> (\w+):", conftest, re.MULTILINE))


def test_every_server_has_its_slice() -> None:
    """What `make services` fetches is what a feed goes through, or what looks at it."""
    known = fixtures_of((Path(__file__).parents[1] / "conftest.py").read_text())
    used = {known[fixture] for chosen in SLICES.values() for fixture in chosen.servers}
    assert used | {"Chromium", "Prometheus"} == {kind.__name__ for kind in FETCHED}
