"""Logs for machines: one JSON object a line, with the changefeed's id and without secrets."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import IO, Any, Final

from rowferry.control.feed.log_scope import current_changefeed
from rowferry.errors import RowferryError, from_text
from rowferry.spec.linear import Found, linear, replaced
from rowferry.spec.uri import is_secret_parameter, without_passwords

# Names may have letters of any alphabet: bytes from 0x80 on are theirs.
_PARAMETER: Final = linear(rb"""([\w.\x80-\xff-]+)(?:=|%3D)([^\s&,;"']+)""")
_ENTRY: Final = linear(
    rb"""(?:"([\w.\x80-\xff-]+)"|'([\w.\x80-\xff-]+)'): ?("[^"\n]*"|'[^'\n]*')"""
)
_MOST: Final = 1 << 16  # characters of a text that are shown
_CHATTY: Final = ("py4j", "alembic", "uvicorn", "httpx")


def redacted(text: str) -> str:
    """Return a text without passwords inside URLs and values of parameters that are secret.

    Of a text that is longer than any of ours, its beginning.
    """
    if len(text) > _MOST:
        # What is hidden may end behind what is shown: so more is looked at.
        return redacted_whole(text[: 2 * _MOST])[:_MOST] + "…"
    return redacted_whole(text)


def redacted_whole(text: str) -> str:
    """Return a text of any length without its secrets."""
    return replaced(replaced(without_passwords(text), _PARAMETER, _parameter), _ENTRY, _entry)


def _parameter(match: Found) -> bytes:
    if not is_secret_parameter(match[1].decode("utf-8", "replace")):
        return match[0]
    return match[0][: -len(match[2])] + b"***"


def _entry(match: Found) -> bytes:
    if not is_secret_parameter((match[1] or match[2]).decode("utf-8", "replace")):
        return match[0]
    quote = match[3][:1]
    return match[0][: -len(match[3])] + quote + b"***" + quote


class PlainFormatter(logging.Formatter):
    """Writes a record as a line for people, without secrets."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the trace behind it where there is one."""
        return redacted(super().format(record))


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON.

    Keys: `ts` (RFC 3339, UTC), `level`, `logger`, `message`; where known also `changefeed`, `code`
    (of our error), and `trace` (of any exception).
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC)
        form = {
            "ts": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        if changefeed := getattr(record, "changefeed", "") or current_changefeed.get():
            form["changefeed"] = str(changefeed)
        if code := _code(record):
            form["code"] = code
        if record.exc_info and record.exc_info[0] is not None:
            form["trace"] = redacted(self.formatException(record.exc_info))
        return json.dumps(form, ensure_ascii=False)


def _code(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, RowferryError):
        return error.code
    named_error = from_text(record.getMessage())
    return named_error.code if named_error else ""


def log_json(stream: IO[str] | None = None, level: int = logging.INFO) -> None:
    """Let the whole process log in this form, to standard error unless told otherwise."""
    lines = logging.StreamHandler(stream or sys.stderr)
    lines.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[lines], level=level, force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def all_shown(value: Any) -> Any:
    """Return an answer with every text in it redacted."""
    if isinstance(value, Mapping):
        return {key: all_shown(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [all_shown(one) for one in value]
    return redacted(value) if isinstance(value, str) else value
