"""Preflight: may this user capture from this server, and does its log hold all that is needed?

Every check says what is wrong and the statement that cures it; the user gets all of them at once.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rowferry.change.table import TableId
from rowferry.errors import LoginRefused, ReplicaIdTaken, RowferryError, SourceUnsupported
from rowferry.flow.capture.binlog.client.privileges import Grants, account, may_read_log
from rowferry.flow.capture.binlog.client.retention import binary_logs
from rowferry.flow.capture.binlog.options import BinlogOptions
from rowferry.moment import moment
from rowferry.mysql.session import (
    Connection,
    Flavour,
    Login,
    ServerFacts,
    facts,
    lasting,
    rows,
)

_OLDEST: Final = {Flavour.MYSQL: (8, 0, 1), Flavour.MARIADB: (10, 5, 0)}
_NAMES: Final = {Flavour.MYSQL: "MySQL", Flavour.MARIADB: "MariaDB"}
_VARIABLES: Final = (
    *("log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_checksum"),
    *("binlog_row_value_options", "gtid_mode", "enforce_gtid_consistency", "gtid_strict_mode"),
    *("gtid_binlog_pos", "gtid_slave_pos", "server_id"),
    *("log_replica_updates", "log_slave_updates"),
    *("replica_preserve_commit_order", "slave_preserve_commit_order"),
    *("replica_parallel_workers", "slave_parallel_workers"),
)
_GTID_MODES: Final = ("OFF", "OFF_PERMISSIVE", "ON_PERMISSIVE", "ON")
_FIRST_RANDOM_ID: Final = 2**31
_LAST_ID: Final = 2**32 - 1

# What a check finds: an error stops the feed, words are told to the user.
Finding = RowferryError | str


@dataclass(frozen=True, slots=True)
class Preflight:
    """A server that can be captured from.

    Attributes:
        checksum: events of the log end with a checksum.
        gtid: positions can be told by GTID.
        notices: what the user should know although it stops nothing.
    """

    facts: ServerFacts
    checksum: bool
    gtid: bool
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Server:
    connection: Connection[Any]
    login: Login
    facts: ServerFacts
    variables: Mapping[str, str]

    @property
    def is_mysql(self) -> bool:
        return self.facts.flavour is Flavour.MYSQL

    @property
    def has_log(self) -> bool:
        return self.is_on("log_bin")

    def is_on(self, *names: str) -> bool:
        return self.value(*names).upper() in ("ON", "1")

    def value(self, *names: str) -> str:
        """Return a global variable by the first of its names that the server knows; or ""."""
        return next((self.variables[name] for name in names if name in self.variables), "")

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        moment("ask while probing")
        return rows(self.connection, self.login, sql)

    def newer_words(self, since: tuple[int, int, int], new: str, old: str) -> str:
        """Return a statement in the words that this server knows."""
        return new if self.is_mysql and self.facts.version >= since else old


def preflight(
    connection: Connection[Any], login: Login, options: BinlogOptions, needs_snapshot: bool
) -> Preflight:
    """Ask a server whether its changes can be captured; changes nothing.

    Raises:
        SourceUnsupported: a setting forbids it. Names every setting, each with its cure.
        LoginRefused: only privileges are missing; with the GRANT that cures it.
        ReplicaIdTaken: only the given server-id is in use.
    """
    known = facts(connection, login)
    _check_version(login, known)
    server = _Server(connection, login, known, _variables(connection, login))
    findings: list[Finding] = [
        *_log_findings(server, options),
        *_gtid_findings(server, needs_snapshot),
        *_replica_findings(server),
        *_privilege_findings(server, options),
        *_server_id_findings(server, options.server_id),
    ]
    failures = [finding for finding in findings if isinstance(finding, RowferryError)]
    if failures:
        raise _joined(login, failures)
    return Preflight(
        facts=known,
        checksum=server.value("binlog_checksum").upper() not in ("", "NONE"),
        gtid=not server.is_mysql or server.value("gtid_mode").upper() == "ON",
        notices=tuple(finding for finding in findings if isinstance(finding, str)),
    )


def _joined(login: Login, failures: list[RowferryError]) -> RowferryError:
    kinds = {type(failure) for failure in failures}
    kind = kinds.pop() if len(kinds) == 1 else SourceUnsupported
    return kind(f"{login} cannot be captured: " + "; ".join(f.words for f in failures))


def _check_version(login: Login, known: ServerFacts) -> None:
    if known.flavour is Flavour.TIDB:
        raise SourceUnsupported(f"{login} is a TiDB server, which has no binary log to read")
    oldest = _OLDEST[known.flavour]
    if known.version < oldest:
        name, least = _NAMES[known.flavour], ".".join(map(str, oldest))
        raise SourceUnsupported(
            f"{login} is {name} {known.version_text}, whose log does not name columns; {name} "
            f"{least} or later is needed"
        )


def _variables(connection: Connection[Any], login: Login) -> dict[str, str]:
    moment("read variables")
    marks = ", ".join(["%s"] * len(_VARIABLES))
    sql = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})"
    return {name.lower(): value for name, value in rows(connection, login, sql, _VARIABLES)}


# --- the log -------------------------------------------------------------------------------------


def _log_findings(server: _Server, options: BinlogOptions) -> Iterator[Finding]:
    if not server.has_log:
        yield SourceUnsupported(
            "log_bin is OFF; write log_bin = binlog into the server's configuration and restart it"
        )
    if server.value("server_id") == "0":
        cure = lasting("SET GLOBAL server_id = 1")
        yield SourceUnsupported(f"server_id is 0, so no log is sent; run: {cure}")
    yield from _must_be(server, "binlog_format", "ROW", " (open sessions keep the old one)")
    if options.partial_row_image != "allow":
        yield from _must_be(server, "binlog_row_image", "FULL", " (open sessions keep the old one)")
    yield from _must_be(server, "binlog_row_metadata", "FULL", "")
    if server.value("binlog_row_value_options"):
        yield (
            "binlog_row_value_options is PARTIAL_JSON: documents are rebuilt from the changes to "
            "them; where the row before lacks the document, the feed stops"
        )
    yield from _left_out_findings(server)


def _must_be(server: _Server, variable: str, wanted: str, remark: str) -> Iterator[Finding]:
    value = server.value(variable)
    if value.upper() != wanted:
        yield SourceUnsupported(
            f"{variable} is {value or 'not known to the server'}; "
            f"run: {lasting(f'SET GLOBAL {variable} = {wanted}')}{remark}"
        )


def _left_out_findings(server: _Server) -> Iterator[Finding]:
    logged, ignored = _logged_databases(server)
    if logged:
        yield f"binlog_do_db is {logged}: changes of other databases are not in the log"
    if ignored:
        yield f"binlog_ignore_db is {ignored}: changes of these databases are not in the log"


def _logged_databases(server: _Server) -> tuple[str, str]:
    """Return which databases alone are logged, and which are not; both empty: all are."""
    sql = server.newer_words((8, 2, 0), "SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")
    try:
        status = server.ask(sql)
    except LoginRefused:
        status = []  # told with the other privileges
    return (status[0][2] or "", status[0][3] or "") if status else ("", "")


def check_logged(
    connection: Connection[Any], login: Login, known: ServerFacts, tables: Collection[TableId]
) -> None:
    """Make sure that changes of these tables are in the log.

    Raises:
        SourceUnsupported: the server keeps a database out of it.
    """
    logged, ignored = _logged_databases(_Server(connection, login, known, {}))
    setting = f"binlog_do_db is {logged}" if logged else f"binlog_ignore_db is {ignored}"
    for name in sorted(tables):
        listed = name.database.lower() in (logged or ignored).lower().split(",")
        if listed != bool(logged) and (logged or ignored):
            raise SourceUnsupported(
                f"{login}: {setting}, so that changes of {name} are not in the log; take the "
                "setting out of the server's file and restart it, or leave the table out with "
                "filter.rules"
            )


_CASCADES_LOGGED: Final = (9, 6, 0)  # MySQL from here on runs them where the log sees them
_AS_BEFORE: Final = "innodb_native_foreign_keys"  # unless it is told not to
_UNSEEN_RULES: Final = "('CASCADE', 'SET NULL', 'SET DEFAULT')"


def cascade_notices(
    connection: Connection[Any], login: Login, known: ServerFacts, captured: Collection[TableId]
) -> Iterator[str]:
    """Name the captured tables whose rows a foreign key may change behind the log's back."""
    moment("list cascades")
    if known.flavour is Flavour.MYSQL and known.version >= _CASCADES_LOGGED:
        settings = rows(connection, login, f"SHOW GLOBAL VARIABLES LIKE '{_AS_BEFORE}'")
        if not any(value == "ON" for _, value in settings):
            return
    sql = (
        "SELECT DISTINCT constraint_schema, table_name FROM information_schema."
        f"referential_constraints WHERE delete_rule IN {_UNSEEN_RULES} "
        f"OR update_rule IN {_UNSEEN_RULES}"
    )
    affected = [TableId(*row) for row in rows(connection, login, sql)]
    if names := sorted(str(name) for name in affected if name in captured):
        yield (
            f"{', '.join(names)}: a foreign key changes their rows by CASCADE or SET NULL, and "
            "this server's log does not tell: such changes are not delivered"
        )


