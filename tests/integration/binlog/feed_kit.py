"""A feed in this process, step by step, and what a reader of its files can say afterwards.

A `Scene` is a database of a test's own, with sessions that write to it and feeds that read it. A
`Feed` can be stopped and run again: on another server, with another filter, or after a failure that
a test causes between the record of a plan and its end.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa
from pytest import MonkeyPatch
from validator_kit import PATIENCE_S

from rowferry.change.chunk import DdlKind, Op, Rows
from rowferry.change.plan import Plan, Receipt, Segment, TableSlice
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.resnapshot import Resnapshot
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableId, TableSchema
from rowferry.control.feed import service
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop, StepResult
from rowferry.control.feed.under_way import StepProgress
from rowferry.control.store.sql_store import open_store
from rowferry.errors import RowferryError, Verdict
from rowferry.flow.capture.binlog.frame import kept_log, segment_cutter
from rowferry.flow.encode.contract import Format
from rowferry.flow.sink.storage.reader import StoredSchema, read_storage
from rowferry.flow.sink.storage.schema_file import of_table
from rowferry.spark.job import InProcessRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.mysql_history import quoted
from rowferry.testing.rebuild import RebuiltTable, compare, rebuild
from rowferry.testing.servers import Server
from rowferry.testing.storage import storage_changes

NAME = "feed"
_NUMBERS = (Kind.INTEGER, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET)
_AS_NUMBER = (Kind.BIT, Kind.ENUM, Kind.SET)


class Runner(InProcessRunner):
    """Runs plans here and remembers them; `before` and `after` may fail in a run's place."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.before: Callable[[Plan], None] = lambda plan: None
        self.after: Callable[[Plan], None] = lambda plan: None

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run a plan."""
        self.before(plan)
        receipts = super().run(spec, plan, tables)
        self.after(plan)
        self.plans.append(plan)
        return receipts

    def segments(self, kind: str) -> list[dict[str, Any]]:
        """Return where the segments of one kind were read."""
        found = [s.read for p in self.plans for s in p.stretch.segments]
        return [read for read in found if read.get("kind") == kind]  # upkeep has none


def keep_nothing(patch: MonkeyPatch) -> None:
    """Let plans take no bytes of the log along, and keep none in memory: tasks ask the source."""
    patch.setattr(segment_cutter, "CARRY_BYTES", 0)
    patch.setattr(kept_log, "ROOM", kept_log._Room(0))


@dataclass(frozen=True)
class Seen:
    """One row change that a reader of the files finds."""

    op: Op
    commit_ts: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class Feed:
    """One changefeed; what it published lies in `folder`, so it can be run again and again."""

    def __init__(
        self,
        server: Server,
        folder: Path,
        rules: Sequence[str],
        source: str = "",
        config: str = "",
        protocol: str = "canal-json",
        account: str = "",
        runner: Runner | None = None,
    ) -> None:
        self.root = folder / "out"
        self._folder = folder
        self._protocol = protocol
        self.account = account  # "user:password", where it is not the administrator's
        self.store = open_store(f"sqlite:///{folder}/meta.db")
        self.runner = runner or Runner()
        self.faults: list[RowferryError] = []
        self.warnings: list[str] = []
        self.told: list[StepProgress] = []
        self._loop: Loop | None = None
        self._settings = (server, tuple(rules), source, config)
        self.run()

    def run(
        self,
        server: Server | None = None,
        rules: Sequence[str] | None = None,
        source: str | None = None,
        config: str | None = None,
    ) -> None:
        """Begin, or begin again as another process would; what is not given stays as it was."""
        self.stop()
        old = self._settings
        self._settings = (
            server or old[0],
            tuple(rules) if rules is not None else old[1],
            old[2] if source is None else source,
            old[3] if config is None else config,
        )
        feed = self.store.feed(NAME)
        prepared = service.prepare(
            self._source_uri(),
            self._sink_uri(),
            self._config_file(),
            NAME,
            stored=lambda name: feed.spec if feed else None,
        )
        self.notices = prepared.notices
        if feed is None:
            self.store.create_changefeed(prepared.spec, 0)
        else:
            self.store.update_spec(NAME, prepared.spec)
        self._flow = prepared.flow
        self._claim = self.store.claim(NAME, Holder.here(), time.time(), 3600)
        self._loop = Loop(
            *(NAME, prepared.flow, self.store, self._claim, self.runner, _now_ms),
            tell_progress=self.told.append,
            resnapshots=self.resnapshots,
        )

    def resnapshots(self) -> tuple[Resnapshot, ...]:
        """Return what was asked for, as the owner of a changefeed sees it."""
        feed = self.store.feed(NAME)
        return feed.resnapshots if feed else ()

    @property
    def server(self) -> Server:
        return self._settings[0]

    @property
    def codec(self) -> Format:
        """What reads its files."""
        return self._flow.format

    @property
    def loop(self) -> Loop:
        assert self._loop is not None, "the feed does not run"
        return self._loop

    def stop(self) -> None:
        """Let connections go; nothing that was not published is remembered."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None
            self.store.release(self._claim)

    # --- running ----------------------------------------------------------------------------------

    def step(self) -> StepResult | None:
        """Do one step; None: it failed in a way that a supervisor repeats.

        Raises:
            RowferryError: what would stop the feed.
        """
        try:
            step = self.loop.step()
        except RowferryError as err:
            self.faults.append(err)
            if err.verdict is Verdict.STOP:
                raise
            if err.verdict is Verdict.REPLAN:
                self.loop.replan(str(err))
            time.sleep(0.02)
            return None
        self.warnings += step.warnings
        return step

    def step_until(self, done: Callable[[StepResult], bool]) -> StepResult:
        """Step until a step is as wanted, and return it."""
        end = time.monotonic() + PATIENCE_S
        while True:
            step = self.step()
            if step is not None and done(step):
                return step
            assert time.monotonic() < end, f"it never came so far: {self.faults[-1:]}"

    def catch_up(self) -> None:
        """Step until everything that is in the source now is delivered."""
        clock = self.server.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
        wanted = int(str(clock)) << PHYSICAL_SHIFT
        self.step_until(lambda step: step.caught_up and step.watermark >= wanted)

    def read(
        self, segment: Segment, tables: Mapping[TableSlice, TableSchema]
    ) -> list[dict[str, Any]]:
        """Return the rows of a segment, as a task reads them."""
        return [
            r for rows in self._flow.capture.read(segment, tables) for r in rows.batch.to_pylist()
        ]

    # --- what a reader sees -----------------------------------------------------------------------

    def changes(self, table: str) -> list[Seen]:
        """Return the row changes of a table in replay order, snapshot rows as inserts."""
        found = []
        for rows in storage_changes(self.root, self._flow.format):
            if isinstance(rows, Rows) and rows.table.id.table == table:
                ops = rows.batch.column("op").to_pylist()
                stamps = rows.commit_ts.tolist()
                old, new = rows.before.to_pylist(), rows.after.to_pylist()
                found += [
                    Seen(Op(o), t, b, a) for o, t, b, a in zip(ops, stamps, old, new, strict=True)
                ]
        return found

    def repeated(self, table: str) -> list[str]:
        """Return the changes that came more than once."""
        counts = Counter(repr(change) for change in self.changes(table))
        return [change for change, times in counts.items() if times > 1]

    def schema_files(self, table: str) -> list[StoredSchema]:
        """Return the schema files of a table, by version."""
        steps = (s for s in read_storage(self.root) if isinstance(s, StoredSchema))
        return [s for s in steps if s.document.table == table]

    def ddl(self, table: str) -> list[tuple[DdlKind, str]]:
        """Return kind and text of the DDLs that a table's schema files tell."""
        found = [s.document for s in self.schema_files(table)]
        return [(DdlKind(d.kind), d.query) for d in found if d.query]

    def stale(self) -> list[str]:
        """Return the tables whose newest version is not what the server says of them now."""
        state = self.store.state(NAME)
        newest = {v.table_id: v for v in sorted(state.versions, key=lambda v: v.version)}
        ids = {TableId(r.database, r.table): r.table_id for r in state.ranges}
        found = []
        for schema in self._flow.capture.probe(self._flow.decide):
            if not self._flow.decide.captures(schema):
                continue
            version = newest.get(ids.get(schema.id, 0))
            if version is None or _definition(version) != _definition(schema):
                found.append(f"{schema.id}: {version} is not {schema}")
            files = [f.document for f in self.schema_files(schema.id.table) if f.schema]
            if files and files[-1].columns != of_table(schema).columns:
                found.append(f"{schema.id}: {files[-1].columns} in {files[-1].table_version}")
        return found

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return a table as rebuilt from the files, by its first columns."""
        found = [t.rows.to_pylist() for n, t in self._rebuilt().items() if n.table == table]
        return sorted((found or [[]])[0], key=lambda row: [str(v) for v in row.values()])

    def differences(self) -> str:
        """Return how the tables rebuilt from the files differ from the source's; empty: not."""
        found = self._rebuilt()
        source = self._flow.capture.probe(self._flow.decide)
        expected: dict[TableId, RebuiltTable] = {}
        for schema in source:
            if not self._flow.decide.captures(schema):
                continue
            shape = found.get(schema.id)
            names = shape.rows.column_names if shape else [c.name for c in schema.columns]
            rows = read_table(self.server, schema, names)
            if rows.num_rows or shape is not None:
                key = shape.key if shape else schema.handle_key
                expected[schema.id] = RebuiltTable(schema, key, rows)
        result = compare(found, expected)
        return "" if result.same else str(result)

    def _rebuilt(self) -> dict[TableId, RebuiltTable]:
        schemas = self._flow.capture.probe(self._flow.decide)
        return rebuild(self.root, self._flow.format, {t.id: t.handle_key for t in schemas})

    # --- settings ---------------------------------------------------------------------------------

    def _source_uri(self) -> str:
        server, source = self._settings[0], self._settings[2]
        uri = server.uri
        if self.account:
            uri = f"mysql://{self.account}@{server.host}:{server.port}/"
        return f"{uri}?{source}" if source else uri

    def _sink_uri(self) -> str:
        extension = "&enable-tidb-extension=true" if self._protocol == "canal-json" else ""
        return f"file://{self.root}?protocol={self._protocol}{extension}"

    def _config_file(self) -> Path:
        _, rules, _, config = self._settings
        found = self._folder / "feed.toml"
        lines = ", ".join(f"'{rule}'" for rule in rules)
        found.write_text(f"{config}\n[filter]\nrules = [{lines}]\n")
        return found


