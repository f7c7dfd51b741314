"""The last log lines about each changefeed, kept until they are stored for every server to show."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rowferry.control.feed.log_scope import current_changefeed
from rowferry.control.store.contract import LogLine
from rowferry.spec.uri import without_passwords

_MOST_LINES: Final = 200  # of one changefeed that wait
_MOST_FEEDS: Final = 2000


class RecentLines(logging.Handler):
    """Takes the lines that say which changefeed they are about; bounded, and without secrets."""

    def __init__(self, server: str, hide: Callable[[str], str] = without_passwords) -> None:
        """Make a handler; `server` is this one's name, `hide` takes secrets out of a text."""
        super().__init__(logging.INFO)
        self._server, self._hide = server, hide
        self._waiting: dict[str, deque[LogLine]] = {}
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        changefeed = str(getattr(record, "changefeed", "") or current_changefeed.get())
        if not changefeed:
            return
        try:
            words = record.getMessage()
            if record.exc_info and record.exc_info[1] is not None:
                words += f": {record.exc_info[1]!r}"
            line = LogLine(
                record.created, record.levelname.lower(), self._server, self._hide(words)
            )
        except Exception:  # a line that cannot be put together disturbs nobody
            self.handleError(record)
            return
        with self._guard:
            if changefeed in self._waiting or len(self._waiting) < _MOST_FEEDS:
                self._waiting.setdefault(changefeed, deque(maxlen=_MOST_LINES)).append(line)

    def take(self) -> dict[str, Sequence[LogLine]]:
        """Return the lines that wait, by changefeed, and forget them."""
        with self._guard:
            taken, self._waiting = self._waiting, {}
        return {changefeed: tuple(lines) for changefeed, lines in taken.items()}

    def put_back(self, lines: Mapping[str, Sequence[LogLine]]) -> None:
        """Let lines wait again: they could not be stored."""
        with self._guard:
            for changefeed, some in lines.items():
                later = self._waiting.pop(changefeed, ())
                self._waiting[changefeed] = deque([*some, *later], maxlen=_MOST_LINES)
