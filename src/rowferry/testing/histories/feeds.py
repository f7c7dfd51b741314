"""Feeds of a history in this process, with faults at every door."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import obstore

from rowferry.change.plan import Plan, Receipt, TableSlice
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.table import TableSchema
from rowferry.control.feed import service
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop, StepResult
from rowferry.control.lifecycle import Verb
from rowferry.control.operator.operations import Operations
from rowferry.control.store.sql_store import open_store
from rowferry.errors import MetaUnavailable, RowferryError, SinkError, SinkUnavailable, Verdict
from rowferry.flow.capture.binlog.frame import segment_cutter
from rowferry.spark.job import InProcessRunner, SegmentTask
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.harness import RunProcess
from rowferry.testing.histories.facts import full_name, quoted, read_rows, read_tables
from rowferry.testing.histories.forms import FORMS, HistoryFormat
from rowferry.testing.histories.judge import Case, Judge, Judgement
from rowferry.testing.histories.lakes import DeltaReader, IcebergReader, LakeReader, LakeWatch
from rowferry.testing.histories.outputs import (
    AvroMessages,
    Event,
    StoredFiles,
    canal_json,
    http_json,
    open_protocol,
)
from rowferry.testing.histories.truth import JOURNAL, OUTSIDE, Truth
from rowferry.testing.histories.writer import clear
from rowferry.testing.receiver import HttpReceiver, ReceiverFault, Refusal
from rowferry.testing.servers import (
    Kafka,
    MariaDb,
    MariaDb11,
    Minio,
    MySql,
    SchemaRegistryServer,
    Server,
    replicate,
)
from rowferry.testing.validators import StorageLayout

NAME = "feed"
PATIENCE_S = 120.0
PROCESS_PATIENCE_S = 300.0
SERVERS: Mapping[str, type[Server]] = {"mysql": MySql, "mariadb": MariaDb, "mariadb11": MariaDb11}
SINKS = (
    "file/canal-json",
    "file/csv",
    "s3/canal-json",
    "kafka/canal-json",
    "kafka/open-protocol",
    "kafka/avro",
    "http/json",
    "http/canal-json",
    "mysql/rows",
    "mysql/created",
    "delta/upsert",
    "delta/changelog",
    "iceberg/upsert",
    "iceberg/changelog",
)
LAKES = ("delta", "iceberg")
PROCESSES = ("process/canal-json", "process/csv")  # into files, by `rowferry run`
KEYED = ("delta/upsert", "iceberg/upsert")  # they ask for keys
NARROW = ("kafka/avro", "mysql/rows", "mysql/created")  # they ask for plain names and keys


class Killed(BaseException):
    """The process ends here."""


class Services:
    """Servers that histories use, started when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._started: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _get(self, name: str, start: Callable[[Path], Any]) -> Any:
        if name not in self._started:
            self._started[name] = self._stack.enter_context(start(self._folder / name))
        return self._started[name]

    def source(self, kind: str) -> Server:
        """Return the server that histories of this kind are written to."""
        server: Server = self._get(kind, lambda p: SERVERS[kind].start(p, server_id=7))
        return server

    def target(self, kind: str) -> Server:
        """Return a second server of a kind, for copies."""
        server: Server = self._get(f"{kind}-copy", lambda p: SERVERS[kind].start(p, server_id=8))
        return server

    def kafka(self) -> Kafka:
        """Return the broker."""
        broker: Kafka = self._get("kafka", Kafka.start)
        return broker

    def registry(self) -> SchemaRegistryServer:
        """Return the schema registry, which takes any schema."""

        def start(folder: Path) -> SchemaRegistryServer:
            made = SchemaRegistryServer.start(folder)
            made.set_compatibility("NONE")
            return made

        registry: SchemaRegistryServer = self._get("registry", start)
        return registry

    def minio(self) -> Minio:
        """Return the object store."""
        store: Minio = self._get("minio", Minio.start)
        return store