# --- GTIDs and replicas --------------------------------------------------------------------------


def _gtid_findings(server: _Server, needs_snapshot: bool) -> Iterator[Finding]:
    if server.is_mysql:
        mode = server.value("gtid_mode").upper()
        if mode == "ON":
            return
        cure = ", then ".join(_gtid_steps(mode, server.value("enforce_gtid_consistency")))
        cure += " (to keep it: gtid_mode = ON and enforce_gtid_consistency = ON in the file)"
        if needs_snapshot:
            yield SourceUnsupported(
                f"gtid_mode is {mode}, and a snapshot needs it; run: {cure}; or use snapshot=never"
            )
        else:
            yield f"gtid_mode is {mode}: the feed cannot go on after a failover; run: {cure}"
        return
    if not server.is_on("gtid_strict_mode"):
        yield (
            "gtid_strict_mode is OFF: GTIDs may come out of order, and then the feed cannot go on "
            f"after a failover; run: {lasting('SET GLOBAL gtid_strict_mode = ON')}"
        )
    domains = server.value("gtid_binlog_pos").count(",") + 1
    if domains > 1:
        yield (
            f"the log has {domains} GTID domains: a replica may commit them in another order, so "
            "a row that several domains write may come in another order after a failover"
        )


def _gtid_steps(mode: str, consistency: str) -> list[str]:
    """Return the statements that turn GTIDs on, from where the server is."""
    steps = [] if consistency.upper() == "ON" else ["SET GLOBAL enforce_gtid_consistency = ON"]
    behind = _GTID_MODES.index(mode) if mode in _GTID_MODES else 0
    return [*steps, *(f"SET GLOBAL gtid_mode = {later}" for later in _GTID_MODES[behind + 1 :])]


