"""Each sink with lanes on a target that tests can look into, also a flaky one."""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, cast
from urllib.parse import urlsplit
from uuid import uuid4
from zlib import crc32

import numpy as np
import pyarrow as pa
from sink_harness import FEED, NOON, ORDERS, tables_of

from rowferry.change.chunk import DdlKind, Op, SchemaChange, Watermark
from rowferry.change.plan import Plan, Segment, Stretch, Topic
from rowferry.errors import Fenced
from rowferry.flow.encode.contract import CodecTraits, Encoded, TextBody
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.contract import LaneSink, Owner, Packet
from rowferry.flow.sink.pulsar.options import PulsarOptions
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.uri import Uri
from rowferry.testing.receiver import HttpReceiver, ReceiverFault, Refusal
from rowferry.testing.servers import Kafka, KafkaListener, Postgres, Pulsar, Relay, Server
from rowferry.testing.servers.certificates import Certificates


class Words:
    """A codec whose messages are words: a schema change is its query, a watermark its number."""

    TRAITS: ClassVar = CodecTraits(
        ".txt",
        "all-partitions",
        carries_before_image=False,
        can_omit_columns=False,
        body=TextBody("text/plain", b"", b"\n", b"\n"),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = ()

    def encode_schema_change(self, change: SchemaChange, planned_at_ms: int) -> Encoded:
        return words(change.query.encode())

    def encode_watermark(self, mark: Watermark, planned_at_ms: int) -> Encoded:
        return words(b"%d" % mark.commit_ts)


def words(*values: bytes) -> Encoded:
    return Encoded(pa.array(values, pa.large_binary()))


def places(plan: Plan) -> list[tuple[int, int, str, int]]:
    """Where a plan's rows go: segment, slice, topic and partitions of each output."""
    topics = [(o, Topic.from_json(o.target)) for o in plan.outputs]
    return [(o.segment, o.slice, topic.name, topic.partitions) for o, topic in topics]


def packets(plan: Plan, content: Sequence[tuple[int, int, Sequence[bytes]]]) -> list[Packet]:
    """Packets of a plan, as (segment, partition, messages) in their order."""
    counts: dict[int, int] = {}
    found = []
    for segment, partition, values in content:
        number = counts[segment] = counts.get(segment, -1) + 1
        topic = Topic.from_json(plan.outputs_of(segment)[0].target)
        about = {"micro_batch": plan.micro_batch, "epoch": 1}
        found.append(Packet(segment, number, topic, partition, words(*values), **about))
    return found


class LaneHarness(ABC):
    """One target, and what its readers see.

    Attributes:
        scheme: the registered name.
    """

    scheme: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @abstractmethod
    def uri(self) -> str:
        """The sink URI of the target; failures show quickly there."""

    @abstractmethod
    def received(self) -> list[bytes]:
        """Every message that is there, repeats too; those of a partition in their order."""

    @abstractmethod
    def break_for_now(self) -> None:
        """Make the target fail in a way that passes."""

    @abstractmethod
    def break_for_good(self) -> None:
        """Make the target fail in a way that no repetition cures."""

    def build(self, changefeed: str = FEED) -> LaneSink:
        """A sink as a new process builds it: from the JSON form of the spec, nothing else."""
        source = Uri.parse("range://127.0.0.1:1", "source")
        spec = ChangefeedSpec(changefeed, source, Uri.parse(self.uri(), "sink"))
        made: Any = SINKS.load(self.scheme)
        found: LaneSink = made(ChangefeedSpec.from_json(spec.to_json()), Words())
        return found

    def opened(self, epoch: int = 1, state: dict[str, Any] | None = None) -> LaneSink:
        sink = self.build()
        sink.open(Owner(FEED, epoch), state)
        return sink

    def plan(
        self,
        sink: LaneSink,
        number: int,
        *segments: Segment,
        changes: Sequence[SchemaChange] = (),
        watermark: int | None = None,
    ) -> Plan:
        """A plan through its JSON form: what runs is what was recorded."""
        stretch = Stretch(segments, tuple(changes), {}, watermark=watermark)
        outputs, state = sink.allocate(stretch, tables_of(stretch))
        return Plan.from_json(Plan(number, 1, 0, stretch, outputs, state).to_json())

    def publish(self, sink: LaneSink, plan: Plan) -> None:
        sink.publish(plan, [], tables_of(plan.stretch))


class HttpHarness(LaneHarness):
    """A receiver in this process."""

    scheme = "http"

    def __enter__(self) -> Self:
        self.receiver = HttpReceiver(self._tls()).__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.receiver.close()

    def uri(self) -> str:
        fast = "max-batch-rows=2&backoff=1ms&max-backoff=2ms&max-retry=3"
        return f"{self.receiver.uri}?{fast}&insecure-skip-verify=true"

    def received(self) -> list[bytes]:
        return [line for r in self.receiver.taken for line in r.body.splitlines()]

    def break_for_now(self) -> None:
        self.receiver.faults.extend([Refusal(503, words=b"busy")] * 100)

    def break_for_good(self) -> None:
        self.receiver.faults.extend([Refusal(403, words=b"keep out")] * 100)

    def _tls(self) -> ssl.SSLContext | None:
        return None


class HttpsHarness(HttpHarness):
    """The same with TLS."""

    scheme = "https"

    def _tls(self) -> ssl.SSLContext:
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        found.load_cert_chain(Certificates.make(self.folder).server)
        return found


class FlakyHttpHarness(HttpHarness):
    """Of every three requests two fail: before they were taken, or after (a lost answer)."""

    def __enter__(self) -> Self:
        super().__enter__()
        self.receiver.faults.extend(islice(self._faults(), 200))
        return self

    def uri(self) -> str:
        return super().uri().replace("max-retry=3", "max-retry=50")

    def _faults(self) -> Iterator[ReceiverFault | Refusal | None]:
        for fault in cycle([ReceiverFault.DROP, ReceiverFault.LOSE_ANSWER, Refusal(500)]):
            yield fault
            yield Refusal(429, {"Retry-After": "0"})
            yield None

    def received(self) -> list[bytes]:
        """The receiver tells repeats by their key."""
        return [line for r in self.receiver.once() for line in r.body.splitlines()]


class KafkaHarness(LaneHarness):
    """A broker that all tests share, with a topic of each test's own."""

    scheme = "kafka"
    broker: Kafka  # set by the fixture

    def __enter__(self) -> Self:
        self.topic = f"contract-{uuid4().hex}"
        self._built: list[Any] = []
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The topic stays: nobody else looks at it."""

    def uri(self) -> str:
        return f"kafka://{self.broker.bootstrap}/{self.topic}?write-timeout=300ms"

    def received(self) -> list[bytes]:
        if self.topic not in self.broker.topics():
            return []
        return [m.value or b"" for m in self.broker.read_all(self.topic)]

    def build(self, changefeed: str = FEED) -> LaneSink:
        found = super().build(changefeed)
        self._built.append(found)
        return found

    def break_for_now(self) -> None:
        for sink in self._built:  # its next connection finds nobody
            sink._settings.connection["bootstrap.servers"] = "127.0.0.1:1"

    def break_for_good(self) -> None:
        self.broker.forbid("WRITE", self.topic)


class KafkaTlsHarness(KafkaHarness):
    """The same with TLS."""

    scheme = "kafka+ssl"

    def uri(self) -> str:
        address = self.broker.address(KafkaListener.SSL)
        ca = self.broker.certificates.ca
        return f"kafka+ssl://{address}/{self.topic}?write-timeout=300ms&ca={ca}"


class KafkaOnceHarness(KafkaHarness):
    """In transactions: readers of committed messages see none twice."""

    def __enter__(self) -> Self:
        self._epoch = 1
        return super().__enter__()

    def uri(self) -> str:
        ledger = f"exactly-once=true&ledger-topic={self.topic}-ledger&transaction-lanes=2"
        return f"kafka://{self.broker.bootstrap}/{self.topic}?{ledger}"

    def build(self, changefeed: str = FEED) -> LaneSink:
        return cast(LaneSink, _OfEpoch(super().build(changefeed), lambda: self._epoch))

    def opened(self, epoch: int = 1, state: dict[str, Any] | None = None) -> LaneSink:
        self._epoch = epoch
        return super().opened(epoch, state)

    def received(self) -> list[bytes]:
        """No message is there twice in a partition."""
        if self.topic not in self.broker.topics():
            return []
        found = [(m.partition, m.value or b"") for m in self.broker.read_all(self.topic)]
        assert len(set(found)) == len(found)
        return [value for _, value in found]

    def publish(self, sink: LaneSink, plan: Plan) -> None:
        """An owner of before is refused, and changes nothing."""
        with suppress(Fenced):
            super().publish(sink, plan)


class _OfEpoch:
    """A sink whose tasks run for the present owner."""

    def __init__(self, sink: LaneSink, epoch: Callable[[], int]) -> None:
        self._sink, self._owner = sink, epoch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def deliver(self, packets: Iterator[Packet]) -> None:
        self._sink.deliver(replace(packet, epoch=self._owner()) for packet in packets)


class PulsarHarness(LaneHarness):
    """A broker that all tests share, with a topic of each test's own; it leaves repeats out."""

    scheme = "pulsar"
    broker: Pulsar  # set by the fixture

    def __enter__(self) -> Self:
        self.topic = f"contract-{uuid4().hex}"
        self._built: list[Any] = []
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sink in self._built:
            sink.close()

    def uri(self) -> str:
        web = f"web-service-url={self.broker.web_url}&deduplication=required"
        return f"pulsar://{self.broker.address}/{self.topic}?{web}"

    def received(self) -> list[bytes]:
        if self.topic not in self.broker.topics():
            return []
        return [m.value or b"" for m in self.broker.read_all(self.topic)]

    def build(self, changefeed: str = FEED) -> LaneSink:
        found = super().build(changefeed)
        self._built.append(found)
        return found

    def break_for_now(self) -> None:
        for sink in self._built:  # its next connection finds nobody
            sink.close()
            quick = PulsarOptions.read({"operation-timeout": "1s"})
            nobody = {"service_url": "pulsar://127.0.0.1:1", "options": quick}
            sink._settings = replace(sink._settings, **nobody)

    def break_for_good(self) -> None:
        self.broker.terminate_topic(self.topic)


class PulsarTlsHarness(PulsarHarness):
    """The same with TLS; brokers are looked up at the admin interface."""

    scheme = "pulsar+https"

    def uri(self) -> str:
        address, ca = self.broker.web_tls_url[8:], self.broker.certificates.ca
        return f"pulsar+https://{address}/{self.topic}?tls-trust-certs-file-path={ca}"


class MySqlHarness(LaneHarness):
    """Two tables behind a relay; a trigger writes down each row that comes, in its order.

    A word is a row; a schema change writes its query down; so does whatever moves the watermark.
    """

    scheme = "mysql"
    server: Server  # set by the fixture

    def __enter__(self) -> Self:
        self.relay = Relay(self.server.port).__enter__()
        self._meta = f"meta_{uuid4().hex}"
        self._epoch = 1
        self.server.script(
            "DROP DATABASE IF EXISTS shop",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id bigint PRIMARY KEY, note varchar(20))",
            "CREATE TABLE shop.items LIKE shop.orders",
            "CREATE TABLE shop.log (seq bigint AUTO_INCREMENT PRIMARY KEY, word varchar(40))",
            "CREATE TRIGGER shop.came AFTER INSERT ON shop.orders "
            "FOR EACH ROW INSERT INTO shop.log (word) VALUES (NEW.note)",
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.relay.__exit__(kind, err, trace)
        self.server.script(f"DROP DATABASE IF EXISTS {self._meta}")

    def uri(self) -> str:
        login = urlsplit(self.server.uri).netloc.rpartition(":")[0]
        return f"{self.scheme}://{login}:{self.relay.port}/?meta-database={self._meta}"

    def received(self) -> list[bytes]:
        found = self.server.execute("SELECT word FROM shop.log ORDER BY seq")
        return [str(row[0]).encode() for row in found]

    def break_for_now(self) -> None:
        self.relay.cut()

    def break_for_good(self) -> None:
        self.server.script("DROP TABLE shop.orders")

    def build(self, changefeed: str = FEED) -> LaneSink:
        return cast(LaneSink, _OfWords(super().build(changefeed), lambda: self._epoch))

    def opened(self, epoch: int = 1, state: dict[str, Any] | None = None) -> LaneSink:
        sink = super().opened(epoch, state)
        self._epoch = epoch
        self.server.script(
            f"CREATE TRIGGER IF NOT EXISTS {self._meta}.moved AFTER UPDATE ON "
            f"{self._meta}.rowferry_fence FOR EACH ROW INSERT INTO shop.log (word) "
            "SELECT NEW.commit_ts FROM DUAL WHERE NEW.commit_ts <> OLD.commit_ts"
        )
        return sink

    def plan(self, sink: LaneSink, number: int, *segments: Segment, **more: Any) -> Plan:
        plan = super().plan(sink, number, *segments, **more)
        changes = tuple(
            replace(c, query=f"INSERT INTO shop.log (word) VALUES ('{c.query}')")
            for c in plan.stretch.schema_changes
        )
        return plan.with_(stretch=replace(plan.stretch, schema_changes=changes))

    def publish(self, sink: LaneSink, plan: Plan) -> None:
        """An owner of before is refused, and changes nothing."""
        with suppress(Fenced):
            super().publish(sink, plan)


class _OfWords:
    """A sink of SQL rows that is given words: each is a row with its own key."""

    def __init__(self, sink: LaneSink, epoch: Callable[[], int]) -> None:
        self._sink, self._owner = sink, epoch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def deliver(self, packets: Iterator[Packet]) -> None:
        self._sink.deliver(replace(p, messages=_sql(p), epoch=self._owner()) for p in packets)


def _sql(packet: Packet) -> Encoded:
    return _framed(packet, b"%d,", b"(%d,'%s'),")


def _framed(packet: Packet, key: bytes, row: bytes) -> Encoded:
    said = packet.messages.values.to_pylist()
    keys = [key % crc32(word) for word in said]
    rows = [row % (crc32(word), word) for word in said]
    frame = RowFrame(
        ORDERS,
        np.full(len(said), Op.INSERT, np.int8),
        np.full(len(said), NOON, np.uint64),
        np.arange(len(said)) + (packet.segment << 40) + (packet.number << 20),
        pa.array(keys, pa.large_binary()),
        pa.array(rows, pa.large_binary()),
    )
    size, body = frame.to_parts()
    value = size + body.to_pybytes()
    return Encoded(pa.array([value], pa.large_binary()), pa.array([frame.head], pa.large_binary()))


class MySqlTlsHarness(MySqlHarness):
    """The same with TLS."""

    scheme = "mysql+ssl"


class LaneAfterLaneHarness(MySqlHarness):
    """Each lane in strict order, and how far it came is written down."""

    def uri(self) -> str:
        return f"{super().uri()}&exactly-once=true"


class PostgresqlHarness(LaneHarness):
    """Two tables behind a relay; triggers write down each row that comes, in its order.

    A word is a row; a schema change is a comment, which is written down; so is whatever moves the
    watermark.
    """

    scheme = "postgresql"
    server: Postgres  # set by the fixture

    def __enter__(self) -> Self:
        self.relay = Relay(self.server.port).__enter__()
        self._database = f"contract_{uuid4().hex}"
        self._epoch = 1
        self._built: list[LaneSink] = []
        self.server.execute(f"CREATE DATABASE {self._database}")
        for statement in (
            "CREATE SCHEMA shop",
            "CREATE TABLE shop.orders (id bigint PRIMARY KEY, note varchar(20))",
            "CREATE TABLE shop.items (id bigint PRIMARY KEY, note varchar(20))",
            "CREATE TABLE shop.log (seq bigserial PRIMARY KEY, word text)",
            "CREATE FUNCTION shop.came() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN INSERT INTO shop.log (word) VALUES (NEW.note); RETURN NEW; END$$",
            "CREATE TRIGGER came AFTER INSERT ON shop.orders FOR EACH ROW "
            "EXECUTE FUNCTION shop.came()",
            "CREATE FUNCTION shop.said() RETURNS event_trigger LANGUAGE plpgsql AS "
            "$$BEGIN INSERT INTO shop.log (word) "
            "VALUES (obj_description('shop.orders'::regclass)); END$$",
            "CREATE EVENT TRIGGER said ON ddl_command_end WHEN TAG IN ('COMMENT') "
            "EXECUTE FUNCTION shop.said()",
            "CREATE FUNCTION shop.moved() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN INSERT INTO shop.log (word) VALUES (NEW.commit_ts::text); RETURN NEW; END$$",
        ):
            self.server.execute(statement, self._database)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sink in self._built:
            sink.close()
        self.relay.__exit__(kind, err, trace)
        self.server.execute(f"DROP DATABASE {self._database} WITH (FORCE)")

    def uri(self) -> str:
        login = urlsplit(self.server.url(self._database)).netloc.rpartition(":")[0]
        return f"{self.scheme}://{login}:{self.relay.port}/{self._database}"

    def received(self) -> list[bytes]:
        found = self.server.execute("SELECT word FROM shop.log ORDER BY seq", self._database)
        return [str(row[0]).encode() for row in found]

    def break_for_now(self) -> None:
        self.relay.cut()

    def break_for_good(self) -> None:
        self.server.execute("DROP TABLE shop.orders", self._database)

    def build(self, changefeed: str = FEED) -> LaneSink:
        self._built.append(super().build(changefeed))
        return cast(LaneSink, _OfLines(self._built[-1], lambda: self._epoch))

    def opened(self, epoch: int = 1, state: dict[str, Any] | None = None) -> LaneSink:
        sink = super().opened(epoch, state)
        self._epoch = epoch
        self.server.execute(
            "CREATE OR REPLACE TRIGGER moved AFTER UPDATE ON rowferry.rowferry_fence FOR EACH ROW "
            "WHEN (NEW.commit_ts <> OLD.commit_ts) EXECUTE FUNCTION shop.moved()",
            self._database,
        )
        return sink

    def plan(self, sink: LaneSink, number: int, *segments: Segment, **more: Any) -> Plan:
        plan = super().plan(sink, number, *segments, **more)
        changes = tuple(
            replace(
                c,
                kind=DdlKind.TABLE_COMMENT,
                schema=replace(ORDERS, comment=c.query),
                query=f"ALTER TABLE shop.orders COMMENT = '{c.query}'",
            )
            for c in plan.stretch.schema_changes
        )
        return plan.with_(stretch=replace(plan.stretch, schema_changes=changes))

    def publish(self, sink: LaneSink, plan: Plan) -> None:
        """An owner of before is refused, and changes nothing."""
        with suppress(Fenced):
            super().publish(sink, plan)


class PostgresqlTlsHarness(PostgresqlHarness):
    """The same with TLS."""

    scheme = "postgresql+ssl"

    def uri(self) -> str:
        return f"{super().uri()}?ssl-ca={self.server.certificates.ca}"


class _OfLines(_OfWords):
    """A sink of lines that is given words: each is a row with its own key."""

    def deliver(self, packets: Iterator[Packet]) -> None:
        self._sink.deliver(
            replace(p, messages=_framed(p, b"%d\n", b"%d\t%s\n"), epoch=self._owner())
            for p in packets
        )


LANE_HARNESSES: dict[str, Callable[[Path], LaneHarness]] = {
    "http": HttpHarness,
    "http+flaky": FlakyHttpHarness,
    "https": HttpsHarness,
    "kafka": KafkaHarness,
    "kafka+exactly-once": KafkaOnceHarness,
    "kafka+ssl": KafkaTlsHarness,
    "mysql": MySqlHarness,
    "mysql+exactly-once": LaneAfterLaneHarness,
    "mysql+ssl": MySqlTlsHarness,
    "postgresql": PostgresqlHarness,
    "postgresql+ssl": PostgresqlTlsHarness,
    "pulsar": PulsarHarness,
    "pulsar+https": PulsarTlsHarness,
}
