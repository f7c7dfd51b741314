"""Pulsar, one process that is broker and bookie, with topics and a plain reader."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pulsar
import urllib3

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.certificates import Certificates
from rowferry.testing.servers.child import HOST
from rowferry.testing.servers.java_server import JavaServer
from rowferry.testing.servers.maven import Jars

NAMESPACE: Final = "public/default"
_WAIT_S: Final = 60.0
_ANYBODY: Final = "anybody"
_PROVIDER: Final = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
_OPENED: Final = (
    *("java.base/java.io", "java.base/java.util.zip", "java.base/java.nio"),
    *("java.base/jdk.internal.misc", "java.base/jdk.internal.platform"),
    *("java.management/sun.management", "jdk.management/com.sun.management.internal"),
)
_SETTINGS: Final = {
    "clusterName": "standalone",
    "bindAddress": HOST,
    "advertisedAddress": HOST,
    "allowAutoTopicCreation": "false",
    # What nobody has subscribed to stays: tests read it later.
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerCacheSizeMB": "16",
    "dbStorage_writeCacheMaxSizeMb": "16",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "dbStorage_rocksDB_blockCacheSize": "8388608",
    "numIOThreads": "2",
    "numOrderedExecutorThreads": "2",
    "numHttpServerThreads": "6",
    "brokerShutdownTimeoutMs": "0",
    "loadBalancerEnabled": "false",
    "webSocketServiceEnabled": "false",
    "functionsWorkerEnabled": "false",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.99",
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
    "brokerDeduplicationEnabled": "false",
    "brokerDeduplicationEntriesInterval": "10",
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "anonymousUserRole": _ANYBODY,
    "superUserRoles": _ANYBODY,
    "authenticationProviders": f"{_PROVIDER}Token,{_PROVIDER}Tls",
}


class StoredMessage(NamedTuple):
    """A message as it lies in a partition of its topic; `offset` counts those before it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    producer: str


