"""Statements that a server refuses because their work, or a part of it, is done: what is left.

A statement is repeated where its answer was lost, and where a table here has not all that the
source's has. Servers refuse it as a whole then. So each part is judged by what is there now: what
is done is left out, and a statement counts as done only if all of it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rowferry.change.table import TableId
from rowferry.errors import BadStatement
from rowferry.mysql.ddl.clauses import (
    accept_modifiers,
    accept_new_name,
    accept_of_partitions,
    renamed_column,
    split_clauses,
)
from rowferry.mysql.ddl.cursor import SqlToken, TokenCursor
from rowferry.mysql.ddl.head import Head, WrittenName, read_head
from rowferry.mysql.ddl.table import quoted, quoted_table

Ask: TypeAlias = Callable[[str, Sequence[object]], Sequence[Sequence[Any]]]
"""Runs a query with values on the server, and returns its rows."""
_Rename: TypeAlias = tuple[TableId, TableId]

_THERE, _GONE = 1050, 1146  # a table
_NO_SUCH_COLUMN: Final = 1054
_COLUMN_THERE: Final = 1060
_KEY_THERE: Final = 1061
_PRIMARY_THERE: Final = 1068
_NO_SUCH_KEY: Final = 1176
_NOTHING_TO_DROP: Final = frozenset({1091, 3821, 3940})  # the last ones of a constraint
_CONSTRAINT_THERE: Final = frozenset({1826, 3822})
_NO_SUCH_PARTITION, _PARTITION_THERE = 1507, 1517
_OF_PARTITIONS: Final = frozenset({_NO_SUCH_PARTITION, _PARTITION_THERE})
# By which errors statements may find their work done; those of another subject say something else.
_ALREADY: Final = {
    ("CREATE", "DATABASE"): frozenset({1007}),
    ("DROP", "DATABASE"): frozenset({1008}),
    ("CREATE", "TABLE"): frozenset({_THERE}),
    ("CREATE", "VIEW"): frozenset({_THERE}),
    ("CREATE", ""): frozenset({_THERE}),  # a sequence
    ("CREATE", "INDEX"): frozenset({_KEY_THERE}),
    ("DROP", "INDEX"): frozenset({1091}),
    ("DROP", "TABLE"): frozenset({1051}),
    ("DROP", "VIEW"): frozenset({1051, 4092}),
    ("RENAME", "TABLE"): frozenset({_THERE, _GONE}),
    ("ALTER", "TABLE"): frozenset(
        {_THERE, _GONE, _NO_SUCH_COLUMN, _COLUMN_THERE, _KEY_THERE, _PRIMARY_THERE, _NO_SUCH_KEY}
    )
    | _NOTHING_TO_DROP
    | _CONSTRAINT_THERE
    | _OF_PARTITIONS,
}
_KINDS_OF_KEYS: Final = ("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")
_CONSTRAINTS: Final = (*_KINDS_OF_KEYS, "PRIMARY", "FOREIGN", "CHECK")
# What an ADD may name beside columns, keys and constraints.
_OTHERS: Final = frozenset({"PARTITION", "PERIOD", "SYSTEM", "("})


def partly_done(sql: str, database: str, number: int, ask: Ask) -> str | None:
    """Return what is left to do of a refused statement; "": nothing.

    None: it was refused for something else, or what is left of it is not certain.

    Args:
        sql: the statement.
        database: of names without one.
        number: of the error by which it was refused.
        ask: of the server that has refused it.
    """
    try:
        cursor = TokenCursor(sql, ansi_quotes=True)
        head = read_head(cursor, strict=False)
        if number not in _ALREADY.get((head.verb, head.subject), frozenset()):
            return None
        if head.alters_table:
            return _left_of_alter(cursor, head.table, database, number, ask)
    except BadStatement:
        return None
    if head.verb == "RENAME":
        left = _left_of_renames(head, database, ask)
        is_part = left is not None and len(left) < len(head.pairs)
        return _rename_sql(left) if left is not None and is_part else None
    if head.verb == "DROP" and len(head.tables) > 1:
        names = _left_of_drops(head, database, ask)
        return _drop_sql(head, names) if len(names) < len(head.tables) else None
    return ""


def cut_off(sql: str, database: str, ask: Ask) -> str:
    """Return what is left of a statement that was begun and has altered something; "": nothing.

    Of statements, only those of several tables may end in the middle.
    """
    try:
        head = read_head(TokenCursor(sql, ansi_quotes=True), strict=False)
    except BadStatement:
        return ""
    if head.verb == "RENAME" and len(head.tables) > 2:
        return _rename_sql(_left_of_renames(head, database, ask) or [])
    if head.verb == "DROP" and len(head.tables) > 1:
        return _drop_sql(head, _left_of_drops(head, database, ask))
    return ""


# --- statements of several tables ----------------------------------------------------------------


def _left_of_drops(head: Head, database: str, ask: Ask) -> list[TableId]:
    names = [written.within(database) for written in head.tables]
    there = _there(names, ask)
    return [name for name in names if name in there]


def _drop_sql(head: Head, names: Sequence[TableId]) -> str:
    return f"DROP {head.subject} {', '.join(map(quoted_table, names))}" if names else ""


def _left_of_renames(head: Head, database: str, ask: Ask) -> list[_Rename] | None:
    """Return the renames that are still to be done; None: that cannot be told.

    They are done in their order. After each of them other names are there, until they have come
    full circle, as where two tables trade their names.
    """
    pairs = [(old.within(database), new.within(database)) for old, new in head.pairs]
    there = _there({name for pair in pairs for name in pair}, ask)
    left: set[int] = set()
    for group in _connected(pairs):
        names = {name for place in group for name in pairs[place]}
        states = _names_after_each([pairs[place] for place in group])
        fitting = [n for n, state in enumerate(states) if state == there & names]
        if len(fitting) != 1:
            return None
        left.update(group[fitting[0] :])
    return [pairs[place] for place in sorted(left)]


def _connected(pairs: Sequence[_Rename]) -> list[list[int]]:
    """Return the places of renames that have names in common, group by group, in their order."""
    groups: list[list[int]] = []
    for place, pair in enumerate(pairs):
        own = [g for g in groups if any(not set(pair).isdisjoint(pairs[p]) for p in g)]
        groups = [g for g in groups if g not in own]
        groups.append(sorted([*(p for g in own for p in g), place]))
    return groups


def _names_after_each(pairs: Sequence[_Rename]) -> list[set[TableId]]:
    """Return which names are there before the first rename, and after each."""
    before: set[TableId] = set()
    given: set[TableId] = set()
    for old, new in pairs:
        if old not in given:
            before.add(old)
        given.add(new)
    states = [before]
    for old, new in pairs:
        states.append((states[-1] - {old}) | {new})
    return states


def _rename_sql(pairs: Sequence[_Rename]) -> str:
    renames = (f"{quoted_table(old)} TO {quoted_table(new)}" for old, new in pairs)
    return f"RENAME TABLE {', '.join(renames)}" if pairs else ""


def _there(names: Collection[TableId], ask: Ask) -> set[TableId]:
    sql = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    return {name for name in names if ask(sql, tuple(name))}


# --- ALTER TABLE ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TableParts:
    """The names of what a table has, in lower case."""

    columns: Collection[str]
    keys: Collection[str]
    constraints: Collection[str]


@dataclass(frozen=True, slots=True)
class _Part:
    """A clause, or one of several that stand in parentheses behind one ADD."""

    tokens: Sequence[SqlToken]
    text: str

    @property
    def words(self) -> list[str]:
        """Its keywords and symbols in their places; what else stands there is empty."""
        return [token.word for token in self.tokens]

    def name_at(self, place: int) -> str:
        """Return the name that stands at a place, in lower case."""
        return self.tokens[place].text.lower() if place < len(self.tokens) else ""


def _left_of_alter(
    cursor: TokenCursor, table: WrittenName, database: str, number: int, ask: Ask
) -> str | None:
    """Return what is left of an ALTER TABLE; `cursor` stands behind its head.

    Raises:
        BadStatement: it cannot be read.
    """
    sql, name = cursor.sql, table.within(database)
    begin = cursor.peek().start
    action = cursor.at_place(cursor.place)
    accept_modifiers(action)
    done = accept_of_partitions(action)
    if done is not None:
        if (done.verb, number) == ("CONVERT", _THERE):
            return ""
        is_known = number in _OF_PARTITIONS
        return _left_of_partitions(action, done.verb, name, ask) if is_known else None
    if number in (_THERE, _GONE):
        return _left_of_renamed(cursor, table, database, ask)
    there = _read_parts(name, ask)
    parts = [part for one in _parts(cursor) for part in _spread(one, number)]
    left = [p for p in parts if not _is_done(p, parts, number, there)]
    renamed = (renamed_column(p.tokens) for p in parts if p not in left)
    given = {names[1] for names in renamed if names is not None}
    if any(_dropped_column(p) in given for p in left):
        return None  # the column that was to go first, or the one that has its name by now?
    return _joined(sql, sql[:begin], parts, left)


def _left_of_renamed(
    cursor: TokenCursor, table: WrittenName, database: str, ask: Ask
) -> str | None:
    """Return what is left of an ALTER TABLE whose table has got the new name that it says."""
    sql, old = cursor.sql, table.within(database)
    between = sql[table.end : cursor.peek().start]
    parts = _parts(cursor)
    renames = {n: new for n, p in enumerate(parts) if (new := _new_name(sql, p)) is not None}
    names = [new.within(database or old.database) for new in renames.values()]
    if not names or _there({old, names[-1]}, ask) != {names[-1]}:
        return None
    lead = f"{sql[: table.start]}{quoted_table(names[-1])}{between}"
    left = [p for n, p in enumerate(parts) if n not in renames]
    return _joined(sql, lead, parts, left)


def _new_name(sql: str, part: _Part) -> WrittenName | None:
    return accept_new_name(TokenCursor(sql, list(part.tokens), ansi_quotes=True))


def _joined(sql: str, lead: str, parts: Sequence[_Part], left: Sequence[_Part]) -> str | None:
    if not left:
        return ""
    # A comment that is code may hold more than one clause.
    is_whole = "/*!" not in sql and "/*M!" not in sql
    return lead + ", ".join(p.text for p in left) if is_whole and len(left) < len(parts) else None


def _read_parts(table: TableId, ask: Ask) -> _TableParts:
    def names(what: str, of: str) -> frozenset[str]:
        sql = f"SELECT {what} FROM information_schema.{of} WHERE TABLE_SCHEMA = %s AND "
        return frozenset(str(r[0]).lower() for r in ask(f"{sql}TABLE_NAME = %s", tuple(table)))

    return _TableParts(
        names("COLUMN_NAME", "COLUMNS"),
        names("INDEX_NAME", "STATISTICS"),
        names("CONSTRAINT_NAME", "TABLE_CONSTRAINTS"),
    )


def _parts(cursor: TokenCursor) -> list[_Part]:
    """Read all clauses.

    Raises:
        BadStatement: something else follows, or there is nothing between two commas.
    """
    clauses = [clause.tokens for clause in split_clauses(cursor)]
    cursor.finish()
    if not all(clauses):
        cursor.fail("a clause is missing")
    return [_Part(c, cursor.sql[c[0].start : c[-1].end]) for c in clauses]


def _spread(part: _Part, number: int) -> Iterator[_Part]:
    """Yield the single ones of `ADD (…, …)`, where the number is about something that is there."""
    words = part.words
    at = 2 if words[1:2] == ["COLUMN"] else 1
    one_by_one = number in (_COLUMN_THERE, _KEY_THERE) and words[0] == "ADD"
    if not one_by_one or words[at : at + 1] != ["("]:
        yield part
        return
    reader = TokenCursor(part.text, list(part.tokens), at)
    elements = _elements(reader)
    if not reader.done():
        yield part
        return
    offset = part.tokens[0].start
    for tokens in elements:
        text = part.text[tokens[0].start - offset : tokens[-1].end - offset]
        yield _Part([part.tokens[0], *tokens], f"ADD {text}")


def _elements(cursor: TokenCursor) -> list[list[SqlToken]]:
    """Consume a list in parentheses; return the tokens of each of its elements.

    Raises:
        BadStatement: there is none, or nothing stands between two commas.
    """
    cursor.expect("(")
    elements = []
    while True:
        first = cursor.place
        cursor.skip_to_comma()
        elements.append(cursor.tokens[first : cursor.place])
        if not cursor.accept(","):
            break
    cursor.expect(")")
    if not all(elements):
        cursor.fail("an element is missing")
    return elements


def _is_done(part: _Part, parts: Sequence[_Part], number: int, there: _TableParts) -> bool:
    """Return whether a clause finds done what the error of this number is about."""
    words = part.words
    verb = words[0] if len(words) > 1 else ""
    if verb == "DROP":
        return number in _NOTHING_TO_DROP and _is_gone(part, there)
    if verb in ("ALTER", "RENAME") and words[1] in ("INDEX", "KEY"):
        return number == _NO_SUCH_KEY and part.name_at(2) not in there.keys
    if renamed_column(part.tokens) is not None:
        return number in (_NO_SUCH_COLUMN, _COLUMN_THERE) and _is_renamed(part, parts, there)
    if verb != "ADD":
        return False
    kind, name = _added(part)
    if number == _PRIMARY_THERE:
        alone = sum("PRIMARY" in p.words for p in parts) == 1
        return (kind, name) == ("KEY", "primary") and alone and "primary" in there.keys
    columns = there.columns if number == _COLUMN_THERE else ()
    keys = there.keys if number == _KEY_THERE else ()
    constraints = there.constraints if number in _CONSTRAINT_THERE | {_KEY_THERE} else ()
    names = {"COLUMN": columns, "KEY": keys, "CONSTRAINT": constraints}.get(kind, ())
    # What another clause takes away first is to be made, unless that one is done.
    takers = (p for p in parts if p.words[0] != "ADD" and not _is_renamed(p, parts, there))
    return name in names and not any(t.text.lower() == name for p in takers for t in p.tokens)


def _is_gone(part: _Part, there: _TableParts) -> bool:
    """Return whether what a clause drops is not there."""
    clause = [t for t in part.tokens if t.word not in ("RESTRICT", "CASCADE")]
    name = clause[-1].text.lower()
    match [token.word for token in clause[1:-1]]:
        case [] | ["COLUMN"]:
            return name not in there.columns
        case ["INDEX" | "KEY"]:
            return name not in there.keys
        case ["PRIMARY"]:
            return clause[-1].word == "KEY" and "primary" not in there.keys
        case ["FOREIGN", "KEY"] | ["CONSTRAINT"] | ["CHECK"]:
            return name not in there.constraints
    return False


def _dropped_column(part: _Part) -> str:
    """Return the column that a clause drops, in lower case; empty: none."""
    drops = [t for t in part.tokens if t.word not in ("RESTRICT", "CASCADE", "IF", "EXISTS")]
    words = [t.word for t in drops[:-1]]
    return drops[-1].text.lower() if words in (["DROP"], ["DROP", "COLUMN"]) else ""


def _is_renamed(part: _Part, parts: Sequence[_Part], there: _TableParts) -> bool:
    """Return whether a column has the new name already; the old one may be another's by now."""
    names = renamed_column(part.tokens)
    if names is None or names[1] not in there.columns:
        return False
    added = (_added(p) for p in parts if p.words[0] == "ADD")
    return names[0] not in there.columns or ("COLUMN", names[0]) in added