def _replica_findings(server: _Server) -> Iterator[Finding]:
    replica = _is_replica(server)
    if replica is False:
        return
    if not server.is_on("log_replica_updates", "log_slave_updates"):
        if replica:
            yield SourceUnsupported(
                "the server is a replica and log_replica_updates is OFF, so changes that it "
                "replicates are not in its log; write log_replica_updates = ON (MariaDB: "
                "log_slave_updates = ON) into its configuration and restart it"
            )
        else:
            yield "log_slave_updates is OFF: changes that the server replicates are not in its log"
    # MariaDB always commits in its source's order, within a GTID domain.
    workers = int(server.value("replica_parallel_workers", "slave_parallel_workers") or 0)
    ordered = server.is_on("replica_preserve_commit_order", "slave_preserve_commit_order")
    if server.is_mysql and replica and workers > 1 and not ordered:
        word = server.newer_words((8, 0, 26), "replica", "slave")
        noun = server.newer_words((8, 0, 22), "REPLICA", "SLAVE")
        yield SourceUnsupported(
            f"the server is a replica with {workers} workers and {word}_preserve_commit_order is "
            f"OFF, so it commits in another order than its source; run: STOP {noun} SQL_THREAD, "
            f"then SET GLOBAL {word}_preserve_commit_order = ON, then START {noun} SQL_THREAD"
        )