@dataclass
class Doors:
    """What goes wrong next, at which door; each fault happens once."""

    dice: random.Random
    armed: str = ""
    happened: Counter[str] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.happened = Counter()

    def pass_through(self, door: str, act: Callable[[], Any], lost: RowferryError) -> Any:
        """Go through a door, or not, or without an answer."""
        if not self.armed.startswith(f"{door} "):
            return act()
        how = self.armed.removeprefix(f"{door} ")
        self.armed = ""
        self.happened[f"{door} {how}"] += 1
        if how in ("killed after", "answer lost"):
            act()
        if how.startswith("killed"):
            raise Killed
        raise lost


FAULTS = tuple(
    f"{door} {how}"
    for door in ("record", "job", "publish", "progress")
    for how in ("killed before", "killed after", "answer lost", "refused")
) + ("job killed inside",)


class _Store:
    """The meta database behind a door."""

    def __init__(self, store: Any, doors: Doors) -> None:
        self._store, self._doors = store, doors

    def __getattr__(self, name: str) -> Any:
        whole = getattr(self._store, name)
        door = {"record": "record", "publish": "progress"}.get(name)
        if door is None:
            return whole

        def guarded(*arguments: Any) -> Any:
            lost = MetaUnavailable("the answer was lost")
            return self._doors.pass_through(door, lambda: whole(*arguments), lost)

        return guarded


