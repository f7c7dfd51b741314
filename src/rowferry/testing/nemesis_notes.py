"""What the store acknowledged while it was disturbed: notes first, a `History` at the end.

A row is noted as it was written; which columns it then had is decided by the table version in force
at its commit-ts, and a DDL may be acknowledged after the first rows of its version. So images are
made when everything is known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rowferry.change.chunk import Op, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import (
    BadInput,
    RowferryError,
    StoreDamaged,
    StoreUnavailable,
    TransactionAborted,
)
from rowferry.refstore.rows.images import image_of
from rowferry.refstore.rows.mutations import OP_DELETE, OP_INSERT, OP_UPDATE
from rowferry.refstore.transaction import Transaction
from rowferry.testing.model import History, Row, RowChange, Versions, key_of

Write = tuple[TableId, int, dict[str, Any]]
_OPS: Final = {OP_INSERT: Op.INSERT, OP_UPDATE: Op.UPDATE, OP_DELETE: Op.DELETE}


class Notebook:
    """Takes notes from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: list[TableSchema] = []
        self._schema_changes: list[SchemaChange] = []
        self._commits: list[tuple[int, Sequence[Write]]] = []
        self.resolved_doubts = 0

    def note_table(self, schema: TableSchema) -> None:
        """Note a table that is there before anything else."""
        with self._lock:
            self._tables.append(schema)

    def note_schema_changes(self, changes: Iterable[SchemaChange]) -> None:
        """Note DDLs that the store has."""
        with self._lock:
            self._schema_changes += changes

    def note_commit(self, commit_ts: int, writes: Sequence[Write]) -> None:
        """Note a transaction that the store has."""
        with self._lock:
            self._commits.append((commit_ts, writes))

    def note_doubt(self) -> None:
        """Note that an outcome was unknown and the store was asked."""
        with self._lock:
            self.resolved_doubts += 1

    def history(self) -> History:
        """Return everything noted, with full row images.

        Raises:
            BadInput: the store acknowledged a row of a table, or with a column, that was not there.
        """
        history = History()
        with self._lock:
            for schema in self._tables:
                history.note_table(schema)
            for change in self._schema_changes:
                history.note_schema_change(change)
            versions = history.versions()
            for commit_ts, writes in self._commits:
                history.note_commit(commit_ts, (_change(versions, commit_ts, w) for w in writes))
        return history


def _change(versions: Versions, commit_ts: int, write: Write) -> RowChange:
    table, op, row = write
    schema = versions.at(table, commit_ts)
    if schema is None:
        raise BadInput(f"the store committed a row of {table} at {commit_ts}, when it had no table")
    if op == OP_DELETE:
        return RowChange(table, Op.DELETE, key_of(schema, row), None, None)
    image: Row = image_of(schema, [row])[0].as_py()
    after = {c.name: image[c.name] for c in schema.visible}
    return RowChange(table, _OPS[op], key_of(schema, after), None, after)


def settle(
    work: Transaction, notes: Notebook, end: Callable[[Transaction], int] = Transaction.commit
) -> int:
    """End a transaction and note it if it was committed; returns the commit-ts, 0: it was not.

    An outcome that the store could not tell is asked for until it can: nothing is guessed.

    Raises:
        StoreUnavailable: the store did not answer for a long time.
        StoreDamaged: its files are damaged.
    """
    try:
        commit_ts = end(work)
    except StoreUnavailable:
        commit_ts = work.outcome()
        notes.note_doubt()
    except StoreDamaged:
        raise
    except (TransactionAborted, RowferryError):  # refused as a whole: nothing was written
        return 0
    if commit_ts:
        notes.note_commit(commit_ts, work.written())
    return commit_ts