def _is_replica(server: _Server) -> bool | None:
    """Return whether the server replicates another; None: perhaps, we may not ask."""
    old = "SHOW SLAVE STATUS" if server.is_mysql else "SHOW ALL SLAVES STATUS"
    try:
        return bool(server.ask(server.newer_words((8, 0, 22), "SHOW REPLICA STATUS", old)))
    except LoginRefused:
        return None if server.value("gtid_slave_pos") else False


# --- privileges ----------------------------------------------------------------------------------


def _privilege_findings(server: _Server, options: BinlogOptions) -> Iterator[Finding]:
    grants = Grants.read(server.connection, server.login)
    lacking = [] if grants.allows("SELECT") else ["SELECT"]
    files = _log_files(server)
    if not may_read_log(server.login, server.facts.flavour, files):
        lacking.append("REPLICATION SLAVE")
    if files is None:
        lacking.append("REPLICATION CLIENT" if server.is_mysql else "BINLOG MONITOR")
    locks = server.is_mysql and options.snapshot_lock == "table"
    if locks and not grants.allows("LOCK TABLES"):
        lacking.append("LOCK TABLES")
    if lacking:
        user = account(server.connection, server.login)
        yield LoginRefused(
            f"privileges are missing; run: GRANT {', '.join(lacking)} ON *.* TO {user}"
        )
    if "SELECT" not in lacking:
        yield from grants.blind_spots()


def _log_files(server: _Server) -> list[str] | None:
    """Return the files of the log; None: we may not ask."""
    if not server.has_log:
        return []
    try:
        return [name for name, _ in binary_logs(server.connection, server.login)]
    except LoginRefused:
        return None


# --- the replica number --------------------------------------------------------------------------


def check_server_id(connection: Connection[Any], login: Login, server_id: int) -> int:
    """Return the replica number to use: the given one, or with 0 a random one that is free.

    Where the user may not ask for the server's replicas (MariaDB: REPLICATION MASTER ADMIN), only
    the server's own number is known.

    Raises:
        ReplicaIdTaken: the given one is in use.
    """
    moment("check server id")
    known = facts(connection, login)
    server = _Server(connection, login, known, {})
    if server_id:
        for finding in _server_id_findings(server, server_id):
            if isinstance(finding, RowferryError):
                raise finding
        return server_id
    taken = {known.server_id, *(_replicas(server) or {})}
    while True:
        choice = random.SystemRandom().randint(_FIRST_RANDOM_ID, _LAST_ID)
        if choice not in taken:
            return choice


def _server_id_findings(server: _Server, server_id: int) -> Iterator[Finding]:
    if not server_id:
        return
    if server_id == server.facts.server_id:
        yield ReplicaIdTaken(f"server-id {server_id} is the server's own; choose another or 0")
        return
    replicas = _replicas(server)
    if replicas is None:
        yield (
            f"whether another replica uses server-id {server_id} cannot be seen without the "
            "privilege REPLICATION MASTER ADMIN"
        )
    elif server_id in replicas:
        yield ReplicaIdTaken(
            f"server-id {server_id} is used by the replica {replicas[server_id] or '(no name)'}; "
            "choose another or 0"
        )


def _replicas(server: _Server) -> dict[int, str] | None:
    """Return the server's replicas, number → host; None: we may not ask."""
    try:
        replicas = server.ask(server.newer_words((8, 0, 22), "SHOW REPLICAS", "SHOW SLAVE HOSTS"))
    except LoginRefused:
        return None
    return {int(row[0]): row[1] for row in replicas}
