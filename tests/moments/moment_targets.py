"""Where the feeds of a walk write to, and how what is there is compared with the source."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from feed_kit import read_table
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from rowferry.change.chunk import Rows
from rowferry.change.table import TableId, TableSchema
from rowferry.change.typed_columns import typed
from rowferry.downstream.consume.arrival import Where, row_changes
from rowferry.flow.assemble import Flow
from rowferry.flow.sink.lake.upkeep import LakeUpkeep
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.mysql_history import quoted
from rowferry.testing.rebuild import RebuiltTable, TableDifferences, compare, rebuild
from rowferry.testing.servers import Kafka, Postgres, Server
from rowferry.testing.validators import StorageLayout

if TYPE_CHECKING:
    from moment_kit import World


class Target(Protocol):
    """Where a feed writes to, and how to judge what is there."""

    uri: str
    config: str

    def look(self) -> None:
        """Look at it as a reader does, after a step."""

    def clear(self) -> None:
        """Remove all of it, so that a feed can begin anew."""

    def judge(self, world: World, flow: Flow, extra: bool) -> str:
        """Return how it differs from the source; empty: not at all.

        With `extra` it may hold rows that the source lacks.
        """


class Files:
    """A directory of files, rebuilt by the tests' own reader."""

    def __init__(self, folder: Path, protocol: str = "canal-json") -> None:
        self._folder = folder
        rows = protocol == "parquet"  # a table without a key needs old rows
        self.config = '[sink.parquet]\nlayout = "images"\n' if rows else ""
        self._protocol = protocol if rows else f"{protocol}&enable-tidb-extension=true"
        self._turn = 0
        self.clear()

    def clear(self) -> None:
        """Go on with an empty directory."""
        self._turn += 1
        self.root = self._folder / f"out{self._turn}"
        self.uri = f"file://{self.root}?protocol={self._protocol}&fsync=false"
        self._layout = StorageLayout(self.root)

    def look(self) -> None:
        """Look at the files as P8 promises them."""
        if self.root.exists():
            self._layout.observe()

    def judge(self, world: World, flow: Flow, extra: bool) -> str:
        """Compare the tables that the files make with those of the source."""
        self.look()
        self._layout.finish()
        if self._layout.failures and not extra:
            return f"P8: {self._layout.failures}"
        schemas = flow.capture.probe(flow.decide)
        found = rebuild(self.root, flow.format, {t.id: t.handle_key for t in schemas})
        expected: dict[TableId, RebuiltTable] = {}
        for schema in schemas:
            shape = found.get(schema.id)
            rows = read_table(world.server, schema, [c.name for c in schema.columns])
            if flow.decide.captures(schema) and (rows.num_rows or shape is not None):
                key = shape.key if shape else schema.handle_key
                expected[schema.id] = RebuiltTable(schema, key, rows)
        # What was renamed to where the filter does not look stays with the reader.
        kept = {name: table for name, table in found.items() if flow.decide.keeps_table(name)}
        return _words(compare(kept, expected), extra)


