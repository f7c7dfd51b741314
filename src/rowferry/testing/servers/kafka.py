"""Kafka, one node that is broker and controller, with topics and a plain reader."""

from __future__ import annotations

import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.certificates import Certificates
from rowferry.testing.servers.child import HOST
from rowferry.testing.servers.java_server import JavaServer, clear
from rowferry.testing.servers.maven import Jars, java
from rowferry.testing.servers.packages import cache, locked

USER: Final = "rowferry"
_WAIT_S: Final = 60.0
_CLUSTER: Final = "rowferry-test-template"
_QUIET: Final = {"log_level": 0, "log.connection.close": False}
_SASL: Final = "org.apache.kafka.common.security"
_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",  # a killed broker is let in again only after this
    "log.retention.ms": "-1",  # rows of tests carry times of any year
}


class KafkaListener(Enum):
    """How clients may come in; the value is the listener's name."""

    PLAINTEXT = "PLAINTEXT"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SSL = "SSL"
    SASL_SSL = "SASL_SSL"
    MTLS = "MTLS"  # SSL that asks for the client's certificate

    @property
    def security(self) -> str:
        """The protocol's name in Kafka's and librdkafka's settings."""
        return "SSL" if self is KafkaListener.MTLS else self.value


class Message(NamedTuple):
    """A message as it lies in its topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Kafka(JavaServer):
    """Kafka 4 in KRaft mode.

    It always listens in plain text, for `bootstrap` and for all that the methods do. Further
    listeners are asked for; those with SASL take the user `rowferry` with `password` by PLAIN,
    SCRAM-SHA-256 and SCRAM-SHA-512, and unsigned tokens by OAUTHBEARER.

    Attributes:
        certificates: of the listeners with TLS, and for their clients.
        password: of the user, made anew for each broker.
    """

    jars = Jars(
        "kafka-4.3.1",
        (
            "org.apache.kafka:kafka_2.13:4.3.1",
            "org.apache.logging.log4j:log4j-slf4j-impl:2.25.1",
            "org.apache.logging.log4j:log4j-core:2.25.1",
        ),
    )

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, str] | None = None,
        listeners: Sequence[KafkaListener] = (),
        java_options: Sequence[str] = (),
    ) -> None:
        self.options = dict(options or {})
        self.listeners = tuple(dict.fromkeys((KafkaListener.PLAINTEXT, *listeners)))
        self.password = secrets.token_hex(12)
        self._cluster = secrets.token_urlsafe(16)
        super().__init__(folder, len(self.listeners) + 1, java_options)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k != "_admin"}

    @classmethod
    def start(
        cls,
        folder: Path,
        options: Mapping[str, str] | None = None,
        listeners: Sequence[KafkaListener] = (),
        java_options: Sequence[str] = (),
    ) -> Self:
        """Make a broker and return when it answers.

        Args:
            folder: made if it is not there; must hold no broker.
            options: the broker's settings; they win over the defaults.
            listeners: how clients may come in besides plain text.
            java_options: like `-Xmx1g`; they win over the defaults.

        Raises:
            SourceUnavailable: the broker cannot be had, or does not start.
        """
        cls.ensure()
        broker = cls(folder, options, listeners, java_options)
        broker._copy(cls._template())
        broker._begin()
        if any("SASL" in listener.value for listener in broker.listeners):
            broker._add_scram_user()
        return broker

    @classmethod
    def ensure(cls) -> Path:
        """Return the folder of the program; fetch it, and format a first disk, if need be."""
        root = super().ensure()
        cls._template()
        return root

    @classmethod
    def trial(cls, folder: Path) -> Self:
        """Make a broker, not started, that stands for all others."""
        broker = super().trial(folder)
        broker._copy(cls._format(folder / "template"))
        return broker

    @classmethod
    def _template(cls) -> Path:
        """Return a formatted data directory to copy."""
        template = cache() / cls.jars.name / "data"
        if not template.exists():
            with locked(cls.jars.name):
                if not template.exists():
                    cls._format(template.with_name("data.part")).rename(template)
        return template

    @classmethod
    def _format(cls, folder: Path) -> Path:
        clear(folder.with_name("format"))
        broker = cls(folder.with_name("format"))
        broker._ports = [1, 2]  # no port is part of what is written
        shutil.rmtree(folder, ignore_errors=True)
        broker._write_settings(folder)
        tool = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(broker._settings)]
        command = [java(), "-Xmx64m", *broker._class_path(), *tool]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            last_line = (result.stderr or result.stdout).strip().splitlines()[-1:]
            raise SourceUnavailable(f"Kafka's data directory cannot be made: {' '.join(last_line)}")
        shutil.rmtree(broker.folder)
        return folder

    def _copy(self, template: Path) -> None:
        """Make the data directory, with a cluster id of its own."""
        data = shutil.copytree(template, self.folder / "data")
        facts = data / "meta.properties"
        facts.write_text(re.sub("(cluster.id=).*", rf"\g<1>{self._cluster}", facts.read_text()))

    # --- addresses -------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """The address of the listener in plain text, `127.0.0.1:PORT`."""
        return self.address(KafkaListener.PLAINTEXT)

    def address(self, listener: KafkaListener) -> str:
        """Return the address of one of the listeners that were asked for."""
        return f"{HOST}:{self._ports[self.listeners.index(listener)]}"

    @cached_property
    def certificates(self) -> Certificates:
        """An authority, and certificates for broker and clients that it signed."""
        return Certificates.make(self.folder / "certificates")

    def client_settings(
        self, listener: KafkaListener = KafkaListener.PLAINTEXT, mechanism: str = "PLAIN"
    ) -> dict[str, Any]:
        """Return librdkafka's settings to come in by a listener; not for OAUTHBEARER."""
        settings: dict[str, Any] = {
            "bootstrap.servers": self.address(listener),
            "security.protocol": listener.security,
            **_QUIET,
        }
        if "SASL" in listener.value:
            settings["sasl.mechanisms"] = mechanism
            settings["sasl.username"], settings["sasl.password"] = USER, self.password
        if "SSL" in listener.security:
            settings["ssl.ca.location"] = str(self.certificates.ca)
        if listener is KafkaListener.MTLS:
            settings["ssl.certificate.location"] = str(self.certificates.client)
            settings["ssl.key.location"] = str(self.certificates.client_key)
        return settings

    # --- topics ----------------------------------------------------------------------------------

    def topics(self) -> dict[str, int]:
        """Return the users' topics, each with its number of partitions."""
        topics = self._admin.list_topics(timeout=_WAIT_S).topics
        return {name: len(t.partitions) for name, t in topics.items() if not name.startswith("__")}

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Make a topic; on return it can be written."""
        new = NewTopic(name, partitions, replication_factor=1, config=dict(config or {}))
        self._done(self._admin.create_topics([new]))
        self._wait(lambda: self.topics().get(name) == partitions)

    def delete_topic(self, name: str) -> None:
        """Remove a topic; on return it is gone."""
        self._done(self._admin.delete_topics([name]))
        self._wait(lambda: name not in self.topics())

    def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions, so that it has `total`."""
        self._done(self._admin.create_partitions([NewPartitions(name, total)]))
        self._wait(lambda: self.topics().get(name) == total)

    def topic_config(self, name: str) -> dict[str, str]:
        """Return a topic's settings, the broker's defaults among them."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        (entries,) = self._done(self._admin.describe_configs([resource]))
        return {key: str(entry.value) for key, entry in entries.items()}

    def forbid(self, operation: str, topic: str = "", user: str = "*", kind: str = "TOPIC") -> None:
        """Take a right, like `WRITE`, from a user (`*`: all); the broker needs an authorizer.

        Args:
            operation: the right; all others stay, for everybody.
            topic: where; "" is the cluster itself.
            user: from whom.
            kind: what `topic` names, if it is something else, like `TRANSACTIONAL_ID`.
        """
        resource = ResourceType[kind] if topic else ResourceType.BROKER
        what = (resource, topic or "kafka-cluster", ResourcePatternType.LITERAL)
        deny, allow = AclPermissionType.DENY, AclPermissionType.ALLOW
        rules = [
            AclBinding(*what, f"User:{user}", "*", AclOperation[operation], deny),
            AclBinding(*what, "User:*", "*", AclOperation.ALL, allow),
        ]
        self._done(self._admin.create_acls(rules))

    def read_all(self, topic: str, partition: int | None = None) -> list[Message]:
        """Return all messages of a topic that are there now, partition by partition in order.

        Args:
            topic: its name; one that does not exist is an error.
            partition: only this one.
        """
        consumer = Consumer(
            {
                **self.client_settings(),
                "group.id": "read-all",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
            }
        )
        try:
            return sorted(_read_to_end(consumer, topic, partition), key=lambda m: m[:2])
        except KafkaException as err:
            raise SourceUnavailable(f"topic {topic} cannot be read: {err.args[0]}") from err
        finally:
            consumer.close()

    # --- the process -----------------------------------------------------------------------------

    def arguments(self) -> list[str]:
        """Return what follows Java's own options on the command line."""
        return [*self._class_path(), "kafka.Kafka", str(self._settings)]

    def prepare(self) -> None:
        """Write the broker's settings."""
        self._write_settings(self.folder / "data")

    def answers(self) -> bool:
        """Whether this broker serves at its port, and no other one that was there first."""
        try:
            with socket.create_connection((HOST, self._ports[0]), timeout=1):
                pass
            self.__dict__.pop("_admin", None)
            listing = self._admin.list_topics(timeout=1)
            return bool(listing.brokers) and listing.cluster_id == self._cluster
        except (OSError, KafkaException):
            return False

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self.client_settings())

    @property
    def _settings(self) -> Path:
        return self.folder / "server.properties"

    def _class_path(self) -> list[str]:
        return ["-cp", f"{self.jars.folder}/*"]

    def _write_settings(self, data: Path) -> None:
        names = [listener.value for listener in self.listeners]
        addresses = [f"{n}://{HOST}:{p}" for n, p in zip(names, self._ports, strict=False)]
        controller = f"{HOST}:{self._ports[-1]}"
        protocols = [f"{one.value}:{one.security}" for one in self.listeners]
        settings = {
            **_SETTINGS,
            "log.dirs": str(data),
            "listeners": ",".join([*addresses, f"CONTROLLER://{controller}"]),
            "advertised.listeners": ",".join(addresses),
            "listener.security.protocol.map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
            "controller.quorum.voters": f"1@{controller}",
            **dict(self._security()),
            **self.options,
        }
        self._settings.touch(0o600)
        self._settings.write_text("".join(f"{k}={v}\n" for k, v in settings.items()))

    def _security(self) -> Iterator[tuple[str, str]]:
        for listener in self.listeners:
            prefix = f"listener.name.{listener.value.lower()}"
            if "SSL" in listener.security:
                yield f"{prefix}.ssl.keystore.type", "PEM"
                yield f"{prefix}.ssl.keystore.location", str(self.certificates.server)
                yield f"{prefix}.ssl.truststore.type", "PEM"
                yield f"{prefix}.ssl.truststore.location", str(self.certificates.ca)
                asks = "required" if listener is KafkaListener.MTLS else "none"
                yield f"{prefix}.ssl.client.auth", asks
            if "SASL" in listener.value:
                for mechanism, module in self._login_modules().items():
                    yield f"{prefix}.{mechanism.lower()}.sasl.jaas.config", f"{module};"
                mechanisms = ",".join(self._login_modules())
                yield f"{prefix}.sasl.enabled.mechanisms", mechanisms

    def _login_modules(self) -> dict[str, str]:
        scram = f"{_SASL}.scram.ScramLoginModule required"
        token = f"{_SASL}.oauthbearer.OAuthBearerLoginModule required"
        return {
            "PLAIN": f'{_SASL}.plain.PlainLoginModule required user_{USER}="{self.password}"',
            "SCRAM-SHA-256": scram,
            "SCRAM-SHA-512": scram,
            "OAUTHBEARER": f'{token} unsecuredLoginStringClaim_sub="broker"',
        }

    def _add_scram_user(self) -> None:
        kinds = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        for kind in kinds:  # one mechanism of a user at a time is what a request may hold
            credential = ScramCredentialInfo(kind, iterations=4096)
            change = UserScramCredentialUpsertion(USER, credential, self.password.encode())
            self._done(self._admin.alter_user_scram_credentials([change]))

    def _done(self, futures: Mapping[Any, Future[Any]]) -> list[Any]:
        try:
            return [future.result(timeout=_WAIT_S) for future in futures.values()]
        except KafkaException as err:
            raise SourceUnavailable(f"Kafka at {self.bootstrap}: {err.args[0]}") from err

    def _wait(self, done: Any) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not done():
            if time.monotonic() > deadline:
                raise SourceUnavailable(f"Kafka at {self.bootstrap} did not do what it promised")
            time.sleep(0.01)


def _read_to_end(consumer: Consumer, topic: str, partition: int | None) -> Iterator[Message]:
    listing = consumer.list_topics(topic, timeout=_WAIT_S).topics[topic]
    if listing.error is not None:
        raise KafkaException(listing.error)
    left = {partition} if partition is not None else set(listing.partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in left])
    deadline = time.monotonic() + _WAIT_S
    while left:
        if time.monotonic() > deadline:
            raise KafkaException(f"no end within {_WAIT_S:.0f} s")
        for one in consumer.consume(10_000, timeout=0.05):
            error, number = one.error(), one.partition()
            if error is None:
                yield Message(int(number or 0), int(one.offset() or 0), one.key(), one.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(number)
            else:
                raise KafkaException(error)
