"""Log files of a process: private, with a first line at once, and put aside when they are long."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from rowferry.face.json_log import JsonFormatter, PlainFormatter

_MEGABYTE: Final = 1 << 20
_CHATTY: Final = ("py4j", "alembic", "uvicorn", "httpx")


@dataclass(frozen=True, slots=True)
class LogLimits:
    """How long log files become, and how many are kept beside the present one."""

    megabytes: int = 20
    files: int = 5


class _PrivateFile(RotatingFileHandler):
    """A log file that only its owner may read, as the one before it."""

    def _open(self) -> TextIOWrapper:
        os.close(os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT, 0o600))
        return super()._open()


def log_to_file(file: Path, limits: LogLimits, as_json: bool = False) -> None:
    """Send the log lines of this process to a file, and to no other place.

    `file` becomes `file.1` when it is full, and so on; the oldest one goes.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Without a file to put it into, what is too much would be lost: then it may grow.
    most = limits.megabytes * _MEGABYTE if limits.files else 0
    lines = _PrivateFile(file, maxBytes=most, backupCount=limits.files, encoding="utf-8")
    lines.setFormatter(JsonFormatter() if as_json else PlainFormatter())
    logging.basicConfig(handlers=[lines], level=logging.INFO, force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
