"""Whether everything arrived: every table of every changefeed, read back and compared.

Files and the MariaDB sink are compared by `rowferry verify`'s own work, all columns of all rows.
What came by Kafka and HTTP is applied as a plain reader would and compared by the columns that all
tables have all the time. Nobody writes meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from soak_copy import COLUMNS, Copy, Table, digest
from soak_world import Planned, World

from rowferry.downstream.verify.local import ThreadRunner
from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.run import VerifyRequest, verify
from rowferry.downstream.verify.side import open_side


def check(world: World, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return, for each kind of sink, how much was compared and what differs.

    `tell` is called with the id of each changefeed that was compared.
    """
    found: dict[str, Any] = {}
    for feed in world.feeds:
        kind = found.setdefault(feed.kind, {"feeds": 0, "tables": 0, "rows": 0, "wrong": []})
        kind["feeds"] += 1
        try:
            for rows, wrong in _compared(world, feed):
                kind["tables"] += 1
                kind["rows"] += rows
                kind["wrong"] += [wrong] if wrong else []
        except Exception as err:  # one that cannot be read is a finding, not the end of an hour
            kind["wrong"].append(f"{feed.id}: {type(err).__name__}: {err}")
        tell(feed.id)
    return found


def _compared(world: World, feed: Planned) -> Iterator[tuple[int, str]]:
    """Yield, for each table, its rows at the source, and what is wrong with it."""
    match feed.kind:
        case "files" | "mysql":
            yield from _verified(world, feed)
        case "kafka":
            copy = Copy()
            for message in world.broker.read_all(feed.id):
                if message.value is not None:
                    copy.apply_canal(message.value)
            yield from _by_copy(world, feed, copy)
        case _:
            yield from _by_copy(world, feed, world.receiver.copies.get(feed.id, Copy()))


def _verified(world: World, feed: Planned) -> Iterator[tuple[int, str]]:
    request = VerifyRequest(Names.of([f"{feed.database}.*"], []))
    where = world.sink_uri(feed) if feed.kind == "files" else world.target.uri
    source = open_side(world.sources[feed.source].server.uri, request.chunk_rows)
    target = open_side(where, request.chunk_rows)
    for result in verify(source, target, request, ThreadRunner(2)):
        told = {k: v for k, v in result.to_json().items() if v}
        yield result.rows[0] or 0, "" if result.is_equal else f"{feed.id}: {told}"


def _by_copy(world: World, feed: Planned, copy: Copy) -> Iterator[tuple[int, str]]:
    server = world.sources[feed.source].server
    names = server.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", feed.database
    )
    for name in [str(row[0]) for row in names]:
        rows = server.execute(f"SELECT {', '.join(COLUMNS)} FROM {feed.database}.{name}")
        right: Table = {str(row[0]): digest(row) for row in rows}
        there = copy.tables.get((feed.database, name), {})
        wrong = ""
        if right != there:
            lacks, more = len(right.keys() - there.keys()), len(there.keys() - right.keys())
            other = sum(right[key] != there[key] for key in right.keys() & there.keys())
            wrong = f"{feed.id}: {name}: {lacks} rows missing, {more} too many, {other} differ"
        yield len(right), wrong
