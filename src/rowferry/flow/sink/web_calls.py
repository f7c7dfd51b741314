"""What sinks that speak HTTP have in common: TLS, how long to wait, and words of answers."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

WORDS_SHOWN: Final = 200  # characters of an answer that are quoted


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Which certificates to trust and to show; empty: the machine's authorities, and none."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    verifies: bool = True

    def context(self) -> ssl.SSLContext:
        """Return what connections are encrypted by.

        Raises:
            OSError, ssl.SSLError: a file cannot be read, or holds something else.
        """
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.cert:
            context.load_cert_chain(self.cert, self.key)
        if not self.verifies:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    @property
    def shown(self) -> str:
        """The files' names, for an error."""
        return " or ".join(f for f in (self.ca, self.cert, self.key) if f)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return how long an answer asks to be left: from Retry-After in seconds or as a date.

    A date is compared with the receiver's own clock where the answer tells it.
    """
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    until = _date(text)
    if until is None:
        return None
    now = _date(headers.get("Date", "")) or datetime.now(UTC)
    return max((until - now).total_seconds(), 0.0)


def _date(text: str) -> datetime | None:
    try:
        parsed = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def on_one_line(text: str) -> str:
    """Return foreign words on one line, shortened."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    plain = " ".join(plain.split())
    return plain if len(plain) <= WORDS_SHOWN else plain[:WORDS_SHOWN] + "…"


def words_of(err: Exception) -> str:
    """Return a library error's words without its objects' addresses."""
    reason = err.__cause__ or err
    reason_text = (
        getattr(reason, "strerror", None) or str(reason).rpartition(">: ")[2] or str(reason)
    )
    return on_one_line(f"{type(reason).__name__}: {reason_text}")
