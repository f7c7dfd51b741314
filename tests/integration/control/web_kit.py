"""A browser, and a fleet's meta database with changefeeds in every state for it to show."""

from __future__ import annotations

import math
import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, expect, sync_playwright

from rowferry.change.plan import Plan, Stretch
from rowferry.change.position import RangeProgress, Stage
from rowferry.change.quarantine import DivertedRow, PlanQuarantine, RefusedKey
from rowferry.change.table import TableId
from rowferry.control.feed.lease import Holder
from rowferry.control.lifecycle import Verb
from rowferry.control.store.contract import MetaStore, Sample
from rowferry.errors import RowferryError, SinkUnavailable, SourceUnavailable
from rowferry.flow.assemble import option_tables, sink_traits
from rowferry.spec.build import build_spec
from rowferry.testing.servers import Chromium

PATIENCE_MS = 120_000
SECRET = secrets.token_hex(12)
EVERY_S = 5.0
SERVERS = ("10.0.4.11:8300", "10.0.4.12:8300")
SOURCE = f"mysql://cdc:{SECRET}@orders-db.internal:3306/"
KAFKA = "kafka://broker-1:9092/{}?protocol=canal-json"


@contextmanager
def started_browser() -> Iterator[Browser]:
    """A browser for a module: longer, its event loop would be in the way of others."""
    program = str(Chromium.ensure())
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        options = ["--no-sandbox"]  # tests may run as root
        with playwright.chromium.launch(executable_path=program, args=options) as browser:
            yield browser


class Fleet:
    """Fills a store; times count from `now`, which may be ahead so that nothing grows old."""

    def __init__(self, store: MetaStore, now: float) -> None:
        self.store, self.now = store, now
        self._samples: dict[int, dict[str, Sample]] = defaultdict(dict)
        me = Holder.here()
        self.holders = [
            Holder(f"cdc-{place}", 4000 + place, me.realm + "x", 1, f"instance-{place}", address)
            for place, address in enumerate(SERVERS, 1)
        ]
        self.alive()

    def alive(self) -> None:
        """Let the servers be seen."""
        for holder, address in zip(self.holders, SERVERS, strict=True):
            self.store.announce(holder, address, self.now)

    def add(
        self,
        name: str,
        sink: str,
        rules: tuple[str, ...] = ("shop.*",),
        config: Mapping[str, Any] | None = None,
        source: str = SOURCE,
        owner: int | None = None,
        lag_ms: int = 900,
    ) -> None:
        """Store a changefeed that has delivered something, on one of the servers."""
        settings = {"filter": {"rules": list(rules)}, **(config or {})}
        spec, _ = build_spec(source, sink, settings, name, tables=option_tables, sinks=sink_traits)
        self.store.create_changefeed(spec)
        claim = self.store.claim(name, self.holders[owner or 0], self.now, 3600.0)
        watermark = int(self.now * 1000 - lag_ms) << 18
        parts = tuple(_parts(rules, snapshot=name == "customers-lake"))
        plan = Plan(1, 1, 0, Stretch((), (), {}, parts, (), watermark))
        self.store.record(claim, plan, ())
        self.store.publish(claim, plan)
        if owner is None:
            self.store.release(claim)

    def sample(
        self,
        name: str,
        lag: float,
        rows: float,
        row_bytes: int = 240,
        minutes: float = 14,
        **more: Any,
    ) -> None:
        """Keep samples up to now: waves around these numbers; `more` is for the newest."""
        steps = int(minutes * 60 / EVERY_S)
        salt = len(name)
        for step in range(steps + 1):
            wave = 1 + 0.35 * math.sin(step / 9 + salt) + 0.2 * math.sin(step / 2.3 + salt)
            spike = 5.0 if salt % 3 == 0 and 40 <= step % 100 < 46 else 1.0
            carried = int(rows * wave * EVERY_S)
            at = self.now - (steps - step) * EVERY_S
            self._samples[steps - step][name] = Sample(
                *(at, int(lag * wave * spike), 0, carried, carried * row_bytes, 4),
                0.35 * wave * spike,
                **(more if step == steps else {}),
            )

    def write(self) -> None:
        """Write the samples that were kept."""
        for _, row in sorted(self._samples.items(), reverse=True):
            self.store.write_samples(row)
        self._samples.clear()

    def move(self, name: str, verb: Verb, error: RowferryError | None = None) -> None:
        """Change a state."""
        self.store.move(name, verb, error)


