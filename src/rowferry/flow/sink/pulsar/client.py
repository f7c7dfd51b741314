"""The Pulsar client library: one client for a process, and its errors in our words."""

from __future__ import annotations

import os
import re
import tempfile
import weakref
from contextlib import suppress
from typing import Any, Final

import pulsar

from rowferry.errors import (
    BadOption,
    MessageTooLarge,
    RowferryError,
    SinkUnavailable,
    SinkUnwritable,
)
from rowferry.flow.sink.pulsar.login import authentication_of
from rowferry.flow.sink.pulsar.options import PulsarSettings
from rowferry.moment import moment

_FOR_GOOD: Final = frozenset(
    {
        "AuthenticationError",
        "AuthorizationError",
        "ErrorGettingAuthenticationData",
        "IncompatibleSchema",
        "InvalidConfiguration",
        "InvalidTopicName",
        "InvalidUrl",
        "NotAllowedError",
        "OperationNotSupported",
        "TopicTerminated",
        "UnsupportedVersionError",
    }
)
_CURES: Final = {
    "ProducerBusy": "another process of this changefeed is still sending; it ends, or its "
    "connection does",
    "ProducerFenced": "another producer has taken the topic for itself",
    "ProducerBlockedQuotaExceededError": "readers are behind by more than the backlog quota",
    "ProducerBlockedQuotaExceededException": "readers are behind by more than the backlog quota",
}
NO_TOPIC: Final = "TopicNotFound"
CUT: Final = "BatchWasCut"  # by the library: then ids do not tell where batches end
_TOO_LARGE: Final = "MessageTooBig"
_MOST_LOG: Final = 1 << 20
_TAIL: Final = 4096  # bytes of the log in which its last line is looked for
_SHOWN: Final = 200  # characters of a line in an error
_LINE: Final = re.compile(r"^\[[^\]]*\]\s*")


class _LibraryLog:
    """What the library writes down in this process, all of its clients together, in memory.

    The library writes the file itself. A logger of Python's would need the interpreter's lock, and
    the library logs while it holds locks for which calls of ours wait with the interpreter's: both
    would wait for ever.
    """

    def __init__(self) -> None:
        self._owner = 0  # the process: files of a parent are shared with its other children
        self._handle = -1
        self._logger: Any = None

    def logger(self) -> Any:
        """Return the library's logger of this process."""
        if self._owner != os.getpid():
            moment("open the log of Pulsar's client")
            if hasattr(os, "memfd_create"):
                self._handle = os.memfd_create("rowferry-pulsar-log")
                place = f"/proc/self/fd/{self._handle}"
            else:
                self._handle, place = tempfile.mkstemp("-pulsar.log")
            self._logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, place)
            self._owner = os.getpid()
        return self._logger

    def size(self) -> int:
        """Return how much was written; what is far too much is forgotten."""
        if self._owner != os.getpid():
            return 0
        size = os.fstat(self._handle).st_size
        if size > _MOST_LOG:
            os.ftruncate(self._handle, 0)
            return 0
        return size

    def last(self, since: int) -> str:
        """Return the last line behind a place; "": there is none."""
        size = self.size()
        begin = max(since if since <= size else 0, size - _TAIL)
        if begin >= size:
            return ""
        lines = os.pread(self._handle, size - begin, begin).decode("utf-8", "replace").split("\n")
        whole = [line for line in lines if " | " in line]
        words = whole[-1].partition(" | ")[2] if whole else ""
        return " ".join(_LINE.sub("", words).split())[:_SHOWN]


_log: Final = _LibraryLog()


class ClientLog:
    """What the library wrote down since something worked: its errors say little.

    Attributes:
        at: the brokers' address, for the words of errors.
    """

    def __init__(self, at: str) -> None:
        self.at = at
        self._since = _log.size()

    def last(self) -> str:
        """Return the last line; "": there is none."""
        return _log.last(self._since)

    def forget(self) -> None:
        """Begin anew: what went wrong before is no reason any more."""
        self._since = _log.size()


class PulsarClient:
    """A client of the library.

    Attributes:
        log: what it has written down.
    """

    def __init__(self, settings: PulsarSettings) -> None:
        """Build it; it connects when it is first used.

        Raises:
            BadOption: the library refuses its settings.
        """
        options = settings.options
        self.log = ClientLog(settings.at)
        try:
            self.client = pulsar.Client(
                settings.service_url,
                authentication=authentication_of(settings),
                operation_timeout_seconds=max(1, round(options.operation_timeout.total_seconds())),
                connection_timeout_ms=_ms(options.connection_timeout.total_seconds()),
                stats_interval_in_seconds=0,
                use_tls=settings.uses_tls,
                tls_trust_certs_file_path=options.tls_trust_certs_file_path or None,
                tls_allow_insecure_connection=options.insecure_skip_verify,
                tls_validate_hostname=options.tls_validate_hostname
                and not options.insecure_skip_verify,
                tls_certificate_file_path=options.tls_certificate_file or None,
                tls_private_key_file_path=options.tls_key_file_path or None,
                logger=_log.logger(),
            )
        except (pulsar.PulsarException, ValueError, RuntimeError) as err:
            words = " ".join(str(err).split())
            raise BadOption(f"the Pulsar client refuses its settings: {words}") from None

        # One that is left over would write into the log while the interpreter ends.
        self._end = weakref.finalize(self, _closed, self.client)

    def close(self) -> None:
        """Let connections go. On repeat: nothing."""
        self._end()


def name_of(error: BaseException | pulsar.Result) -> str:
    """Return the library's name for what went wrong."""
    return str(error.name) if isinstance(error, pulsar.Result) else type(error).__name__


def as_error(name: str, doing: str, log: ClientLog) -> RowferryError:
    """Return our error for the library's, by its name, with its verdict."""
    line = log.last()
    words = f"Pulsar at {log.at}, {doing}: {name}"
    if name in _CURES:
        return SinkUnavailable(f"{words}: {_CURES[name]}")
    if line and name not in line:
        words += f" ({line})"
    if name == _TOO_LARGE:
        return MessageTooLarge(
            f"{words}; raise maxMessageSize of the brokers, or set large-message-handle-option"
        )
    if name in _FOR_GOOD or name == CUT:
        return SinkUnwritable(f"{words}; correct the login, the rights or the option")
    return SinkUnavailable(f"{words}; start the brokers, or correct host and port in the sink URI")


def _closed(client: pulsar.Client) -> None:
    with suppress(pulsar.PulsarException):  # there was no connection any more
        client.close()


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
