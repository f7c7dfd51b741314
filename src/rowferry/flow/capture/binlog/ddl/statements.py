"""What one statement of the log does to the captured tables.

Comes in: a statement's text and the definitions before it. Goes out: the schema changes, the tables
whose definition the text does not tell, and the swaps of online schema changes. No text whatsoever
is an error here: a statement that cannot concern captured tables can never stop a feed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.capture.binlog.ddl.reader import (
    ANSI_QUOTES,
    NotUnderstood,
    Scope,
    StatementReader,
)
from rowferry.flow.capture.binlog.ddl.verbs import EFFECTS
from rowferry.mysql.ddl.head import VERBS, behind_settings, is_about_other_things, read_head
from rowferry.mysql.ddl.text import mentioned, plain_text, words_of
from rowferry.mysql.server_form import ServerSettings
from rowferry.mysql.session import ServerFacts

# First words of statements that change no definition, and no rows that the log does not show.
_HARMLESS: Final = frozenset(
    "BEGIN COMMIT ROLLBACK SAVEPOINT RELEASE XA GRANT REVOKE FLUSH ANALYZE OPTIMIZE REPAIR CHECK "
    "CHECKSUM INSTALL UNINSTALL LOCK UNLOCK USE DO KILL RESET PURGE CHANGE START STOP SHOW SELECT "
    "EXPLAIN PREPARE EXECUTE DEALLOCATE HELP SHUTDOWN CACHE SIGNAL SET".split()
)
_FIRST_WORD: Final = re.compile(r"\s*([A-Za-z]+)")


@dataclass(frozen=True, slots=True)
class Effects:
    """What a statement does to captured tables, and to those that the filter keeps.

    Attributes:
        changes: in order, with commit-ts and versions 0. A table of `unread` has its place here
            too, without a schema; where its text is empty as well, the table is new to the feed
            and its definition is the text to be. Kind NONE: not even that is known. The second
            table of an exchange of partitions has no text: the first one's changed both. Changes
            of databases are here whatever the filter says.
        unread: tables whose definition after the statement cannot be told from its text:
            information_schema must be asked.
        swapped: (captured table, the copy that took its name): the old table went where the filter
            does not look, and the copy came from there, as online schema changes end. Such a table
            is in `unread`, and has no change.
        filled: tables that are made of a query which stands in the log in the place of its rows.
        thinned: captured tables of which it may delete rows that the log does not have.
    """

    changes: tuple[SchemaChange, ...] = ()
    unread: tuple[TableId, ...] = ()
    swapped: tuple[tuple[TableId, TableId], ...] = ()
    filled: tuple[TableId, ...] = ()
    thinned: tuple[TableId, ...] = ()


def effects(
    sql: str,
    database: str,
    known: Mapping[TableId, TableSchema],
    keeps: Callable[[TableId], bool],
    next_id: Callable[[], int],
    facts: ServerFacts,
    settings: ServerSettings | None = None,
    sql_mode: int = 0,
    is_announced: Callable[[TableId], bool] = lambda name: True,
) -> Effects | None:
    """Return what a statement does; None: nothing that concerns captured tables.

    Nothing is raised for any text. One that is not understood, but in which a captured table or a
    name that `keeps` accepts occurs, gives that table as unread.

    Args:
        sql: the statement as the log has it.
        database: the current one, for names without one; may be empty.
        known: the captured tables, in server form.
        keeps: whether the filter keeps a table of that name.
        next_id: gives a table id that was never used.
        facts: the server that ran the statement.
        settings: what the server is set to; without them more has to be asked.
        sql_mode: the session's, as the log has it.
        is_announced: whether readers know of a captured table.
    """
    first = _FIRST_WORD.match(sql)
    if first is not None and first[1].upper() in _HARMLESS and first[1].upper() != "SET":
        return None  # most statements of a log begin or end transactions
    scope = Scope(known, keeps, next_id, facts, settings or ServerSettings(), is_announced)
    plain = plain_text(sql, facts, bool(sql_mode & ANSI_QUOTES))
    if sql_mode & ANSI_QUOTES:
        sql = plain  # whoever is handed the text takes double quotes for those of a string
    place = behind_settings(words_of(plain))
    sql, plain = sql[place:], plain[place:]
    if _is_harmless(plain):
        return None
    try:
        effect = _by_words(StatementReader(sql, plain, database, scope, sql_mode))
    except Exception:  # whatever is wrong with a text, the feed goes on
        effect = _by_mention(sql, plain, database, scope)
    return effect if effect.changes or effect.unread else None


def _is_harmless(plain: str) -> bool:
    """Return whether a statement has nothing to do with tables, told by its first words."""
    words = (word for word, _ in words_of(plain))
    verb = next(words, "SET")
    if verb in VERBS and verb != "TRUNCATE":
        return is_about_other_things(words)
    return verb in _HARMLESS


def _by_words(reader: StatementReader) -> Effects:
    """Read a statement by its first words.

    Raises:
        NotUnderstood, BadStatement: what it does is not known.
    """
    head = read_head(reader.cursor, strict=False)
    if not head.is_known or (head.verb, head.subject) not in EFFECTS:
        raise NotUnderstood
    EFFECTS[head.verb, head.subject](reader, head)
    return Effects(
        tuple(reader.changes),
        tuple(reader.unread),
        tuple(reader.swapped),
        tuple(reader.filled),
        tuple(reader.thinned),
    )


def _by_mention(sql: str, plain: str, database: str, scope: Scope) -> Effects:
    """Return the tables that a text mentions as unread."""
    names: dict[TableId, None] = {}
    for written, surely in mentioned(plain, database):
        name = scope.name(written)
        if name in scope.known or (surely and scope.keeps(name)):
            names[name] = None
    changes = (SchemaChange(0, DdlKind.NONE, sql.strip(), name) for name in names)
    return Effects(tuple(changes), tuple(names))
