"""A stand-in for a connection to TiDB: it refuses what TiDB refuses, with TiDB's error numbers.

`tests/tidb` runs against a real one; the version that it builds has no tables with soft delete, and
what is said here about these was seen on a build of TiDB's branch that has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pymysql

SHOWN_VERSION = "8.0.36"  # as a `server-version` of the configuration says
_TYPES = {"_tidb_origin_ts": "bigint unsigned", "_tidb_softdelete_time": "timestamp(6)"}
_DML = re.compile(r"(EXPLAIN )?(SELECT|INSERT|UPDATE|DELETE|REPLACE)\b")


def refused(number: int, words: str) -> pymysql.err.OperationalError:
    return pymysql.err.OperationalError(number, words)


@dataclass
class Table:
    """A table; `soft_delete` ones have columns that no statement defines."""

    columns: dict[str, str]
    key: tuple[str, ...]
    soft_delete: bool = False


@dataclass
class Cluster:
    """What connections of one TiDB share; `sent` is what they were asked, comments and all."""

    has_soft_delete: bool = True
    role: str = ""
    may_set_globals: bool = True
    tables: dict[str, Table] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)

    def connect(self, **how: Any) -> Connection:
        """Take the place of the client library's class."""
        found = Connection(self)
        if how.get("init_command"):
            found.query(how["init_command"])
        return found


