"""Lake tables under the nemesis: every version of every table, at every watermark.

A commit tells up to which commit-ts the tables are complete with it. So the judge needs no luck in
when it looks: for each watermark that a commit or the lake told, the version of each table that was
the last one then must hold exactly what the source held at that watermark. All is read by readers
of others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.snapshots import Operation

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.change.typed_columns import typed
from rowferry.refstore.client import Store
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.model import HistoryReplay, Row
from rowferry.testing.nemesis_output import ProgressWatch, Written, differences
from rowferry.testing.nemesis_watch import OutputWatch

_MOST: Final = 12


@dataclass(frozen=True, slots=True)
class LakeVersion:
    """One version of a table that a changefeed committed.

    Attributes:
        number: the reader's name for it.
        checkpoint_ts: up to where it is complete, as its commit tells.
        brings_rows: rows of the micro-batch came with it, and no statement.
    """

    number: int
    micro_batch: int
    checkpoint_ts: int
    settled: bool
    brings_rows: bool


class VersionReader(Protocol):
    """Reads a lake's tables at any of their versions."""

    def names(self) -> list[TableId]:
        """Return the tables that are there."""

    def versions(self, table: TableId) -> list[LakeVersion]:
        """Return the versions of which commits tell a micro-batch, the oldest first."""

    def rows(self, table: TableId, number: int) -> list[Row]:
        """Return the rows of a version."""


class DeltaVersions:
    """Delta tables of a directory, read by delta-rs."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> list[TableId]:
        """Return the directories that have a log."""
        logs = sorted(self._root.glob("*/*/_delta_log"))
        return [TableId(log.parent.parent.name, log.parent.name) for log in logs]

    def _place(self, table: TableId) -> str:
        return str(self._root / table.database / table.table)

    def versions(self, table: TableId) -> list[LakeVersion]:
        """Return what the log's commits tell."""
        return [
            LakeVersion(
                one["version"],
                one["rowferry.micro-batch"],
                one["rowferry.checkpoint-ts"],
                one["rowferry.settled"],
                one["operation"] == "MERGE",
            )
            for one in reversed(DeltaTable(self._place(table)).history())
            if one.get("rowferry.micro-batch")
        ]

    def rows(self, table: TableId, number: int) -> list[Row]:
        """Read one version."""
        query = QueryBuilder().register("t", DeltaTable(self._place(table), version=number))
        rows: list[Row] = pa.table(query.execute("SELECT * FROM t").read_all()).to_pylist()
        return rows


class IcebergVersions:
    """Iceberg tables of a directory's own catalog, read by pyiceberg."""

    def __init__(self, root: Path) -> None:
        self._uri = f"sqlite:///{root / 'catalog.db'}"

    def names(self) -> list[TableId]:
        """Return the tables of the catalog."""
        with closing(SqlCatalog("rowferry", uri=self._uri)) as catalog:
            return [
                TableId(".".join(space), own)
                for space in catalog.list_namespaces()
                for *_, own in catalog.list_tables(space)
            ]

    def versions(self, table: TableId) -> list[LakeVersion]:
        """Return what the summaries of snapshots tell."""
        with closing(SqlCatalog("rowferry", uri=self._uri)) as catalog:
            snapshots = catalog.load_table((table.database, table.table)).metadata.snapshots
        versions = []
        for one in snapshots:
            notes = one.summary.additional_properties if one.summary else {}
            number = int(notes.get("rowferry.micro-batch", "0"))
            if not one.summary or not number:
                continue  # somebody merged files
            plain = not {"rowferry.statement", "deleted-data-files"} & notes.keys()
            comes = one.summary.operation in (Operation.APPEND, Operation.OVERWRITE)
            checkpoint_ts = int(notes["rowferry.checkpoint-ts"])
            settled = notes["rowferry.settled"] != "false"
            versions.append(
                LakeVersion(one.snapshot_id, number, checkpoint_ts, settled, plain and comes)
            )
        return versions

    def rows(self, table: TableId, number: int) -> list[Row]:
        """Read one snapshot, in the columns that it had."""
        with closing(SqlCatalog("rowferry", uri=self._uri)) as catalog:
            one = catalog.load_table((table.database, table.table))
        rows: list[Row] = one.scan(snapshot_id=number).to_arrow().to_pylist()
        return rows


def _progress(place: Path) -> int:
    return int(json.loads(place.read_bytes())["checkpoint-ts"]) if place.exists() else 0


