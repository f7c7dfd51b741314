"""How long the server keeps its log, and whether what we need is still there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rowferry.errors import CorruptLog, LogLost, SourceMismatch
from rowferry.flow.capture.binlog.client.gtid import GtidPosition, GtidSet
from rowferry.flow.capture.binlog.client.stream import LogStream, StartAt
from rowferry.flow.capture.contract import LogKept
from rowferry.moment import moment
from rowferry.mysql.session import (
    Connection,
    Flavour,
    Login,
    ServerFacts,
    lasting,
    one_row,
    rows,
)
from rowferry.mysql.snapshot_position import owned
from rowferry.spec.option import go_text

_SHOWN: Final = 300  # characters of a GTID set in an error's text
_CURE: Final = (
    "create the changefeed anew, which makes a new snapshot, and keep the log for longer "
    "(binlog_expire_logs_seconds)"
)


def binary_logs(connection: Connection[Any], login: Login) -> list[tuple[str, int]]:
    """Return the files of the log that are there, oldest first: name, size in bytes."""
    moment("list logs")
    return [(row[0], int(row[1])) for row in rows(connection, login, "SHOW BINARY LOGS")]


def log_begun(login: Login, flavour: Flavour, file: str) -> datetime:
    """Return when a file of the log was begun, as its first event says.

    Raises:
        LoginRefused: the user may not read the log.
        LogLost: there is no such file.
    """
    moment("read head of log")
    stream = LogStream(login, flavour, StartAt(file=file))
    try:
        while (event := stream.next_event()) is not None:
            if seconds := int.from_bytes(event[:4], "little"):  # the made-up first one has no time
                return datetime.fromtimestamp(seconds, UTC)
        raise CorruptLog(f"{login}: the log file {file} holds no event")
    finally:
        stream.close()


# --- is it still there? --------------------------------------------------------------------------


def check_reachable(
    connection: Connection[Any],
    login: Login,
    facts: ServerFacts,
    file: str,
    offset: int,
    gtids: str,
) -> None:
    """Make sure that the log can be read from a position on.

    Args:
        connection: a connection to the server.
        login: how it was made.
        facts: of that server.
        file: a file of this server's log; "" when only GTIDs are known (after a failover).
        offset: a place in that file.
        gtids: what was seen up to the position; not looked at when it is "" and a file is given.

    Raises:
        LogLost: the server removed log that is needed; says what is gone and what is there.
        SourceMismatch: the position is past the end of the log, or of another server's log.
    """
    logs = binary_logs(connection, login)
    if file:
        _check_file(login, facts, logs, file, offset)
    if gtids or not file:
        check = _check_set if facts.flavour is Flavour.MYSQL else _check_domains
        check(connection, login, facts, logs, gtids)


def _check_file(
    login: Login, facts: ServerFacts, logs: list[tuple[str, int]], file: str, offset: int
) -> None:
    sizes = dict(logs)
    if file in sizes:
        if offset > sizes[file]:
            raise SourceMismatch(
                f"{login}: {file}:{offset} is past the end of that file ({sizes[file]} bytes); "
                "check start-position, or whether the server's log was reset"
            )
        return
    name, number = _name_and_number(file)
    first, last = (_name_and_number(logs[i][0]) for i in (0, -1)) if logs else ((name, 0), ("", 0))
    if name == first[0] and number < last[1]:
        raise LogLost(
            f"{login} has removed {file}, from which on the log is needed; "
            f"{_oldest(login, facts, logs)}; {_CURE}"
        )
    there = f"its log has {logs[0][0]} to {logs[-1][0]}" if logs else "its log has no files"
    raise SourceMismatch(
        f"{login} has no {file} yet; {there}; check start-position, or whether the log was reset"
    )


def _check_set(
    connection: Connection[Any],
    login: Login,
    facts: ServerFacts,
    logs: list[tuple[str, int]],
    gtids: str,
) -> None:
    # Asked first: the log shows transactions before they are committed, which takes as long as a
    # semi-synchronous replica does, and what is committed between the questions is in the answer
    # to the second one.
    committing = GtidSet.parse(",".join(sorted(owned(connection, login))))
    moment("check gtid set")
    seen = GtidSet.parse(gtids)
    purged, executed = (
        GtidSet.parse(text)
        for text in one_row(
            connection, login, "SELECT @@global.gtid_purged, @@global.gtid_executed"
        )
    )
    lost = purged.minus(seen)
    if not lost.is_empty:
        raise LogLost(
            f"{login} has removed the log of transactions that are needed: {_short(str(lost))}; "
            f"{_oldest(login, facts, logs)}; {_CURE}"
        )
    _check_not_ahead(login, str(seen.minus(executed).minus(committing)))


def _check_domains(
    connection: Connection[Any],
    login: Login,
    facts: ServerFacts,
    logs: list[tuple[str, int]],
    gtids: str,
) -> None:
    moment("check gtid domains")
    seen = GtidPosition.parse(gtids)
    # What lies before the oldest file is gone; a domain may not have gone on since.
    before, newest = (
        GtidPosition.parse(text or "")
        for text in one_row(
            connection,
            login,
            "SELECT BINLOG_GTID_POS(%s, 4), @@global.gtid_binlog_pos",
            [logs[0][0] if logs else ""],
        )
    )
    lost = before.minus(seen)
    if not lost.is_empty:
        raise LogLost(
            f"{login} has removed the log up to {_short(str(lost))}, and what is needed of it "
            f"begins after {_short(str(seen)) or 'nothing'}; {_oldest(login, facts, logs)}; {_CURE}"
        )
    _check_not_ahead(login, str(seen.minus(newest)))


def _check_not_ahead(login: Login, ahead: str) -> None:
    if ahead:
        raise SourceMismatch(
            f"{login} does not have transactions that were seen already: {_short(ahead)}; it is "
            "another server, a replica that is behind, or one whose log was reset"
        )


def _oldest(login: Login, facts: ServerFacts, logs: list[tuple[str, int]]) -> str:
    if not logs:
        return "no log file is left"
    begun = log_begun(login, facts.flavour, logs[0][0])
    return f"the oldest file left is {logs[0][0]}, begun {begun:%Y-%m-%d %H:%M:%S} UTC"


def _name_and_number(file: str) -> tuple[str, int]:
    name, _, number = file.rpartition(".")
    return (name, int(number)) if number.isdecimal() else (file, 0)


def _short(gtids: str) -> str:
    return gtids if len(gtids) <= _SHOWN else f"{gtids[:_SHOWN]}…"


# --- for how long? -------------------------------------------------------------------------------


def retention_notice(
    connection: Connection[Any],
    login: Login,
    facts: ServerFacts,
    file: str,
    warning: timedelta,
    position_ms: int,
) -> str:
    """Return one line when the log may be removed at our position within `warning`, else "".

    Args:
        connection: a connection to the server.
        login: how it was made.
        facts: of that server.
        file: the file of the log that is still needed.
        warning: how early to warn.
        position_ms: when our position in that file was written, by the server's clock.
    """
    moment("ask whether log expires")
    logs = binary_logs(connection, login)
    place = next((i for i, (name, _) in enumerate(logs) if name == file), len(logs) - 1)
    if place >= len(logs) - 1:
        return ""  # the file that is being written is never removed
    settings = _purge_settings(connection, login)
    now_ms = float(one_row(connection, login, "SELECT UNIX_TIMESTAMP(NOW(3))")[0]) * 1000
    behind = timedelta(milliseconds=max(0.0, now_ms - position_ms))
    needed = sum(size for _, size in logs[place:])
    for left, why, cure in (_by_age(settings, behind), _by_size(settings, behind, needed)):
        if left is not None and left < warning:
            when = f"within {go_text(_whole_seconds(left))}" if left > timedelta(0) else "now"
            return (
                f"{login} may remove {file}, which is still needed, {when}: the feed is "
                f"{go_text(_whole_seconds(behind))} behind and {why}; run: {cure}"
            )
    return ""


def log_kept(connection: Connection[Any], login: Login) -> LogKept | None:
    """Return for how long the server keeps its log, by age; None: it removes none by age."""
    moment("ask what removes log")
    keep, setting, cure = _by_age(_purge_settings(connection, login), timedelta(0))
    return None if keep is None else LogKept(keep.total_seconds(), setting, cure)


def retention_left(
    connection: Connection[Any], login: Login, file: str, position_ms: int
) -> timedelta | None:
    """Return for how long the log at our position is kept; None: nothing limits it.

    Args as for `retention_notice`.
    """
    moment("ask how long log is kept")
    logs = binary_logs(connection, login)
    place = next((i for i, (name, _) in enumerate(logs) if name == file), len(logs) - 1)
    settings = _purge_settings(connection, login)
    now_ms = float(one_row(connection, login, "SELECT UNIX_TIMESTAMP(NOW(3))")[0]) * 1000
    behind = timedelta(milliseconds=max(0.0, now_ms - position_ms))
    limits = [_by_age(settings, behind)[0]]
    if place < len(logs) - 1:  # the file that is being written is never too much
        limits.append(_by_size(settings, behind, sum(size for _, size in logs[place:]))[0])
    return min((left for left in limits if left is not None), default=None)


def _purge_settings(connection: Connection[Any], login: Login) -> Mapping[str, str]:
    moment("read purge settings")
    names = (
        "binlog_expire_logs_seconds",
        "binlog_expire_logs_auto_purge",
        "expire_logs_days",
        "max_binlog_total_size",
    )
    marks = ", ".join(["%s"] * len(names))
    variables = rows(
        connection, login, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names
    )
    return {name.lower(): value for name, value in variables}


def _by_age(settings: Mapping[str, str], behind: timedelta) -> tuple[timedelta | None, str, str]:
    """Return how long until the log's age is reached, which setting says so, and the cure."""
    if settings.get("binlog_expire_logs_auto_purge", "ON").upper() in ("OFF", "0"):
        return None, "", ""
    name = "binlog_expire_logs_seconds"
    keep = timedelta(seconds=int(settings.get(name) or 0))
    if not keep:
        name = "expire_logs_days"
        keep = timedelta(days=float(settings.get(name) or 0))
    if not keep:
        return None, "", ""
    more = (
        f"SET GLOBAL {name} = {int(2 * keep / timedelta(seconds=1))}"
        if name == "binlog_expire_logs_seconds"
        else f"SET GLOBAL {name} = {2 * (keep / timedelta(days=1)):g}"
    )
    return keep - behind, f"{name} is {settings[name]}", lasting(more)


def _by_size(
    settings: Mapping[str, str], behind: timedelta, needed: int
) -> tuple[timedelta | None, str, str]:
    """As `_by_age`, for a limit of the log's size, from how fast it grew since our position."""
    name = "max_binlog_total_size"
    most = int(settings.get(name) or 0)
    if not most:
        return None, "", ""
    left = behind * max(0.0, (most - needed) / max(1, needed))
    return left, f"{name} is {most}", lasting(f"SET GLOBAL {name} = {2 * most}")


def _whole_seconds(value: timedelta) -> timedelta:
    return timedelta(seconds=int(value.total_seconds()))
