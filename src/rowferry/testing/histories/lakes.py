"""Lake tables of a history, read by what others wrote for that, after every step of a feed.

A changelog is read commit by commit: the rows of the data files that a commit added. Tables of the
mode upsert are read as a whole whenever the lake says that it is complete up to a later moment:
together they must be what the source was at one of its steps.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import StructType

from rowferry.testing.histories.facts import Name, TableFacts
from rowferry.testing.histories.forms import HistoryFormat
from rowferry.testing.histories.judge import Judgement
from rowferry.testing.histories.outputs import DeliveredRow
from rowferry.testing.histories.truth import JOURNAL, OUTSIDE, CommittedStep, Truth

_OWN = ("_op", "_commit_ts", "_seq", "_before")
_MOST = 12
_UNREADABLE = (ValueError, KeyError, TypeError, OSError, pa.ArrowException, DeltaError)
Row = dict[str, Any]
# A column's name in files, and the name that readers see; of a struct, also those within.
Names = dict[str, tuple[str, "Names | None"]]


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """A commit that brought rows.

    Attributes:
        batch: the changefeed's micro-batch, as the commit tells it.
        rows: of a changelog, those of the files that it added.
    """

    batch: str
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class SeenTable:
    """A table as a reader has it.

    Attributes:
        identity: what stays when it is renamed.
        mark: what changes with every commit.
        first: the name under which it was made.
        dropped: the source has none any more, and this one is kept.
    """

    name: Name
    identity: str
    mark: str
    first: Name
    dropped: bool


class LakeReader(Protocol):
    """Reads the tables of a lake in a directory."""

    def tables(self) -> list[SeenTable]:
        """Return the tables that are there."""

    def rows(self, table: SeenTable) -> tuple[list[str], list[Row]]:
        """Return a table's columns and rows."""

    def commits(self, table: SeenTable, after: str, changelog: bool) -> Iterator[LakeCommit]:
        """Yield the commits that brought rows since a mark, the oldest first."""


def _renamed(rows: pa.Table, names: Names, wanted: Sequence[str]) -> list[Row]:
    """Return rows of a file under the names that readers see, in their order."""
    renamed = []
    for row in rows.to_pylist():
        named = _under_names(row, names)
        renamed.append({name: named.get(name) for name in wanted})
    return renamed


def _under_names(row: Mapping[str, Any], names: Names) -> Row:
    made: Row = {}
    for place, (name, inner) in names.items():
        value = row.get(place)
        made[name] = _under_names(value, inner) if inner is not None and value else value
    return made


# --- Delta ---------------------------------------------------------------------------------------


class DeltaReader:
    """Delta tables; delta-rs reads whole ones, the log tells the files of a commit."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _place(self, table: SeenTable) -> Path:
        for log in self._root.glob("*/*/_delta_log"):
            if _name_of(log.parent) == table.name:
                return log.parent
        raise ValueError(f"{table.name} is gone")

    def tables(self) -> list[SeenTable]:
        """Return the tables that are there."""
        tables = []
        for log in sorted(self._root.glob("*/*/_delta_log")):
            versions = sorted(p.stem for p in log.glob("*.json") if p.stem.isdigit())
            if not versions:
                continue
            made = [a["metaData"] for v in versions for a in _actions(log, v) if "metaData" in a]
            full_name = str(made[0].get("name") or "")
            database, _, own = full_name.partition(".")
            name = _name_of(log.parent)
            first = (database, own) if own else name
            settings = made[-1]["configuration"]
            dropped = "rowferry.dropped" in settings
            tables.append(SeenTable(name, made[0]["id"], versions[-1], first, dropped))
        return tables

    def rows(self, table: SeenTable) -> tuple[list[str], list[Row]]:
        """Return a table's columns and rows, as delta-rs has them."""
        there = DeltaTable(str(self._place(table)))
        query = QueryBuilder().register("t", there).execute("SELECT * FROM t")
        table_rows = pa.table(query.read_all())
        return table_rows.column_names, table_rows.to_pylist()

    def commits(self, table: SeenTable, after: str, changelog: bool) -> Iterator[LakeCommit]:
        """Yield what the log's new files tell."""
        place = self._place(table)
        log = place / "_delta_log"
        schema: Row = {}
        for version in sorted(p.stem for p in log.glob("*.json") if p.stem.isdigit()):
            actions = _actions(log, version)
            for one in actions:
                if "metaData" in one:
                    schema = json.loads(one["metaData"]["schemaString"])
            info: Row = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
            if version <= after or info.get("operation") not in ("MERGE", "WRITE"):
                continue
            rows: list[Row] = []
            if changelog:
                wanted = [f["name"] for f in schema["fields"]]
                for add in (a["add"] for a in actions if "add" in a):
                    content = pq.read_table(place / unquote(add["path"]), partitioning=None)
                    rows += _renamed(content, _delta_names(schema), wanted)
            yield LakeCommit(str(info["rowferry.micro-batch"]), tuple(rows))