class LakeOutput:
    """Delta or Iceberg tables in a directory that equal the source's; files are merged often."""

    config = ""

    def __init__(self, root: Path, kind: str) -> None:
        own = "&checkpoint-interval=5" if kind == "delta" else "&history=100000"
        self.sink = f"{kind}+file://{root}?on-drop=drop&optimize-after=12&flush-interval=200ms{own}"
        self._place = root / "rowferry.progress"
        self._reader: VersionReader = (
            DeltaVersions(root) if kind == "delta" else IcebergVersions(root)
        )
        self._watch: ProgressWatch | None = None

    def checkpoint(self) -> int:
        """Return what `rowferry.progress` says."""
        return _progress(self._place)

    def watch(self) -> OutputWatch:
        """Begin to look at the progress file."""
        self._watch = ProgressWatch(partial(_progress, self._place))
        return self._watch

    def judge(self, spec: ChangefeedSpec, written: Written) -> list[str]:
        """Hold every version against the source."""
        assert self._watch is not None
        return list(judge_versions(self._reader, self._watch.watermarks, written))[:_MOST]

    def compare(self, spec: ChangefeedSpec, store: Store, tables: list[TableId]) -> list[str]:
        """Read each table's last version."""
        failures: list[str] = []
        for name in tables:
            schema, source = store.table(name), store.scan(name)
            there = self._reader.versions(name) if name in self._reader.names() else []
            have = self._reader.rows(name, there[-1].number) if there else []
            want = _in_lake_types(schema, source)
            failures += differences(f"{name}, last version", have, want, schema.handle_key)
        return failures


def judge_versions(reader: VersionReader, seen: Iterable[int], written: Written) -> Iterator[str]:
    """Yield how versions of tables are not what the source was at their watermarks.

    Tables that the source has dropped are not there any more, and not judged.
    """
    first = max((w.high for w in written.windows), default=0)
    by_table = {name: reader.versions(name) for name in reader.names()}
    for name, versions in by_table.items():
        yield from _several_commits(name, versions, written.allow_repeats)
    claimed = {v.checkpoint_ts for versions in by_table.values() for v in versions if v.settled}
    statements = written.history.schema_changes()
    replay = HistoryReplay(written.history.entries())
    read = cache(reader.rows)
    for watermark in sorted(w for w in {*seen, *claimed} if w >= first):
        replay.advance(watermark)
        if words := written.invariant(replay.states.rows):
            yield f"the notes break the invariant at {watermark}: {words}"
        for name, versions in by_table.items():
            then = name_then(name, statements, watermark)
            schema = replay.states.schemas.get(then) if then is not None else None
            if then is None or schema is None:
                continue  # it was made later
            there = [v for v in versions if v.checkpoint_ts <= watermark]
            have = read(name, there[-1].number) if there else []
            rows = list(replay.states.rows.get(then, {}).values())
            want = _in_lake_types(schema, _image(schema, rows))
            what = f"P4: {name} ({then}) at {watermark}, version {there[-1:]}"
            yield from differences(what, have, want, schema.handle_key)


def _several_commits(
    name: TableId, versions: Iterable[LakeVersion], allow_repeats: bool
) -> Iterator[str]:
    known: set[int] = set()
    for one in versions:
        if one.brings_rows and one.micro_batch in known and not allow_repeats:
            yield f"P1: {name}: rows of micro-batch {one.micro_batch} are in two commits"
        if one.brings_rows:
            known.add(one.micro_batch)


def name_then(name: TableId, statements: Iterable[SchemaChange], commit_ts: int) -> TableId | None:
    """Return which name the table of this name had at a moment; None: it was made later."""
    then = name
    for change in sorted(statements, key=lambda c: c.commit_ts, reverse=True):
        if change.commit_ts <= commit_ts or change.table != then:
            continue
        if change.kind is DdlKind.CREATE_TABLE:
            return None
        if change.kind is DdlKind.RENAME_TABLE and change.previous is not None:
            then = change.previous
    return then


def _image(schema: TableSchema, rows: list[Row]) -> pa.Table:
    columns = [pa.array([r[c.name] for r in rows], c.type.arrow) for c in schema.visible]
    return pa.table(columns, [c.name for c in schema.visible])


def _in_lake_types(schema: TableSchema, rows: pa.Table) -> list[Row]:
    """Return canonical rows with the types that the columns have in a lake."""
    columns = [
        typed(rows.column(c.name).combine_chunks(), c, schema, native_times=True)
        for c in schema.visible
    ]
    typed_rows: list[Row] = pa.table(columns, [c.name for c in schema.visible]).to_pylist()
    return typed_rows