def _added(part: _Part) -> tuple[str, str]:
    """Return what a clause adds (COLUMN, KEY, CONSTRAINT), and its name.

    Both are empty where it adds something else, or more than one thing; the name, where the server
    gives it.
    """
    words = part.words
    if "PARTITION" in words:  # they may follow the last clause
        return "", ""
    at, symbol = 1, ""
    if words[at : at + 1] == ["CONSTRAINT"]:
        at += 1
        if words[at : at + 1] and words[at] not in _CONSTRAINTS:
            symbol = part.name_at(at)
            at += 1
    match words[at : at + 1]:
        case ["PRIMARY"]:
            return "KEY", "primary"
        case ["FOREIGN" | "CHECK"]:
            return "CONSTRAINT", symbol
        case ["COLUMN"]:
            at += 1
            return ("", "") if words[at : at + 1] == ["("] else ("COLUMN", part.name_at(at))
        case [word] if word in _KINDS_OF_KEYS or word in ("INDEX", "KEY"):
            at += 1
            at += word in _KINDS_OF_KEYS and words[at : at + 1] in (["INDEX"], ["KEY"])
            is_named = at < len(words) and words[at] not in ("(", "USING")
            return "KEY", part.name_at(at) if is_named else symbol
        case [word] if word not in _OTHERS:
            return "COLUMN", part.name_at(at)
    return "", ""