def _name_of(place: Path) -> Name:
    database, own = (unquote(part.replace("@", "%")) for part in (place.parent.name, place.name))
    return database, own


def _actions(log: Path, version: str) -> list[Row]:
    content = (log / f"{version}.json").read_bytes()
    return [json.loads(line) for line in content.split(b"\n") if line]


def _delta_names(schema: Row) -> Names:
    names: Names = {}
    for one in schema["fields"]:
        place = one.get("metadata", {}).get("delta.columnMapping.physicalName", one["name"])
        inner = _delta_names(one["type"]) if isinstance(one["type"], dict) else None
        names[place] = (one["name"], inner)
    return names


# --- Iceberg -------------------------------------------------------------------------------------


class IcebergReader:
    """Iceberg tables of a SQLite catalog, read by pyiceberg."""

    def __init__(self, root: Path) -> None:
        self._place = root / "catalog.db"

    def _catalog(self) -> SqlCatalog:
        return SqlCatalog("rowferry", uri=f"sqlite:///{self._place}")

    def _table(self, name: Name) -> Table:
        with closing(self._catalog()) as catalog:
            return catalog.load_table(name)

    def tables(self) -> list[SeenTable]:
        """Return the tables that are there."""
        if not self._place.exists():
            return []
        tables = []
        with closing(self._catalog()) as catalog:
            for space in catalog.list_namespaces():
                for *_, own in catalog.list_tables(space):
                    name = (".".join(space), own)
                    one = catalog.load_table(name)
                    dropped = "rowferry.dropped" in one.properties
                    mark = one.metadata_location
                    tables.append(
                        SeenTable(name, str(one.metadata.table_uuid), mark, name, dropped)
                    )
        return tables

    def rows(self, table: SeenTable) -> tuple[list[str], list[Row]]:
        """Return a table's columns and rows, as pyiceberg has them."""
        table_rows = self._table(table.name).scan().to_arrow()
        return table_rows.column_names, table_rows.to_pylist()

    def commits(self, table: SeenTable, after: str, changelog: bool) -> Iterator[LakeCommit]:
        """Yield the snapshots that brought rows since a metadata file."""
        there = self._table(table.name)
        known: set[int] = set()
        if after:
            earlier = json.loads(Path(after.removeprefix("file://")).read_text())
            known = {int(s["snapshot-id"]) for s in earlier.get("snapshots", ())}
        schemas = there.schemas()
        for one in there.metadata.snapshots:
            about = one.summary.additional_properties if one.summary else {}
            comes = one.summary is not None and one.summary.operation in (
                Operation.APPEND,
                Operation.OVERWRITE,
            )
            ours = "rowferry.statement" not in about and "rowferry.micro-batch" in about
            if one.snapshot_id in known or not comes or not ours:
                continue
            if "deleted-data-files" in about:
                continue  # columns were changed
            rows = _added(there, one, schemas[one.schema_id or 0]) if changelog else ()
            yield LakeCommit(about["rowferry.micro-batch"], tuple(rows))


def _added(table: Table, snapshot: Snapshot, schema: Schema) -> Iterator[Row]:
    """Yield the rows of the data files that a snapshot added."""
    wanted = [f.name for f in schema.fields]
    names = {f.field_id: f for f in schema.fields}
    for manifest in snapshot.manifests(table.io):
        if manifest.content != ManifestContent.DATA:
            continue
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.status != ManifestEntryStatus.ADDED or entry.snapshot_id != (
                snapshot.snapshot_id
            ):
                continue
            content = pq.read_table(entry.data_file.file_path.removeprefix("file://"))
            places: Names = {}
            for one in content.schema:
                field = names.get(_number(one))
                if field is None:
                    continue
                inner: Names | None = None
                if isinstance(field.field_type, StructType):
                    own = {f.field_id: f.name for f in field.field_type.fields}
                    inner = {i.name: (own[_number(i)], None) for i in one.type if _number(i) in own}
                places[one.name] = (field.name, inner)
            yield from _renamed(content, places, wanted)


