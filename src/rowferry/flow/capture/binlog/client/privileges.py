"""What a user may do: tried where that changes nothing, else read from its grants.

Grants come by many ways (roles, patterns, partial revokes), so trying is surer than reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rowferry.change.table import TableId
from rowferry.errors import LoginRefused, SnapshotOutdated, SourceError, SourceUnavailable
from rowferry.flow.capture.binlog.client.retention import log_begun
from rowferry.moment import moment
from rowferry.mysql.session import (
    Connection,
    Flavour,
    Login,
    one_row,
    rows,
    rows_of_table,
)

_GRANT = re.compile(r"(GRANT|REVOKE) (.+?) ON (.+) (?:TO|FROM) (.+)")
_OF_COLUMNS = re.compile(r"[A-Z ]+ \((?:`(?:[^`]|``)*`|[^)`])*\)(?:, )?")


@dataclass(frozen=True, slots=True)
class Grants:
    """A user's grants, those of its active roles among them, as pairs: privilege, where."""

    given: tuple[tuple[str, str], ...]
    revoked: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, connection: Connection[Any], login: Login) -> Grants:
        """Ask for the grants of the connected user."""
        moment("read grants")
        return cls.parse(row[0] for row in rows(connection, login, "SHOW GRANTS"))

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Grants:
        """Read what SHOW GRANTS prints. The lines may hold password hashes: never show them."""
        given: list[tuple[str, str]] = []
        revoked: list[tuple[str, str]] = []
        for line in lines:
            match = _GRANT.match(line)
            # Everyone may read MariaDB's `test` databases: that says nothing about this user.
            if not match or match[4].strip() == "PUBLIC":
                continue
            pairs = given if match[1] == "GRANT" else revoked
            whole = _OF_COLUMNS.sub("", match[2])
            pairs.extend((privilege.strip(), match[3]) for privilege in whole.split(","))
        return cls(tuple(given), tuple(revoked))

    def places(self, privilege: str) -> list[str]:
        """Return where a privilege is given, for whole tables at least."""
        return [where for what, where in self.given if what in (privilege, "ALL PRIVILEGES")]

    def allows(self, privilege: str) -> bool:
        """Return whether a privilege is given anywhere."""
        return bool(self.places(privilege))

    def blind_spots(self) -> Iterator[str]:
        """Say which tables the user cannot see: a filter does not find them."""
        places = self.places("SELECT")
        if "*.*" not in places:
            yield (
                f"the user may read {_few(places)} only: other tables are not seen, whatever the "
                "filter says"
            )
            return
        hidden = [where for what, where in self.revoked if what in ("SELECT", "ALL PRIVILEGES")]
        if hidden:
            yield f"SELECT on {_few(hidden)} is revoked: tables there are not seen"


def may_read_log(login: Login, flavour: Flavour, files: Sequence[str] | None) -> bool:
    """Return whether the user may read the log, by reading an event of it.

    Args:
        login: the user.
        flavour: of the server.
        files: of the log, as far as they are known.
    """
    try:
        log_begun(login, flavour, files[0] if files else "-")
    except LoginRefused:
        return False
    except SourceUnavailable:
        raise
    except SourceError:
        pass  # let in; only the file is not there
    return True


def check_select(connection: Connection[Any], login: Login, tables: Iterable[TableId]) -> None:
    """Make sure that the user may read these tables; all that it may not read are told at once.

    A table that is gone meanwhile is nobody's to read.

    Raises:
        LoginRefused: with the GRANTs that cure it.
    """
    moment("try select")
    refused = []
    for database, table in tables:
        name = f"{_named(database)}.{_named(table)}"
        try:
            rows_of_table(connection, login, f"SELECT * FROM {name} LIMIT 0")
        except LoginRefused:
            refused.append(name)
        except SnapshotOutdated:
            pass  # it went while we looked; whatever comes in its place is looked at when it joins
    if refused:
        user = account(connection, login)
        cures = [f"GRANT SELECT ON {name} TO {user}" for name in refused[:5]]
        more = f", and the same for {len(refused) - 5} more tables" if len(refused) > 5 else ""
        raise LoginRefused(f"{login} may not read tables; run: {', then '.join(cures)}{more}")


def account(connection: Connection[Any], login: Login) -> str:
    """Return whom the server took the user for, as a GRANT statement names it."""
    moment("ask who we are")
    user, _, host = one_row(connection, login, "SELECT CURRENT_USER()")[0].rpartition("@")
    return f"{_quoted(user)}@{_quoted(host)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _named(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _few(names: Sequence[str]) -> str:
    different = sorted(set(names))
    return ", ".join(different[:5]) + (" and others" if len(different) > 5 else "")
