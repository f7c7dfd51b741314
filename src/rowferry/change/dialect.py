"""A source's dialect: what only its own database can say about names, texts and statements.

Table versions and schema changes carry the name of the dialect that they come from. Stages that
know a dialect's words (they run its statements, or write its type codes) ask for that name; all
others go by the neutral structure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rowferry.change.table import TableId


class SourceDialect(Protocol):
    """What a source's class says about the words of its database."""

    @property
    def name(self) -> str:
        """What table versions and schema changes carry."""

    def is_system_database(self, name: str) -> bool:
        """Return whether a database (`TableId.database`) is never captured, whatever rules say."""

    def rename_tables(
        self, query: str, database: str, new_name: Callable[[TableId], TableId]
    ) -> str:
        """Return a statement with other names of tables and databases; nothing else changes.

        Args:
            query: the statement.
            database: where names without a database are.
            new_name: returns the name of a table, or of a database (its table's name is empty).

        Raises:
            BadStatement: it cannot be read, or the dialect has nothing that could.
        """


def fold(name: str) -> str:
    """Return a name in lower case, character by character.

    `str.lower` looks at neighbours (a final sigma) and may lengthen a name; the reference does not.
    """
    return name.lower() if name.isascii() else "".join(c.lower()[0] for c in name)