# --- partitions ----------------------------------------------------------------------------------


def _left_of_partitions(cursor: TokenCursor, verb: str, table: TableId, ask: Ask) -> str | None:
    """Return what is left of a statement about single partitions.

    Args:
        cursor: stands behind the word PARTITION.
        verb: what is done to them.
        table: theirs.
        ask: of the server.

    Raises:
        BadStatement: it cannot be read.
    """
    sql = "SELECT PARTITION_NAME FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = %s AND "
    there = {str(r[0]).lower() for r in ask(f"{sql}TABLE_NAME = %s", tuple(table))}
    if verb == "ADD":
        cursor.accept_any("LOCAL", "NO_WRITE_TO_BINLOG")
        begin = cursor.peek().start
        elements = _elements(cursor)
        fresh = [e for e in elements if e[1].text.lower() not in there]
        texts = (cursor.sql[e[0].start : e[-1].end] for e in fresh)
        rest = f"{cursor.sql[:begin]}({', '.join(texts)})"
        return _rest(rest, len(fresh), len(elements)) if cursor.done() else None
    begin = cursor.peek().start
    if verb == "DROP":
        names = cursor.names()
        left = [name for name in names if name.lower() in there]
        rest = f"{cursor.sql[:begin]}{', '.join(map(quoted, left))}"
        return _rest(rest, len(left), len(names)) if cursor.done() else None
    if verb == "REORGANIZE":
        old = {name.lower() for name in cursor.names()}
        cursor.expect("INTO")
        new = {e[1].text.lower() for e in _elements(cursor)}
        return "" if new <= there and there.isdisjoint(old - new) else None
    return None


def _rest(sql: str, left: int, of: int) -> str | None:
    """Return a statement of which some parts are left; "": none is. None: all are."""
    if left == of:
        return None
    return sql if left else ""
