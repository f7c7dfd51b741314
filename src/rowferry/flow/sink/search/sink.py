"""The search sink: tasks send documents in bulk; the driver owns, makes and changes indexes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Output, Plan, Receipt, Stretch, TableSlice, Topic
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadInput, TargetUnfit
from rowferry.flow.dispatch.by_topic import ByKey
from rowferry.flow.encode.contract import Codec
from rowferry.flow.sink.contract import Owner, Packet, SinkTraits
from rowferry.flow.sink.defaults import LaneDefaults
from rowferry.flow.sink.lanes import in_lanes
from rowferry.flow.sink.search.bulk import bulks
from rowferry.flow.sink.search.client import Cluster
from rowferry.flow.sink.search.delivered import DeliveredIndexes, keyless
from rowferry.flow.sink.search.delivery import Delivery
from rowferry.flow.sink.search.index_names import index_name, index_names
from rowferry.flow.sink.search.indexes import Indexes
from rowferry.flow.sink.search.options import SearchOptions, read_settings
from rowferry.flow.sink.search.ownership import IndexOwnership
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.uri_form import UriForm, UriPart

# Schema changes that take rows away without a word about each.
_SILENT: Final = frozenset(
    {DdlKind.TRUNCATE_PARTITION, DdlKind.DROP_PARTITION, DdlKind.EXCHANGE_PARTITION}
)


class SearchSink(LaneDefaults):
    """Keeps an index for each table, with a document for each row, at the version of its change.

    Documents can be found as soon as the server refreshes. A replay sends them again, and leaves
    the same: a document never goes back to an older version.
    """

    TRAITS: ClassVar[SinkTraits] = SinkTraits(
        takes_files=False,
        needs_shuffle=True,
        movable=True,
        kind="search",
        section="sink.search-config",
        protocol="none",
        default_protocol="search-documents",
        takes_partial_rows=True,
        form=UriForm(
            "Elasticsearch or OpenSearch",
            address=UriPart("Host and port", "search.example:9200"),
            path=None,
        ),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (SearchOptions.TABLE,)

    def __init__(self, spec: ChangefeedSpec, codec: Codec) -> None:
        self._settings = read_settings(spec)
        self._options = self._settings.options
        self._cluster = Cluster(self._settings)
        self.counts = self._cluster.counts
        self._ownership = IndexOwnership(self._cluster, spec.changefeed_id)
        self._indexes = Indexes(self._cluster, self._ownership)
        self._delivery = Delivery(self._cluster, spec.changefeed_id)
        self._delivered = DeliveredIndexes(self._options.index)
        self._versions: dict[TableId, TableSchema] = {}  # the last one that was judged
        self._epoch = 0
        self._looked = False  # whether all that was delivered to was seen in this run

    @property
    def dispatch(self) -> ByKey:
        """All changes of a key go to one lane."""
        return ByKey()

    def probe(self, owner: Owner) -> None:
        """Ask which server it is, and whether the changefeed was taken over.

        Raises:
            SinkUnwritable: it refuses the login, or is no such server.
            SinkUnavailable: it does not answer.
        """
        self._indexes.check_server()

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        """Judge tables and the names of their indexes.

        Raises:
            TargetUnfit: a table has no key, or its index is missing and must not be made.
            BadInput: two tables would be one index, or a name is too long.
            SinkOwned: an index belongs to another changefeed.
        """
        without = [table for table in tables if not table.handle_key]
        if without:
            raise keyless(without)
        for table in tables:
            self._check_routing(table)
        names = index_names(self._options.index, (table.written_as for table in tables))
        self._ownership.check_free(sorted(set(names.values())))
        there = self._indexes.numbers(names.values())
        missing = sorted(name for name in names.values() if name not in there)
        if missing and not self._options.create_indexes:
            raise TargetUnfit(
                f"{self._settings.shown}: there is no index {missing[0]}; make it, or set "
                "create-indexes = true"
            )

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Note that this owner runs the changefeed; older ones are refused from then on.

        Raises:
            Fenced: somebody with a higher epoch was here.
            TargetLost: what this changefeed has noted is gone.
            TargetWentBack: the cluster was restored, or is another one.
        """
        self._ownership.claim(owner)
        self._epoch = owner.epoch
        self._delivered.resume(owner, state)
        self._looked, self._versions = False, {}

    def allocate(
        self, stretch: Stretch, tables: Mapping[TableSlice, TableSchema]
    ) -> tuple[tuple[Output, ...], dict[str, Any] | None]:
        """Give each slice the lanes of its index; indexes that are met first are made.

        Raises:
            TargetLost: an index is missing that was there.
            TargetUnfit: an index is missing, or a table's key is another one.
            SinkOwned: an index belongs to another changefeed.
        """
        written = {self._name(table): table for table in tables.values()}
        self._check_there(written)
        for table in tables.values():
            self._judge(table, self._delivered)
        outputs = []
        for segment in stretch.segments:
            for place, one in enumerate(segment.slices):
                topic = Topic(
                    self._name(tables[one]),
                    self._options.worker_count,
                    self._options.max_document_bytes,
                    exact=not segment.snapshot,
                )
                outputs.append(Output(segment.ordinal, place, topic.to_json()))
        numbers = self._indexes.numbers(written) if written else {}
        state = self._delivered.foresee(_in_turn(tables), numbers, stretch.schema_changes)
        return tuple(outputs), state

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Send documents, those of one lane in order; on return all are there.

        Raises:
            Fenced: another process has taken the changefeed over.
        """
        first = next(packets, None)
        if first is None:
            return
        # What comes later than this is held off by its version.
        self._ownership.check_epoch(first.epoch)
        width = self._options.worker_count
        parts = bulks(chain([first], packets), width, self._options.max_bulk_bytes)
        in_lanes(parts, attrgetter("seat"), width, self._delivery.send)

    def has_rows_of(self, plan: Plan) -> bool:
        """Return whether the plan's schema changes were begun, before which all rows are there."""
        return self._changes_done(plan) is not None

    def publish(
        self, plan: Plan, receipts: Sequence[Receipt], tables: Mapping[TableSlice, TableSchema]
    ) -> None:
        """Change indexes as the schema changes say, in order, then note what is reached.

        Raises:
            TargetLost: an index went away while it was written.
        """
        names = {self._name(table) for table in tables.values()}
        done = self._changes_done(plan)
        if done is None:
            self._check_written(plan, names)
            if plan.stretch.schema_changes:
                self._ownership.begin_changes(self._epoch, _plan_name(plan))
        delivered = self._delivered.with_tables(_in_turn(tables), {})
        for number, change in enumerate(plan.stretch.schema_changes, 1):
            # None is made twice: tables that trade their names would trade them back.
            if number > (done or 0):
                self._ownership.check_epoch(self._epoch)
                self._follow(change, delivered)
                self._ownership.end_change(self._epoch, _plan_name(plan), number)
            delivered.follow(change)
        if self._options.refresh == "batch" and names:
            self._indexes.refresh(names)
        self._ownership.reach(self._epoch, plan.micro_batch, plan.stretch.watermark)
        self._delivered.publish(plan.sink_state)

    def leave(self) -> None:
        """Take away this changefeed's notes, so that another one may write its indexes."""
        self._ownership.leave()

    def close(self) -> None:
        """Let connections go."""
        self._cluster.close()

    # --- indexes ----------------------------------------------------------------------------------

    def _name(self, table: TableSchema) -> str:
        return index_name(self._options.index, table.written_as)

    def _check_there(self, names: Iterable[str]) -> None:
        """Look for what was delivered to: for all of it once in a run, then for what is written."""
        wanted = set(names) if self._looked else {*names, *self._delivered.known}
        numbers = self._indexes.numbers(wanted) if wanted else {}
        self._delivered.check_there(wanted, numbers, self._settings.shown)
        self._looked = True

    def _check_written(self, plan: Plan, names: set[str]) -> None:
        """Look whether the indexes that tasks wrote are those that were there before."""
        if not names:
            return
        then = DeliveredIndexes(self._options.index)
        then.known = dict(self._delivered.known)
        then.publish(plan.sink_state)
        then.check_there(names, self._indexes.numbers(names), self._settings.shown)

    def _judge(self, table: TableSchema, delivered: DeliveredIndexes, copy_of: str = "") -> None:
        """Make a table version that is met first fit; an index that is made is marked as a copy."""
        if self._versions.get(table.written_as) == table:
            return
        name = self._name(table)
        self._check_routing(table)
        delivered.check_key(name, table)
        self._ownership.take(name)
        self._indexes.ensure(name, table, copy_of)
        self._versions[table.written_as] = table

    def _check_routing(self, table: TableSchema) -> None:
        column = self._settings.documents.routing_column
        if column and column.lower() not in {name.lower() for name in table.handle_key}:
            raise BadInput(
                f"routing-column: {column} is not in the key of table {table.id}, so that a row "
                "could change its shard and be there twice"
            )

    # --- schema changes ---------------------------------------------------------------------------

    def _changes_done(self, plan: Plan) -> int | None:
        """Return how many of a plan's schema changes are done; None: they were not begun."""
        note = self._ownership.read() if plan.stretch.schema_changes else None
        if note is None or note.changes_begun != _plan_name(plan):
            return None
        return note.changes_done

    def _follow(self, change: SchemaChange, delivered: DeliveredIndexes) -> None:
        """Do to an index what a schema change did to its table, by what is known before it.

        It may be repeated until the next one is made.
        """
        table, old = change.written_as, change.previous_target or change.previous
        if change.takes_tables:
            gone = [t for t in self._known_tables() if t.database == table.database]
            for one in gone:
                self._drop(one)
        elif change.kind is DdlKind.DROP_TABLE:
            self._drop(table)
        elif change.kind is DdlKind.TRUNCATE_TABLE:
            name = index_name(self._options.index, table)
            if name in self._indexes.numbers([name]):
                self._indexes.empty(name)
        elif change.kind in _SILENT:
            raise TargetUnfit(
                f"{change.query!r} takes rows of table {change.table} away that the log does not "
                "name: leave it out with filter.event-filters, reset the changefeed to its "
                "checkpoint and delete their documents, or begin anew with rowferry changefeed "
                "reset --snapshot"
            )
        elif old is not None and old != table:
            self._rename(change, old, delivered)
        elif change.schema is not None:
            if change.kind is DdlKind.CREATE_TABLE:
                self._empty_kept(change.schema)
            self._judge(change.schema, delivered)

    def _empty_kept(self, table: TableSchema) -> None:
        """Take documents away that an older table of this name has left: a new one has no rows."""
        name = self._name(table)
        self._ownership.take(name)
        if name in self._indexes.numbers([name]):
            self._indexes.empty(name)

    def _drop(self, table: TableId) -> None:
        name = index_name(self._options.index, table)
        if self._options.on_drop == "drop":
            self._indexes.drop(name)
        self._ownership.let_go([name])
        self._versions.pop(table, None)

    def _rename(self, change: SchemaChange, old: TableId, delivered: DeliveredIndexes) -> None:
        was = index_name(self._options.index, old)
        name = index_name(self._options.index, change.written_as)
        if was == name or change.schema is None:
            return
        there = self._indexes.numbers([was, name])
        if was not in there:
            return  # it was done before, or there was nothing
        if self._options.on_rename == "stop":
            raise TargetUnfit(
                f"table {old} is {change.written_as} now, and its index {was} keeps its name: set "
                "on-rename = copy to get all documents into the new index, or route the table to "
                "its old name, then resume"
            )
        self._ownership.take(name)
        if name in there and not self._indexes.may_become_copy(name, there[was]):
            # Its documents, also deleted ones, may have higher versions than those that come.
            if self._options.on_drop == "keep" or not self._options.create_indexes:
                raise TargetUnfit(
                    f"{self._settings.shown}: table {old} is {change.written_as} now, but index "
                    f"{name} has documents of another table, which is gone: delete it, then resume"
                )
            self._indexes.drop(name)
        self._judge(change.schema, delivered, copy_of=there[was])
        self._indexes.copy(was, name)
        self._drop(old)

    def _known_tables(self) -> set[TableId]:
        return {*self._versions, *(one.table for one in self._delivered.known.values())}


def _in_turn(tables: Mapping[TableSlice, TableSchema]) -> list[TableSchema]:
    """Return tables with the newest version of each last."""
    return sorted(tables.values(), key=attrgetter("version"))


def _plan_name(plan: Plan) -> str:
    """Return what tells a plan with schema changes from all others, also from before a reset."""
    return f"{plan.micro_batch} {plan.stretch.schema_changes[0].commit_ts}"