def _definition(schema: TableSchema) -> TableSchema:
    """Return a version without what a server does not tell of a table."""
    columns = tuple(replace(c, id=0, filled=None) for c in schema.columns)
    indexes = tuple(replace(i, id=0) for i in schema.indexes)
    return replace(
        schema, table_id=0, version=0, columns=columns, indexes=indexes, dropped_column_id=0
    )


def read_table(server: Server, schema: TableSchema, names: Sequence[str]) -> pa.Table:
    """Return columns of a table as the server has them now, in canonical values."""
    columns = [schema.column(name) for name in names]
    values = ", ".join(
        f"`{c.name}` + 0" if c.type.kind in _AS_NUMBER else f"`{c.name}`" for c in columns
    )
    texts = server.execute(f"SELECT {values} FROM {quoted(schema.id)}")
    arrays = [
        pa.array([_value(row[i], c.type.kind) for row in texts], c.type.arrow)
        for i, c in enumerate(columns)
    ]
    return pa.Table.from_arrays(arrays, names=list(names))


def _value(text: str | bytes | None, kind: Kind) -> Any:
    if text is None:
        return None
    if kind in _NUMBERS:
        return int(text)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return float(text)
    if kind is Kind.BINARY:
        return text.encode() if isinstance(text, str) else text
    return text


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Session:
    """A connection that writes; its statements run one after the other."""

    def __init__(self, server: Server, database: str) -> None:
        self._connection = server.connect(database)

    def __call__(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for sql in statements:
                cursor.execute(sql)

    def close(self) -> None:
        """Disconnect, also inside a transaction."""
        with suppress(Exception):
            self._connection.close()


class Scene:
    """A database of a test's own."""

    def __init__(self, server: Server, folder: Path, test: str) -> None:
        self.server = server
        self.folder = folder
        self.database = re.sub(r"\W+", "_", test).lower().strip("_")[:60]
        self._open: list[Feed | Session] = []
        server.script(
            f"DROP DATABASE IF EXISTS {self.database}", f"CREATE DATABASE {self.database}"
        )

    def sql(self, *statements: str) -> None:
        """Run statements in a session of their own."""
        with closing(Session(self.server, self.database)) as session:
            session(*statements)

    def session(self) -> Session:
        """Open a session that stays."""
        found = Session(self.server, self.database)
        self._open.append(found)
        return found

    def feed(
        self,
        rules: Sequence[str] = (),
        source: str = "",
        config: str = "",
        protocol: str = "canal-json",
        account: str = "",
        runner: Runner | None = None,
    ) -> Feed:
        """Make a feed of the whole database (or of what `rules` say)."""
        folder = Path(mkdtemp(prefix="feed", dir=self.folder))
        kept = rules or [f"{self.database}.*"]
        found = Feed(self.server, folder, kept, source, config, protocol, account, runner)
        self._open.append(found)
        return found

    def close(self) -> None:
        """Stop what is open, the last one first."""
        for one in reversed(self._open):
            one.stop() if isinstance(one, Feed) else one.close()
        for number, gtrid, _, xid in self.server.execute("XA RECOVER") if self.server.alive else ():
            size = int(str(gtrid))
            first, second = (_hex(str(xid)[:size]), _hex(str(xid)[size:]))
            with suppress(RowferryError):  # no later snapshot waits for what a test left behind
                self.server.execute(f"XA ROLLBACK {first}, {second}, {number!s}")


def _hex(text: str) -> str:
    return f"X'{text.encode().hex()}'"


@contextmanager
def scene_of(server: Server, folder: Path, test: str) -> Iterator[Scene]:
    """A scene that ends with its block, also where its test fails."""
    found = Scene(server, folder, test)
    try:
        yield found
    finally:
        found.close()
