"""A cluster over HTTP: asks, repeats what may be repeated, words what went wrong.

Every request may be sent twice: what writes says which version it writes, or over which one.
"""

from __future__ import annotations

import gzip
import json
import random
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InsecureRequestWarning,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from rowferry.change.event_counts import RETRIES, EventCounts
from rowferry.errors import SinkUnavailable, SinkUnwritable
from rowferry.flow.sink.search.options import SearchSettings
from rowferry.flow.sink.web_calls import on_one_line, retry_after_s, words_of
from rowferry.moment import moment
from rowferry.spec.uri import host_port

_FOR_NOW: Final = frozenset({408, 429, 502, 503, 504})
_JUDGED: Final = frozenset({200, 201, 400, 404, 409})  # the caller knows what these mean
_MOST_BYTES: Final = 512 << 20  # of an answer
_PIECE: Final = 1 << 20
_CHANCE: Final = 0.25  # the share of a pause that is random
_GZIP_LEVEL: Final = 1  # cores are dearer than bytes
_JSON: Final = "application/json"
_LINES: Final = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the cluster answered: 200 or 201, or 400, 404 or 409 with its reason."""

    status: int
    body: Any

    @property
    def is_good(self) -> bool:
        """Whether it was done."""
        return self.status < 300

    @property
    def kind(self) -> str:
        """The kind of error; "": none was named."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return str(error.get("type", "")) if isinstance(error, dict) else ""


class ForNow(Exception):
    """The cluster did not take a request this time; `wait_s` is how long it asks to be left."""

    def __init__(self, words: str, wait_s: float | None = None) -> None:
        super().__init__(words)
        self.wait_s = wait_s


