"""Real servers for tests and benchmarks, fetched, started and stopped here.

In: a folder and settings. Out: a server that answers on 127.0.0.1: MySQL and MariaDB with an
administrator's login, PostgreSQL, Kafka, Pulsar, a schema registry, an Iceberg catalog, OpenSearch,
object stores (S3, GCS, Azure), and in `queues` Redis, NATS, RabbitMQ, SQS and Kinesis.
And a browser, for the web page, and Prometheus, for metrics and alert rules.
Nothing is installed on the machine; programs are kept in a cache folder that later runs use.
"""

from rowferry.testing.servers.chromium import Chromium
from rowferry.testing.servers.flavours import (
    MariaDb,
    MariaDb11,
    MySql,
    ensure_mariadb,
    ensure_mysql,
)
from rowferry.testing.servers.iceberg_rest import IcebergRest
from rowferry.testing.servers.kafka import Kafka, KafkaListener, Message
from rowferry.testing.servers.objects.azurite import Azurite
from rowferry.testing.servers.objects.gcs import FakeGcs
from rowferry.testing.servers.objects.minio import Minio
from rowferry.testing.servers.objects.object_server import ObjectServer
from rowferry.testing.servers.opensearch import OpenSearch
from rowferry.testing.servers.postgres import Postgres
from rowferry.testing.servers.prometheus import Prometheus, promtool
from rowferry.testing.servers.pulsar import Pulsar, StoredMessage
from rowferry.testing.servers.registry import SchemaRegistryServer
from rowferry.testing.servers.relay import Relay
from rowferry.testing.servers.replication import promote, replicate, wait_for
from rowferry.testing.servers.server import Row, Server
from rowferry.testing.servers.sysbench import sysbench_table
from rowferry.testing.servers.tidb import TiDb
from rowferry.testing.servers.tokens import TokenEndpoint

__all__ = [
    "Azurite",
    "Chromium",
    "FakeGcs",
    "IcebergRest",
    "Kafka",
    "KafkaListener",
    "MariaDb",
    "MariaDb11",
    "Message",
    "Minio",
    "MySql",
    "ObjectServer",
    "OpenSearch",
    "Postgres",
    "Prometheus",
    "Pulsar",
    "SchemaRegistryServer",
    "Relay",
    "Row",
    "Server",
    "StoredMessage",
    "TiDb",
    "TokenEndpoint",
    "ensure_mariadb",
    "ensure_mysql",
    "promote",
    "promtool",
    "replicate",
    "sysbench_table",
    "wait_for",
]
