"""The reference store's client: DDL, transactions, bulk loads, scans, administration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.table import TableId, TableSchema
from rowferry.errors import NoSuchTable, SnapshotGone, SourceUnavailable, StoreUnavailable
from rowferry.flow.capture.range_log import catalog
from rowferry.flow.capture.range_log.client import KnownRange, RangeClient, Rerouted
from rowferry.flow.capture.range_log.client_access import PLAIN, RangeAccess
from rowferry.flow.capture.range_log.kv import RowDecoder
from rowferry.refstore.commit import Committer, TableWrites
from rowferry.refstore.master.leaders import snapshot_rows
from rowferry.refstore.meta import RangeMeta
from rowferry.refstore.routing import NotHere, Routing, SchemaMoved
from rowferry.refstore.rows.images import Rows, encoded, image_of
from rowferry.refstore.rows.mutations import OP_INSERT
from rowferry.refstore.rows.writes import Writes
from rowferry.refstore.rpc import gather
from rowferry.refstore.tables import Catalog, read_catalog
from rowferry.refstore.transaction import Transaction
from rowferry.wire import store_pb2 as wire

_LOAD_BYTES = 24 << 20


class Store:
    """A connection to one store. May be shared by threads; each transaction belongs to one."""

    def __init__(
        self, master_address: str, patience_s: float = 20.0, access: RangeAccess = PLAIN
    ) -> None:
        self.routing = Routing(master_address, patience_s, access)
        self._reader = RangeClient(master_address, "store-client", 30.0, access)
        self._catalog: Catalog | None = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.routing.close()
        self._reader.close()

    # --- tables ----------------------------------------------------------------------------------

    def ddl(
        self,
        sql: str,
        database: str = "",
        ranges: int = 1,
        handles: tuple[int, int] = (0, (1 << 20) - 1),
    ) -> int:
        """Run one DDL statement; returns its commit-ts, 0 if there was nothing to do.

        Args:
            sql: the statement.
            database: for names without one.
            ranges: how many ranges a new table (or each of its partitions) gets.
            handles: where its integer keys are expected, to cut these ranges.

        Raises:
            BadStatement: not understood, or it does not fit the tables.
        """
        request = wire.DdlRequest(
            sql=sql,
            database=database,
            ranges=ranges,
            first_handle=handles[0],
            last_handle=handles[1],
        )
        reply = self.routing.ask_master("Ddl", request, wire.DdlReply, 120.0)
        self.refresh()
        return reply.commit_ts

    def refresh(self) -> None:
        """Read catalog and routes again before they are next used."""
        self._catalog = None
        self.routing.forget()

    def _known(self) -> Catalog:
        if self._catalog is None:
            self._catalog = self.routing.patiently(self._read_catalog)
        return self._catalog

    def _read_catalog(self) -> Catalog:
        return read_catalog(snapshot_rows(self.routing.channels, self.routing.at(catalog.START)))

    def tables(self) -> dict[TableId, TableSchema]:
        """Return all tables in their present version."""
        self.refresh()
        return dict(self._known().tables)

    def table(self, table: TableId) -> TableSchema:
        """Return a table in the newest version that this client has seen.

        Raises:
            NoSuchTable: there is none of that name.
        """
        schema = self._known().tables.get(table)
        if schema is None:
            self.refresh()
            schema = self._known().tables.get(table)
        if schema is None:
            raise NoSuchTable(f"there is no table {table} in the store")
        return schema

    # --- rows ------------------------------------------------------------------------------------

    def timestamp(self) -> int:
        """Return a new timestamp."""
        return self.routing.timestamp()

    def row_ids(self, count: int) -> npt.NDArray[np.int64]:
        """Return new row numbers for a table without a primary key: unused timestamps."""
        last = self.routing.timestamp(count)
        return np.arange(last - count + 1, last + 1, dtype=np.int64)

    def begin(self) -> Transaction:
        """Return a new transaction."""
        return Transaction(self, self.routing)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Give a transaction that is committed at the end of the block, unless that was done.

        An error in the block discards it.
        """
        transaction = self.begin()
        yield transaction
        if not transaction.ended:
            transaction.commit()

    def load(self, table: TableId, rows: Rows) -> int:
        """Insert many rows; returns the highest commit-ts.

        Each stretch of rows is a transaction of its own in each range; on raise some are written.
        """
        image = image_of(self.table(table), rows)
        step = max(1, len(image) * _LOAD_BYTES // max(image.nbytes, 1))
        highest = 0
        for start in range(0, len(image), step):
            highest = max(highest, self._load_part(table, image.slice(start, step)))
        return highest

    def _load_part(self, table: TableId, image: pa.StructArray) -> int:
        while True:
            schema = self.table(table)
            row_ids = None if schema.primary_key else self.row_ids(len(image))
            keys, values = encoded(schema, image_of(schema, image), row_ids)
            writes = Writes.sorted_from(keys, values, np.full(len(keys), OP_INSERT, np.uint8))
            pieces = self._by_range(writes)
            read_ts = self.timestamp()
            version = schema.version
            jobs = [
                Committer(self.routing, [TableWrites(version, p)], read_ts).commit for p in pieces
            ]
            try:
                return max(gather(self.routing.pool, jobs))
            except SchemaMoved:
                if len(pieces) > 1:
                    raise StoreUnavailable(
                        f"table {table} was altered during a load; some rows were written"
                    ) from None
                self.refresh()

    def _by_range(self, writes: Writes) -> list[Writes]:
        def ask() -> list[Writes]:
            pieces, start = [], 0
            while start < len(writes):
                end = writes.lower_bound(self.routing.at(writes.keys[start].as_py()).end)
                pieces.append(writes.slice(start, end))
                start = end
            return pieces

        return self.routing.patiently(ask)

    def scan(self, table: TableId) -> pa.Table:
        """Return a table's present content, with everything that was committed before the call.

        Each range is read as it is at its moment: exact if nobody writes meanwhile.
        """
        return self.routing.patiently(lambda: self._scan(self.table(table)))

    def _scan(self, table: TableSchema) -> pa.Table:
        settled = self.timestamp()
        wanted = set(table.physical_ids)
        decoder = RowDecoder(table)
        images: list[pa.StructArray] = []
        for meta in self.routing.routes():
            if meta.physical_id in wanted:
                request = wire.SettleRequest(target=meta.target(), ts=settled)
                self.routing.call(meta, "Settle", request, wire.EndReply)
                images += self._scan_range(_route(meta), decoder)
        batches = [pa.RecordBatch.from_struct_array(image) for image in images]
        return pa.Table.from_batches(batches, pa.schema(list(table.image)))

    def _scan_range(self, route: KnownRange, decoder: RowDecoder) -> Iterator[pa.StructArray]:
        try:
            version = self._reader.register(route).version
            last, end = "", False
            while not end:
                page, end = self._reader.pull_snapshot(route, version, last, "")
                if len(page):
                    last = page.key(len(page) - 1).hex()
                    yield decoder.decode(
                        page.raw, page.key_at, page.key_len, page.value_at, page.value_len
                    )
        except (Rerouted, SnapshotGone, SourceUnavailable) as err:
            raise NotHere(str(err)) from None

    # --- administration --------------------------------------------------------------------------

    def ranges(self, table: TableId | None = None) -> list[RangeMeta]:
        """Return all ranges by key, or those of one table, as the master sees them now."""
        self.routing.forget()
        ranges = self.routing.patiently(self.routing.routes)
        if table is None:
            return ranges
        wanted = set(self.table(table).physical_ids)
        return [r for r in ranges if r.physical_id in wanted]

    def servers(self) -> list[str]:
        """Return the addresses of the data servers that are alive."""
        request = wire.ListServersRequest()
        return list(
            self.routing.ask_master("ListServers", request, wire.ListServersReply).addresses
        )

    def failures(self) -> dict[int, str]:
        """Return why ranges cannot be opened, by range."""
        request = wire.ListServersRequest()
        reply = self.routing.ask_master("ListServers", request, wire.ListServersReply)
        return {f.range_id: f.message for f in reply.failures}

    def split(self, range_id: int, key: bytes = b"") -> int:
        """Split a range at a key, or at its middle; returns the new range's id (the right half)."""
        request = wire.SplitRequest(range_id=range_id, key=key)
        reply = self.routing.ask_master("Split", request, wire.SplitReply, 150.0)
        self.routing.forget()
        return reply.new_range_id

    def move_leader(self, range_id: int, address: str = "") -> str:
        """Give a range to another server (empty: to any other); returns its address."""
        request = wire.MoveLeaderRequest(range_id=range_id, address=address)
        reply = self.routing.ask_master("MoveLeader", request, wire.MoveLeaderReply, 30.0)
        self.routing.forget()
        return reply.address

    def compact(self, range_id: int, through_index: int = 0) -> int:
        """Drop a range's log up to an index (0: all of it); returns the first index left."""

        def ask() -> int:
            owners = [r for r in self.routing.routes() if r.range_id == range_id]
            if not owners or not owners[0].leader:
                raise NotHere(f"there is no range {range_id} with a leader")
            request = wire.CompactRangeRequest(
                target=owners[0].target(), through_index=through_index
            )
            reply = self.routing.call(owners[0], "CompactRange", request, wire.CompactRangeReply)
            return reply.first_log_index

        return self.routing.patiently(ask)

    def wait_ready(self, servers: int) -> None:
        """Return when so many servers live and every range has a leader that answers."""

        def ask() -> None:
            if len(self.servers()) < servers:
                raise NotHere(f"fewer than {servers} data servers are alive")
            for meta in self.routing.routes():
                if not meta.leader:
                    raise NotHere(f"range {meta.range_id} has no leader")
                request = wire.SettleRequest(target=meta.target(), ts=0)
                self.routing.call(meta, "Settle", request, wire.EndReply, 5.0)

        self.routing.patiently(ask)


def _route(meta: RangeMeta) -> KnownRange:
    return KnownRange(
        meta.range_id,
        meta.conf_ver,
        meta.version,
        meta.start,
        meta.end,
        meta.leader,
        meta.parent_range_id,
        meta.split_index,
        meta.physical_id,
        meta.dropped,
    )
