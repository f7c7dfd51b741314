"""A NATS server with JetStream; Debian's package."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from rowferry.testing.servers.child import HOST
from rowferry.testing.servers.packages import Packages
from rowferry.testing.servers.queues.queue_server import QueuedMessage, QueueServer

T = TypeVar("T")
USER, PASSWORD = "feed", "of-tests-only"


class NatsServer(QueueServer):
    """It stores messages in files; clients may speak TLS at its one port.

    The user `limited` may ask, and send to no subject but those of the interface.
    """

    fetched: ClassVar = Packages("nats-server-2", "sid", ("nats-server",))

    def command(self) -> list[str]:
        """Return the command that starts it."""
        self.tls_port = self.port
        made, asks = self.certificates, ["$JS.>", "_INBOX.>"]
        config = {
            "host": HOST,
            "port": self.port,
            "server_name": "rowferry",
            "jetstream": {"store_dir": str(self.folder / "data"), "sync_interval": "always"},
            "allow_non_tls": True,
            "tls": {
                "cert_file": str(made.server),
                "key_file": str(made.server),
                "ca_file": str(made.ca),
            },
            "authorization": {
                "users": [
                    {"user": USER, "password": PASSWORD},
                    {
                        "user": "limited",
                        "password": PASSWORD,
                        "permissions": {"publish": asks, "subscribe": asks},
                    },
                ]
            },
        }
        file = self.folder / "nats.conf"
        file.write_text(json.dumps(config))
        return [*self.fetched.program("usr/sbin/nats-server"), "-c", str(file)]

    def ask(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Do something with a client."""

        async def quiet(_: Exception) -> None:
            """What fails is raised as well; else the library prints it."""

        async def connected() -> T:
            client = await nats.connect(
                f"nats://{self.address}",
                user=USER,
                password=PASSWORD,
                allow_reconnect=False,
                error_cb=quiet,
            )
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(connected())

    def answers(self) -> bool:
        """Whether JetStream can be asked."""

        async def look(client: Client) -> bool:
            await client.jetstream(timeout=5).account_info()
            return True

        try:
            return self.ask(look)
        except (NatsError, OSError):
            return False

    def read_all(self, topic: str) -> list[QueuedMessage]:
        """Return every message of a topic's streams."""

        async def read(client: Client) -> list[QueuedMessage]:
            js = client.jetstream(timeout=30)
            messages: list[QueuedMessage] = []
            partition = 0
            while True:
                name = f"{topic.replace('.', '_')}-{partition}"
                try:
                    state = (await js.stream_info(name)).state
                except NotFoundError:
                    return messages
                for seq in range(max(state.first_seq, 1), state.last_seq + 1):
                    message = await js.get_msg(name, seq=seq)
                    headers = message.headers or {}
                    key = (
                        base64.b64decode(headers["Rowferry-Key"])
                        if "Rowferry-Key" in headers
                        else None
                    )
                    value = None if "Rowferry-No-Value" in headers else message.data or b""
                    messages.append(
                        QueuedMessage(partition, key, value, headers.get("Nats-Msg-Id", ""))
                    )
                partition += 1

        return self.ask(read)

    def delete_topic(self, topic: str) -> None:
        """Delete the streams of a topic, as an operator would."""

        async def delete(client: Client) -> None:
            js = client.jetstream(timeout=30)
            partition = 0
            try:
                while await js.delete_stream(f"{topic.replace('.', '_')}-{partition}"):
                    partition += 1
            except NotFoundError:
                return

        self.ask(delete)

    def seal(self, stream: str) -> None:
        """Let a stream take no message any more."""

        async def change(client: Client) -> None:
            js = client.jetstream(timeout=30)
            config = (await js.stream_info(stream)).config
            await js.update_stream(config.evolve(sealed=True))

        self.ask(change)
