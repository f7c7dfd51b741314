"""A RabbitMQ broker; Debian's packages, with the Erlang that they bring."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import amqp

from rowferry.testing.servers.child import HOST, Elsewhere, end, free_ports, spawn
from rowferry.testing.servers.packages import Packages
from rowferry.testing.servers.queues.queue_server import QueuedMessage, QueueServer

USER, PASSWORD = "feed", "of-tests-only"
_ERLANG: Final = "usr/lib/erlang"
_HOME: Final = "usr/lib/rabbitmq/lib"
_WAIT_S: Final = 30.0


class RabbitMq(QueueServer):
    """One node, with TLS at a second port.

    The user `feed` may do everything, the user `limited` may read.
    """

    fetched: ClassVar = Packages("rabbitmq-3", "bookworm", ("rabbitmq-server",))

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._ports = free_ports(2)  # of the directory of nodes, and of the node among others
        self._directory: subprocess.Popen[bytes] | Elsewhere | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_directory": None}

    def command(self) -> list[str]:
        """Return the command that starts it."""
        if self._directory is None:
            words = ["-port", str(self._ports[0]), "-address", HOST]
            program = f"{self._erlang_bin}/epmd"
            self._directory = spawn([program, *words], self.folder / "epmd.err")
        made = self.certificates
        settings = {
            "listeners.tcp.default": f"{HOST}:{self.port}",
            "listeners.ssl.default": f"{HOST}:{self.tls_port}",
            "ssl_options.cacertfile": made.ca,
            "ssl_options.certfile": made.server,
            "ssl_options.keyfile": made.server,
            "ssl_options.verify": "verify_none",
            "load_definitions": self.folder / "users.json",
            "loopback_users": "none",
            "log.console": "true",
            "log.console.level": "warning",
            "log.file": "false",
            "disk_free_limit.absolute": "1MB",
        }
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (self.folder / "rabbitmq.conf").write_text("".join(lines))
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "users.json").write_text(json.dumps(_users()))
        # What Erlang's own starter would say; it knows no other place than /usr/lib/erlang.
        starter = ["-A", "8", "--", "-root", str(self._erlang)]
        starter += ["-bindir", self._erlang_bin, "-progname", "erl", "--"]
        starter += ["-home", str(self.folder), "--", "-pa", "", "-noinput", "-s", "rabbit", "boot"]
        starter += ["-epmd_port", str(self._ports[0])]
        starter += ["-boot", "start_sasl", "-syslog", "logger", "[]"]
        starter += ["-syslog", "syslog_error_logger", "false"]
        starter += ["-kernel", "prevent_overlapping_partitions", "false"]
        program = f"{_ERLANG}/{Path(self._erlang_bin).parent.name}/bin/beam.smp"
        return [*self.fetched.program(program), *starter]

    def environment(self) -> dict[str, str]:
        """Return its environment."""
        (home,) = (self.fetched.folder / _HOME).glob("rabbitmq_server-*")
        directory, node = self._ports
        return {
            **os.environ,
            "HOME": str(self.folder),
            "ROOTDIR": str(self._erlang),
            "BINDIR": self._erlang_bin,
            "EMU": "beam",
            "PROGNAME": "erl",
            "ERL_CRASH_DUMP": str(self.folder / "erl_crash.dump"),
            "ERL_LIBS": str(home / "plugins"),
            "ERL_EPMD_PORT": str(directory),
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_MAX_ETS_TABLES": "50000",
            "RABBITMQ_HOME": str(home),
            "RABBITMQ_PLUGINS_DIR": str(home / "plugins"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_NODENAME": "rowferry@localhost",
            "RABBITMQ_DIST_PORT": str(node),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
        }

    def kill(self) -> None:
        """End it at once, and its directory of nodes. On repeat: nothing."""
        super().kill()
        directory, self._directory = self._directory, None
        if isinstance(directory, subprocess.Popen):
            end(directory, signal.SIGKILL)

    @property
    def _erlang(self) -> Path:
        return self.fetched.folder / _ERLANG

    @property
    def _erlang_bin(self) -> str:
        (place,) = self._erlang.glob("erts-*/bin")
        return str(place)

    # --- access ----------------------------------------------------------------------------------

    def client(self) -> amqp.Connection:
        """Return a connection."""
        connection = amqp.Connection(
            self.address, userid=USER, password=PASSWORD, connect_timeout=10, read_timeout=_WAIT_S
        )
        connection.connect()
        return connection

    def answers(self) -> bool:
        """Whether it can be asked."""
        try:
            self.client().close()
        except (OSError, amqp.AMQPError):
            return False
        return True

    def read_all(self, topic: str) -> list[QueuedMessage]:
        """Return every message of a topic's queues; they stay there."""
        messages: list[QueuedMessage] = []
        partition = 0
        while (left := self.length(f"{topic}.{partition}")) is not None:
            connection = self.client()  # messages that were taken go back when it ends
            channel = connection.channel()
            for _ in range(left):
                message = channel.basic_get(f"{topic}.{partition}", no_ack=False)
                if message is None:
                    break
                properties = message.properties
                headers = properties.get("application_headers") or {}
                body = message.body
                value = body.encode() if isinstance(body, str) else bytes(body)
                key = headers.get("rowferry-key")
                key = key.encode() if isinstance(key, str) else key
                tombstone = "rowferry-no-value" in headers
                given = None if tombstone else value
                messages.append(QueuedMessage(partition, key, given, properties["message_id"]))
            connection.close()
            partition += 1
        return messages

    def length(self, queue: str) -> int | None:
        """Return how many messages wait in a queue; None: there is none."""
        connection = self.client()
        try:
            return int(connection.channel().queue_declare(queue, passive=True).message_count)
        except amqp.NotFound:
            return None
        finally:
            with suppress(OSError, amqp.AMQPError):
                connection.close()

    def delete_topic(self, topic: str) -> None:
        """Delete the queues of a topic, as an operator would."""
        connection = self.client()
        partition = 0
        while self.length(f"{topic}.{partition}") is not None:
            connection.channel().queue_delete(f"{topic}.{partition}")
            partition += 1
        connection.close()


def _users() -> dict[str, Any]:
    """Return who may do what, as the broker reads it when it starts."""
    salt = os.urandom(4)
    hashed = base64.b64encode(salt + hashlib.sha256(salt + PASSWORD.encode()).digest()).decode()
    about = {"password_hash": hashed, "hashing_algorithm": "rabbit_password_hashing_sha256"}
    rights = {USER: (".*", ".*", ".*"), "limited": ("", "", ".*")}
    kinds = ("configure", "write", "read")
    return {
        "vhosts": [{"name": "/"}],
        "users": [{"name": name, "tags": "", **about} for name in rights],
        "permissions": [
            {"user": name, "vhost": "/", **dict(zip(kinds, given, strict=True))}
            for name, given in rights.items()
        ],
    }
