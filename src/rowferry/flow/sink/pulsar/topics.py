"""Topics of the Pulsar sink: asks the brokers for them, makes them, switches deduplication on."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

import pulsar

from rowferry.errors import SinkUnavailable, SinkUnwritable, TopicRefused
from rowferry.flow.sink.pulsar.admin import PulsarAdmin
from rowferry.flow.sink.pulsar.client import NO_TOPIC, PulsarClient, as_error, name_of
from rowferry.flow.sink.pulsar.login import tls_of
from rowferry.flow.sink.pulsar.options import PulsarSettings
from rowferry.moment import moment

LOG: Final = logging.getLogger("rowferry.sink.pulsar")
_OVERHEAD: Final = 10 << 10  # bytes of a message beside its value and key, at most
_OTHERS: Final = "others"
_SETTLE_S: Final = 10.0  # for a setting of a topic to reach its broker


class PulsarTopics:
    """Asks for topics and makes them (driver).

    By the admin interface where there is one. Without, the brokers tell of a topic what they tell
    every client, and those that make topics by themselves make it then.

    Attributes:
        cluster: the name of the brokers' cluster, once topics were asked for; "": not known.
        whole: the topics that are one piece, of those that were asked for.
    """

    def __init__(self, settings: PulsarSettings, client: PulsarClient) -> None:
        self._settings, self._client = settings, client
        self._admin = PulsarAdmin(settings) if settings.web_url else None
        self.cluster = ""
        self.whole: set[str] = set()
        self._ids: dict[str, str] = {}

    def partition_counts(self, wanted: Iterable[str]) -> dict[str, int]:
        """Return those of these topics that are there, with their partition counts.

        Raises:
            SinkUnavailable: no broker answered.
            SinkUnwritable: a broker refused the login.
        """
        counts: dict[str, int] = {}
        if self._admin is not None and not self.cluster:
            self.cluster = self._admin.cluster()
        for topic in wanted:
            partitions = self._partitions_of(topic)
            if partitions is None:
                continue
            self.whole.discard(topic)
            if partitions == 0:
                self.whole.add(topic)
            counts[topic] = partitions or 1
        return counts

    def ids(self, topics: Iterable[str]) -> dict[str, str | None]:
        """Return what topics that were made here were called by then.

        None: there is no such topic. "": nobody can tell. Topics that others have made share one:
        one of ours that others make again is seen.
        """
        ids: dict[str, str | None] = {}
        for topic in topics:
            is_there = self._partitions_of(topic) is not None
            known = self._ids.get(topic, "") or (_OTHERS if self._admin is not None else "")
            ids[topic] = known if is_there else None
        return ids

    def largest_messages(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how long a message may be in each of these topics."""
        configured = self._settings.options.max_message_bytes
        allowed = self._admin.largest_message() if self._admin is not None else None
        limit = min(configured, (allowed or configured)) - _OVERHEAD
        return dict.fromkeys(topics, max(limit, 1))

    def create(self, wanted: Mapping[str, int]) -> None:
        """Make topics, each with its partitions; those that are there already stay as they are.

        Raises:
            TopicRefused: the brokers refuse one, with their words, or there is nobody to ask.
        """
        if self._admin is None:
            raise self._nobody(min(wanted))
        for topic, partitions in wanted.items():
            self._admin.create(topic, partitions)

    def check_create(self, wanted: Mapping[str, int]) -> None:
        """Ask whether topics could be made; makes none.

        Raises:
            TopicRefused: the namespace is not there, or there is nobody to ask.
        """
        for topic in wanted:
            if self._admin is None:
                raise self._nobody(topic)
            if not self._admin.has_namespace(topic):
                raise TopicRefused(
                    f"topic {topic!r} cannot be created: its namespace is not there; create it: "
                    f"pulsar-admin namespaces create {'/'.join(topic.split('/')[2:4])}"
                )

    def check_write(self, topics: Iterable[str]) -> None:
        """Ask for a topic's broker, which tells whether this login may use the topic.

        Raises:
            SinkUnwritable: it may not.
        """
        for topic in topics:
            self._looked_up(topic)

    def connect(self) -> None:
        """See whether somebody listens where the brokers are. Nothing is asked, nothing is made.

        Raises:
            SinkUnavailable: nobody does.
            SinkUnwritable: its certificate is not to be trusted.
        """
        wait = self._settings.options.connection_timeout.total_seconds()
        why = ""
        for address in self._settings.at.split(","):
            parts = urlsplit(f"//{address}")
            host, port = parts.hostname or "", parts.port or 6650
            moment("connect to a broker")
            try:
                with socket.create_connection((host, port), wait) as plain:
                    if self._settings.uses_tls:
                        tls_of(self._settings.options).wrap_socket(
                            plain, server_hostname=host
                        ).close()
            except ssl.SSLCertVerificationError as err:
                raise SinkUnwritable(
                    f"Pulsar at {self._settings.at}: {err.verify_message}; correct "
                    "tls-trust-certs-file-path"
                ) from None
            except OSError as err:
                why = str(err.strerror or err)
                continue
            return
        raise SinkUnavailable(
            f"Pulsar at {self._settings.at}: {why}; start the brokers, or correct host and port "
            "in the sink URI"
        )

    @property
    def is_managed(self) -> bool:
        """Whether there is an admin interface."""
        return self._admin is not None

    def deduplicate(self, topic: str, partitions: Iterable[str]) -> str:
        """Switch deduplication on in a topic; return why it is off all the same, "": it is on.

        Raises:
            SinkUnavailable: no answer.
        """
        if self._admin is None:
            return "there is no web-service-url to ask"
        lanes = tuple(partitions)
        if self._admin.deduplicates(lanes):
            return ""
        if why := self._admin.deduplicate(topic):
            return why
        end = time.monotonic() + _SETTLE_S
        while not self._admin.deduplicates(lanes):
            if time.monotonic() > end:
                return "the brokers took the setting, and do not follow it"
            time.sleep(0.05)
        return ""

    def close(self) -> None:
        """Let connections go."""
        if self._admin is not None:
            self._admin.close()

    def _partitions_of(self, topic: str) -> int | None:
        """Return how many partitions a topic has, 0: it is one piece, None: there is no topic."""
        if self._admin is not None:
            facts = self._admin.facts(topic)
            if facts is None:
                return None
            self._ids[topic] = facts.id
            return facts.partitions
        names = self._looked_up(topic)
        return None if names is None else (0 if names == [topic] else len(names))

    def _looked_up(self, topic: str) -> list[str] | None:
        moment("look a topic up")
        try:
            return [str(name) for name in self._client.client.get_topic_partitions(topic)]
        except pulsar.PulsarException as err:
            if name_of(err) == NO_TOPIC:
                return None
            raise as_error(name_of(err), f"looking topic {topic} up", self._client.log) from None

    def _nobody(self, topic: str) -> TopicRefused:
        return TopicRefused(
            f"topic {topic!r} is not there, and without web-service-url it cannot be created; "
            "create it, or set web-service-url to the brokers' admin interface"
        )


def lane_name(topic: str, partition: int, whole: bool) -> str:
    """Return the name by which the brokers know one partition of a topic."""
    return topic if whole else f"{topic}-partition-{partition}"


def refuse_unless(why: str, topic: str) -> None:
    """Refuse a topic in which repeats are not left out.

    Raises:
        SinkUnwritable: with the reason.
    """
    if why:
        raise SinkUnwritable(
            f"topic {topic}: deduplication is off ({why}), and deduplication = required; switch it "
            "on: pulsar-admin topicPolicies set-deduplication --enable"
        )
