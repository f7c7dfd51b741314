"""Each source on a real database of its own, also one whose ranges move while they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from rowferry.change.table import TableId
from rowferry.flow.capture.contract import Source
from rowferry.flow.decide.decisions import Decisions
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.registry import SOURCES
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


class SourceHarness(ABC):
    """A database: tests make tables in databases of their own and write rows."""

    scheme: ClassVar[str]

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @abstractmethod
    def uri(self) -> str:
        """The source's URI."""

    @abstractmethod
    def dead_uri(self) -> str:
        """The URI of a source that does not answer."""

    @abstractmethod
    def ddl(self, sql: str) -> None:
        """Run a DDL statement."""

    @abstractmethod
    def create(self, table: TableId) -> None:
        """Create a table (id bigint key, v varchar(40)) with ids from 0 to 99 expected."""

    @abstractmethod
    def insert(self, table: TableId, rows: Sequence[dict[str, Any]]) -> None:
        """Insert rows in one transaction."""

    @abstractmethod
    def update(self, table: TableId, rows: Sequence[dict[str, Any]]) -> None:
        """Change rows in one transaction."""

    @abstractmethod
    def delete(self, table: TableId, ids: Sequence[int]) -> None:
        """Delete rows in one transaction."""

    @abstractmethod
    def content(self, table: TableId) -> list[dict[str, Any]]:
        """Return the rows that the table has now, by id."""

    @abstractmethod
    def disturb(self, table: TableId) -> None:
        """Do what may happen to the source between planning and reading; nothing, if it is calm."""

    def spec(self, table: TableId, uri: str = "", changefeed: str = "feed") -> ChangefeedSpec:
        """A changefeed of one database."""
        return ChangefeedSpec(
            changefeed,
            Uri.parse(uri or self.uri(), "source"),
            Uri.parse("file:///nowhere?protocol=csv", "sink"),
            {"filter": {"rules": [f"{table.database}.*"]}},
        )

    def build(self, spec: ChangefeedSpec) -> Source:
        """The source as a new process builds it: from the JSON form of the spec."""
        return SOURCES.load(self.scheme)(ChangefeedSpec.from_json(spec.to_json()))

    def decision(self, spec: ChangefeedSpec) -> Decisions:
        return Decisions(spec)


class RangeHarness(SourceHarness):
    """A reference store of two data servers."""

    scheme = "range"

    def __init__(self, folder: Path) -> None:
        self._cluster = LocalCluster(folder, 2)

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        self.store: Store = self._cluster.store()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.store.close()
        self._cluster.stop()

    def uri(self) -> str:
        return f"range://{self._cluster.master_address}"

    def dead_uri(self) -> str:
        return "range://127.0.0.1:1"

    def ddl(self, sql: str) -> None:
        self.store.ddl(sql)

    def create(self, table: TableId) -> None:
        self.store.ddl(f"CREATE DATABASE IF NOT EXISTS {table.database}")
        self.store.ddl(
            f"CREATE TABLE {table.database}.{table.table} (id bigint PRIMARY KEY, v varchar(40))",
            ranges=3,
            handles=(0, 99),
        )

    def insert(self, table: TableId, rows: Sequence[dict[str, Any]]) -> None:
        with self.store.transaction() as work:
            work.insert(table, rows)

    def update(self, table: TableId, rows: Sequence[dict[str, Any]]) -> None:
        with self.store.transaction() as work:
            work.update(table, rows)

    def delete(self, table: TableId, ids: Sequence[int]) -> None:
        with self.store.transaction() as work:
            work.delete(table, [{"id": i} for i in ids])

    def disturb(self, table: TableId) -> None:
        pass

    def content(self, table: TableId) -> list[dict[str, Any]]:
        return sorted(self.store.scan(table).to_pylist(), key=lambda row: int(row["id"]))


class MovingRangeHarness(RangeHarness):
    """The same, but between planning and reading a range is split, and leaders move."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._split: set[TableId] = set()

    def disturb(self, table: TableId) -> None:
        ranges = self.store.ranges(table)
        if table not in self._split:  # once: then its halves have few rows
            self._split.add(table)
            self.store.split(ranges[0].range_id)
        for one in ranges[:2]:
            self.store.move_leader(one.range_id)


SOURCE_HARNESSES: dict[str, Callable[[Path], SourceHarness]] = {
    "range": RangeHarness,
    "range+moving": MovingRangeHarness,
}
