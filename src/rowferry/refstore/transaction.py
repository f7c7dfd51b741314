"""A transaction in the making: rows are kept here and sent at commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.table import TableId, TableSchema
from rowferry.errors import StoreError, StoreUnavailable, TransactionAborted
from rowferry.refstore.commit import Committer, TableWrites, cut
from rowferry.refstore.routing import NotHere, Routing, SchemaMoved
from rowferry.refstore.rows.images import Row, Rows, decoded, encoded, image_of, keys_of
from rowferry.refstore.rows.mutations import OP_DELETE, OP_INSERT, OP_UPDATE
from rowferry.refstore.rows.writes import Writes
from rowferry.wire import store_pb2 as wire

_SCHEMA_TRIES = 20


class Tables(Protocol):
    """What a transaction asks of its store."""

    def table(self, table: TableId) -> TableSchema:
        """Return a table's definition."""

    def refresh(self) -> None:
        """Read definitions and routes again."""

    def row_ids(self, count: int) -> npt.NDArray[np.int64]:
        """Return new row numbers."""


class Transaction:
    """Reads see the state at its start and its own writes; writes are sent at commit.

    Conflicts are found at commit: a row that somebody else changed or holds meanwhile raises
    TransactionAborted, and then nothing was written.
    """

    def __init__(self, tables: Tables, routing: Routing) -> None:
        self._tables, self._routing = tables, routing
        self.read_ts = routing.timestamp()
        self.ended = False
        self._rows: dict[TableId, dict[bytes, tuple[int, Row]]] = {}
        self._images: list[tuple[TableId, pa.StructArray]] = []
        self._seen: dict[bytes, dict[str, Any] | None] = {}  # rows read, as of read_ts
        self._committer: Committer | None = None

    # --- writes ----------------------------------------------------------------------------------

    def insert(self, table: TableId, rows: Rows) -> None:
        """Insert rows: dicts of canonical values, or images as an Arrow struct array."""
        schema = self._tables.table(table)
        if isinstance(rows, pa.StructArray) or not schema.primary_key:
            self._images.append((table, image_of(schema, rows)))
            return
        kept = self._rows.setdefault(table, {})
        for key, row in zip(keys_of(schema, rows), rows, strict=True):
            before = kept.get(key)
            if before is not None and before[0] != OP_DELETE:
                raise StoreError(f"{table}: key {key.hex()} is written already in this transaction")
            kept[key] = (OP_UPDATE if before else OP_INSERT, dict(row))

    def update(self, table: TableId, rows: Sequence[Row], keys: Sequence[Row] = ()) -> None:
        """Change the given columns of rows.

        Args:
            table: the table.
            rows: the new values; other columns stay.
            keys: the rows' present primary keys, where `rows` change them or leave them out.

        Raises:
            StoreError: a row does not exist.
        """
        schema = self._tables.table(table)
        named = list(keys) or list(rows)
        for name, row, old in zip(named, rows, self.get(table, named), strict=True):
            if old is None:
                raise StoreError(f"{table}: there is no row {dict(name)}")
            new = {**old, **{schema.column(k).name: v for k, v in row.items()}}
            old_key, new_key = keys_of(schema, [old, new])
            if old_key == new_key:
                kept = self._rows.setdefault(table, {})
                inserted = old_key in kept and kept[old_key][0] == OP_INSERT
                kept[old_key] = (OP_INSERT if inserted else OP_UPDATE, new)
            else:
                self.delete(table, [old])
                self.insert(table, [new])

    def delete(self, table: TableId, keys: Sequence[Row]) -> None:
        """Delete the rows with these primary keys; other columns in `keys` do not matter."""
        schema = self._tables.table(table)
        kept = self._rows.setdefault(table, {})
        for key, row in zip(keys_of(schema, keys), keys, strict=True):
            if key in kept and kept[key][0] == OP_INSERT:
                del kept[key]
            else:
                kept[key] = (OP_DELETE, dict(row))

    def get(self, table: TableId, keys: Sequence[Row]) -> list[dict[str, Any] | None]:
        """Return the rows with these primary keys, None where there is none.

        Raises:
            TransactionAborted: one of them was changed after this transaction's start.
        """
        schema = self._tables.table(table)
        wanted = keys_of(schema, keys)
        kept = self._rows.get(table, {})
        missing = sorted({k for k in wanted if k not in kept and k not in self._seen})
        if missing:
            values = self._routing.patiently(lambda: self._fetch(missing))
            present = [(k, v) for k, v in zip(missing, values, strict=True) if v is not None]
            self._seen.update(dict.fromkeys(missing))
            rows = decoded(schema, present) if present else []
            self._seen.update((k, row) for (k, _), row in zip(present, rows, strict=True))
        return [self._own(schema, *kept[k]) if k in kept else self._seen[k] for k in wanted]

    @staticmethod
    def _own(schema: TableSchema, op: int, row: Row) -> dict[str, Any] | None:
        if op == OP_DELETE:
            return None
        image: dict[str, Any] = image_of(schema, [row])[0].as_py()
        return image

    def _fetch(self, keys: list[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = []
        while len(values) < len(keys):
            rest = keys[len(values) :]
            meta = self._routing.at(rest[0])
            here = [k for k in rest if meta.holds(k)]
            request = wire.GetRequest(target=meta.target(), read_ts=self.read_ts, keys=here)
            reply = self._routing.call(meta, "Get", request, wire.GetReply)
            values += [row.value if row.found else None for row in reply.rows]
        return values

    # --- the end ---------------------------------------------------------------------------------

    def commit(self) -> int:
        """Commit; returns the commit-ts, 0 if nothing was written.

        On return the transaction is durable in all its ranges, or will be by itself.

        Raises:
            TransactionAborted: nothing was written; run the transaction again.
            StoreError: a row exists already, or does not exist; nothing was written.
            StoreUnavailable: the text says if the outcome is unknown.
        """
        self._once()
        start_ts = self.read_ts
        for _ in range(_SCHEMA_TRIES):
            parts = self._parts()
            if not parts:
                return 0
            self._committer = Committer(self._routing, parts, self.read_ts, start_ts)
            try:
                return self._committer.commit()
            except SchemaMoved as err:
                self._tables.refresh()
                start_ts = self._routing.timestamp()  # the refused attempt's name is used up
                if self._seen:
                    raise TransactionAborted(f"{err}; run the transaction again") from None
        raise StoreUnavailable("the table changes faster than rows can be written; try again")

    def abandon(self, after_primary: bool = False) -> int:
        """Prepare, then do nothing more, as a client that dies; for tests.

        With `after_primary` the deciding range's part is committed first; returns the commit-ts.
        """
        self._once()
        parts = self._parts()
        committer = self._committer = Committer(self._routing, parts, self.read_ts)
        try:
            pieces = cut(self._routing, parts)
            committer.prepare(pieces)
        except SchemaMoved as err:
            self._tables.refresh()
            raise TransactionAborted(f"{err}; run the transaction again") from None
        except NotHere as err:
            raise StoreUnavailable(str(err)) from None
        if not after_primary:
            return 0
        commit_ts = self._routing.timestamp()
        committer.end(pieces[0], commit_ts)
        return commit_ts

    def outcome(self, patience_s: float = 60.0) -> int:
        """Ask the store what became of a commit that raised StoreUnavailable.

        Returns its commit-ts; 0: nothing was written, and nothing will be.

        Raises:
            StoreUnavailable: the store did not answer for so long.
        """
        return self._committer.outcome(patience_s) if self._committer else 0

    def written(self) -> list[tuple[TableId, int, dict[str, Any]]]:
        """Return what `insert`, `update` and `delete` add up to: table, op, row; not images."""
        return [(t, op, dict(row)) for t, kept in self._rows.items() for op, row in kept.values()]

    def roll_back(self) -> None:
        """Forget everything; nothing was sent."""
        self._once()

    def _once(self) -> None:
        if self.ended:
            raise StoreError("this transaction has ended; begin a new one")
        self.ended = True

    def _parts(self) -> list[TableWrites]:
        names = dict.fromkeys([*self._rows, *(t for t, _ in self._images)])
        parts = [self._part(self._tables.table(name)) for name in names]
        return sorted((p for p in parts if len(p.writes)), key=lambda p: p.writes.keys[0].as_py())

    def _part(self, schema: TableSchema) -> TableWrites:
        columns: list[tuple[pa.Array, pa.Array, int]] = []
        kept = self._rows.get(schema.id, {}).values()
        for op in (OP_INSERT, OP_UPDATE):
            rows = [row for kind, row in kept if kind == op]
            if rows:
                columns.append((*encoded(schema, image_of(schema, rows), None), op))
        gone = [row for kind, row in kept if kind == OP_DELETE]
        if gone:
            keys = pa.array(keys_of(schema, gone), pa.large_binary())
            columns.append((keys, pa.nulls(len(gone), pa.large_binary()), OP_DELETE))
        for name, image in self._images:
            if name == schema.id:
                ids = None if schema.primary_key else self._tables.row_ids(len(image))
                columns.append((*encoded(schema, image_of(schema, image), ids), OP_INSERT))
        none = pa.array([], pa.large_binary())
        return TableWrites(
            schema.version,
            Writes.sorted_from(
                pa.concat_arrays([none, *(k for k, _, _ in columns)]),
                pa.concat_arrays([none, *(v for _, v, _ in columns)]),
                np.concatenate([np.empty(0, np.uint8), *(_ops(k, op) for k, _, op in columns)]),
            ),
        )


def _ops(keys: pa.Array, op: int) -> npt.NDArray[np.uint8]:
    return np.full(len(keys), op, np.uint8)
