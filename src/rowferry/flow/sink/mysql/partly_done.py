"""Statements of which a part is done already: what is left of them. Pure, but for one question.

A server refuses an ALTER TABLE as a whole where one of its clauses drops what is not there, or adds
what is there: a copy need not have every index and constraint of the source.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from rowferry.change.table import TableId
from rowferry.errors import BadStatement
from rowferry.flow.sink.mysql.session import Session
from rowferry.moment import moment
from rowferry.mysql.ddl.clauses import split_clauses
from rowferry.mysql.ddl.cursor import SqlToken, TokenCursor
from rowferry.mysql.ddl.head import read_altered

_COLUMN_THERE: Final = 1060
_KEY_THERE: Final = 1061
_PRIMARY_THERE: Final = 1068
NOTHING_TO_DROP: Final = frozenset({1091, 3821, 3940})  # the last ones of a constraint
_NO_SUCH_KEY: Final = 1176
PARTLY_DONE: Final = frozenset(
    {_COLUMN_THERE, _KEY_THERE, _PRIMARY_THERE, _NO_SUCH_KEY, *NOTHING_TO_DROP}
)
# What an ADD or a DROP may name beside columns and keys.
_OTHERS: Final = frozenset(
    "CHECK CONSTRAINT FOREIGN FULLTEXT INDEX KEY PARTITION PERIOD PRIMARY SPATIAL SYSTEM UNIQUE "
    "(".split()
)


@dataclass(frozen=True, slots=True)
class TableParts:
    """The names of what a table has, in lower case."""

    columns: Collection[str]
    keys: Collection[str]
    constraints: Collection[str]


def read_parts(session: Session, table: TableId) -> TableParts:
    """Return what a table has. Raises as `Session.ask`."""
    moment("list parts of table downstream")

    def names(what: str, of: str) -> frozenset[str]:
        sql = f"SELECT {what} FROM information_schema.{of} WHERE TABLE_SCHEMA = %s AND "
        return frozenset(str(r[0]).lower() for r in session.ask(f"{sql}TABLE_NAME = %s", table))

    return TableParts(
        names("COLUMN_NAME", "COLUMNS"),
        names("INDEX_NAME", "STATISTICS"),
        names("CONSTRAINT_NAME", "TABLE_CONSTRAINTS"),
    )


def left_to_do(sql: str, number: int, there: TableParts) -> str:
    """Return a refused ALTER TABLE without the clauses that have nothing to do.

    Empty: nothing is left, or no such clause is found.

    Args:
        sql: the statement.
        number: of the error by which it was refused.
        there: what its table has.
    """
    if "/*!" in sql or "/*M!" in sql:  # a comment that is code may hold more than one clause
        return ""
    try:
        cursor = TokenCursor(sql, ansi_quotes=True)
        if read_altered(cursor) is None:
            return ""
        begin = cursor.peek().start
        clauses = [clause.tokens for clause in split_clauses(cursor)]
        cursor.finish()
    except BadStatement:
        return ""
    left = [c for c in clauses if not _is_done(c, clauses, number, there)]
    if len(left) == len(clauses) or not all(clauses):
        return ""
    return sql[:begin] + ", ".join(sql[c[0].start : c[-1].end] for c in left) if left else ""


def _is_done(
    clause: Sequence[SqlToken],
    clauses: Sequence[Sequence[SqlToken]],
    number: int,
    there: TableParts,
) -> bool:
    verb = clause[0].word if len(clause) > 1 else ""
    if verb == "DROP" and number in NOTHING_TO_DROP:
        return _is_gone([t for t in clause if t.word not in ("RESTRICT", "CASCADE")], there)
    if verb in ("ALTER", "RENAME") and number == _NO_SUCH_KEY:
        of_key = clause[1].word in ("INDEX", "KEY") and len(clause) > 2
        return of_key and clause[2].text.lower() not in there.keys
    if verb == "ADD" and number == _PRIMARY_THERE:
        words = [token.word for token in clause]
        alone = sum(any(t.word == "PRIMARY" for t in c) for c in clauses) == 1
        plain = words[1:4] == ["PRIMARY", "KEY", "("] and "PARTITION" not in words
        return plain and alone and "primary" in there.keys
    if verb != "ADD" or number not in (_COLUMN_THERE, _KEY_THERE):
        return False
    name = _added_column(clause) if number == _COLUMN_THERE else _added_key(clause)
    # What another clause takes away first is to be made.
    others = (t.text.lower() for c in clauses if c[0].word != "ADD" for t in c)
    names = there.columns if number == _COLUMN_THERE else there.keys
    return name in names and name not in others


def _is_gone(clause: Sequence[SqlToken], there: TableParts) -> bool:
    """Return whether what a clause drops is not there."""
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


def _added_column(clause: Sequence[SqlToken]) -> str:
    """Return the name of the column that a clause adds; "": it adds none, or several."""
    words = [token.word for token in clause]
    at = 2 if words[1] == "COLUMN" else 1
    if len(clause) <= at or words[at] in _OTHERS or "PARTITION" in words:
        return ""
    return clause[at].text.lower()


def _added_key(clause: Sequence[SqlToken]) -> str:
    """Return the name of the key that a clause adds; "": it adds none, or says none."""
    words = [token.word for token in clause]
    at = 2 if words[1] == "UNIQUE" else 1
    at += words[at : at + 1] in (["INDEX"], ["KEY"])
    if at == 1 or len(clause) <= at or words[at] == "(" or "PARTITION" in words:
        return ""
    return clause[at].text.lower()
