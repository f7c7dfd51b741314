"""Amazon's interface of queues and streams: signed requests with JSON, errors in our words."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import urllib3

from rowferry.answers import UnfitAnswer, read_answer
from rowferry.errors import (
    BadUri,
    OptionsConflict,
    RowferryError,
    SinkUnavailable,
    SinkUnwritable,
)
from rowferry.flow.sink.queue.service import until_stored
from rowferry.flow.sink.queue.service_sink import QueueOptions
from rowferry.flow.sink.search.signing import AwsSigner
from rowferry.flow.sink.web_calls import on_one_line, words_of
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import duration, option, text, web_address
from rowferry.spec.uri import web_host

_REGION: Final = re.compile(r"[a-z0-9-]+")
_FOR_NOW: Final = re.compile(
    "Throttl|LimitExceeded|ThroughputExceeded|RequestThrottled|InternalFailure|InternalError|"
    "ServiceUnavailable|ResourceInUse|OverLimit|QueueDeletedRecently"
)
_MOST_ANSWER: Final = 64 << 20  # bytes


class AmazonOptions(QueueOptions, section="sink"):
    """What both services have; each names its section."""

    endpoint = option(
        web_address(),
        "",
        "Where the service is, for one that is not Amazon's own.",
        uri=True,
        alterable=False,
        names="url",
    )
    access_key = option(text(), "", "The id of the access key.", uri=True, secret=True)
    secret_access_key = option(text(), "", "The secret of the access key.", uri=True, secret=True)
    session_token = option(text(), "", "The token of a temporary key.", uri=True, secret=True)
    timeout = option(
        duration(timedelta(milliseconds=1)),
        timedelta(seconds=30),
        "To wait for an answer, and how long messages that are refused for now are tried again.",
        uri=True,
    )
    ca = option(
        text(), "", "File of the authorities that signed the service.", uri=True, names="path"
    )


class AmazonError(Exception):
    """A service refuses a request.

    Attributes:
        code: its own name for that.
    """

    def __init__(self, status: int, code: str, words: str) -> None:
        super().__init__(f"{code}: {words}")
        self.status, self.code = status, code


class AmazonClient:
    """Requests to one service of one region; for several threads."""

    def __init__(
        self, spec: ChangefeedSpec, options: AmazonOptions, service: str, lead: str
    ) -> None:
        """Read where the service is, and who asks; opens no connection.

        Args:
            spec: the changefeed.
            options: the sink's.
            service: as signatures and hosts name it.
            lead: what stands before the name of an action.

        Raises:
            BadUri: the URI names no region.
            OptionsConflict: there is no access key.
        """
        region = spec.sink.address
        form = f"{spec.sink.scheme}://REGION/topic"
        if not _REGION.fullmatch(region) or spec.sink.user:
            raise BadUri(
                f"the sink URI must name a region, and no user; write it as {form}, with "
                "access-key and secret-access-key as options"
            )
        if not (options.access_key and options.secret_access_key):
            raise OptionsConflict(
                "access-key and secret-access-key are needed; they may be references to secrets, "
                "such as env:AWS_SECRET_ACCESS_KEY"
            )
        self.at = options.endpoint.rstrip("/") or f"https://{service}.{region}.amazonaws.com"
        self.wait_s = options.timeout.total_seconds()
        host, port = web_host(self.at)
        shown = f"[{host}]" if ":" in host else host
        plain = {"http": 80, "https": 443}.get(self.at.partition(":")[0])
        self._host = shown if port in (None, plain) else f"{shown}:{port}"
        self._lead = lead
        self._signer = AwsSigner(
            options.access_key, options.secret_access_key, options.session_token, region, service
        )
        self._http = urllib3.PoolManager(
            retries=False,
            timeout=urllib3.Timeout(self.wait_s),
            ca_certs=options.ca or None,
            maxsize=16,
        )

    def call(self, action: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for something; return the answer.

        Raises:
            AmazonError: the service refuses.
            SinkUnavailable, SinkUnwritable: no answer.
        """
        body = json.dumps(content).encode()
        headers = {
            "Content-Type": "application/x-amz-json-1.1",
            "X-Amz-Target": f"{self._lead}.{action}",
            "Accept-Encoding": "identity",
            **self._signer.headers("POST", self._host, "/", {}, body),
        }
        moment("call an Amazon service")
        try:
            answer = self._http.request(
                *("POST", f"{self.at}/"),
                body=body,
                headers=headers,
                preload_content=False,
                redirect=False,
            )
            received = read_answer(answer, _MOST_ANSWER, self.wait_s)
        except UnfitAnswer as err:
            raise SinkUnavailable(f"{self.at}: {err}") from None
        except urllib3.exceptions.SSLError as err:
            raise SinkUnwritable(f"{self.at}: {words_of(err)}; correct ca") from None
        except urllib3.exceptions.HTTPError as err:
            raise SinkUnavailable(
                f"{self.at}: {words_of(err)}; correct the region or the endpoint"
            ) from None
        moment("Amazon service answered")
        if 300 <= answer.status < 400:
            raise SinkUnavailable(f"{self.at} answers {answer.status} and leads to another address")
        parsed = _parsed(received)
        if answer.status >= 400:
            name = str(parsed.get("__type", "")).rpartition("#")[2]
            words = str(parsed.get("message") or parsed.get("Message") or "")
            raise AmazonError(answer.status, name or str(answer.status), on_one_line(words))
        return parsed

    def error(self, err: AmazonError, doing: str) -> RowferryError:
        """Return our error for a refusal."""
        words = f"{self.at}, {doing}: {on_one_line(str(err))}"
        if err.status >= 500 or is_for_now(err.code):
            return SinkUnavailable(words)
        return SinkUnwritable(f"{words}; correct the access key, its rights or the option")

    def granted(self, action: str, content: Mapping[str, Any], doing: str) -> dict[str, Any]:
        """Ask as `call` does; a refusal is ours.

        Raises:
            SinkUnavailable, SinkUnwritable: no answer, or a refusal.
        """
        try:
            return self.call(action, content)
        except AmazonError as err:
            raise self.error(err, doing) from None

    def until_stored(self, attempt: Callable[[], str], doing: str) -> None:
        """Call `attempt` until it returns "", with growing pauses; else it returns why not.

        Raises:
            SinkUnavailable: not all was stored in time.
        """
        until_stored(attempt, self.wait_s, f"{self.at}, {doing}")

    def close(self) -> None:
        """Let connections go."""
        self._http.clear()


def _parsed(content: bytes) -> dict[str, Any]:
    """Return an answer's object; of one that has none, such as a proxy's page, an empty one."""
    try:
        form = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return form if isinstance(form, dict) else {}


def is_for_now(code: str) -> bool:
    """Return whether what a service calls so passes."""
    return _FOR_NOW.search(code) is not None


def packed(content: bytes) -> str:
    """Return bytes as JSON carries them."""
    return base64.b64encode(content).decode()
