"""The table versions that a loop knows: those that are stored, and those that it has just met."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from rowferry.change.chunk import SchemaChange
from rowferry.change.plan import Stretch
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.decide.table_route import WrittenNames


class KnownVersions(Mapping[tuple[int, int], TableSchema]):
    """Table versions by table id and version.

    Attributes:
        fresh: those that were met and are not stored yet.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], TableSchema] = {}
        self._stored: frozenset[tuple[int, int]] = frozenset()  # when they were restored
        self.fresh: list[TableSchema] = []

    def __getitem__(self, key: tuple[int, int]) -> TableSchema:
        return self._known[key]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def restore(self, stored: Iterable[TableSchema]) -> None:
        """Know what is stored, and nothing else."""
        self._known = {(v.table_id, v.version): v for v in stored}
        self._stored = frozenset(self._known)
        self.fresh.clear()

    def meet(self, versions: Collection[TableSchema]) -> None:
        """Know these, too; they are to be stored."""
        self.fresh += versions
        self._known.update({(v.table_id, v.version): v for v in versions})

    def forget(self, watermark: int, dropped: Collection[int]) -> None:
        """Let go of versions that rows after the watermark cannot have; the store does the same."""
        in_force: dict[int, int] = {}
        for table_id, version in self._known:
            if version <= watermark:
                in_force[table_id] = max(version, in_force.get(table_id, 0))
        self._known = {
            (table_id, version): table
            for (table_id, version), table in self._known.items()
            if version >= in_force.get(table_id, 0) and (not table_id or table_id not in dropped)
        }

    def before(self, change: SchemaChange) -> TableSchema | None:
        """Return the version that a table had before a schema change, where it is known."""
        if change.schema is None:
            return None
        return self._version_before(change.schema) or self._version_before(
            change.schema, change.previous
        )

    def _version_before(
        self,
        table: TableSchema,
        name: TableId | None = None,
        counts: Callable[[TableSchema], bool] = lambda version: True,
    ) -> TableSchema | None:
        """Return the last version before one that `counts`: of its id, or of a name that it had."""
        older = [
            v
            for v in self._known.values()
            if v.version < table.version
            and (v.table_id == table.table_id if name is None else v.id == name)
            and counts(v)
        ]
        return max(older, key=lambda v: v.version, default=None)

    def changes_seen(self, decide: Decisions, stretch: Stretch) -> tuple[SchemaChange, ...]:
        """Return the schema changes of a stretch as readers of the sink see them."""
        names, seen = self._names_before(decide, stretch.schema_changes), []
        for change in stretch.schema_changes:
            seen.append(decide.change_seen_as(change, self.before(change), names))
            names.follow(change)
        return tuple(seen)

    def check_names(self, decide: Decisions, stretch: Stretch) -> None:
        """Refuse a stretch in which two tables come to be written under one name.

        Raises:
            BadRoute: they do, before its schema changes or by one of them.
        """
        names = self._names_before(decide, stretch.schema_changes, stretch.watermark)
        names.check()
        for change in stretch.schema_changes:
            names.check_change(change)
            names.follow(change)

    def _names_before(
        self, decide: Decisions, changes: Collection[SchemaChange], until: int | None = None
    ) -> WrittenNames:
        """Return the names that are written before schema changes, which come next.

        What is stored of tables behind `until` does not count: a plan that was taken back met them.
        """
        newest: dict[int, TableSchema] = {}
        if decide.renames:
            made = {(c.schema.table_id, c.schema.version) for c in changes if c.schema}
            ahead = {k for k in self._stored if until is not None and k[1] > until}
            for key in sorted(self._known.keys() - made - ahead):
                newest[key[0]] = self._known[key]
        return decide.names(newest.values())

    def check_masks(self, decide: Decisions, stretch: Stretch) -> None:
        """Refuse fresh versions in which something that was masked no longer is.

        A table may have had a name on the way that the filter does not keep: what counts is the
        last one that it keeps.
        """
        names = {
            (c.schema.table_id, c.schema.version): c.previous
            for c in stretch.schema_changes
            if c.schema is not None
        }
        for version in self.fresh:
            previous = names.get((version.table_id, version.version))
            for name in (None, version.id, previous):
                old = self._version_before(version, name, decide.captures)
                if old is not None:
                    decide.follow(old, version)