class Downstream:
    """Tables of the same names on another server."""

    def __init__(self, server: Server, database: str) -> None:
        self.server = server
        self._database = database
        self.ledger = f"DATABASE {database}_meta"
        self.uri = server.uri
        own = f'meta-database = "{database}_meta"'
        self.config = f"[sink.mysql-config]\ncreate-tables = true\n{own}\n"
        self.clear()

    def clear(self) -> None:
        """Drop all tables, and what was noted about a feed to them."""
        for name in (self._database, f"{self._database}_meta"):
            self.server.script(f"DROP DATABASE IF EXISTS {name}")

    def sql(self, *statements: str) -> None:
        """Change something downstream, as others may."""
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            for one in statements:
                cursor.execute(one)

    def look(self) -> None:
        """Nothing: the end is judged."""

    def tables(self) -> list[str]:
        """Return the names of the tables that are there."""
        there = self.server.execute(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s",
            self._database,
        )
        return [str(name) for (name,) in there]

    def rows(self, table: TableId, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return a table's rows, in these columns (none: all)."""
        return _texts(self.server, table, columns)

    def judge(self, world: World, flow: Flow, extra: bool) -> str:
        """Compare the tables of both servers."""
        found = {}
        expected = {}
        for schema in flow.capture.probe(flow.decide):
            if flow.decide.captures(schema):
                expected[schema.id] = _rows(world.server, schema)
        for name in self.tables():
            table = TableId(self._database, name)
            if not flow.decide.keeps_table(table):
                continue  # renamed to where the filter does not look
            columns = [c.name for c in expected[table][0].columns] if table in expected else []
            found[table] = self.rows(table, columns)
        wrong = []
        for table in sorted(found.keys() | expected.keys()):
            have, want = found.get(table, []), expected[table][1] if table in expected else []
            missing = [row for row in want if row not in have]
            more = [row for row in have if row not in want]
            if missing or (more and not extra):
                wrong.append(f"{table}: {missing} missing, {more} extra")
        return "; ".join(wrong)


class PostgresqlCopy(Downstream):
    """Tables of the same names in PostgreSQL, in a database of the case's own."""

    ledger = "SCHEMA rowferry CASCADE"
    config = "[sink.postgresql-config]\ncreate-tables = true\n"

    def __init__(self, server: Postgres, database: str) -> None:
        self._postgres = server
        self._database = database
        # The server is everybody's, the number of a database only this process's.
        self._home = f"{database}_{os.getpid()}"
        self.uri = server.url(self._home)
        self.clear()

    def clear(self) -> None:
        """Begin with a database that has nothing; whoever is connected is cut off."""
        self._postgres.execute(f"DROP DATABASE IF EXISTS {self._home} WITH (FORCE)")
        self._postgres.execute(f"CREATE DATABASE {self._home}")

    def remove(self) -> None:
        """Leave nothing behind."""
        self._postgres.execute(f"DROP DATABASE IF EXISTS {self._home} WITH (FORCE)")

    def sql(self, *statements: str) -> None:
        """Change something downstream, as others may."""
        for one in statements:
            self._postgres.execute(one, self._home)

    def tables(self) -> list[str]:
        """Return the names of the tables that are there."""
        there = self._postgres.execute(
            "SELECT table_name FROM information_schema.tables "
            f"WHERE table_schema = '{self._database}'",
            self._home,
        )
        return [str(name) for (name,) in there]

    def rows(self, table: TableId, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return a table's rows, in these columns (none: all)."""
        listed = ", ".join(f'"{name}"' for name in columns) or "*"
        place = f'"{table.database}"."{table.table}"'
        there = self._postgres.execute(f"SELECT {listed} FROM {place}", self._home)
        texts = [tuple(None if value is None else str(value) for value in row) for row in there]
        return sorted(texts, key=repr)


class Topic:
    """A topic with one partition; rows are judged by their keys."""

    config = ""

    def __init__(self, broker: Kafka, database: str) -> None:
        self._broker = broker
        self._database, self._turn = database, 0
        self.clear()

    def clear(self) -> None:
        """Go on with a new topic."""
        self._turn += 1
        # The broker is everybody's, the number of a database only this process's.
        self._topic = f"{self._database}_{os.getpid()}_{self._turn}"
        self.uri = f"kafka://{self._broker.bootstrap}/{self._topic}?protocol=canal-json"
        self.uri += "&partition-num=1&enable-tidb-extension=true"

    def look(self) -> None:
        """Nothing: the end is judged."""

    def judge(self, world: World, flow: Flow, extra: bool) -> str:
        """Compare the newest image of each key with the source's row."""
        tables: dict[TableId, dict[Any, dict[str, Any]]] = {}
        for message in self._broker.read_all(self._topic):
            for change in flow.encode.decode_message(message.key, message.value):
                if isinstance(change, Rows):
                    for row in row_changes(change, Where("0", message.offset)):
                        rows = tables.setdefault(change.table.id, {})
                        key = change.table.handle_key
                        if row.before is not None:
                            rows.pop(tuple(row.before[c] for c in key), None)
                        if row.after is not None:
                            rows[tuple(row.after[c] for c in key)] = row.after
        wrong = []
        for schema in flow.capture.probe(flow.decide):
            if flow.decide.captures(schema) and schema.handle_key:
                names = [c.name for c in schema.columns]
                want = read_table(world.server, schema, names).to_pylist()
                have = list(tables.get(schema.id, {}).values())
                missing = [row for row in want if row not in have]
                more = [row for row in have if row not in want]
                if missing or (more and not extra):
                    wrong.append(f"{schema.id}: {missing} missing, {more} extra")
        return "; ".join(wrong)


class LakeTables:
    """Tables of a lake in a directory, read by what others wrote for that.

    Upkeep is done often, so that its gaps are come by, too.
    """

    config = ""

    def __init__(self, folder: Path, scheme: str) -> None:
        self._folder, self._scheme, self._turn = folder, scheme, 0
        self.clear()

    def clear(self) -> None:
        """Go on with an empty directory."""
        self._turn += 1
        self.root = self._folder / f"lake{self._turn}"
        more = "&checkpoint-interval=2" if self._scheme == "delta" else "&history=50"
        self.uri = f"{self._scheme}+file://{self.root}?fsync=false&optimize-after=5{more}"

    def look(self) -> None:
        """Nothing: the end is judged."""

    def optimize(self) -> None:
        """Merge small files, as anybody may at any time."""
        if self.root.exists():
            for _ in self._upkeep().optimize(time.time_ns() // 1_000_000):
                pass

    def remove_orphans(self) -> None:
        """Remove what no commit names, as one may while the feed does not run."""
        if self.root.exists():
            upkeep = self._upkeep()
            for path in list(upkeep.orphans()):
                upkeep.remove(path)

    def _upkeep(self) -> LakeUpkeep:
        source = Uri.parse("range://127.0.0.1:1", "source")
        spec = ChangefeedSpec("upkeep", source, Uri.parse(self.uri, "sink"))
        sink: Any = SINKS.load(f"{self._scheme}+file")(spec, None)
        upkeep: LakeUpkeep = sink.upkeep()
        return upkeep

    def judge(self, world: World, flow: Flow, extra: bool) -> str:
        """Compare each table with the source's, and look for a micro-batch in two commits."""
        wrong = []
        for schema in flow.capture.probe(flow.decide):
            if not flow.decide.captures(schema):
                continue
            names = [c.name for c in schema.visible]
            plain = read_table(world.server, schema, names)
            columns = [
                typed(plain.column(c.name).combine_chunks(), c, schema, native_times=True)
                for c in schema.visible
            ]
            want = pa.table(columns, names).to_pylist()
            have = self._rows(schema.id)
            missing = [row for row in want if row not in have]
            more = [row for row in have if row not in want]
            if missing or (more and not extra) or (len(have) != len(want) and not extra):
                wrong.append(f"{schema.id}: {missing} missing, {more} extra, {len(have)} rows")
            batches = self._micro_batches(schema.id)
            if len(batches) != len(set(batches)):
                wrong.append(f"{schema.id}: micro-batches {batches} are in several commits")
        return "; ".join(wrong)

    def _rows(self, table: TableId) -> list[dict[str, Any]]:
        if self._scheme == "delta":
            place = self.root / table.database / table.table
            if not place.exists():
                return []
            query = QueryBuilder().register("t", DeltaTable(str(place)))
            return pa.table(query.execute("SELECT * FROM t").read_all()).to_pylist()
        found = self._iceberg(table)
        return found.scan().to_arrow().to_pylist() if found else []

    def _micro_batches(self, table: TableId) -> list[Any]:
        """The micro-batch of each commit of rows that the table still knows."""
        if self._scheme == "delta":
            place = self.root / table.database / table.table
            history = DeltaTable(str(place)).history() if place.exists() else []
            done = [e for e in history if e["operation"] == "MERGE"]
            return [(e["rowferry.changefeed"], e["rowferry.micro-batch"]) for e in done]
        found = self._iceberg(table)
        told = [s.summary for s in found.metadata.snapshots if s.summary] if found else []
        return [
            s.additional_properties["rowferry.micro-batch"]
            for s in told
            if s.operation in (Operation.APPEND, Operation.OVERWRITE)
            and not {"rowferry.statement", "deleted-data-files"} & s.additional_properties.keys()
        ]

    def _iceberg(self, table: TableId) -> Table | None:
        place = self.root / "catalog.db"
        if not place.exists():
            return None
        with closing(SqlCatalog("rowferry", uri=f"sqlite:///{place}")) as catalog:
            name = (table.database, table.table)
            return catalog.load_table(name) if catalog.table_exists(name) else None


def _words(found: TableDifferences, extra: bool) -> str:
    good = not (found.missing or found.different) if extra else found.same
    return "" if good else str(found)


def _rows(server: Server, schema: TableSchema) -> tuple[TableSchema, list[tuple[Any, ...]]]:
    return schema, _texts(server, schema.id, [c.name for c in schema.columns])


def _texts(server: Server, table: TableId, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return a table's rows as texts, in these columns (none: all)."""
    listed = ", ".join(f"`{name}`" for name in columns) or "*"
    return sorted(
        (tuple(row) for row in server.execute(f"SELECT {listed} FROM {quoted(table)}")), key=repr
    )
