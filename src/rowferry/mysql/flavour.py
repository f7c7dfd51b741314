"""Whose server it is, and of which version."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Flavour(Enum):
    """Whose server it is: they differ in GTIDs, events and statements. TiDB has no log to read."""

    MYSQL = "mysql"
    MARIADB = "mariadb"
    TIDB = "tidb"

    @property
    def label(self) -> str:
        """Its name for people."""
        return {"mysql": "MySQL", "mariadb": "MariaDB", "tidb": "TiDB"}[self.value]


# Schemes of URIs by which one logs in to a server, whosever it is.
LOGIN_SCHEMES: Final = tuple(flavour.value for flavour in Flavour)
TIDB_QUERY: Final = "SELECT tidb_version()"  # whatever version it was told to show
# What a server that is not TiDB says to it; the first one without a database.
NO_SUCH_FUNCTION: Final = frozenset({1046, 1305})


def flavour_of(version: str, is_tidb: bool) -> Flavour:
    """Return whose server it is, by its version's text and its answer to `TIDB_QUERY`."""
    if is_tidb:
        return Flavour.TIDB
    return Flavour.MARIADB if "mariadb" in version.lower() else Flavour.MYSQL


def version_numbers(text: str) -> tuple[int, int, int]:
    """Return the three numbers of a version like `10.11.6-MariaDB-log`."""
    parts = text.split("-")[0].split(".")
    numbers = [int("".join(c for c in p if c.isdecimal()) or 0) for p in parts[:3]]
    return (numbers + [0, 0, 0])[0], (numbers + [0, 0, 0])[1], (numbers + [0, 0, 0])[2]
