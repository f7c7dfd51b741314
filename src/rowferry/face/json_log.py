"""Logs for machines: one JSON object a line, with the changefeed's id and without secrets."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import IO, Final

from rowferry.control.feed.log_scope import current_changefeed
from rowferry.errors import RowferryError, from_text
from rowferry.spec.uri import is_secret_parameter, without_passwords

_PARAMETER: Final = re.compile(r"([\w.-]+)(=|%3D)([^\s&,;\"']+)")
_ENTRY: Final = re.compile(r"([\"'])([\w.-]+)\1: ?([\"'])(?:(?!\3).)*\3")
_CHATTY: Final = ("py4j", "alembic", "uvicorn", "httpx")


def redacted(text: str) -> str:
    """Return a text without passwords inside URLs and values of parameters that are secret."""

    def parameter(found: re.Match[str]) -> str:
        return f"{found[1]}{found[2]}***" if is_secret_parameter(found[1]) else found[0]

    def entry(found: re.Match[str]) -> str:
        hidden = f"{found[1]}{found[2]}{found[1]}: {found[3]}***{found[3]}"
        return hidden if is_secret_parameter(found[2]) else found[0]

    return _ENTRY.sub(entry, _PARAMETER.sub(parameter, without_passwords(text)))


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
    found = from_text(record.getMessage())
    return found.code if found else ""


def log_json(stream: IO[str] | None = None, level: int = logging.INFO) -> None:
    """Let the whole process log in this form, to standard error unless told otherwise."""
    lines = logging.StreamHandler(stream or sys.stderr)
    lines.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[lines], level=level, force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