class _Runner(InProcessRunner):
    """Runs plans here, behind a door."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        if self._doors.armed == "job killed inside":
            self._doors.armed = ""
            self._doors.happened["job killed inside"] += 1
            task = SegmentTask(spec, plan, tables)
            segments = plan.stretch.segments
            for s in segments[: self._doors.dice.randrange(len(segments) + 1)]:
                list(task.run(s.ordinal))
            raise Killed
        whole = super().run
        lost = SinkUnavailable("the answer was lost")
        receipts: list[Receipt] = self._doors.pass_through(
            "job", lambda: whole(spec, plan, tables), lost
        )
        return receipts


@contextmanager
def cut_short(dice: random.Random) -> Iterator[None]:
    """Let planners of this process cut the log into segments of a few events, in most histories.

    A history's log is far shorter than one segment as they are: none would end inside a
    transaction, and tasks would read nothing but what plans take along.
    """
    kept = segment_cutter.SEGMENT_BYTES, segment_cutter.CARRY_BYTES
    segment_cutter.SEGMENT_BYTES = dice.choice((32 << 20, 3000, 300))  # type: ignore[misc]
    segment_cutter.CARRY_BYTES = dice.choice((512 << 10, 400, 0))  # type: ignore[misc]
    try:
        yield
    finally:
        segment_cutter.SEGMENT_BYTES, segment_cutter.CARRY_BYTES = kept  # type: ignore[misc]


class HistoryFeed:
    """One feed of all databases but one, into one sink; killed and started as dice say."""

    def __init__(
        self, server: Server, sink: str, services: Services, folder: Path, dice: random.Random
    ) -> None:
        self.sink = sink
        self._server, self._services, self._folder, self._dice = server, services, folder, dice
        folder.mkdir(parents=True)
        self._stack = ExitStack()
        self.doors = Doors(dice)
        self.faults: list[str] = []
        self.first = self.settled = 0
        self.is_settled = False
        self._moved = False
        self._place, self.protocol = sink.split("/")
        self._old_values = dice.random() < 0.5
        self._tag = f"t{time.time_ns():x}{dice.randrange(1 << 20):x}"
        self._receiver: HttpReceiver | None = None
        self._target: Server | None = None
        self._files: StoredFiles | None = None
        self._layout: StorageLayout | None = None
        self._lake: LakeWatch | None = None
        self._zero_date, self._drops = "", False
        self._uri, self._config = self._settings()
        self._store = open_store(f"sqlite:///{folder}/meta.db")
        self._loop: Loop | None = None
        self._dead: list[Loop] = []  # of processes that were killed

    # --- settings ---------------------------------------------------------------------------------

    def _settings(self) -> tuple[str, str]:
        dice = self._dice
        extension = "&enable-tidb-extension=true" if self.protocol in ("canal-json", "avro") else ""
        head = "" if self.sink in NARROW else "force-replicate = true\n"
        sink, more = "", ""
        match self._place:
            case "file" | "s3" | "process":
                if self.protocol == "csv":
                    old = str(self._old_values).lower()
                    more = f"[sink.csv]\ninclude-commit-ts = true\noutput-old-value = {old}\n"
                options = f"protocol={self.protocol}{extension}"
                options += dice.choice(("", "", "&compression=gzip"))
                options += dice.choice(("", "&date-separator=none"))
                options += dice.choice(("", "", "&transaction-atomicity=table"))
                if _kind_of(self._server) != "mysql":  # its log does not tell a row's partition
                    options += "&enable-partition-separator=false"
                uri = self._storage(options)
            case "kafka":
                uri = f"kafka://{self._services.kafka().bootstrap}/{self._tag}"
                uri += f"?protocol={self.protocol}{extension}&partition-num={dice.choice((1, 3))}"
                rule = f"partition = '{dice.choice(('index-value', 'table'))}'"
                if self.protocol == "avro":
                    uri += "&avro-enable-watermark=true"
                    uri += f"&schema-registry={self._services.registry().url}"
                    rule += f", topic = '{self._tag}.{{schema}}.{{table}}'"
                sink = f"dispatchers = [{{matcher = ['*.*'], {rule}}}]\n"
            case "http":
                self._receiver = self._stack.enter_context(HttpReceiver())
                uri = f"{self._receiver.uri}?protocol={self.protocol}{extension}"
                uri += f"&max-batch-rows={dice.choice((1, 3, 500))}&backoff=10ms&max-backoff=50ms"
            case "delta" | "iceberg":
                uri = self._lake_uri()
            case _:
                self._target = self._services.target(_kind_of(self._server))
                clear(self._target)
                self._target.execute(f"CREATE DATABASE {OUTSIDE}")  # tables are renamed into it
                uri = f"{self._target.uri}?meta-database=h_meta"
                uri += dice.choice(("", "&batch-dml-enable=false"))
                if self.protocol == "created":
                    more = "[sink.mysql-config]\ncreate-tables = true\n"
                else:
                    self._copy_definitions(self._target)
                sink = dice.choice(("", "safe-mode = true\n", 'transaction-atomicity = "global"\n'))
        rules = f"[filter]\nrules = ['*.*', '!{OUTSIDE}.*']\n"
        return uri, f"{head}{rules}[sink]\n{sink}{more}"

    def _copy_definitions(self, target: Server) -> None:
        """Make the tables downstream as they are at the source, as an operator would."""
        target.execute("SET SESSION foreign_key_checks = 0, sql_mode = ''")
        for row in self._server.execute("SHOW DATABASES"):
            database = str(row[0])
            if not database.startswith("h_") or database == OUTSIDE:
                continue
            made = self._server.execute(f"SHOW CREATE DATABASE {quoted(database)}")[0][1]
            target.execute(str(made))
            target.execute(f"USE {quoted(database)}")
            for name, kind in self._server.execute(f"SHOW FULL TABLES FROM {quoted(database)}"):
                if kind == "BASE TABLE":
                    place = full_name((database, str(name)))
                    target.execute(str(self._server.execute(f"SHOW CREATE TABLE {place}")[0][1]))

    def _lake_uri(self) -> str:
        """Return the URI of tables in a directory, which are merged and summed up often."""
        root = self._folder / "lake"
        reader: LakeReader = DeltaReader(root) if self._place == "delta" else IcebergReader(root)
        self._zero_date = self._dice.choice(("null", "string"))
        self._drops = self._dice.random() < 0.5
        self._lake = LakeWatch(reader, root, self.protocol == "changelog")
        options = {
            "mode": self.protocol,
            "fsync": "false",
            "zero-date": self._zero_date,
            "on-drop": "drop" if self._drops else "keep",
            "optimize-after": self._dice.choice(("0", "3", "6")),
        }
        if self._place == "delta":
            options["checkpoint-interval"] = self._dice.choice(("2", "20"))
        else:
            options["history"] = "10000"
        return f"{self._place}+file://{root}?{urlencode(options)}"

    def _storage(self, options: str) -> str:
        old = self.protocol == "csv" and self._old_values
        if self._place in ("file", "process"):
            root = self._folder / "out"
            root.mkdir()
            self._files = StoredFiles.below(root, self.protocol, old)
            self._layout = StorageLayout(root)
            return f"file://{root}?{options}"
        minio = self._services.minio()
        store = obstore.store.S3Store(
            "rowferry",
            prefix=self._tag,
            endpoint=minio.endpoint,
            region="us-east-1",
            access_key_id=minio.user,
            secret_access_key=minio.password,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

        def names() -> list[str]:
            return [str(o["path"]) for page in obstore.list(store) for o in page]

        def get(name: str) -> bytes:
            return bytes(obstore.get(store, name).bytes())

        self._files = StoredFiles(names, get, self.protocol, old)
        return f"{minio.uri(self._tag)}&{options}"

    @property
    def form(self) -> HistoryFormat:
        """How values look in this feed's format."""
        name = "csv-old" if self.protocol == "csv" and self._old_values else self.protocol
        return FORMS[f"lake-{self._zero_date}" if self._lake is not None else name]

    # --- running ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, or begin again as another process would."""
        config = self._folder / "feed.toml"
        config.write_text(self._config)
        feed = self._store.feed(NAME)
        prepared = service.prepare(
            self._server.uri, self._uri, config, NAME, stored=lambda _: feed.spec if feed else None
        )
        if feed is None:
            self._store.create_changefeed(prepared.spec, 0)
        elif self._moved:
            self._store.update_spec(NAME, prepared.spec)
        self._moved = False
        claim = self._store.claim(NAME, Holder.here(), time.time(), 0.0)
        sink: Any = prepared.flow.sink
        publish = sink.publish

        def guarded(*arguments: Any) -> Any:
            lost = SinkUnavailable("the answer was lost")
            return self.doors.pass_through("publish", lambda: publish(*arguments), lost)

        sink.publish = guarded
        store: Any = _Store(self._store, self.doors)
        runner = _Runner(self.doors)
        stretch = self._dice.choice((512 << 20, 2000))
        self._loop = Loop(NAME, prepared.flow, store, claim, runner, _now_ms, stretch_bytes=stretch)

    def stop(self) -> None:
        """Let connections go, as a pause does."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def step(self) -> StepResult | None:
        """Do one step; None: it failed in a way that a supervisor repeats, or was killed.

        Raises:
            RowferryError: what would stop the feed.
        """
        try:
            if self._loop is None:
                self.start()
            assert self._loop is not None
            step = self._loop.step()
        except Killed:
            self._kill()
            return None
        except RowferryError as err:
            self.faults.append(str(err))
            if err.verdict is Verdict.STOP:
                raise
            if err.verdict is Verdict.REPLAN and self._loop is not None:
                self._loop.replan(str(err))
            return None
        finally:
            if self._lake is not None:
                self._lake.look()
            if self._files is not None and self._dice.random() < 0.3:
                self._files.look()
                if self._layout is not None:
                    self._layout.observe()
        return step

    def begin_anew(self) -> None:
        """Reset to a new snapshot, which is the cure where a lake's table cannot follow."""
        assert self._lake is not None
        self.doors.armed = ""
        self._kill()
        self._store.move(NAME, Verb.PAUSE)
        Operations(self._store).reset(NAME, snapshot=True)
        self._store.move(NAME, Verb.RESUME)
        self._lake.look()
        self._lake.forget()
        self.is_settled = False

    def move_to(self, server: Server) -> None:
        """Go on with another server at another address."""
        self.stop()
        self._server, self._moved = server, True

    def _kill(self) -> None:
        """Go away without a word; what was open is closed when nobody minds any more."""
        if self._loop is not None:
            self._dead.append(self._loop)
            self._loop = None

    def disturb(self) -> str:
        """Let something go wrong; return what."""
        roll = self._dice.random()
        if roll < 0.65:
            self.doors.armed = self._dice.choice(FAULTS)
            return ""  # counted when it happens
        if roll < 0.75:
            self.stop()
            return "paused"
        if roll < 0.85:
            self._kill()
            return "killed"
        if self._receiver is not None:
            kinds = (
                ReceiverFault.DROP,
                ReceiverFault.LOSE_ANSWER,
                ReceiverFault.HALF_ANSWER,
                Refusal(503),
            )
            some = [self._dice.choice(kinds) for _ in range(self._dice.randrange(1, 4))]
            self._receiver.faults.extend(some)
            return "receiver fails"
        return ""

    def catch_up(self) -> None:
        """Step until everything that is in the source now is delivered."""
        clock = self._server.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
        wanted = int(str(clock)) << PHYSICAL_SHIFT
        end = time.monotonic() + PATIENCE_S
        while True:
            step = self.step()
            if step is not None and step.caught_up and step.watermark >= wanted:
                if self._files is not None:
                    self._files.look()
                return
            if time.monotonic() > end:
                raise TimeoutError(f"it never caught up: {self.faults[-1:]}")
            if step is None or step.caught_up:
                time.sleep(0.01)

    def close(self) -> None:
        """Let everything go."""
        self._kill()
        for loop in self._dead:
            with suppress(RowferryError):
                loop.close()
        self._store.close()
        self._stack.close()

    # --- afterwards -------------------------------------------------------------------------------

    def judge(self, truth: Truth) -> Judgement:
        """Compare what was delivered with the truth."""
        if self._place == "mysql":
            return self._judge_copy(truth)
        ddl_form = {"canal-json": "canal-json", "csv": "files", "avro": ""}.get(
            self.protocol, "any"
        )
        if self._files is not None:
            ddl_form = "files"
        if self._lake is not None:
            self._lake.check_whole()
            if not self._lake.changelog:
                return self._lake.judge(truth, self.form, self._drops)
            ddl_form = ""
        repeats = self._place in ("kafka", "http")
        case = Case(self.form, self.first, self.settled, repeats, ddl_form)
        words = list(self._lake.failures) if self._lake is not None else []
        if self._layout is not None:
            self._layout.finish()
            words = self._layout.failures
        try:
            events = self._events()
        except (ValueError, KeyError, TypeError) as err:
            return Judgement([f"the output cannot be read: {type(err).__name__}: {str(err)[:600]}"])
        verdict = Judge(truth, case, events).judge()
        verdict.failures += words
        return verdict

    def _events(self) -> list[Event]:
        if self._files is not None:
            return list(self._files.events())
        if self._lake is not None:
            return list(self._lake.events)
        events: list[Event] = []
        if self._receiver is not None:
            for request in list(self._receiver.taken):
                if self.protocol == "json":
                    events += http_json("http", request.body)
                else:
                    lines = request.body.decode().split("\n")
                    events += [canal_json("http", line) for line in lines if line.strip()]
            return events
        broker = self._services.kafka()
        if self.protocol == "avro":
            reader = AvroMessages(self._schema)
            for topic in broker.topics():
                tag, _, rest = topic.partition(".")
                database, _, table = rest.partition(".")
                if tag == self._tag:
                    for m in broker.read_all(topic):
                        where = f"{topic}/{m.partition}"
                        events.append(reader.read(where, (database, table), m.key, m.value))
            return events
        for m in broker.read_all(self._tag):
            where = str(m.partition)
            if self.protocol == "canal-json":
                events.append(canal_json(where, (m.value or b"").decode()))
            else:
                events += open_protocol(where, m.key or b"", m.value or b"")
        return events

    def _schema(self, number: int) -> str:
        url = f"{self._services.registry().url}/schemas/ids/{number}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return str(json.loads(answer.read())["schema"])

    def _judge_copy(self, truth: Truth) -> Judgement:
        """Compare the tables of the copy with the last step's."""
        assert self._target is not None
        target = self._target
        verdict = Judgement([])

        def ask(sql: str) -> Any:
            return target.execute(sql)

        last = truth.last
        names = {n for n in last.tables if n[0] != OUTSIDE}
        databases = sorted({n[0] for n in names} | {JOURNAL[0]})
        copies = read_tables(ask, databases)
        target.execute("SET SESSION time_zone = '+00:00'")
        for name in sorted(names):
            copy = copies.get(name)
            rows = last.state[name]
            if copy is None:
                if rows:
                    verdict.failures.append(f"{name} is missing downstream")
                continue
            wanted = last.tables[name].sent
            if sorted(copy.sent) != sorted(wanted):
                verdict.failures.append(f"{name} has the columns {copy.sent}, not {wanted}")
                continue
            here = sorted(repr({n: r[n] for n in sorted(wanted)}) for r in rows.values())
            own = read_rows(ask, copy).values()
            there = sorted(repr({n: r[n] for n in sorted(wanted)}) for r in own)
            verdict.compared += len(here)
            if here != there:
                missing = [r for r in here if r not in there][:2]
                extra = [r for r in there if r not in here][:2]
                verdict.failures.append(f"{name}: missing {missing}, too many {extra}"[:1500])
        extra_tables = [n for n, t in copies.items() if n not in names and n != JOURNAL]
        if extra_tables:
            verdict.failures.append(f"tables that are gone are still downstream: {extra_tables}")
        return verdict