def _number(column: pa.Field) -> int:
    return int((column.metadata or {}).get(b"PARQUET:field_id", b"-1"))


# --- a lake --------------------------------------------------------------------------------------


@dataclass
class LakeSight:
    """What all tables were when the lake said that it was complete up to a later moment."""

    checkpoint: int
    tables: dict[Name, tuple[list[str], list[Row]]]
    dropped: set[Name]


@dataclass
class LakeWatch:
    """Looks at a lake after every step.

    Attributes:
        events: of a changelog, what was delivered, in order.
        sights: of tables that equal the source's, what was seen.
        failures: what is wrong whatever the source was.
    """

    reader: LakeReader
    root: Path
    changelog: bool
    events: list[DeliveredRow] = field(default_factory=list)
    sights: list[LakeSight] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _seen: dict[str, SeenTable] = field(default_factory=dict)
    _batches: dict[str, set[str]] = field(default_factory=dict)
    _brought: dict[str, Counter[tuple[int, int]]] = field(default_factory=dict)
    _known: dict[str, tuple[str, tuple[list[str], list[Row]]]] = field(default_factory=dict)

    def forget(self) -> None:
        """Begin anew with the next filling; only what was seen at watermarks is judged still."""
        self.events = []
        self._batches, self._brought = {}, {}

    def look(self) -> None:
        """Read what has come since the last look."""
        try:
            self._look()
        except _UNREADABLE as err:
            if len(self.failures) < _MOST:
                self.failures.append(f"the lake cannot be read: {type(err).__name__}: {err!s:.600}")

    def _look(self) -> None:
        tables = self.reader.tables()
        for one in tables:
            before = self._seen.get(one.identity)
            if before is not None and before.mark == one.mark:
                continue
            name = before.name if before is not None else one.first
            after = before.mark if before is not None else ""
            for commit in self.reader.commits(one, after, self.changelog):
                batches = self._batches.setdefault(one.identity, set())
                if commit.batch in batches:
                    self.failures.append(f"{name}: micro-batch {commit.batch} is in two commits")
                batches.add(commit.batch)
                self.events += _delivered(name, commit)
                own = self._brought.setdefault(one.identity, Counter())
                own.update((int(r["_commit_ts"]), int(r["_seq"])) for r in commit.rows)
        self._seen = {one.identity: one for one in tables}
        if not self.changelog:
            self._see(tables)

    def _see(self, tables: Sequence[SeenTable]) -> None:
        place = self.root / "rowferry.progress"
        checkpoint = json.loads(place.read_text())["checkpoint-ts"] if place.exists() else 0
        if not checkpoint or (self.sights and self.sights[-1].checkpoint == checkpoint):
            return
        by_name = {}
        for one in tables:
            known = self._known.get(one.identity)
            if known is None or known[0] != one.mark:
                known = (one.mark, self.reader.rows(one))
                self._known[one.identity] = known
            by_name[one.name] = known[1]
        self.sights.append(LakeSight(checkpoint, by_name, {t.name for t in tables if t.dropped}))

    # --- afterwards -------------------------------------------------------------------------------

    def check_whole(self) -> None:
        """Note where a changelog, read as a whole, is not what its commits brought."""
        for one in self._seen.values() if self.changelog else ():
            try:
                _, rows = self.reader.rows(one)
            except _UNREADABLE as err:
                self.failures.append(f"{one.name} cannot be read: {type(err).__name__}: {err}")
                continue
            there = Counter((int(r["_commit_ts"]), int(r["_seq"])) for r in rows)
            brought = self._brought.get(one.identity, Counter())
            if there != brought:
                lost, more = list(brought - there)[:3], list(there - brought)[:3]
                self.failures.append(f"{one.name}, as a whole: {lost} missing, {more} too many")

    def judge(self, truth: Truth, form: HistoryFormat, drops: bool) -> Judgement:
        """Compare every sight with the steps of the source that it may be."""
        verdict = Judgement(list(self.failures))
        tokens = {s.token: s.number for s in truth.steps if s.token}
        low = 0
        for sight in self.sights:
            if len(verdict.failures) >= _MOST:
                break
            _, journal = sight.tables.get(JOURNAL, ([], []))
            seen = {int(row["token"]) for row in journal}
            number = max((tokens[t] for t in seen if t in tokens), default=0)
            lost = [t for t, n in tokens.items() if n < number and t not in seen]
            if lost:
                verdict.failures.append(f"steps {lost} of the journal are not in the lake")
                continue
            low = max(low, number)
            later = (s.number for s in truth.steps[number + 1 :] if s.token)
            high = next(later, len(truth.steps))
            wrong: list[str] = []
            for step in truth.steps[low:high]:
                # Its rows follow the statement: a table may be there, empty, ahead of them.
                after = truth.steps[step.number + 1 :][:1]
                ahead = {n for s in after if s.kind == "create-select" for n in s.tables}
                wrong = _unlike(sight, step, form, drops, ahead)
                if not wrong:
                    low = step.number
                    verdict.compared += sum(len(rows) for _, rows in sight.tables.values())
                    break
            else:
                kinds = [s.kind for s in truth.steps[low:high]]
                verdict.failures += [
                    f"at commit-ts {sight.checkpoint}, after step {number} ({kinds}): {words}"
                    for words in wrong[:3]
                ]
        return verdict


