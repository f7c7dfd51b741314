"""`python -m rowferry.testing.servers` fetches every server, so that tests find them there.

All but what takes long and few tests need: `… tidb` builds TiDB, `… spark` fetches older versions
of Spark (which the rest lane does meanwhile), `… lake` one with the libraries of Delta and Iceberg.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from rowferry.errors import RowferryError
from rowferry.testing.servers.chromium import Chromium
from rowferry.testing.servers.flavours import MariaDb, MariaDb11, MySql
from rowferry.testing.servers.iceberg_rest import IcebergRest
from rowferry.testing.servers.kafka import Kafka
from rowferry.testing.servers.objects.azurite import Azurite
from rowferry.testing.servers.objects.gcs import FakeGcs
from rowferry.testing.servers.objects.minio import Minio
from rowferry.testing.servers.opensearch import OpenSearch
from rowferry.testing.servers.postgres import Postgres
from rowferry.testing.servers.prometheus import Prometheus
from rowferry.testing.servers.pulsar import Pulsar
from rowferry.testing.servers.queues.amazon import Amazon
from rowferry.testing.servers.queues.nats_server import NatsServer
from rowferry.testing.servers.queues.rabbitmq import RabbitMq
from rowferry.testing.servers.queues.redis_server import RedisServer
from rowferry.testing.servers.registry import SchemaRegistryServer
from rowferry.testing.servers.spark.classes import SparkClasses
from rowferry.testing.servers.spark.lake_engine import LAKE_JARS, LAKE_SPARK
from rowferry.testing.servers.spark.releases import SPARK_RELEASES
from rowferry.testing.servers.tidb import TiDb

# Minio first: it is built from its sources, which takes longest.
FETCHED: Final[tuple[Any, ...]] = (
    *(Minio, MySql, MariaDb, MariaDb11, Postgres, Kafka, SchemaRegistryServer, FakeGcs, Azurite),
    *(IcebergRest, Chromium, Prometheus, Pulsar, OpenSearch),
    *(RedisServer, NatsServer, RabbitMq, Amazon),
)


def main() -> int:
    """Fetch what is missing and say where it is; return the exit code."""
    kinds = (*FETCHED, SparkClasses)
    if sys.argv[1:] == ["spark"]:
        kinds = SPARK_RELEASES
    elif sys.argv[1:] == ["lake"]:
        kinds = (LAKE_SPARK, LAKE_JARS)
    elif sys.argv[1:] == ["tidb"]:
        kinds = (TiDb,)
        if not TiDb.is_there():
            print("building TiDB from its sources: 10 to 30 minutes, once", flush=True)
    with ThreadPoolExecutor(2) as workers:
        try:
            for folder in workers.map(lambda kind: kind.ensure().parent, kinds):
                print(f"{folder.name}: {folder}")
        except RowferryError as err:
            print(err, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
