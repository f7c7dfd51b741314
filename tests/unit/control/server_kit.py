"""Members of a fleet in one process: scripted sources, directories, a store that can go away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loop_kit import SCRIPTS, Script

from rowferry.change.chunk import Rows
from rowferry.control.feed.running import Conditions
from rowferry.control.feed.supervise import Patience
from rowferry.control.fleet.server import FleetPace, Member
from rowferry.control.lifecycle import FeedState
from rowferry.control.store.contract import FeedRecord, MetaStore
from rowferry.errors import MetaUnavailable
from rowferry.flow.assemble import assemble
from rowferry.spark.shared import DriverRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.harness import wait_for
from rowferry.testing.storage import storage_changes

QUICK = FleetPace(lease_s=30.0, renew_s=0.01, every_s=0.01, sample_every_s=0.0, others_come_s=0.3)
SOON = Patience(0.01, 0.02, 0.1)
WITHIN_S = 120.0


class FragileStore:
    """A meta store that does not answer while `down` is set."""

    def __init__(self, inner: MetaStore) -> None:
        self._inner = inner
        self.down = threading.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        def call(*args: Any, **more: Any) -> Any:
            if self.down.is_set():
                raise MetaUnavailable("the meta database went away")
            return found(*args, **more)

        return call


@dataclass
class Fleet:
    """Changefeeds on one meta database, and the members that run them."""

    folder: Path
    store: MetaStore
    members: list[Member] = field(default_factory=list)

    def create(self, name: str, *ids: int, **more: Any) -> Script:
        """Store a changefeed from a script of its own, with a transaction for each id."""
        script = SCRIPTS.setdefault(name, Script())
        for one in ids:
            script.commit(one)
        sink = f"file://{self.folder / name}?protocol=canal-json&fsync=false&flush-interval=50ms"
        spec = ChangefeedSpec(
            name,
            Uri.parse(f"scripted://{name}", "source"),
            Uri.parse(more.pop("sink", sink), "sink"),
            {"sink": {"terminator": "\n", "enable-tidb-extension": True}, **more.pop("config", {})},
            **more,
        )
        self.store.create_changefeed(spec)
        return script

    @contextmanager
    def member(
        self, pace: FleetPace = QUICK, store: Any = None, patience: Patience = SOON
    ) -> Iterator[Member]:
        """Run a member in a thread; it drains at the end of the block."""
        stop = threading.Event()
        conditions = Conditions(lambda name: DriverRunner(), patience=patience)
        one = Member(store or self.store, f"here:{len(self.members)}", conditions, pace)
        thread = threading.Thread(target=one.run, args=(stop,), daemon=True)
        thread.start()
        self.members.append(one)
        try:
            yield one
        finally:
            stop.set()
            thread.join(WITHIN_S)
            assert not thread.is_alive(), "the member did not drain"

    def feed(self, name: str) -> FeedRecord:
        """Return a changefeed that is stored."""
        found = self.store.feed(name)
        assert found is not None
        return found

    def ids(self, name: str) -> list[int]:
        """Return the ids that a reader of a changefeed's directory sees, in its order."""
        root = self.folder / name
        if not (root / "metadata").exists():
            return []
        changes = storage_changes(root, assemble(self.feed(name).spec).encode)
        return [i for c in changes if isinstance(c, Rows) for i in c.after.field("id").to_pylist()]

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait for something that must come."""
        wait_for(done, what, WITHIN_S, 0.01)

    def until_delivered(self, name: str) -> None:
        """Wait until a reader sees all that the script holds."""
        expected = SCRIPTS[name].ids()
        self.until(lambda: self.ids(name) == expected, f"all rows of {name}")

    def until_state(self, name: str, state: FeedState) -> None:
        """Wait until a changefeed has a state and, unless it runs, nobody holds it."""

        def there() -> bool:
            feed = self.feed(name)
            return feed.state is state and (state.runs or feed.lease is None)

        self.until(there, f"{name} {state}")