def _delivered(name: Name, commit: LakeCommit) -> Iterator[DeliveredRow]:
    for row in sorted(commit.rows, key=lambda r: int(r["_seq"])):
        image = {n: v for n, v in row.items() if n not in _OWN}
        op, before = row["_op"], row["_before"]
        if op == "delete":
            if repr(before) != repr(image):
                raise ValueError(f"{name}: a delete of {image!r} has the old row {before!r}")
            old, new = image, None
        else:
            old, new = before, image
        raw = json.dumps([row["_seq"], commit.batch])
        where = f"{name[0]}/{name[1]}/{commit.batch}"
        yield DeliveredRow(where, name, op, int(row["_commit_ts"]), old, new, raw)


def _unlike(
    sight: LakeSight, step: CommittedStep, form: HistoryFormat, drops: bool, ahead: Collection[Name]
) -> list[str]:
    """Return in what the lake differs from the source after a step."""
    wrong = []
    wanted = {n: t for n, t in step.tables.items() if n[0] != OUTSIDE}
    for name, table in wanted.items():
        state = step.state[name]
        if name not in sight.tables:
            if state:
                wrong.append(f"{name} is missing")
            continue
        columns, rows = sight.tables[name]
        if name in sight.dropped:
            wrong.append(f"{name} is kept as dropped, and is there at the source")
        if not state and not rows:
            continue  # after a reset, columns come with the first rows
        if columns != table.sent:
            wrong.append(f"{name} has the columns {columns}, not {table.sent}")
            continue
        here = Counter(_cells(table, r, form, of_truth=True) for r in state.values())
        there = Counter(_cells(table, r, form, of_truth=False) for r in rows)
        if here != there:
            missing, extra = list((here - there).elements()), list((there - here).elements())
            if len(missing) == len(extra) == 1:
                pairs = [(w, f) for w, f in zip(missing[0], extra[0], strict=True) if w != f]
                wrong.append(f"{name}: {[(f, 'instead of', w) for w, f in pairs]!r:.700}")
            else:
                wrong.append(f"{name}: missing {missing!r:.500}, too many {extra!r:.500}")
    for name in sight.tables.keys() - wanted.keys() - {JOURNAL}:
        if name in ahead and not sight.tables[name][1]:
            continue
        if drops or name not in sight.dropped:
            wrong.append(f"{name} is in the lake, and not at the source")
    return wrong


def _cells(
    table: TableFacts, row: Mapping[str, Any], form: HistoryFormat, of_truth: bool
) -> tuple[tuple[str, Hashable], ...]:
    read = form.of_truth if of_truth else form.of_cell
    return tuple((c.name, read(c, row[c.name])) for c in table.columns if not c.virtual)
