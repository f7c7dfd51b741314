"""What PostgreSQL refuses, judged by its SQLSTATE."""

from __future__ import annotations

from typing import Final

from rowferry.errors import RowferryError, RowRejected, SinkUnavailable, SinkUnwritable, TargetLost
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.sql.session import SqlRefusal

DUPLICATE: Final = "23505"
OVERTAKEN: Final = "40001"  # another transaction was faster
_CONFLICTS: Final = frozenset({OVERTAKEN, "40P01", "55P03"})
_GONE: Final = frozenset({"42P01", "3F000"})
_RIGHTS: Final = frozenset({"42501"})
_PASSING: Final = frozenset({"25006", "57014", "57P01", "57P02", "57P03", "57P05", "55006"})
_PASSING_CLASSES: Final = frozenset({"08", "53", "58"})
_ROW_CLASSES: Final = frozenset({"22", "23"})
_OF_A_ROW: Final = frozenset({"54000"})  # e.g. a value too long for an index
_CURES: Final = {
    "22021": "the text has a NUL character (U+0000), which PostgreSQL cannot hold: remove it at "
    "the source, or leave the column out or mask it, then resume",
    "22P05": "PostgreSQL's jsonb cannot hold \\u0000: remove it at the source, or make the column "
    "json, then resume",
    "22007": "PostgreSQL does not have this day: set zero-dates = null in sink.postgresql-config, "
    "or correct it at the source, then resume",
    "22008": "PostgreSQL does not have this day: set zero-dates = null in sink.postgresql-config, "
    "or correct it at the source, then resume",
    "42703": "bring the table's columns in line with the source's, then resume the changefeed",
}
# What a server that cannot take a login now says; it tells no SQLSTATE there.
_NOT_NOW: Final = ("starting up", "shutting down", "too many", "remaining connection", "recovery")
_TLS: Final = ("SSL", "certificate")


class PostgresqlRefusal(SqlRefusal):
    """PostgreSQL refused a statement; `state` is the SQLSTATE."""

    def __init__(self, state: str, server_text: str, place: str) -> None:
        super().__init__(state, server_text)
        self.state, self.server_text, self.place = state, server_text, place

    @property
    def is_conflict(self) -> bool:
        """Whether it only met another transaction."""
        return self.state in _CONFLICTS

    @property
    def is_about_row(self) -> bool:
        """Whether one row is refused for what it holds, and others may be taken."""
        return self.state[:2] in _ROW_CLASSES or self.state in _OF_A_ROW

    @property
    def is_gone(self) -> bool:
        """Whether a table or schema is not there."""
        return self.state in _GONE

    def as_error(self, about: str) -> RowferryError:
        """Return it as an error of ours, with its verdict."""
        words = f"{self.place}, {about}: {self.server_text} (SQLSTATE {self.state})"
        if self.state in _RIGHTS:
            return SinkUnwritable(f"{words}; grant the privilege, then resume the changefeed")
        if self.state in _CONFLICTS | _PASSING or self.state[:2] in _PASSING_CLASSES:
            return SinkUnavailable(words)
        if self.state in _GONE:
            return TargetLost(f"{words}; it was there before: {RESTORE}")
        cure = _CURES.get(self.state, "correct the downstream so that it takes it, then resume")
        return RowRejected(f"{words}; {cure}")


def login_error(text: str, place: str) -> RowferryError:
    """Return the error for a connection that could not be made, by the client's words."""
    words = f"{place}: {' '.join(text.split())}"
    if any(word in text for word in _NOT_NOW):
        return SinkUnavailable(words)
    if any(word in text for word in _TLS):
        return SinkUnwritable(f"{words}; check ssl-mode, ssl-ca and the server's certificate")
    if "FATAL" in text:
        return SinkUnwritable(f"{words}; check user, password and database")
    return SinkUnavailable(words)