class Cluster:
    """Nodes of one cluster. May be used from several threads."""

    def __init__(self, settings: SearchSettings) -> None:
        self.counts = EventCounts()
        self.settings = settings
        self._options = settings.options
        self._timeout_s = settings.options.timeout.total_seconds()
        self._pools: dict[tuple[str, int], urllib3.HTTPConnectionPool] = {}
        self._first = 0  # the node that is asked first
        self._lock = threading.Lock()

    def ask(
        self,
        method: str,
        path: tuple[str, ...],
        body: Any = None,
        query: Mapping[str, str] | None = None,
        stop: threading.Event | None = None,
    ) -> Answer:
        """Send a request and return the answer; bytes are lines of JSON.

        Raises:
            SinkUnavailable: no node answered, or took it, as often as was tried.
            SinkUnwritable: a right is missing, or a certificate is not trusted.
        """
        stopping = stop or threading.Event()
        target = "/" + "/".join(quote(part, safe="") for part in path)
        data = body if isinstance(body, bytes) else b"" if body is None else _text(body)
        kind = _LINES if isinstance(body, bytes) else _JSON
        for tried in range(self._options.max_retry + 1):
            self.counts.add(RETRIES, int(tried > 0))
            try:
                return self._send(method, target, data, kind, query or {})
            except ForNow as err:
                last = err
            if tried == self._options.max_retry or stopping.wait(self.pause_s(tried, last.wait_s)):
                break
        raise self.unavailable(str(last))

    def pause_s(self, tried: int, wait_s: float | None = None) -> float:
        """Return how long to wait before the next try: as asked, or longer each time."""
        most = self._options.max_backoff.total_seconds()
        if wait_s is not None:
            return float(min(wait_s, most))
        pause = min(self._options.backoff.total_seconds() * 2**tried, most)
        return float(pause * (1 - _CHANCE * random.random()))

    def unavailable(self, words: str) -> SinkUnavailable:
        """Return the error for a cluster that does not answer now."""
        return SinkUnavailable(f"{self.settings.shown}: {self.hidden(words)}")

    def hidden(self, words: str) -> str:
        """Return foreign words on one line, without secrets."""
        return on_one_line(self.settings.hiding.hide(words))

    def close(self) -> None:
        """Let connections go; a later request opens new ones."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    # --- one request ------------------------------------------------------------------------------

    def _send(
        self, method: str, target: str, data: bytes, kind: str, query: Mapping[str, str]
    ) -> Answer:
        settings = self.settings
        node = settings.hosts[self._first % len(settings.hosts)]
        headers = {**settings.headers, "Accept": _JSON}
        if data:
            headers["Content-Type"] = kind
        if data and self._options.compression == "gzip":
            data, headers["Content-Encoding"] = gzip.compress(data, _GZIP_LEVEL, mtime=0), "gzip"
        if settings.signer is not None:
            headers["Host"] = _host_header(node, settings.encrypted)
            headers |= settings.signer.headers(method, headers["Host"], target, query, data)
        url = target + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        moment("ask cluster")
        self.counts.call("search", len(data))
        try:
            answer = self._pool(node).request(
                method,
                url,
                body=data or None,
                headers=headers,
                retries=False,
                redirect=False,
                preload_content=False,
                timeout=urllib3.Timeout(self._timeout_s, self._timeout_s),
            )
            words = self._read(answer)
        except SSLError as err:
            if isinstance(err.args[0] if err.args else None, ssl.SSLCertVerificationError):
                raise SinkUnwritable(
                    f"{settings.shown}: its certificate is not trusted ({words_of(err)}); name its "
                    "authority's certificate with ssl-ca"
                ) from err
            raise self._next_node(words_of(err)) from err
        except NewConnectionError as err:  # which urllib3 takes for a kind of time-out
            raise self._next_node(words_of(err)) from err
        except (ConnectTimeoutError, ReadTimeoutError, TimeoutError) as err:
            self._first += 1
            raise self.unavailable(f"no answer within {self._timeout_s:g} s") from err
        except (HTTPError, OSError) as err:
            raise self._next_node(words_of(err)) from err
        moment("cluster answered")
        return self._judged(answer, words)

    def _read(self, answer: urllib3.BaseHTTPResponse) -> bytes:
        pieces, size = [], 0
        until = time.monotonic() + self._timeout_s
        while piece := answer.read(_PIECE, decode_content=False):
            size += len(piece)
            if size > _MOST_BYTES or time.monotonic() > until:
                answer.close()
                raise self.unavailable("its answer does not end")
            pieces.append(piece)
        answer.release_conn()
        return b"".join(pieces)

    def _judged(self, answer: urllib3.BaseHTTPResponse, words: bytes) -> Answer:
        status = answer.status
        if status in _JUDGED:
            try:
                return Answer(status, json.loads(words) if words else None)
            except (ValueError, RecursionError):
                raise SinkUnwritable(
                    f"{self.settings.shown} does not answer as Elasticsearch or OpenSearch do "
                    f"({status}: {self.hidden(words[:4096].decode('utf-8', 'replace'))})"
                ) from None
        shown = self.hidden(words[:4096].decode("utf-8", "replace")) or "(no words)"
        if status in _FOR_NOW or status >= 500:
            raise ForNow(f"it answers {status}: {shown}", retry_after_s(answer.headers))
        raise SinkUnwritable(f"{self.settings.shown}: it answers {status}: {shown}")

    # --- pieces -----------------------------------------------------------------------------------

    def _next_node(self, words: str) -> ForNow:
        self._first += 1
        return ForNow(words)

    def _pool(self, node: tuple[str, int]) -> urllib3.HTTPConnectionPool:
        with self._lock:
            if node not in self._pools:
                self._pools[node] = self._new_pool(node)
            return self._pools[node]

    def _new_pool(self, node: tuple[str, int]) -> urllib3.HTTPConnectionPool:
        lanes = self._options.worker_count
        if not self.settings.encrypted:
            return urllib3.HTTPConnectionPool(*node, maxsize=lanes)
        tls = self.settings.tls
        try:
            context = tls.context()
        except (OSError, ssl.SSLError) as err:
            raise SinkUnwritable(
                f"{self.settings.shown}: {tls.shown} cannot be used for TLS ({err})"
            ) from err
        if not tls.verifies:
            urllib3.disable_warnings(InsecureRequestWarning)  # it is what the user asked for
        return urllib3.HTTPSConnectionPool(*node, maxsize=lanes, ssl_context=context)


def _text(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _host_header(node: tuple[str, int], encrypted: bool) -> str:
    host, port = node
    return host if port == (443 if encrypted else 80) else host_port(host, port)
