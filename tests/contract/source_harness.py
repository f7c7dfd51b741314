"""Each source on a real database of its own, also such as are disturbed while they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Sized
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from rowferry.change.table import TableId
from rowferry.errors import RowferryError
from rowferry.flow.assemble import decisions_of
from rowferry.flow.capture.contract import Source
from rowferry.flow.capture.range_log.client_access import RangeAccess
from rowferry.flow.decide.decisions import Decisions
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.registry import SOURCES
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import MariaDb, MySql, Server
from rowferry.testing.servers.certificates import Certificates


class SourceHarness(ABC):
    """A database: tests make tables in databases of their own and write rows."""

    scheme: ClassVar[str]
    breaks_connections: ClassVar[bool] = False  # by `disturb`: a planner may have to be made anew

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
        return decisions_of(spec)


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


class GuardedRangeHarness(RangeHarness):
    """A store that wants certificates of both sides, and a token."""

    scheme = "range+ssl"

    def __init__(self, folder: Path) -> None:
        made = folder / "certificates"
        Certificates.make(made)
        token = folder / "token"
        token.write_text("a-token-of-the-store\n")
        token.chmod(0o600)
        server, ca = str(made / "server.pem"), str(made / "ca.pem")
        self._access = RangeAccess(
            True, ca, str(made / "client.pem"), str(made / "client_key.pem"), "a-token-of-the-store"
        )
        guard = ("--tls-cert", server, "--tls-key", server, "--tls-ca", ca, "--tls-mutual")
        guard += ("--token-file", str(token))
        self._cluster = LocalCluster(folder, 1, guard_options=guard, access=self._access)

    def uri(self) -> str:
        return f"range+ssl://{self._cluster.master_address}?{self._parameters}"

    def dead_uri(self) -> str:
        return f"range+ssl://127.0.0.1:1?{self._parameters}"

    @property
    def _parameters(self) -> str:
        one = self._access
        return f"ca={one.ca}&cert={one.cert}&key={one.key}&token={one.token}"


class BinlogHarness(SourceHarness):
    """A server of its own; between planning and reading its log goes on in another file."""

    server_class: ClassVar[type[Server]]

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        self.server = self.server_class.start(self._folder)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.server.kill()

    def uri(self) -> str:
        return self.server.uri.replace("mysql://", f"{self.scheme}://")

    def dead_uri(self) -> str:
        return f"{self.scheme}://nobody@127.0.0.1:1/"

    def ddl(self, sql: str) -> None:
        self.server.execute(sql)

    def create(self, table: TableId) -> None:
        if not self.server.execute("SHOW DATABASES LIKE %s", table.database.replace("_", r"\_")):
            self.server.execute(f"CREATE DATABASE {table.database}")  # it is a change in the log
        self.server.execute(f"CREATE TABLE {_sql(table)} (id bigint PRIMARY KEY, v varchar(40))")

    def insert(self, table: TableId, rows: Sequence[dict[str, Any]]) -> None:
        self._transaction(
            (f"INSERT INTO {_sql(table)} ({', '.join(r)}) VALUES ({_marks(r)})", tuple(r.values()))
            for r in rows
        )

    def update(self, table: TableId, rows: Sequence[dict[str, Any]]) -> None:
        self._transaction(
            (f"UPDATE {_sql(table)} SET v = %s WHERE id = %s", (r["v"], r["id"])) for r in rows
        )

    def delete(self, table: TableId, ids: Sequence[int]) -> None:
        self._transaction((f"DELETE FROM {_sql(table)} WHERE id = %s", (i,)) for i in ids)

    def content(self, table: TableId) -> list[dict[str, Any]]:
        names = [str(row[0]) for row in self.server.execute(f"SHOW COLUMNS FROM {_sql(table)}")]
        found = self.server.execute(f"SELECT * FROM {_sql(table)} ORDER BY id")
        rows = [dict(zip(names, row, strict=True)) for row in found]
        return [{**row, "id": int(str(row["id"]))} for row in rows]

    def disturb(self, table: TableId) -> None:
        self.server.execute("FLUSH BINARY LOGS")

    def _transaction(self, statements: Iterable[tuple[str, tuple[Any, ...]]]) -> None:
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            connection.begin()
            for sql, values in statements:
                cursor.execute(sql, values)
            connection.commit()


class MySqlHarness(BinlogHarness):
    """MySQL."""

    scheme = "mysql"
    server_class = MySql


class MariaDbHarness(BinlogHarness):
    """MariaDB."""

    scheme = "mariadb"
    server_class = MariaDb


class CutBinlogHarness(BinlogHarness):
    """The same, but every connection is cut as well."""

    breaks_connections = True

    def disturb(self, table: TableId) -> None:
        super().disturb(table)
        for (number,) in self.server.execute(
            "SELECT id FROM information_schema.processlist "
            "WHERE user = %s AND id <> CONNECTION_ID()",
            self.server.login.user,
        ):
            with suppress(RowferryError):  # it may be gone by itself
                self.server.execute(f"KILL CONNECTION {number!s}")


class CutMySqlHarness(CutBinlogHarness, MySqlHarness):
    """MySQL whose connections are cut."""


class CutMariaDbHarness(CutBinlogHarness, MariaDbHarness):
    """MariaDB whose connections are cut."""


def _sql(table: TableId) -> str:
    return f"`{table.database}`.`{table.table}`"


def _marks(values: Sized) -> str:
    return ", ".join(["%s"] * len(values))


SOURCE_HARNESSES: dict[str, Callable[[Path], SourceHarness]] = {
    "mariadb": MariaDbHarness,
    "mariadb+cut": CutMariaDbHarness,
    "mysql": MySqlHarness,
    "mysql+cut": CutMySqlHarness,
    "range": RangeHarness,
    "range+moving": MovingRangeHarness,
    "range+ssl": GuardedRangeHarness,
}
