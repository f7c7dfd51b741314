"""How `rowferry verify` brings two sides to one moment: by TiDB's past, or with a server's help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from rowferry.downstream.verify.lake import LakeSide
from rowferry.downstream.verify.local import ThreadRunner
from rowferry.downstream.verify.rendezvous import Stood, met
from rowferry.downstream.verify.run import ComparisonRunner
from rowferry.downstream.verify.side import DatabaseSide, Side
from rowferry.downstream.verify.sync_points import read_at_newest
from rowferry.downstream.verify.views import open_views, open_views_at_a_place
from rowferry.errors import NotSupported, OptionsConflict, RowferryError, SourceUnsupported
from rowferry.face.cli.output import Printer
from rowferry.face.cli.remote.client import Access, Client
from rowferry.flow.assemble import sink_traits
from rowferry.spec.uri import Uri

_CHANGEFEEDS: Final = ("api", "rowferry", "changefeeds")


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """What a user says about it."""

    access: Access
    changefeed: str
    connections: int
    hold_seconds: int


def at_sync_point(
    sides: Sequence[Side],
    asked: SyncPoint,
    spark: AbstractContextManager[ComparisonRunner],
    printer: Printer,
) -> AbstractContextManager[ComparisonRunner]:
    """Return what opens the runner of a comparison at one moment.

    Raises:
        OptionsConflict: a side is neither a database nor, as B, a lake, or it is not said which
            changefeed runs.
        NotSupported: one side alone is TiDB, or it has no sync point.
    """
    a, b = sides
    if not isinstance(a, DatabaseSide) or not isinstance(b, DatabaseSide | LakeSide):
        raise OptionsConflict(
            "--sync-point compares two databases, or a database as A with lake tables as B; use "
            "--online, or --as-of"
        )
    if isinstance(b, LakeSide):
        if a.is_tidb:
            raise NotSupported("--sync-point compares MySQL or MariaDB with a lake; use --online")
    elif a.is_tidb and b.is_tidb:
        ours, theirs = read_at_newest(a, b, asked.changefeed)
        printer.note(f"comparing A at {ours} with B at {theirs}")
        return spark
    elif a.is_tidb or b.is_tidb:
        raise NotSupported(
            "--sync-point compares MySQL or MariaDB on both sides, or TiDB on both; use --online"
        )
    if not asked.changefeed:
        raise OptionsConflict(
            "--sync-point: name the changefeed that runs from A to B with --changefeed, and its "
            "server with --server; one that `rowferry run` runs by itself cannot be asked to stand"
        )
    return _together(a, b, asked, printer)


def beside_lake(
    sides: Sequence[Side],
    connections: int,
    spark: AbstractContextManager[ComparisonRunner],
    printer: Printer,
) -> AbstractContextManager[ComparisonRunner]:
    """Return what opens the runner of a comparison, with a server beside a lake at one moment.

    A lake's tables stand still between their commits; so shall the server's rows. TiDB is read as
    it is now, and so are two sides of any other kind.
    """
    servers = [side for side in sides if isinstance(side, DatabaseSide) and not side.is_tidb]
    lakes = [side for side in sides if isinstance(side, LakeSide)]
    if not servers or not lakes:
        return spark
    return _at_one_moment(servers[0], lakes[0], connections, printer)


@contextmanager
def _at_one_moment(
    server: DatabaseSide, lake: LakeSide, connections: int, printer: Printer
) -> Iterator[ComparisonRunner]:
    reached = lake.reached
    try:
        views, place = open_views_at_a_place(server.login, server.facts, connections, False)
        where = f"{place['file']}:{place['offset']} of its log"
    except SourceUnsupported:  # it keeps no log: a copy
        views, where = open_views(server.login, server.facts, 1), "one moment"
    with closing(views):
        server.views = views
        printer.note(f"comparing {server} as of {where} with {lake} as of commit-ts {reached}")
        try:
            yield ThreadRunner(views.count)
        finally:
            server.views = None


@contextmanager
def _together(
    a: DatabaseSide, b: DatabaseSide | LakeSide, asked: SyncPoint, printer: Printer
) -> Iterator[ComparisonRunner]:
    with closing(Client(asked.access)) as client:
        brake = ServerBrake(
            client, asked.changefeed, asked.hold_seconds, lake=isinstance(b, LakeSide)
        )
        with met(a, b, brake, asked.connections, asked.hold_seconds) as meeting:
            place = f"{meeting.place['file']}:{meeting.place['offset']}"
            held = f"the changefeed was held for {meeting.held_s:.1f} s"
            printer.note(f"comparing both sides as of {place} of A's log; {held}")
            yield ThreadRunner(meeting.views)


class ServerBrake:
    """A changefeed's holds; see `Brake`."""

    def __init__(self, client: Client, changefeed: str, seconds: int, lake: bool = False) -> None:
        """Look at the changefeed.

        Raises:
            NoSuchChangefeed: the server knows none of that id.
            OptionsConflict: it does not write to a database, or with `lake` to a lake.
        """
        self._client, self._seconds = client, seconds
        self._path = (*_CHANGEFEEDS, changefeed)
        self._id = ""
        sink = str(client.get(*self._path)["sink_uri"])
        traits = sink_traits(Uri.parse(sink, "sink").scheme)
        if not (traits.commits_versions if lake else traits.writes_tables):
            raise OptionsConflict(
                f"--sync-point: changefeed {changefeed} writes to {sink}, which is no "
                f"{'lake' if lake else 'database'}; use --online"
            )

    def hold(self, place: Mapping[str, Any] | None) -> None:
        """Ask for a hold instead of the last one."""
        body = {"position": None if place is None else dict(place), "seconds": self._seconds}
        answer = self._client.post(*self._path, "hold", body={**body, "hold": self._id})
        self._id = answer["hold"]["id"]

    def look(self) -> Stood | None:
        """Return where the changefeed stands."""
        answer = self._client.get(*self._path, "hold")
        hold = answer["hold"]
        if hold is None or hold["id"] != self._id:
            return None
        return Stood(
            hold["stands"],
            hold["micro_batch"],
            answer["micro_batch"],
            answer["pending"],
            answer["lag_ms"],
        )

    def release(self) -> None:
        """Let it go on; if that fails, the hold ends by itself."""
        if self._id:
            with suppress(RowferryError):
                self._client.delete(*self._path, "hold", hold=self._id)
