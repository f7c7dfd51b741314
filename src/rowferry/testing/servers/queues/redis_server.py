"""A Redis server; Debian's package."""

from __future__ import annotations

from typing import ClassVar

import redis

from rowferry.testing.servers.child import HOST
from rowferry.testing.servers.packages import Packages
from rowferry.testing.servers.queues.queue_server import QueuedMessage, QueueServer


class RedisServer(QueueServer):
    """It keeps all that it has answered, with TLS at a second port."""

    fetched: ClassVar = Packages("redis-7", "bookworm", ("redis-server",))

    def command(self) -> list[str]:
        """Return the command that starts it."""
        made = self.certificates
        settings = {
            "bind": HOST,
            "port": self.port,
            "tls-port": self.tls_port,
            "tls-cert-file": made.server,
            "tls-key-file": made.server,
            "tls-ca-cert-file": made.ca,
            "tls-auth-clients": "no",
            "dir": self.folder / "data",
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        return [*self.fetched.program("usr/bin/redis-server"), *words]

    def client(self) -> redis.Redis:
        """Return a client."""
        return redis.Redis(host=HOST, port=self.port, socket_timeout=30)

    def answers(self) -> bool:
        """Whether it can be asked."""
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def read_all(self, topic: str) -> list[QueuedMessage]:
        """Return every entry of a topic's streams."""
        messages: list[QueuedMessage] = []
        with self.client() as client:
            partition = 0
            while client.exists(f"{topic}:{partition}"):
                for _, entry in client.xrange(f"{topic}:{partition}"):
                    fields = (entry.get(b"key"), entry.get(b"value"), entry[b"id"].decode())
                    messages.append(QueuedMessage(partition, *fields))
                partition += 1
        return messages

    def delete_topic(self, topic: str) -> None:
        """Delete the streams of a topic, as an operator would."""
        with self.client() as client:
            client.delete(*client.keys(f"{topic}:*"))
