"""How statements begin: what they do to what, and the names of the tables that they are about.

Comes in: the tokens of any statement. Goes out: its head, with the reader of tokens behind it. All
who read DDL read its beginning here: who plans what a statement does is strict, and refuses what is
not known; who follows a log or only looks for names is lenient, and learns what is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from rowferry.change.table import TableId
from rowferry.mysql.ddl.cursor import TokenCursor

VERBS: Final = frozenset({"ALTER", "CREATE", "DROP", "RENAME", "TRUNCATE"})
_UNDERSTOOD: Final = (
    "CREATE/DROP/ALTER DATABASE, CREATE/DROP/TRUNCATE/RENAME/ALTER TABLE, CREATE/DROP INDEX, "
    "CREATE/DROP VIEW"
)
# What a statement can be about, told by the first of these words behind its verb.
_SUBJECTS: Final = {
    "TABLE": "TABLE",
    "TABLES": "TABLE",
    "INDEX": "INDEX",
    "VIEW": "VIEW",
    "DATABASE": "DATABASE",
    "SCHEMA": "DATABASE",
}
_OTHER_SUBJECTS: Final = frozenset(
    "TRIGGER PROCEDURE FUNCTION EVENT SEQUENCE USER ROLE SERVER TABLESPACE LOGFILE UNDO RESOURCE "
    "PACKAGE INSTANCE LIBRARY REFERENCE".split()
)
_TEMPORARY: Final = "TEMPORARY"  # in front of TABLE
_OR_REPLACE: Final = "OR REPLACE"
# What may stand between the two; in front of VIEW, anything.
_BETWEEN: Final[dict[tuple[str, str], frozenset[str]]] = {
    ("CREATE", "TABLE"): frozenset({_OR_REPLACE, _TEMPORARY}),
    ("CREATE", "DATABASE"): frozenset({_OR_REPLACE}),
    ("CREATE", "INDEX"): frozenset(
        {_OR_REPLACE, *"ONLINE OFFLINE UNIQUE FULLTEXT SPATIAL VECTOR".split()}
    ),
    ("DROP", "TABLE"): frozenset({_TEMPORARY}),
    ("DROP", "DATABASE"): frozenset(),
    ("DROP", "INDEX"): frozenset({"ONLINE", "OFFLINE"}),
    ("ALTER", "TABLE"): frozenset({"ONLINE", "OFFLINE", "IGNORE"}),
    ("ALTER", "DATABASE"): frozenset(),
    ("RENAME", "TABLE"): frozenset(),
    ("TRUNCATE", "TABLE"): frozenset(),
}
# These take more than one table, and TABLES is as good as TABLE behind them.
_WITH_LISTS: Final = frozenset({"DROP", "RENAME"})
_DATABASE_OPTIONS: Final = (
    *("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "COMMENT", "ENCRYPTION", "READ"),
)


@dataclass(frozen=True, slots=True)
class WrittenName:
    """A table's name, or with an empty one a database's, as it stands in a text.

    Attributes:
        database: empty where the text names none.
        start: its place in the text, up to `end`.
    """

    database: str
    table: str
    start: int
    end: int

    def within(self, database: str) -> TableId:
        """Return the table that is meant where this database is the current one."""
        return TableId(self.database or database, self.table)


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a statement.

    Attributes:
        verb: CREATE, ALTER, DROP, RENAME or TRUNCATE; empty: something else.
        subject: TABLE, INDEX, VIEW or DATABASE; empty: something else, of which no more is known.
        between: the words between the two, in upper case.
        is_known: whether nothing was passed over that nobody knows.
        conditional: IF EXISTS, or IF NOT EXISTS.
        tables: all that are named, in order; of RENAME, the old name and the new one of each pair.
        database: of a statement about a database; None: the current one.
        index: of a statement about an index.
        like: the table whose definition another one gets.
    """

    verb: str = ""
    subject: str = ""
    between: frozenset[str] = frozenset()
    is_known: bool = True
    conditional: bool = False
    tables: tuple[WrittenName, ...] = ()
    database: WrittenName | None = None
    index: str = ""
    like: WrittenName | None = None

    @property
    def table(self) -> WrittenName:
        """The table that the statement is about, or the first of them."""
        return self.tables[0]

    @property
    def alters_table(self) -> bool:
        """Whether it is an ALTER TABLE."""
        return (self.verb, self.subject) == ("ALTER", "TABLE")

    @property
    def replaces(self) -> bool:
        """Whether what has the name already gives way."""
        return _OR_REPLACE in self.between

    @property
    def is_temporary(self) -> bool:
        """Whether one session only sees the table."""
        return _TEMPORARY in self.between

    @property
    def pairs(self) -> list[tuple[WrittenName, WrittenName]]:
        """The old and the new name of each table that RENAME TABLE names."""
        return list(zip(self.tables[::2], self.tables[1::2], strict=True))


def is_about_other_things(words: Iterable[str]) -> bool:
    """Return whether a statement that begins with a verb of DDL is not about tables others see.

    It need not be one that can be read: the first telling word decides.

    Args:
        words: those behind its verb, in upper case.
    """
    for word in words:
        if word in _SUBJECTS:
            return word == "VIEW"
        if word in _OTHER_SUBJECTS or word == _TEMPORARY:
            return True
    return False


def behind_settings(words: Iterable[tuple[str, int]]) -> int:
    """Return where the statement begins: MariaDB has SET STATEMENT settings FOR statement.

    Args:
        words: of the statement, in upper case, each with the place after it.
    """
    rest = iter(words)
    for expected in ("SET", "STATEMENT"):
        if next(rest, ("", 0))[0] != expected:
            return 0
    return next((end for word, end in rest if word == "FOR"), 0)