class Pulsar(JavaServer):
    """Pulsar 4, standalone.

    It listens in plain text and with TLS. Whoever comes without a login may do everything; tokens
    of `token` and the client's certificate (role `client`) have the rights that they were granted.
    """

    jars = Jars(
        "pulsar-4.0.8",
        archive="org.apache.pulsar:pulsar-server-distribution:4.0.8:tar.gz:bin",
    )

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self.options = dict(options or {})
        self._secret = secrets.token_bytes(32)
        super().__init__(folder, 5, java_options)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k != "_client"}

    @classmethod
    def start(
        cls,
        folder: Path,
        options: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> Self:
        """Make a broker and return when it answers.

        Args:
            folder: made if it is not there; must hold no broker.
            options: the broker's settings; they win over the defaults.
            java_options: like `-Xmx1g`; they win over the defaults.

        Raises:
            SourceUnavailable: the broker cannot be had, or does not start.
        """
        cls.ensure()
        broker = cls(folder, options, java_options)
        broker._begin()
        return broker

    # --- addresses and logins --------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where clients connect in plain text, `127.0.0.1:PORT`."""
        return f"{HOST}:{self._ports[0]}"

    @property
    def tls_address(self) -> str:
        """Where clients connect with TLS."""
        return f"{HOST}:{self._ports[1]}"

    @property
    def web_url(self) -> str:
        """The admin interface in plain text."""
        return f"http://{HOST}:{self._ports[2]}"

    @property
    def web_tls_url(self) -> str:
        """The admin interface with TLS."""
        return f"https://{HOST}:{self._ports[3]}"

    @cached_property
    def certificates(self) -> Certificates:
        """An authority, and certificates for broker and clients that it signed."""
        return Certificates.make(self.folder / "certificates")

    def token(self, role: str) -> str:
        """Return a token that the broker takes for this role."""
        head = _base64(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
        body = _base64(json.dumps({"sub": role}).encode())
        signature = hmac.new(self._secret, f"{head}.{body}".encode(), hashlib.sha256).digest()
        return f"{head}.{body}.{_base64(signature)}"

    def grant(self, role: str, *actions: str, namespace: str = NAMESPACE) -> None:
        """Give a role rights, like `produce`, on a namespace."""
        self.ask("POST", f"/namespaces/{namespace}/permissions/{role}", list(actions))

    # --- topics ----------------------------------------------------------------------------------

    def make_namespace(self, name: str, tenant: str = "public") -> str:
        """Make a namespace; return its whole name."""
        self.ask("PUT", f"/namespaces/{tenant}/{name}", {"replication_clusters": ["standalone"]})
        return f"{tenant}/{name}"

    def topics(self, namespace: str = NAMESPACE) -> dict[str, int]:
        """Return the partitioned topics of a namespace, each with its number of partitions."""
        names = self.ask("GET", f"/persistent/{namespace}/partitioned")
        return {name.rpartition("/")[2]: self._partitions(name) for name in names}

    def create_topic(self, name: str, partitions: int = 1, namespace: str = NAMESPACE) -> None:
        """Make a partitioned topic."""
        self.ask("PUT", f"/persistent/{namespace}/{name}/partitions", partitions)

    def delete_topic(self, name: str, namespace: str = NAMESPACE) -> None:
        """Remove a partitioned topic, whoever uses it."""
        self.ask("DELETE", f"/persistent/{namespace}/{name}/partitions?force=true")

    def terminate_topic(self, name: str, namespace: str = NAMESPACE) -> None:
        """End a partitioned topic: what is there stays, and nothing more is taken."""
        self.ask("POST", f"/persistent/{namespace}/{name}/terminate/partitions")

    def read_all(self, topic: str, namespace: str = NAMESPACE) -> list[StoredMessage]:
        """Return all messages of a topic that are there now, partition by partition in order."""
        whole = f"persistent://{namespace}/{topic}"
        count = self._partitions(whole)
        if not count:
            return list(self._read(whole, 0))
        parts = [f"{whole}-partition-{number}" for number in range(count)]
        return [one for number, part in enumerate(parts) for one in self._read(part, number)]

    def _read(self, part: str, number: int) -> Iterator[StoredMessage]:
        reader = self._client.create_reader(part, pulsar.MessageId.earliest)
        try:
            offset = 0
            while reader.has_message_available():
                one = reader.read_next(timeout_millis=int(_WAIT_S * 1000))
                value = None if one.has_null_value() else one.data()
                yield StoredMessage(number, offset, _key(one), value, one.producer_name())
                offset += 1
        finally:
            reader.close()

    def _partitions(self, topic: str) -> int:
        path = topic.replace("://", "/", 1)
        return int(self.ask("GET", f"/{path}/partitions")["partitions"])

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the admin interface and return the parsed answer; None: it is empty.

        Raises:
            SourceUnavailable: the broker is down, or the answer is an error.
        """
        try:
            answer = _http.request(
                method,
                f"{self.web_url}/admin/v2{path}",
                body=None if body is None else json.dumps(body),
                headers={"Content-Type": "application/json"},
            )
        except urllib3.exceptions.HTTPError as err:
            raise SourceUnavailable(f"Pulsar does not answer: {err}") from err
        if answer.status >= 400:
            words = answer.data.decode(errors="replace")
            raise SourceUnavailable(f"Pulsar answered {answer.status}: {words}")
        return json.loads(answer.data) if answer.data else None

    # --- the process -----------------------------------------------------------------------------

    def arguments(self) -> list[str]:
        """Return what follows Java's own options on the command line."""
        (root,) = self.jars.folder.glob("apache-pulsar-*")
        opened = [word for package in _OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
        kept = self.folder / "data"
        return [
            *("-cp", f"{self.folder}:{root}/lib/*"),
            *opened,
            "-XX:MaxDirectMemorySize=256m",
            "-Dio.netty.tryReflectionSetAccessible=true",
            f"-Dlog4j.configurationFile={self.folder}/log4j2.properties",
            "org.apache.pulsar.PulsarStandaloneStarter",
            *("--config", str(self.folder / "standalone.conf")),
            *("--metadata-dir", str(kept / "metadata")),
            *("--bookkeeper-dir", str(kept / "bookkeeper")),
            *("--bookkeeper-port", str(self._ports[4])),
            *("--no-functions-worker", "--no-stream-storage"),
        ]

    def prepare(self) -> None:
        """Write the broker's settings."""
        key, _, rest = self.certificates.server.read_text().partition("-----BEGIN CERT")
        for name, text in (("server_key", key), ("server_cert", f"-----BEGIN CERT{rest}")):
            path = self.folder / f"{name}.pem"
            path.touch(0o600)
            path.write_text(text)
        self._write(
            "standalone.conf",
            {
                **_SETTINGS,
                "brokerServicePort": self._ports[0],
                "brokerServicePortTls": self._ports[1],
                "webServicePort": self._ports[2],
                "webServicePortTls": self._ports[3],
                "tlsCertificateFilePath": self.folder / "server_cert.pem",
                "tlsKeyFilePath": self.folder / "server_key.pem",
                "tlsTrustCertsFilePath": self.certificates.ca,
                "tokenSecretKey": f"data:;base64,{base64.b64encode(self._secret).decode()}",
                **self.options,
            },
        )
        self._write(
            "log4j2.properties",
            {
                "appender.console.type": "Console",
                "appender.console.name": "console",
                "appender.console.layout.type": "PatternLayout",
                "appender.console.layout.pattern": "%d %-5level %logger{36} - %msg%n",
                "rootLogger.level": "warn",
                "rootLogger.appenderRef.console.ref": "console",
            },
        )

    def answers(self) -> bool:
        """Whether this broker serves, and knows its own namespace."""
        try:
            self.topics()
        except (SourceUnavailable, ValueError):
            return False
        return True

    def _clear(self) -> None:
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    @cached_property
    def _client(self) -> pulsar.Client:
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        client = pulsar.Client(f"pulsar://{self.address}", logger=quiet)
        weakref.finalize(self, client.close)  # later it would write to the terminal
        return client

    def _write(self, name: str, settings: Mapping[str, object]) -> None:
        path = self.folder / name
        path.touch(0o600)
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


_http: Final = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(_WAIT_S))


def _key(message: pulsar.Message) -> bytes | None:
    key = str(message.partition_key())
    if message.properties().get("key-encoding") == "base64":
        return base64.b64decode(key)
    return key.encode() or None


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
