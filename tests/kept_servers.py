"""One set of servers for all processes of a run.

The run of a lane keeps them: it starts each one at its first demand, and ends all when it ends in
any way. A process of the run asks for a server by its name and gets it as if it had started it,
except that it cannot end it. Without a run, a pytest keeps servers of its own.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers import (
    Azurite,
    FakeGcs,
    IcebergRest,
    Kafka,
    KafkaListener,
    MariaDb,
    MariaDb11,
    Minio,
    MySql,
    OpenSearch,
    Postgres,
    Pulsar,
    SchemaRegistryServer,
)
from rowferry.testing.servers.child import HOST, Living
from rowferry.testing.servers.queues.amazon import Amazon
from rowferry.testing.servers.queues.nats_server import NatsServer
from rowferry.testing.servers.queues.rabbitmq import RabbitMq
from rowferry.testing.servers.queues.redis_server import RedisServer

_RIGHTS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
# The name is that of the server's folder, too.
STARTS: Final[dict[str, Callable[[Path], Living]]] = {
    "mysql": lambda folder: MySql.start(folder, server_id=101),
    "mariadb": lambda folder: MariaDb.start(folder, server_id=102),
    "mariadb11": lambda folder: MariaDb11.start(folder, server_id=103),
    "postgres": Postgres.start,
    "kafka": Kafka.start,
    "guarded": lambda folder: Kafka.start(folder, _RIGHTS, tuple(KafkaListener)),
    "pulsar": Pulsar.start,
    "amazon": Amazon.start,
    "nats": NatsServer.start,
    "rabbitmq": RabbitMq.start,
    "redis": RedisServer.start,
    "registry": SchemaRegistryServer.start,
    "opensearch": OpenSearch.start,
    "iceberg": IcebergRest.start,
    "s3": Minio.start,
    "gcs": FakeGcs.start,
    "azure": Azurite.start,
}
_NOTE: Final = "keeper.json"  # in the folder of the run: where the keeper listens, and its key


class Servers(Protocol):
    """Servers by name."""

    def get(self, name: str) -> Living:
        """Return a running server; the same one each time.

        Raises:
            SourceUnavailable: it cannot be had, or does not start.
        """


class KeptServers:
    """Starts a server when it is asked for; all end with the block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._running: dict[str, Living] = {}
        self._turns = {name: threading.Lock() for name in STARTS}

    def get(self, name: str) -> Living:
        """Return a running server; several can start at the same time."""
        with self._turns[name]:
            if name not in self._running:
                started = STARTS[name](self._folder / name)
                self._running[name] = self._stack.enter_context(started)
            return self._running[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


class Keeper:
    """Lends servers to the processes that know the folder of the run; ends with its block."""

    def __init__(self, run: Path) -> None:
        self._servers = KeptServers(run / "servers")
        self._key = secrets.token_bytes(32)
        self._listener = Listener((HOST, 0), authkey=self._key)
        note = run / _NOTE
        note.touch(0o600)
        _, self._port = self._listener.address
        note.write_text(json.dumps([self._port, self._key.hex()]))
        self._over = False
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over = True
        with suppress(OSError):  # it wakes who listens
            socket.create_connection((HOST, int(self._port)), timeout=5).close()
        self._thread.join(5)
        self._listener.close()
        self._servers.__exit__(kind, error, trace)

    def _listen(self) -> None:
        while not self._over:
            try:
                asked = self._listener.accept()
            except (EOFError, OSError, AuthenticationError):
                continue  # it hung up, or does not know the key
            # A server takes seconds to start: nobody waits for another one's.
            threading.Thread(target=self._answer, args=(asked,), daemon=True).start()

    def _answer(self, asked: Connection) -> None:
        with asked, suppress(EOFError, OSError):  # who asked may be gone
            name = asked.recv()
            try:
                asked.send(self._servers.get(name))
            except SourceUnavailable as err:
                asked.send(str(err))


class LentServers:
    """The servers that the keeper of a run lends."""

    def __init__(self, run: Path) -> None:
        port, key = json.loads((run / _NOTE).read_text())
        self._address, self._key = (HOST, port), bytes.fromhex(key)
        self._known: dict[str, Living] = {}

    def get(self, name: str) -> Living:
        """Return a running server that the keeper started."""
        if name not in self._known:
            with Client(self._address, authkey=self._key) as keeper:
                keeper.send(name)
                found = keeper.recv()
            if not isinstance(found, Living):
                raise SourceUnavailable(found)
            self._known[name] = found
        return self._known[name]