def _parts(rules: tuple[str, ...], snapshot: bool) -> list[RangeProgress]:
    tables = ["orders", "order_items", "customers", "payments", "shipments"]
    database = rules[0].split(".")[0]
    stage = Stage.SNAPSHOT if snapshot else Stage.LOG
    return [
        RangeProgress(
            *(database, table, place, place, place * 10 + part, "", "", stage),
            last_snapshot_key=f"7480{place:04x}{part:02x}" if snapshot else "",
            last_log_index=0 if snapshot else 81_200_000 + 977 * place + part,
        )
        for place, table in enumerate(tables, 1)
        for part in (1, 2)
    ]


def park_rows(store: MetaStore, name: str) -> int:
    """Park two rows of a changefeed that nobody has; returns the micro-batch that did it."""
    claim = store.claim(name, Holder.here(), time.time(), 60)
    number = store.state(name).micro_batch + 1
    where = "copy@replica.internal:3306, table crm.customers, row id ="
    refused = (
        RefusedKey(1, "7", f"{where} 7: Data too long for column 'note' at row 1 (error 1406)"),
        RefusedKey(1, "8", f"{where} 8: Check constraint 'adult' is violated. (error 3819)"),
    )
    asked = PlanQuarantine(refused=refused)
    plan = Plan(number, 1, 0, Stretch((), (), store.position(name)), quarantine=asked)
    store.record(claim, plan, ())
    table, stamp = TableId("crm", "customers"), int(time.time() * 1000) << 18
    rows = [DivertedRow(table, 1, 1, None, key, 0, stamp, "0" * 64, b"x") for key in "78"]
    store.park(claim, plan, rows)
    store.publish(claim, plan)
    store.release(claim)
    return number


def filled(store: MetaStore, now: float | None = None) -> Fleet:
    """Fill a store with seven changefeeds on two servers."""
    fleet = Fleet(store, time.time() if now is None else now)
    fleet.add("orders-search", KAFKA.format("orders"), owner=0)
    fleet.sample("orders-search", 850, 4200, retention_ms=61 * 3_600_000)
    fleet.add(
        "customers-lake",
        "s3://lake/customers?protocol=csv",
        ("crm.*",),
        {"sink": {"csv": {"include-commit-ts": True}}},
        owner=1,
        lag_ms=41_000,
    )
    shares = (("crm.customers", 34, 96), ("crm.orders", 96, 96), ("crm.payments", 3, 120))
    shares += (("crm.order_items", 71, 80), ("crm.shipments", 0, 12))
    fleet.sample(
        "customers-lake",
        30_000,
        51_000,
        310,
        6,
        snapshots=shares,
        totals=(1, 5, 204, 404),
        unit="parts",
    )
    fleet.add(
        "payments-replica",
        f"mysql://app:{SECRET}@replica.internal:3306/",
        ("pay.*",),
        owner=0,
        lag_ms=90_000,
    )
    fleet.sample("payments-replica", 64_000, 35, minutes=12)
    away = (
        f"replica.internal:3306: connection refused (tried mysql://app:{SECRET}@replica.internal)"
    )
    fleet.move("payments-replica", Verb.FAULT, SinkUnavailable(away))
    fleet.add("audit-hooks", "https://hooks.example/audit?protocol=canal-json", ("audit.*",))
    words = "orders-db.internal:3306 closed the connection 40 times in 30 minutes"
    fleet.move("audit-hooks", Verb.GIVE_UP, SourceUnavailable(words))
    fleet.add("sessions-cache", KAFKA.format("sessions"), ("web.*",), lag_ms=7_200_000)
    fleet.move("sessions-cache", Verb.PAUSE)
    fleet.add("inventory-topic", KAFKA.format("inventory"), ("stock.*",), owner=1)
    fleet.sample("inventory-topic", 420, 880)
    fleet.add("year-end-copy", "file:///exports/2025?protocol=csv", ("shop.orders",))
    fleet.move("year-end-copy", Verb.REACH_TARGET)
    fleet.write()
    return fleet
