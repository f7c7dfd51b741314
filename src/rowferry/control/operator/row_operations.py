"""What an operator can do about rows of a changefeed: hold, read again, trace, quarantine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from rowferry.change.quarantine import ParkedRow
from rowferry.change.resnapshot import Resnapshot
from rowferry.control.operator import hold, resnapshots
from rowferry.control.operator import quarantine as parking
from rowferry.control.operator.actor import Role, acts, acts_unseen, looks
from rowferry.control.operator.observation import server_of
from rowferry.control.operator.operation_forms import Held, ResnapshotProgress
from rowferry.control.operator.trace import search as tracing
from rowferry.control.operator.trace.forms import Trace, TraceRequest
from rowferry.control.store.contract import FeedRecord, MetaStore
from rowferry.errors import BadTrace, NoSuchChangefeed
from rowferry.flow.assemble import check_reach
from rowferry.secrets.sources import SecretSources
from rowferry.spec.reach import Reach

_TRACES: Final = 2  # at once on one server: each reads as much as it can
_TRACE_WAIT_S: Final = 5.0  # how long a further one waits for its turn


class RowOperations:
    """The verbs about rows; a part of `Operations`, which says what all of them raise."""

    def __init__(
        self, store: MetaStore, now: Callable[[], float], secrets: SecretSources, reach: Reach
    ) -> None:
        self.store = store
        self._now = now
        self._secrets = secrets
        self._reach = reach
        self._traces = threading.BoundedSemaphore(_TRACES)

    def _feed(self, changefeed: str) -> FeedRecord:
        feed = self.store.feed(changefeed)
        if feed is None:
            raise NoSuchChangefeed(f"there is no changefeed {changefeed!r}")
        return feed

    # --- standing still --------------------------------------------------------------------------

    @acts(Role.OPERATOR)
    def hold(
        self,
        changefeed: str,
        place: Mapping[str, Any] | None = None,
        seconds: int = 60,
        instead_of: str = "",
    ) -> Held:
        """Let it stand still for some seconds at most, at a place of the log or the next border.

        `instead_of` is the id of the caller's own hold until now. The owner sees it a little later,
        and tells by `held` where it stands.

        Raises:
            IllegalMove: it does not run, or somebody else holds it.
            NotSupported: no server runs it, or its source knows no places.
        """
        feed = self._feed(changefeed)
        hold.ask(
            self.store, feed, server_of(self.store, feed), place, seconds, instead_of, self._now()
        )
        return self.held(changefeed)

    @looks
    def held(self, changefeed: str) -> Held:
        """Return where it stands."""
        return hold.look(self.store, self._feed(changefeed), self._now())

    @acts(Role.OPERATOR)
    def end_hold(self, changefeed: str, hold: str) -> Held:
        """Let it go on, if it is this hold that is in force."""
        self._feed(changefeed)
        self.store.end_hold(changefeed, hold)
        return self.held(changefeed)

    # --- one table again -------------------------------------------------------------------------

    @acts(Role.OPERATOR)
    def resnapshot(
        self, changefeed: str, table: str, keys: str = "", where: str = ""
    ) -> Resnapshot:
        """Let rows of a captured table be read and delivered again, beside the stream.

        `keys` is FIRST..LAST, both included; `where` an expression as in event filters. Several
        wait for each other; a paused changefeed begins when it is resumed.

        Raises:
            NoSuchTable: it is not captured.
            BadResnapshot: the source, the table, the range or the expression does not allow it.
            IllegalMove: it has finished, or too many wait.
        """
        feed = self._feed(changefeed)
        return resnapshots.ask(
            self.store, feed, server_of(self.store, feed), table, keys, where, self._now()
        )

    @looks
    def resnapshots(self, changefeed: str) -> tuple[ResnapshotProgress, ...]:
        """Return the resnapshots that are open, and the last that ended, oldest first."""
        return resnapshots.look(self.store, self._feed(changefeed))

    @acts(Role.OPERATOR)
    def cancel_resnapshot(self, changefeed: str, which: str) -> tuple[ResnapshotProgress, ...]:
        """End an open resnapshot where it is; what was delivered stays. Not open: nothing changes.

        Raises:
            BadResnapshot: there is none of this id.
        """
        resnapshots.cancel(self.store, self._feed(changefeed), which)
        return self.resnapshots(changefeed)

    # --- one row ---------------------------------------------------------------------------------

    @looks
    def trace(self, changefeed: str, request: TraceRequest) -> Trace:
        """Return every change of one row that was delivered, and where it went; no values.

        Raises:
            NoSuchTable: the table is not captured.
            BadTrace: the key or a limit cannot be, or the sink keeps nothing to look in.
            SinkError: the output cannot be read.
            NotAllowed: its settings name what this server does not allow.
        """
        return tracing.without_values(self._trace(changefeed, request))

    @acts(Role.OPERATOR)
    def trace_values(self, changefeed: str, request: TraceRequest) -> Trace:
        """Return what `trace` does, with the row before and after each change, as delivered."""
        return self._trace(changefeed, request)

    def _trace(self, changefeed: str, request: TraceRequest) -> Trace:
        feed = self._feed(changefeed)
        check_reach(self._reach, feed.spec)
        if not self._traces.acquire(timeout=_TRACE_WAIT_S):
            raise BadTrace("other traces are under way on this server; ask again in a moment")
        try:
            return tracing.trace(self.store, feed, request, self._secrets)
        finally:
            self._traces.release()

    # --- quarantine ------------------------------------------------------------------------------

    @looks
    def quarantined(self, changefeed: str) -> tuple[ParkedRow, ...]:
        """Return the rows that its sink refused, and those that wait behind them, oldest first."""
        return self.store.parked(self._feed(changefeed).id)

    @acts_unseen(Role.OPERATOR, "the values of a parked row")
    def quarantined_row(self, changefeed: str, row: str) -> parking.ParkedValues:
        """Return one of them with its values.

        Raises:
            BadQuarantine: there is none of this id.
        """
        return parking.show(self.store, self._feed(changefeed).id, row)

    @acts(Role.OPERATOR)
    def retry_quarantined(self, changefeed: str, choice: parking.Choice) -> int:
        """Let parked rows be sent again, with all that waits behind them; returns how many.

        A paused or finished changefeed sends them when it is resumed. What is refused again stays.

        Raises:
            BadQuarantine: there are none, or their table was altered so that they do not fit.
        """
        return parking.retry(self.store, self._feed(changefeed), choice)

    @acts(Role.OPERATOR)
    def drop_quarantined(self, changefeed: str, choice: parking.Choice) -> int:
        """Forget parked rows for good; returns how many.

        Raises:
            BadQuarantine: there are none.
        """
        return parking.drop(self.store, self._feed(changefeed).id, choice)