class ProcessFeed(HistoryFeed):
    """A feed that is `rowferry run`, with Spark, killed and started as dice say."""

    def __init__(
        self, server: Server, sink: str, services: Services, folder: Path, dice: random.Random
    ) -> None:
        self._process: RunProcess | None = None
        self._starts = 0
        super().__init__(server, sink, services, folder, dice)

    def start(self) -> None:
        """Begin, or begin again."""
        self._process = self._run()

    def _run(self, *more: str) -> RunProcess:
        config = self._folder / "feed.toml"
        config.write_text(self._config)
        arguments = ["--source", self._server.uri, "--sink-uri", self._uri, "--config", str(config)]
        arguments += ["--changefeed-id", NAME, "--meta", f"sqlite:///{self._folder}/meta.db"]
        self._starts += 1
        if self._starts % 2:  # every other time Spark's tasks do what the process could
            arguments.append("--spark-only")
        return RunProcess([*arguments, "--spark-master", "local[2]", *more], self._folder / "work")

    def stop(self) -> None:
        """End it."""
        self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def step(self) -> StepResult | None:
        """Let it work for a while.

        Raises:
            SinkError: it ended by itself.
        """
        if self._process is None:
            self.start()
        time.sleep(0.5)
        if self._process is not None and not self._process.alive:
            raise SinkError(f"the process ended: {self._process.printed()[-500:]}")
        return None

    def disturb(self) -> str:
        """Kill it, in one of three cases: it takes seconds to start."""
        if self._dice.random() < 0.7:
            return ""
        self._kill()
        return "process killed"

    def catch_up(self) -> None:
        """Deliver all that is in the source now, and end."""
        self._kill()
        with self._run("--until", "caught-up") as process:
            if process.wait(PROCESS_PATIENCE_S):
                raise SinkError(f"the process failed: {process.printed()[-500:]}")
        if self._files is not None:
            self._files.look()


def start_pair(kind: str, folder: Path) -> list[Server]:
    """Start a server and its replica."""
    made = SERVERS[kind]
    source = made.start(folder / "source", server_id=11)
    replica = made.start(folder / "replica", server_id=12)
    replicate(source, replica)
    return [source, replica]


def _kind_of(server: Server) -> str:
    return next(kind for kind, made in SERVERS.items() if type(server) is made)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
