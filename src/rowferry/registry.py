"""The literal tables of sources, codecs and sinks. No other module switches on a name.

A new one is its module, one line here, its vectors and a harness in the contract tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from rowferry.errors import MissingLibrary, UnknownName

if TYPE_CHECKING:
    from rowferry.flow.capture.contract import Source
    from rowferry.flow.encode.contract import Codec, Format, RowFormat
    from rowferry.flow.sink.contract import Sink

T = TypeVar("T")

# Libraries that come with an extra: the name under which each is imported, and the extra.
EXTRAS: Final = {
    "amqp": "rabbitmq",
    "confluent_kafka": "kafka",
    "fastapi": "server",
    "joserfc": "server",
    "nats": "nats",
    "obstore": "object-storage",
    "prometheus_client": "server",
    "psycopg": "postgres",
    "pulsar": "pulsar",
    "pyiceberg": "iceberg",
    "pymysql": "mysql",
    "redis": "redis",
    "uvicorn": "server",
}


@contextmanager
def extras_named(what: str) -> Iterator[None]:
    """Run a block that imports; a library of an extra that is missing is told by that extra.

    Raises:
        MissingLibrary: with the line that installs it; `what` is the part that needs it.
    """
    try:
        yield
    except ModuleNotFoundError as err:
        library = (err.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        raise MissingLibrary(
            f"{what} needs the library {library}, which is not installed here; run: "
            f"pip install 'rowferry[{EXTRAS[library]}]'"
        ) from err


class Registry(Generic[T]):
    """Names to classes, imported when first asked for."""

    def __init__(self, what: str, places: dict[str, str]) -> None:
        self.what = what
        self._places = places

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        return sorted(self._places)

    def load(self, name: str) -> type[T]:
        """Return the class of that name.

        Raises:
            UnknownName: nothing of that name; the text lists the known ones.
            MissingLibrary: its library comes with an extra and is not installed.
        """
        place = self._places.get(name)
        if place is None:
            known = ", ".join(self.names())
            raise UnknownName(f"unknown {self.what} {name!r}; known: {known}")
        module, _, attribute = place.partition(":")
        with extras_named(f"{self.what} {name}"):
            return cast("type[T]", getattr(import_module(module), attribute))


# URI schemes of sources.
SOURCES: Registry[Source] = Registry(
    "source",
    {
        "mariadb": "rowferry.flow.capture.binlog.source:BinlogSource",
        "mysql": "rowferry.flow.capture.binlog.source:BinlogSource",
        "range": "rowferry.flow.capture.range_log.source:RangeSource",
        "range+ssl": "rowferry.flow.capture.range_log.source:RangeSource",
    },
)

# Values of `protocol`.
CODECS: Registry[Codec] = Registry(
    "protocol",
    {
        "avro": "rowferry.flow.encode.avro.codec:Avro",
        "canal": "rowferry.flow.encode.canal.codec:Canal",
        "canal-json": "rowferry.flow.encode.canal_json.codec:CanalJson",
        "copy-rows": "rowferry.flow.encode.copy_rows.codec:CopyRows",
        "csv": "rowferry.flow.encode.csv.codec:Csv",
        "debezium": "rowferry.flow.encode.debezium.codec:Debezium",
        "debezium-avro": "rowferry.flow.encode.debezium_avro.codec:DebeziumAvro",
        "json": "rowferry.flow.encode.plain_json.codec:PlainJson",
        "open-protocol": "rowferry.flow.encode.open_protocol.codec:OpenProtocol",
        "search-documents": "rowferry.flow.encode.search_documents.codec:SearchDocuments",
        "simple": "rowferry.flow.encode.simple.codec:Simple",
        "sql-rows": "rowferry.flow.encode.sql_rows.codec:SqlRows",
    },
)

# Values of `protocol` that make whole files of rows.
ROW_FORMATS: Registry[RowFormat] = Registry(
    "protocol",
    {
        "parquet": "rowferry.flow.encode.parquet.format:Parquet",
    },
)


def load_format(name: str) -> type[Format]:
    """Return the class of a protocol, of messages or of rows.

    Raises:
        UnknownName: nothing of that name; the text lists the known ones.
    """
    return ROW_FORMATS.load(name) if name in ROW_FORMATS.names() else CODECS.load(name)


# URI schemes of sinks.
SINKS: Registry[Sink] = Registry(
    "sink",
    {
        "azblob": "rowferry.flow.sink.storage.object_storage:AzureSink",
        "azure": "rowferry.flow.sink.storage.object_storage:AzureSink",
        "blackhole": "rowferry.flow.sink.blackhole:Blackhole",
        "delta+azure": "rowferry.flow.sink.lake.delta.object_sinks:DeltaAzureSink",
        "delta+file": "rowferry.flow.sink.lake.delta.sink:DeltaSink",
        "delta+gs": "rowferry.flow.sink.lake.delta.object_sinks:DeltaGcsSink",
        "delta+s3": "rowferry.flow.sink.lake.delta.object_sinks:DeltaS3Sink",
        "es": "rowferry.flow.sink.search.sink:SearchSink",
        "es+ssl": "rowferry.flow.sink.search.sink:SearchSink",
        "file": "rowferry.flow.sink.storage.sink:StorageSink",
        "gcs": "rowferry.flow.sink.storage.object_storage:GcsSink",
        "gs": "rowferry.flow.sink.storage.object_storage:GcsSink",
        "http": "rowferry.flow.sink.http.sink:HttpSink",
        "https": "rowferry.flow.sink.http.sink:HttpSink",
        "iceberg+azure": "rowferry.flow.sink.lake.iceberg.object_sinks:IcebergAzureSink",
        "iceberg+file": "rowferry.flow.sink.lake.iceberg.sink:IcebergSink",
        "iceberg+gs": "rowferry.flow.sink.lake.iceberg.object_sinks:IcebergGcsSink",
        "iceberg+s3": "rowferry.flow.sink.lake.iceberg.object_sinks:IcebergS3Sink",
        "kafka": "rowferry.flow.sink.kafka.sink:KafkaSink",
        "kafka+ssl": "rowferry.flow.sink.kafka.sink:KafkaSink",
        "kinesis": "rowferry.flow.sink.queue.kinesis:KinesisSink",
        "mysql": "rowferry.flow.sink.mysql.sink:MySqlSink",
        "mysql+ssl": "rowferry.flow.sink.mysql.sink:MySqlSink",
        "nats": "rowferry.flow.sink.queue.jetstream:NatsSink",
        "nats+ssl": "rowferry.flow.sink.queue.jetstream:NatsSink",
        "opensearch": "rowferry.flow.sink.search.sink:SearchSink",
        "opensearch+ssl": "rowferry.flow.sink.search.sink:SearchSink",
        "postgresql": "rowferry.flow.sink.postgresql.sink:PostgresqlSink",
        "postgresql+ssl": "rowferry.flow.sink.postgresql.sink:PostgresqlSink",
        "pulsar": "rowferry.flow.sink.pulsar.sink:PulsarSink",
        "pulsar+http": "rowferry.flow.sink.pulsar.sink:PulsarSink",
        "pulsar+https": "rowferry.flow.sink.pulsar.sink:PulsarSink",
        "pulsar+ssl": "rowferry.flow.sink.pulsar.sink:PulsarSink",
        "rabbitmq": "rowferry.flow.sink.queue.rabbitmq:RabbitMqSink",
        "rabbitmq+ssl": "rowferry.flow.sink.queue.rabbitmq:RabbitMqSink",
        "redis": "rowferry.flow.sink.queue.redis_streams:RedisSink",
        "redis+ssl": "rowferry.flow.sink.queue.redis_streams:RedisSink",
        "s3": "rowferry.flow.sink.storage.object_storage:S3Sink",
        "sqs": "rowferry.flow.sink.queue.sqs:SqsSink",
        "tidb": "rowferry.flow.sink.mysql.sink:MySqlSink",
        "tidb+ssl": "rowferry.flow.sink.mysql.sink:MySqlSink",
    },
)
