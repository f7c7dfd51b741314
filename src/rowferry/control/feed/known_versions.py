"""The table versions that a loop knows: those that are stored, and those that it has just met."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from rowferry.change.chunk import SchemaChange
from rowferry.change.plan import Stretch
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.decide.decisions import Decisions


class KnownVersions(Mapping[tuple[int, int], TableSchema]):
    """Table versions by table id and version.

    Attributes:
        fresh: those that were met and are not stored yet.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], TableSchema] = {}
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
