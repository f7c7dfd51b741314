"""The literal tables of sources, codecs and sinks: where the class of each name is.

No other module switches on a name. A new one is its module, one line here, its vectors and a
harness in the contract tests.
"""

from __future__ import annotations

from typing import Final

# URI schemes of sources.
SOURCES: Final = {
    "mariadb": "rowferry.flow.capture.binlog.source:BinlogSource",
    "mysql": "rowferry.flow.capture.binlog.source:BinlogSource",
    "range": "rowferry.flow.capture.range_log.source:RangeSource",
    "range+ssl": "rowferry.flow.capture.range_log.source:RangeSource",
}

# Values of `protocol`.
CODECS: Final = {
    "avro": "rowferry.flow.encode.avro.codec:Avro",
    "canal": "rowferry.flow.encode.canal.codec:Canal",
    "canal-json": "rowferry.flow.encode.canal_json.codec:CanalJson",
    "csv": "rowferry.flow.encode.csv.codec:Csv",
    "debezium": "rowferry.flow.encode.debezium.codec:Debezium",
    "debezium-avro": "rowferry.flow.encode.debezium_avro.codec:DebeziumAvro",
    "json": "rowferry.flow.encode.plain_json.codec:PlainJson",
    "open-protocol": "rowferry.flow.encode.open_protocol.codec:OpenProtocol",
    "simple": "rowferry.flow.encode.simple.codec:Simple",
}

# Codecs of one sink each, its `default_protocol`: nobody can choose them.
OWN_CODECS: Final = {
    "copy-rows": "rowferry.flow.encode.copy_rows.codec:CopyRows",
    "search-documents": "rowferry.flow.encode.search_documents.codec:SearchDocuments",
    "sql-rows": "rowferry.flow.encode.sql_rows.codec:SqlRows",
}

# Values of `protocol` that make whole files of rows.
ROW_FORMATS: Final = {
    "parquet": "rowferry.flow.encode.parquet.format:Parquet",
}

# URI schemes of sinks.
SINKS: Final = {
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
}


def protocols() -> list[str]:
    """Return every protocol that users may write, sorted."""
    return sorted([*CODECS, *ROW_FORMATS])
