"""One receiver over HTTP: sends bodies, repeats what may be repeated, words what went wrong."""

from __future__ import annotations

import gzip
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

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
from rowferry.errors import RowRejected, SinkUnavailable, SinkUnwritable
from rowferry.flow.sink.http.options import HttpSettings
from rowferry.flow.sink.web_calls import TlsFiles, on_one_line, retry_after_s, words_of
from rowferry.moment import moment

_FOR_NOW: Final = frozenset({408, 425, 429})  # and 5xx
_WORDS_READ: Final = 4096  # bytes of an answer that are looked at
_DRAINED: Final = 1 << 20  # a longer answer costs the connection
_CHANCE: Final = 0.25  # the share of a pause that is random
_GZIP_LEVEL: Final = 1  # cores are dearer than bytes


class _ForNow(Exception):
    """The receiver did not take a request this time; `wait_s` is how long it asks to be left."""

    def __init__(self, words: str, wait_s: float | None = None) -> None:
        super().__init__(words)
        self.wait_s = wait_s


class Receiver:
    """Takes bodies in order. May be used from several threads; each sends its own.

    A task waits little: what takes long is left to the changefeed's back-off on the driver, so
    that a receiver that is gone keeps no core from other changefeeds.
    """

    def __init__(self, settings: HttpSettings, now: Callable[[], float] = time.monotonic) -> None:
        self.counts = EventCounts()
        self._settings = settings
        self._options = settings.options
        self._timeout_s = settings.options.timeout.total_seconds()
        self._max_backoff_s = settings.options.max_backoff.total_seconds()
        self._now = now
        self._closed_until = 0.0  # nothing is sent before: the receiver asked for it
        self._pool: urllib3.HTTPConnectionPool | None = None
        self._lock = threading.Lock()

    def send(
        self, body: bytes, headers: Mapping[str, str], stop: threading.Event | None = None
    ) -> None:
        """POST one body. On return the receiver has taken it (2xx).

        On raise it may have; the same body with the same headers may be sent again. `stop` ends
        the waiting between repetitions.

        Raises:
            SinkUnavailable: it did not answer, or refused for now, as often as was tried.
            RowRejected: it refused for good; the text has its words.
            SinkUnwritable: it answered with a redirect, or its certificate is not trusted.
        """
        stopping = stop or threading.Event()
        self._refuse_if_closed()
        every = {**self._settings.headers, **headers}
        if self._options.compression == "gzip":
            body, every["Content-Encoding"] = gzip.compress(body, _GZIP_LEVEL, mtime=0), "gzip"
        for tried in range(self._options.max_retry + 1):
            self.counts.add(RETRIES, int(tried > 0))
            try:
                self._post(body, every)
                return
            except _ForNow as err:
                last = err
            if tried == self._options.max_retry or self._is_long(last.wait_s):
                break
            if stopping.wait(self._pause(tried, last.wait_s)):
                break
        raise self._left_alone(last)

    def connect(self) -> None:
        """Open a connection and close it: sends nothing, as a receiver may know POST only.

        Raises:
            SinkUnavailable: nobody answers.
            SinkUnwritable: its certificate is not trusted, or ours cannot be read.
        """
        moment("try receiver")
        address = self._settings.address
        try:
            with socket.create_connection((address.host, address.port), self._timeout_s) as plain:
                if address.scheme == "https":
                    self._context().wrap_socket(plain, server_hostname=address.host).close()
        except ssl.SSLCertVerificationError as err:
            raise self._untrusted(err) from err
        except OSError as err:
            raise self._unavailable(words_of(err)) from err

    def close(self) -> None:
        """Let connections go; a later `send` opens new ones."""
        with self._lock:
            if self._pool is not None:
                self._pool.close()
                self._pool = None

    # --- one request ------------------------------------------------------------------------------

    def _post(self, body: bytes, headers: Mapping[str, str]) -> None:
        moment("post")
        self.counts.call("post", len(body))
        try:
            answer = self._connections().request(
                "POST",
                self._settings.address.target,
                body=body,
                headers=headers,
                retries=False,
                redirect=False,
                preload_content=False,
                timeout=urllib3.Timeout(self._timeout_s, self._timeout_s),
            )
            words = self._read(answer)
        except NewConnectionError as err:  # which urllib3 takes for a kind of time-out
            raise _ForNow(words_of(err)) from err
        except (ConnectTimeoutError, ReadTimeoutError, TimeoutError) as err:
            raise self._too_slow() from err
        except SSLError as err:
            if isinstance(err.args[0] if err.args else None, ssl.SSLCertVerificationError):
                raise self._untrusted(err) from err
            raise _ForNow(words_of(err)) from err
        except (HTTPError, OSError) as err:
            if any(isinstance(part, TimeoutError) for part in err.args):  # while sending
                raise self._too_slow() from err
            raise _ForNow(words_of(err)) from err
        moment("posted")
        self._judge(answer, words)

    def _read(self, answer: urllib3.BaseHTTPResponse) -> bytes:
        """Read an answer as far as it is wanted; a connection is kept only if it came whole."""
        head, size = b"", 0
        until = self._now() + self._timeout_s
        while size <= _DRAINED and self._now() < until:
            piece = answer.read1(65536, decode_content=False)
            if not piece:
                answer.release_conn()
                return head
            size += len(piece)
            head = (head + piece)[:_WORDS_READ]
        answer.close()
        return head

    def _judge(self, answer: urllib3.BaseHTTPResponse, words: bytes) -> None:
        status = answer.status
        if 200 <= status < 300:
            return
        if 300 <= status < 400:
            where = answer.headers.get("Location", "").partition("?")[0]
            where = self._settings.hiding.hide(where)
            raise SinkUnwritable(
                f"{self._settings.address.shown} answers with a redirect ({status}) to "
                f"{on_one_line(where) or 'nowhere'}; give the receiver's own address as the URI"
            )
        body = self._settings.hiding.hide(words.decode("utf-8", "replace"))
        answer_text = f"it answers {status}: {on_one_line(body) or '(no words)'}"
        if status in _FOR_NOW or status >= 500:
            raise _ForNow(answer_text, retry_after_s(answer.headers))
        raise RowRejected(f"{self._settings.address.shown}: {answer_text}")

    # --- waiting ----------------------------------------------------------------------------------

    def _is_long(self, wait_s: float | None) -> bool:
        """Return whether a receiver asks for more than a task should wait."""
        return wait_s is not None and wait_s > self._max_backoff_s

    def _pause(self, tried: int, wait_s: float | None) -> float:
        """Return how long to wait before the next try: as asked, or longer each time."""
        if wait_s is not None:
            return wait_s
        pause: float = min(self._options.backoff.total_seconds() * 2**tried, self._max_backoff_s)
        return pause * (1 - _CHANCE * random.random())

    def _left_alone(self, last: _ForNow) -> SinkUnavailable:
        """Give up for now; where the receiver asked for a pause, nothing is sent before its end."""
        if not last.wait_s:
            return self._unavailable(str(last))
        self._closed_until = self._now() + last.wait_s
        return self._unavailable(f"{last}; it asks to be left for {last.wait_s:g} s")

    def _refuse_if_closed(self) -> None:
        left = self._closed_until - self._now()
        if left > 0:
            raise self._unavailable(f"it asked to be left for another {left:.0f} s")

    # --- pieces -----------------------------------------------------------------------------------

    def _connections(self) -> urllib3.HTTPConnectionPool:
        with self._lock:
            if self._pool is None:
                address, lanes = self._settings.address, self._options.worker_count
                if address.scheme == "https":
                    self._pool = urllib3.HTTPSConnectionPool(
                        address.host, address.port, maxsize=lanes, ssl_context=self._context()
                    )
                else:
                    self._pool = urllib3.HTTPConnectionPool(
                        address.host, address.port, maxsize=lanes
                    )
            return self._pool

    def _context(self) -> ssl.SSLContext:
        tls = self._options
        files = TlsFiles(tls.ssl_ca, tls.ssl_cert, tls.ssl_key, not tls.insecure_skip_verify)
        try:
            context = files.context()
        except (OSError, ssl.SSLError) as err:
            raise SinkUnwritable(
                f"{self._settings.address.shown}: {files.shown} cannot be used for TLS ({err})"
            ) from err
        if tls.insecure_skip_verify:
            urllib3.disable_warnings(InsecureRequestWarning)  # it is what the user asked for
        return context

    def _too_slow(self) -> SinkUnavailable:
        return self._unavailable(f"no answer within {self._timeout_s:g} s")

    def _unavailable(self, words: str) -> SinkUnavailable:
        return SinkUnavailable(f"{self._settings.address.shown}: {words}")

    def _untrusted(self, err: Exception) -> SinkUnwritable:
        return SinkUnwritable(
            f"{self._settings.address.shown}: its certificate is not trusted ({words_of(err)}); "
            "name its authority's certificate with ssl-ca"
        )
