"""What is held against a run that was disturbed: every promise, at every checkpoint seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rowferry.change.position import RangeProgress
from rowferry.change.table import TableId
from rowferry.control.store.contract import StoredState
from rowferry.errors import RowferryError
from rowferry.flow.encode.contract import Codec
from rowferry.refstore.client import Store
from rowferry.refstore.workload import START_BALANCE, Bank
from rowferry.testing.feed import FeedFacts, WatchedFeed
from rowferry.testing.model import History
from rowferry.testing.nemesis_watch import Sight, deliver_sights
from rowferry.testing.storage import StorageDecoder
from rowferry.testing.validators import AllPromises, DeliveryOracle, SnapshotWindow, StorageLayout
from rowferry.testing.validators.rebuilt import Invariant, Tables
from rowferry.testing.verify import verify_storage

FACTS = {
    "canal-json": FeedFacts(True, True, schema_changes_go_to="files"),
    "csv": FeedFacts(False, True, schema_changes_go_to="files"),
}


def windows_of(state: StoredState) -> list[SnapshotWindow]:
    """Return the snapshots of a feed whose first watermark is out."""
    lows = {table_id: low for table_id, _, _, low, *_ in state.position["tables"]}
    by_table: dict[int, list[RangeProgress]] = {}
    for progress in state.ranges:
        if lows.get(progress.table_id):
            by_table.setdefault(progress.table_id, []).append(progress)
    return [
        SnapshotWindow(
            TableId(ranges[0].database, ranges[0].table),
            lows[table_id],
            max(r.current_snapshot_ts for r in ranges),
        )
        for table_id, ranges in by_table.items()
    ]


def lost_a_snapshot(state: StoredState) -> bool:
    """Return whether a snapshot was begun again: only then may rows come twice."""
    return any(r.current_snapshot_version != r.init_snapshot_version for r in state.ranges)


def total_stays(bank: Bank) -> Invariant:
    """Return the invariant that no money is made or lost."""
    wanted = bank.accounts * START_BALANCE

    def check(tables: Tables) -> str | None:
        rows = tables.get(bank.table, {}).values()
        total = sum(r["balance"] for r in rows)
        if total == wanted and len(rows) == bank.accounts:
            return None
        return f"{bank.table}: {len(rows)} accounts hold {total}, not {wanted}"

    return check


def judge(
    root: Path,
    codec: Codec,
    facts: FeedFacts,
    history: History,
    windows: Sequence[SnapshotWindow],
    sights: list[Sight],
    invariant: Invariant,
    allow_repeats: bool,
) -> list[str]:
    """Return how the output breaks P1 to P8, read as the sights saw it grow."""
    oracle = DeliveryOracle(history, facts, windows)
    promises = AllPromises.of(oracle, invariant, allow_repeats=allow_repeats)
    feed = WatchedFeed(facts, [promises])
    layout = StorageLayout(root, oracle, StorageDecoder(root, codec), allow_repeats)
    try:
        deliver_sights(root, codec, sights, feed)
        layout.finish()
    except RowferryError as err:
        return [*promises.failures, *layout.failures, f"the output cannot be read: {err}"]
    return [*feed.finish(), *layout.failures]


def compare_with_store(root: Path, codec: Codec, store: Store, tables: list[TableId]) -> list[str]:
    """Return how tables rebuilt from the files differ from the store's rows of now."""
    try:
        comparison = verify_storage(root, codec, store, tables)
    except RowferryError as err:
        return [f"the tables cannot be rebuilt: {err}"]
    return (
        []
        if comparison.same
        else [f"rebuilt tables: {line}" for line in str(comparison).splitlines()]
    )
