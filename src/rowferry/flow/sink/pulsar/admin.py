"""The brokers' admin interface: topics, their settings and what they are."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import urllib3

from rowferry.answers import UnfitAnswer
from rowferry.errors import RowferryError, SinkUnavailable, SinkUnwritable, TopicRefused
from rowferry.flow.sink.pulsar.login import WebLogin
from rowferry.flow.sink.pulsar.options import PulsarSettings
from rowferry.moment import moment

_JSON: Final = "application/json"
_WITH_PROPERTIES: Final = "application/vnd.partitioned-topic-metadata+json"
_ID: Final = "rowferry-id"  # a property of topics that were made here
_NO_SUCH: Final = 404
_REFUSED: Final = frozenset({401, 403})
_SHOWN: Final = 200  # characters of an answer in an error


class TopicFacts(NamedTuple):
    """What the brokers tell of a topic.

    Attributes:
        partitions: how many it has; 0: it is one piece.
        id: what it was called by when it was made here; "": others have made it.
    """

    partitions: int
    id: str


class PulsarAdmin:
    """Requests to the admin interface. Not for several threads."""

    def __init__(self, settings: PulsarSettings) -> None:
        self._settings = settings
        self._login = WebLogin(settings)
        self._lead = f"Pulsar at {settings.at}, admin interface at {settings.web_url}"

    def facts(self, topic: str) -> TopicFacts | None:
        """Return what a topic is; None: there is none.

        Raises:
            SinkUnavailable, SinkUnwritable: no answer, or a refusal.
        """
        moment("ask for a topic")
        status, answer = self._ask("GET", f"{_path(topic)}/partitions")
        if status == _NO_SUCH:
            return None
        self._check(status, answer, f"asking for topic {topic}")
        try:
            known = answer.get("properties") or {}
            return TopicFacts(int(answer["partitions"]), str(known.get(_ID, "")))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            raise self._odd(f"asking for topic {topic}") from None

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic; one that is there stays as it is.

        Raises:
            TopicRefused: it cannot be made, with the brokers' words.
            SinkUnavailable: no answer.
        """
        moment("create a topic")
        body = {"partitions": partitions, "properties": {_ID: secrets.token_hex(8)}}
        status, answer = self._ask("PUT", f"{_path(topic)}/partitions", body, _WITH_PROPERTIES)
        moment("topic created")
        if status == 409:
            return
        if 400 <= status < 500:
            raise TopicRefused(
                f"topic {topic!r} cannot be created: {self._words(status, answer)}; create its "
                "namespace, create it yourself, or correct the rights"
            )
        self._check(status, answer, f"creating topic {topic}")

    def has_namespace(self, topic: str) -> bool:
        """Return whether the namespace of a topic is there.

        Raises:
            SinkUnavailable, SinkUnwritable: no answer, or a refusal.
        """
        tenant, namespace = _parts(topic)[:2]
        moment("ask for a namespace")
        place = f"/namespaces/{tenant}/{namespace}/permissions"
        status, answer = self._ask("GET", place)
        if status in _REFUSED:
            return True  # it is for its administrators to see: making the topic will tell
        if status == _NO_SUCH:
            return False
        self._check(status, answer, f"asking for namespace {tenant}/{namespace}")
        return True

    def largest_message(self) -> int | None:
        """Return how long messages may be by the brokers' settings; None: they do not tell."""
        moment("ask for broker settings")
        status, answer = self._ask("GET", "/brokers/configuration/runtime")
        if status != 200 or not isinstance(answer, dict) or "maxMessageSize" not in answer:
            return None
        try:
            return int(answer["maxMessageSize"])
        except (TypeError, ValueError, OverflowError):
            raise self._odd("asking for the brokers' settings") from None

    def deduplicates(self, partitions: Iterable[str]) -> bool:
        """Return whether the brokers leave out repeats in all of these partitions, as of now."""
        for one in partitions:
            moment("ask for a topic's statistics")
            status, answer = self._ask("GET", f"{_path(one)}/stats")
            known = answer if isinstance(answer, dict) else {}
            if status != 200 or known.get("deduplicationStatus") != "Enabled":
                return False
        return True

    def deduplicate(self, topic: str) -> str:
        """Let the brokers leave out repeats in a topic; return why it cannot be, "": it can."""
        moment("switch deduplication on")
        status, answer = self._ask("POST", f"{_path(topic)}/deduplicationEnabled", True)
        return "" if status < 300 else self._words(status, answer)

    def cluster(self) -> str:
        """Return the name of the brokers' cluster; "": they do not tell."""
        moment("ask for clusters")
        status, answer = self._ask("GET", "/clusters")
        known = answer if status == 200 and isinstance(answer, list) else ()
        return ",".join(sorted(str(one) for one in known))

    def close(self) -> None:
        """Let connections go."""
        self._login.close()

    def _check(self, status: int, answer: Any, doing: str) -> None:
        if status >= 400:
            raise self._error(status, answer, doing)

    def _error(self, status: int, answer: Any, doing: str) -> RowferryError:
        words = f"{self._lead}, {doing}: {self._words(status, answer)}"
        if status in _REFUSED:
            return SinkUnwritable(f"{words}; correct the login or its rights")
        return SinkUnavailable(words)

    def _ask(self, method: str, path: str, body: Any = None, kind: str = _JSON) -> tuple[int, Any]:
        url = f"{self._settings.web_url}/admin/v2{path}"
        headers = {"Content-Type": kind, **self._login.headers()}
        text = None if body is None else json.dumps(body)
        try:
            status, content = self._login.asked(method, url, text, headers)
        except urllib3.exceptions.SSLError as err:
            raise SinkUnwritable(
                f"{self._lead}: {' '.join(str(err).split())}; correct tls-trust-certs-file-path"
            ) from None
        except urllib3.exceptions.HTTPError as err:
            raise SinkUnavailable(
                f"{self._lead}: {type(err).__name__}; start the brokers, or correct web-service-url"
            ) from None
        except UnfitAnswer as err:
            raise SinkUnavailable(f"{self._lead}: {err}; correct web-service-url") from None
        return status, _parsed(content)

    def _odd(self, doing: str) -> SinkUnavailable:
        return SinkUnavailable(
            f"{self._lead}, {doing}: the answer is none of Pulsar's; correct web-service-url"
        )

    def _words(self, status: int, answer: Any) -> str:
        reason = answer.get("reason") if isinstance(answer, dict) else None
        return self._login.hiding.hide(" ".join(f"{status} {reason or ''}".split()))[:_SHOWN]


def _parsed(data: bytes) -> Any:
    if not data:
        return {}
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return {}  # a page for people


def _parts(topic: str) -> tuple[str, str, str]:
    tenant, namespace, name = topic.removeprefix("persistent://").split("/", 2)
    return quote(tenant, safe=""), quote(namespace, safe=""), quote(name, safe="")


def _path(topic: str) -> str:
    return "/persistent/" + "/".join(_parts(topic))
