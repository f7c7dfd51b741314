"""Which changefeed the present thread works for, so that log lines can say so."""

from __future__ import annotations

from contextvars import ContextVar

current_changefeed: ContextVar[str] = ContextVar("current_changefeed", default="")
