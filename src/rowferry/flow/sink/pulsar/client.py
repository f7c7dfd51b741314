"""The Pulsar client library: one client for a process, and its errors in our words."""

from __future__ import annotations

import logging
import re
import time
import weakref
from contextlib import suppress
from typing import Final

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
_SHOWN: Final = 200  # characters of a line in an error
_LINE: Final = re.compile(r"^\[[^\]]*\]\s*")


class _Lines(logging.Handler):
    """The last line that the library has written into its log, and when.

    The library has one log for all clients of a process: a line may be another one's.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = (0.0, "")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        line = " ".join(_LINE.sub("", record.getMessage()).split())
        self.last = (time.monotonic(), line[:_SHOWN])


_lines: Final = _Lines()
_logger: Final = logging.Logger("rowferry.pulsar", logging.WARNING)
_logger.addHandler(_lines)


class ClientLog:
    """What the library wrote down since something worked: its errors say little.

    Attributes:
        at: the brokers' address, for the words of errors.
    """

    def __init__(self, at: str) -> None:
        self.at = at
        self._since = time.monotonic()

    def last(self) -> str:
        """Return the last line; "": there is none."""
        when, line = _lines.last
        return line if when >= self._since else ""

    def forget(self) -> None:
        """Begin anew: what went wrong before is no reason any more."""
        self._since = time.monotonic()


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
                logger=_logger,
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
