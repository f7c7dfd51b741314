"""A member of the fleet: announces itself, claims changefeeds, runs them, hands over, drains.

Servers are equal and know of each other only through the meta database. Once a second each of them
reads all changefeeds with one query, and acts on what changed. Meanwhile a thread of its own renews
the leases and says that the server is alive: what a look leads to, such as the claims of all that a
dead server ran, may take longer than a lease lasts. Without the meta database a server does
nothing: its changefeeds go on until their leases have run out, and are claimed again, by whoever
comes first, when the database is back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rowferry.change.sampled_change import SampledChange
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.recent_lines import RecentLines
from rowferry.control.feed.running import Conditions, HeldLease, Running, wants_to_run
from rowferry.control.fleet import measures
from rowferry.control.fleet.assignment import to_claim, to_hand_over
from rowferry.control.fleet.memory import give_back
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.store.contract import FeedRecord, FleetServer, MetaStore
from rowferry.errors import IllegalMove, LeaseHeld, MetaDamaged, NoSuchChangefeed, RowferryError
from rowferry.flow.sink.contract import TableStatus
from rowferry.spark import cores
from rowferry.spec.uri import without_passwords

LOG = logging.getLogger(__name__)
LEASE_S: Final = 6.0  # who is killed on another machine is replaced within this and a second
RENEW_S: Final = 1.4
EVERY_S: Final = 1.0
SAMPLE_EVERY_S: Final = 5.0
FINE_S: Final = 3600.0  # samples that are younger are kept one by one
FOLD_EVERY_S: Final = 300.0
GIVE_BACK_EVERY_S: Final = 60.0
COLLECT_EACH: Final = 5  # of these times garbage is looked for
REST_S: Final = 0.02  # for each changefeed here: together they make 50 micro-batches a second
MOST_REST_S: Final = 1.0
FORGOTTEN_S: Final = 3600.0  # a server that was not seen for so long is not listed any more
OTHERS_COME_S: Final = 2.5  # a changefeed free for longer is taken whatever the share
# Longer than any lease lasts: one that was not renewed for so long is nobody's, whatever end the
# clock of its holder gave it.
STALE_S: Final = 40.0


@dataclass(frozen=True, slots=True)
class FleetPace:
    """How often a member looks, and how long its leases last."""

    lease_s: float = LEASE_S
    renew_s: float = RENEW_S
    every_s: float = EVERY_S
    sample_every_s: float = SAMPLE_EVERY_S
    others_come_s: float = OTHERS_COME_S


class Member:
    """One server. `run` in one thread; `stop` is how it is told to drain."""

    def __init__(
        self,
        store: MetaStore,
        address: str,
        conditions: Conditions,
        pace: FleetPace | None = None,
        hide: Callable[[str], str] = without_passwords,
    ) -> None:
        """Make a member; `hide` takes secrets out of log lines that others may read."""
        self.holder = Holder.here(address)
        self.address = address
        self._store, self._pace = store, pace or FleetPace()
        self._conditions = replace(conditions, rest_s=self._rest_s)
        self._running: dict[str, Running] = {}
        self._processors = cores.allowed()
        self._free_since: dict[str, float] = {}
        self._handed_over: dict[str, float] = {}
        self._ends: dict[str, tuple[float, float]] = {}  # of leases, and since when they are seen
        self._ended_servers: dict[Holder, bool] = {}  # in this look
        self._lock = threading.Lock()  # held while saying that this server is there, or is not
        self._retired = False
        self._ended = threading.Event()
        self._sampled_at = self._folded_at = self._gave_back_at = time.monotonic()
        self._given_back = 0  # how often
        self._lines = RecentLines(address, hide)
        self._meta_up = True

    @property
    def changefeeds(self) -> tuple[str, ...]:
        """The ids of the changefeeds that run here."""
        return tuple(sorted(self._running))

    def last_changes(self, changefeed: str) -> tuple[SampledChange, ...] | None:
        """Return the last changes of a changefeed, newest first; None: it does not run here."""
        one = self._running.get(changefeed)
        return None if one is None or one.lease.is_gone else one.recent_changes.newest_first()

    def target_tables(self, changefeed: str) -> tuple[TableStatus, ...] | None:
        """Return what the tables of a changefeed's sink are made of; None: it does not run here."""
        one = self._running.get(changefeed)
        return None if one is None or one.lease.is_gone else one.target_tables

    # --- life ------------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Work until `stop`, then drain: on return all leases are released, as far as possible."""
        self._guarded(self._announce)  # before others are looked at
        keeper = threading.Thread(target=self._keep_leases, name="leases", daemon=True)
        keeper.start()
        logging.getLogger().addHandler(self._lines)
        try:
            while not stop.is_set():
                began = time.monotonic()
                self._guarded(self.tick)
                stop.wait(max(0.0, self._pace.every_s - (time.monotonic() - began)))
            self._drain()
        finally:
            logging.getLogger().removeHandler(self._lines)
            self._guarded(self._store_lines)
            self._ended.set()
            keeper.join()

    def _drain(self) -> None:
        """Leave the fleet: every changefeed stops at its border and is free for the others."""
        LOG.info("draining %d changefeeds", len(self._running))
        self._guarded(self._retire)
        for one in self._running.values():
            one.leave(why="the server was told to stop")
        while self._running:
            self._reap()
            time.sleep(0.02)

    def _keep_leases(self) -> None:
        while not self._ended.wait(self._pace.renew_s):
            self._guarded(self._renew)
            self._guarded(self._announce)

    def _announce(self) -> None:
        with self._lock:
            if not self._retired:
                self._store.announce(self.holder, self.address, time.time())

    def _retire(self) -> None:
        with self._lock:
            self._retired = True
            self._store.retire(self.holder)

    def tick(self) -> None:
        """Look once, and act on what is seen.

        Raises:
            RowferryError: the meta database does not answer; the next tick tries again.
        """
        self._reap()
        self._ended_servers.clear()
        now, asked_at = time.time(), time.monotonic()
        feeds = {feed.id: feed for feed in self._store.feeds()}
        measures.look(tuple(feeds.values()))
        alive = self._alive(now)
        self._watch(feeds, asked_at)
        self._balance(feeds, alive, now)
        cores.settle(self._processors, len(self._running), self._place_among(alive))
        self._give_back()
        self._tell(now)

    def _rest_s(self) -> float:
        """Return how far apart small micro-batches of one changefeed must be."""
        return min(MOST_REST_S, REST_S * len(self._running))

    # --- what a tick does ------------------------------------------------------------------------

    def _guarded(self, do: Callable[[], None]) -> None:
        try:
            do()
        except RowferryError as err:
            if self._meta_up:
                LOG.warning("the meta database does not answer: %s", err)
            self._meta_up = False
        except Exception:  # ours to mend: without this thread leases end, or nothing is claimed
            LOG.exception("unforeseen; it is tried again")
        else:
            if not self._meta_up:
                LOG.info("the meta database answers again")
            self._meta_up = True
        measures.META_UP.set(self._meta_up)

    def _reap(self) -> None:
        for name in [name for name, one in self._running.items() if one.ended]:
            measures.stop(name)
            del self._running[name]
        measures.OWNED.set(len(self._running))

    def _renew(self) -> None:
        # The other thread may add and remove changefeeds meanwhile: a copy is made at one go.
        held = [one for one in list(self._running.values()) if not one.lease.is_gone]
        asked_at = time.monotonic()
        lost = set(self._store.renew_all([one.claim for one in held], time.time()))
        for one in held:
            if one.claim in lost and not one.ended:
                one.lease.lose("another claim is in force, or it was removed")
                one.leave()
            else:
                one.lease.renewed(asked_at)

    def _alive(self, now: float) -> Sequence[FleetServer]:
        servers = self._store.servers(now - self._pace.lease_s)
        return [s for s in servers if not self._is_dead(s.holder)]

    def _place_among(self, alive: Sequence[FleetServer]) -> int:
        """Return how many servers of this machine were there before this one."""
        me = self.holder
        here = {s.holder for s in alive if s.holder.host == me.host} - {me}
        return sum((other.started, other.instance) < (me.started, me.instance) for other in here)

    def _watch(self, feeds: Mapping[str, FeedRecord], asked_at: float) -> None:
        """Let changefeeds that run here follow what operators asked for."""
        for name, one in self._running.items():
            feed = feeds.get(name)
            one.hold = feed.hold if feed is not None else None
            one.resnapshots = feed.resnapshots if feed is not None else ()
            if feed is None or feed.epoch != one.claim.epoch:
                one.lease.lose(_taken(feed))
                one.leave()
            elif feed.cancel:
                one.leave(remove=True)
            elif not wants_to_run(feed):
                one.leave(why=f"it is {feed.state}")
            elif feed.spec_version > one.spec_version or one.was_resumed(feed.state, asked_at):
                one.reload()

    def _balance(
        self, feeds: Mapping[str, FeedRecord], alive: Sequence[FleetServer], now: float
    ) -> None:
        me = self.holder.instance
        self._see_ends(feeds)
        wanted = [feed for feed in feeds.values() if wants_to_run(feed)]
        held_by = Counter(self._holder_of(f, now) for f in wanted)
        counts = {s.holder.instance: held_by[s.holder.instance] for s in alive}
        counts[me] = len(self._running)
        free = {f.id: f for f in wanted if self._is_free(f, now)}
        clock = time.monotonic()
        self._free_since = {name: self._free_since.get(name, clock) for name in free}
        waited = {name: clock - since for name, since in self._free_since.items()}
        wait_s = self._pace.others_come_s
        for name in to_claim(waited, counts, me, wait_s):
            if clock - self._handed_over.get(name, -wait_s) >= wait_s:
                self._claim(free[name])
        if not free:
            stays = [name for name, one in self._running.items() if not one.is_leaving]
            counts[me] = len(stays)
            chosen = to_hand_over(stays, counts, me)
            if chosen is not None:
                LOG.info("handing changefeed %s over to a server that has fewer", chosen)
                self._handed_over[chosen] = clock
                self._running[chosen].leave(why="another server has fewer changefeeds")

    def _holder_of(self, feed: FeedRecord, now: float) -> str:
        """Return the server that has a changefeed; empty: nobody who lives."""
        lease = feed.lease
        if lease is None or now >= lease.expires_at or self._is_dead(lease.holder):
            return ""
        return "" if self._is_stale(feed) else lease.holder.instance

    def _is_dead(self, holder: Holder) -> bool:
        """Return whether a server has certainly ended; asked once in a look at all changefeeds."""
        if holder not in self._ended_servers:
            self._ended_servers[holder] = holder.is_dead(seen_by=self.holder)
        return self._ended_servers[holder]

    def _see_ends(self, feeds: Mapping[str, FeedRecord]) -> None:
        """Note since when each lease ends where it does: who lives moves its end again and again.

        Clocks of servers may differ; how long nothing moves, each sees by its own.
        """
        clock, before = time.monotonic(), self._ends
        ends = {name: feed.lease.expires_at for name, feed in feeds.items() if feed.lease}
        self._ends = {
            name: before[name] if name in before and before[name][0] == end else (end, clock)
            for name, end in ends.items()
        }

    def _is_stale(self, feed: FeedRecord) -> bool:
        """Return whether a lease has ended at the same moment for longer than leases last."""
        seen = self._ends.get(feed.id)
        return seen is not None and time.monotonic() - seen[1] >= STALE_S

    def _is_free(self, feed: FeedRecord, now: float) -> bool:
        """Return whether nobody runs it; a lease of ours that we do not use counts as free."""
        if feed.id in self._running:
            return False
        return self._holder_of(feed, now) in ("", self.holder.instance)

    def _claim(self, feed: FeedRecord) -> None:
        asked_at, now = time.monotonic(), time.time()  # the look may be long ago: others came first
        try:
            stale_end = feed.lease.expires_at if feed.lease and self._is_stale(feed) else None
            claim = self._store.claim(feed.id, self.holder, now, self._pace.lease_s, stale_end)
            if feed.state is FeedState.PENDING:
                self._store.move(claim, Verb.START)
            # Whoever has paused it since the look may have changed its sink as well, and whoever
            # has removed it may have made another one of this name.
            stored = self._store.feed(feed.id)
        except (LeaseHeld, NoSuchChangefeed, IllegalMove):
            return  # someone was faster
        except MetaDamaged as err:  # what is wrong with one keeps nobody from the others
            LOG.warning("changefeed %s is not claimed: %s", feed.id, err)
            return
        if stored is None or not wants_to_run(stored):
            self._store.release(claim, "it is not to be run any more")
            return
        before = replace(stored, lease=feed.lease, epoch=feed.epoch)
        one = Running(before, HeldLease(claim, asked_at), self._store, self._conditions)
        if stored.cancel:
            one.leave(remove=True)
        one.start()  # first: what is not started never ends, and its lease would be kept
        self._running[feed.id] = one

    def _give_back(self) -> None:
        if time.monotonic() - self._gave_back_at >= GIVE_BACK_EVERY_S:
            self._gave_back_at = time.monotonic()
            self._given_back += 1
            give_back(collect=self._given_back % COLLECT_EACH == 0)

    def _tell(self, now: float) -> None:
        """Store how far everything is, now and then."""
        if time.monotonic() - self._sampled_at >= self._pace.sample_every_s:
            self._sampled_at = time.monotonic()
            samples = {n: one.sample(now) for n, one in self._running.items() if one.has_begun}
            self._store.write_samples(samples)
            self._store_news()
            self._store_lines()
            self._fold(now)
            for server in self._store.servers():
                if now - server.seen_at > FORGOTTEN_S:
                    self._store.retire(server.holder)
        elif due := {n: one for n, one in self._running.items() if one.is_due}:
            self._store.write_samples({n: one.sample(now) for n, one in due.items()})

    def _store_news(self) -> None:
        """Store what is to be told of all changefeeds, at once."""
        news = [(one, one.news()) for one in self._running.values()]
        untold = [(one, some) for one, some in news if some is not None]
        self._store.write_news({one.claim: some for one, some in untold})
        for one, some in untold:
            one.stored(some)

    def _store_lines(self) -> None:
        """Store the log lines that wait, for every server to show."""
        lines = self._lines.take()
        try:
            self._store.add_log_lines(lines)
        except RowferryError:
            self._lines.put_back(lines)
            raise

    def _fold(self, now: float) -> None:
        """Let samples of long ago become fewer: a day of them stays."""
        if self._running and time.monotonic() - self._folded_at >= FOLD_EVERY_S:
            self._folded_at = time.monotonic()
            self._store.fold_samples(sorted(self._running), now - FINE_S)


def _taken(feed: FeedRecord | None) -> str:
    """Return who has a changefeed now that was ours."""
    if feed is None:
        return "it was removed"
    owner = f" by {feed.lease.owner}" if feed.lease else ""
    return f"it was taken over{owner}: epoch {feed.epoch} is in force"