def not_understood(cursor: TokenCursor) -> NoReturn:
    """Refuse a statement as a whole."""
    cursor.place = 0
    cursor.fail(f"not a statement that is understood ({_UNDERSTOOD})")


def read_head(cursor: TokenCursor, strict: bool = True) -> Head:
    """Consume the beginning of a statement, up to what it says of the tables that it names.

    Args:
        cursor: stands at the beginning.
        strict: refuse what is not known. Else unknown words in front of the subject are passed
            over, and of a statement about something else nothing but its verb is told.

    Raises:
        BadStatement: a name is missing; or, if strict, words are there that are not known.
    """
    cursor.place = _behind_settings(cursor)
    verb = cursor.accept_any(*VERBS)
    between: list[str] = []
    if verb == "TRUNCATE":
        subject = "TABLE"
        cursor.accept("TABLE")
    else:
        while verb and not (cursor.done() or _at_subject(cursor)):
            replaces = cursor.accept("OR", "REPLACE")
            between.append(_OR_REPLACE if replaces else cursor.take().word)
        word = cursor.accept_any(*_SUBJECTS)
        subject = _SUBJECTS.get(word, "") if verb in _WITH_LISTS or word != "TABLES" else ""
    known = frozenset(between) if subject == "VIEW" else _BETWEEN.get((verb, subject))
    is_known = known is not None and known.issuperset(between)
    if strict and not is_known:
        not_understood(cursor)
    if known is None:
        return Head(verb)
    condition = ("IF", "NOT", "EXISTS") if verb == "CREATE" else ("IF", "EXISTS")
    conditional = verb != "TRUNCATE" and cursor.accept(*condition)
    head = Head(verb, subject, frozenset(between), conditional=conditional)
    if subject == "DATABASE":
        return replace(head, is_known=is_known, database=_database_name(cursor, verb))
    index, is_known_index = _index_name(cursor, strict) if subject == "INDEX" else ("", True)
    tables, are_known = _table_names(cursor, verb, strict)
    like = accept_like(cursor) if (verb, subject) == ("CREATE", "TABLE") else None
    is_known = is_known and is_known_index and are_known
    return replace(head, is_known=is_known, tables=tables, index=index, like=like)


def read_altered(cursor: TokenCursor) -> WrittenName | None:
    """Consume the head of an ALTER TABLE, leniently; return its table, None for anything else.

    Raises:
        BadStatement: a name is missing.
    """
    cursor.place = _behind_settings(cursor)
    head = read_head(cursor, strict=False) if cursor.at("ALTER") else Head()
    return head.table if head.alters_table else None


def _behind_settings(cursor: TokenCursor) -> int:
    return behind_settings((t.word, n) for n, t in enumerate(cursor.tokens, 1))


def _at_subject(cursor: TokenCursor) -> bool:
    word = cursor.peek().word
    return word in _SUBJECTS or word in _OTHER_SUBJECTS


def _database_name(cursor: TokenCursor, verb: str) -> WrittenName | None:
    if verb == "ALTER" and cursor.at_any(*_DATABASE_OPTIONS):
        return None
    place = cursor.peek()
    return WrittenName(cursor.name(), "", place.start, place.end)


def _index_name(cursor: TokenCursor, strict: bool) -> tuple[str, bool]:
    """Consume the name of an index and ON; also return whether all between them is known."""
    index = cursor.name()
    if cursor.accept_any("USING", "TYPE"):
        cursor.name()
    return index, _expect(cursor, "ON", strict)


def _table_names(
    cursor: TokenCursor, verb: str, strict: bool
) -> tuple[tuple[WrittenName, ...], bool]:
    """Consume the names of the tables that a statement is about, and what MariaDB says of them.

    Also returns whether all of that is known.
    """
    names, is_known = [], True
    while True:
        names.append(written_name(cursor))
        if verb != "CREATE":
            _wait(cursor)
        if verb == "RENAME":
            is_known = _expect(cursor, "TO", strict) and is_known
            names.append(written_name(cursor))
            _wait(cursor)
        if verb not in _WITH_LISTS or not cursor.accept(","):
            break
    if verb == "DROP":
        cursor.accept_any("RESTRICT", "CASCADE")
    elif verb == "TRUNCATE":
        cursor.accept("DROP", "STORAGE") or cursor.accept("REUSE", "STORAGE")
    return tuple(names), is_known


def _wait(cursor: TokenCursor) -> None:
    """Consume MariaDB's word on how long to wait for a table."""
    if cursor.accept("WAIT"):
        cursor.whole()
    cursor.accept("NOWAIT")


def _expect(cursor: TokenCursor, word: str, strict: bool) -> bool:
    """Consume a word, if lenient with all that stands before it; return whether that is nothing."""
    start = cursor.place
    while not (strict or cursor.done() or cursor.at(word)):
        cursor.take()
    is_known = cursor.place == start
    cursor.expect(word)
    return is_known


def written_name(cursor: TokenCursor) -> WrittenName:
    """Consume the name of a table.

    Raises:
        BadStatement: there is none.
    """
    if not cursor.at_name():
        cursor.fail("expected the name of a table")
    start = cursor.peek().start
    database, table = cursor.qualified_name()
    return WrittenName(database, table, start, cursor.tokens[cursor.place - 1].end)


def accept_like(cursor: TokenCursor) -> WrittenName | None:
    """Consume `LIKE table` or `(LIKE table)`, if that comes next."""
    if cursor.accept("LIKE"):
        return written_name(cursor)
    if not cursor.accept("(", "LIKE"):
        return None
    like = written_name(cursor)
    cursor.expect(")")
    return like