class Connection:
    """One session."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.variables = {
            "tidb_cdc_write_source": "0",
            "tidb_txn_mode": "pessimistic",
            "max_allowed_packet": "67108864",
            "sql_mode": "",
            "time_zone": "SYSTEM",
            "foreign_key_checks": "1",
            "timestamp": "0",
            "wait_timeout": "28800",
        }
        if cluster.has_soft_delete:
            self.variables["tidb_translate_softdelete_sql"] = "1"
        self._rows: list[tuple[Any, ...]] = []

    # --- as the client library has it -------------------------------------------------------------

    def cursor(self) -> Connection:
        return self

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, sql: str, values: tuple[Any, ...] | None = None) -> None:
        self.query(sql % tuple(f"'{v}'" for v in values) if values else sql)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows

    def query(self, sql: str | bytes) -> None:
        text = sql.decode() if isinstance(sql, bytes) else sql
        self.cluster.sent.append(text)
        self._rows = list(self._answered(" ".join(self._opened(text).split())))

    def set_mode(self, mode: str, *more: str) -> None:
        self.query(", ".join((f"SET sql_mode = '{mode}'", *more)))

    def next_result(self) -> None:
        pass

    def _force_close(self) -> None:
        pass

    # --- as TiDB has it ---------------------------------------------------------------------------

    def _opened(self, sql: str) -> str:
        """Carry out what comments hold: all of MySQL's, and TiDB's own whose feature is known."""
        known = {"softdelete", "active_active"} if self.cluster.has_soft_delete else set()
        sql = re.sub(
            r"/\*T!\[(\w+)\](.*?)\*/", lambda m: m[2] if m[1] in known else "", sql, flags=re.S
        )
        return re.sub(r"/\*T?!\d*(.*?)\*/", r"\1", sql, flags=re.S)

    def _answered(self, sql: str) -> Iterator[tuple[Any, ...]]:
        if "_tidb_softdelete_time" in sql and _DML.match(sql) and "information_schema" not in sql:
            if self.variables.get("tidb_translate_softdelete_sql") == "1":
                raise refused(1815, "column '_tidb_softdelete_time' cannot be referenced")
        if sql.startswith("SET SESSION TRANSACTION"):
            return
        if sql.startswith("SET "):
            self._set(sql[4:])
        elif sql.startswith("SELECT VERSION()"):
            yield SHOWN_VERSION, self.variables["max_allowed_packet"]
        elif sql == "SELECT tidb_version()":
            yield ("Release Version: v9.0.0",)
        elif found := re.fullmatch(r"SELECT @@(\w+)", sql):
            yield (self._value(found[1]),)
        elif "information_schema.COLUMNS" in sql:
            yield from self._columns()
        elif "information_schema.STATISTICS" in sql:
            for name, table in self.cluster.tables.items():
                for column in table.key:
                    yield (*name.split("."), "PRIMARY", column, None)
        elif found := re.match(r"SHOW CREATE TABLE (\S+)", sql):
            if _plain(found[1]) not in self.cluster.tables:
                raise refused(1146, f"Table {found[1]} doesn't exist")
            table = self.cluster.tables[_plain(found[1])]
            yield "t", "… /*T![active_active] ACTIVE_ACTIVE='ON' */" if table.soft_delete else "…"
        elif found := re.match(r"CREATE TABLE (?:IF NOT EXISTS )?(\S+) \((.*)\)(.*)", sql):
            self._create(_plain(found[1]), found[2], found[3])
        elif found := re.match(r"ALTER TABLE \S+ ADD COLUMN (\S+) (.*)", sql):
            self._check_role()
            _check_name(found[1], found[2].lower())
        else:
            self._check_key(sql)

    def _set(self, words: str) -> None:
        if words.startswith("GLOBAL "):
            if not self.cluster.may_set_globals:
                raise refused(1227, "Access denied; you need (at least one of) the SUPER or …")
            raise refused(1292, "Incorrect datetime value")
        for name, value in re.findall(r"(?:SESSION )?(@?\w+) = ('[^']*'|[^,\s]+)", words):
            if not name.startswith("@"):
                self._value(name)
            self.variables[name] = value.strip("'")

    def _value(self, name: str) -> str:
        if name not in self.variables:
            raise refused(1193, f"Unknown system variable '{name}'")
        return self.variables[name]

    def _columns(self) -> Iterator[tuple[Any, ...]]:
        for name, table in self.cluster.tables.items():
            hidden = _TYPES if table.soft_delete else {}
            for column, kind in {**table.columns, **hidden}.items():
                digits = "6" if kind == "timestamp(6)" else None
                plain = re.split(r"\W", kind)[0]
                nullable = "NO" if column in table.key else "YES"
                yield *name.split("."), column, plain, kind, None, digits, nullable, None, "", None

    def _create(self, name: str, body: str, options: str) -> None:
        self._check_role()
        parts = [p.strip() for p in re.split(r",(?![^(]*\))", body)]
        key = next((p for p in parts if p.startswith("PRIMARY KEY")), "")
        columns = dict(p.split(" ", 1) for p in parts if not p.startswith("PRIMARY KEY"))
        named = {n.strip("`").lower(): kind.lower() for n, kind in columns.items()}
        for column, kind in named.items():
            _check_name(column, kind)
        soft_delete = "SOFTDELETE RETENTION" in options
        if soft_delete:
            if "_tidb_softdelete_time" in named:
                raise refused(1060, "Duplicate column name '_tidb_softdelete_time'")
        keys = tuple(k.strip(" `") for k in key.partition("(")[2].rstrip(")").split(",") if k)
        keys = keys or tuple(n for n, kind in named.items() if "primary key" in kind)
        self.cluster.tables[name] = Table(named, keys, soft_delete)

    def _check_role(self) -> None:
        if self.cluster.role and self.variables["tidb_cdc_write_source"] == "0":
            words = "The operation is not allowed while the bdr role of this cluster is set to"
            raise refused(8263, f"{words} {self.cluster.role}.")

    def _check_key(self, sql: str) -> None:
        found = re.match(r"(?:EXPLAIN )?(?:UPDATE|INSERT INTO) (\S+)", sql)
        table = self.cluster.tables.get(_plain(found[1])) if found else None
        changed = re.split(r" SET | ON DUPLICATE KEY UPDATE ", sql)
        if table is None or not table.soft_delete or len(changed) < 2:
            return
        for name in re.findall(r"(?:^|, ?)`(\w+)` ?=", changed[1]):
            if name in table.key:
                words = "This version of TiDB doesn't yet support 'updating primary key column on"
                raise refused(1235, f"{words} soft-delete table'")


def _check_name(column: str, kind: str) -> None:
    """Refuse names that TiDB keeps for itself; one of them may be used, with the type it has."""
    if column == "_tidb_commit_ts":
        raise refused(1166, f"Incorrect column name '{column}'")
    if column == "_tidb_origin_ts" or (
        column == "_tidb_softdelete_time" and not kind.startswith("timestamp(6)")
    ):
        raise refused(1063, f"Incorrect column specifier for column '{column}'")


def _plain(name: str) -> str:
    return name.replace("`", "")
