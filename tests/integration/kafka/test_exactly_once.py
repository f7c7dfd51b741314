"""Exactly-once: whoever dies, comes late or is told nothing, readers see each message once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

sys.path.append(str(Path(__file__).parents[2] / "contract"))  # its harness is used here

from lane_harness import Words, packets
from sink_harness import FEED, NOON, ORDERS, segment, tables_of

from rowferry.change.plan import Again, Plan, Stretch
from rowferry.errors import (
    Fenced,
    OptionsConflict,
    PlanDiscarded,
    RowferryError,
    SinkOwned,
    SinkUnavailable,
    SinkUnwritable,
    TargetLost,
    TopicRefused,
    Verdict,
)
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.flow.sink.kafka import announcer, lanes
from rowferry.flow.sink.kafka.sink import KafkaSink
from rowferry.moment import watched
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import Kafka

ROWS = [
    (0, 0, [b"a1", b"a2"]),
    (0, 1, [b"b1"]),
    (0, 0, [b"a3"]),
    (1, 0, [b"a4"]),
    (1, 2, [b"c1", b"c2"]),
]
SENT = [b"a1", b"a2", b"a3", b"a4", b"b1", b"c1", b"c2"]
MARK = b"%d" % (NOON + 9)


class Once:
    """A topic of a test's own, and what there is to send to it."""

    def __init__(self, broker: Kafka) -> None:
        self.broker = broker
        self.topic = f"once-{uuid4().hex}"
        self.ledger = f"{self.topic}-ledger"
        self.more = "transaction-lanes=2"

    def sink(self, epoch: int = 0, state: dict[str, Any] | None = None, **more: Any) -> KafkaSink:
        """A sink as another process builds it; with an epoch it is the driver's, and opened."""
        found = build(self.uri())
        if epoch:
            found.open(Owner(FEED, epoch, **more), state)
        return found

    def uri(self) -> str:
        place = f"kafka://{self.broker.bootstrap}/{self.topic}"
        return f"{place}?exactly-once=true&ledger-topic={self.ledger}&{self.more}"

    def plan(self, sink: KafkaSink, number: int = 1, again: Again = Again.SAME) -> Plan:
        segments = tuple(replace(segment(n, ORDERS), again=again) for n in range(2))
        stretch = Stretch(segments, (), {}, watermark=NOON + 9)
        outputs, state = sink.allocate(stretch, tables_of(stretch))
        return Plan.from_json(Plan(number, 1, 0, stretch, outputs, state).to_json())

    def seen(self) -> list[bytes]:
        """What readers of committed messages see, partition by partition."""
        return [m.value or b"" for m in self.broker.read_all(self.topic)]

    def carry_out(self, sink: KafkaSink, plan: Plan, epoch: int) -> None:
        sink.deliver(of(plan, epoch))
        sink.publish(plan, [], tables_of(plan.stretch))

    def complete(self) -> None:
        """Every message was seen once, and in its order: rows, then the mark of each partition."""
        found = self.broker.read_all(self.topic)
        assert [m.value for m in found if m.partition == 0] == [b"a1", b"a2", b"a3", b"a4", MARK]
        assert [m.value for m in found if m.partition == 1] == [b"b1", MARK]
        assert [m.value for m in found if m.partition == 2] == [b"c1", b"c2", MARK]


def build(uri: str) -> KafkaSink:
    source = Uri.parse("range://127.0.0.1:1", "source")
    return KafkaSink(ChangefeedSpec(FEED, source, Uri.parse(uri, "sink")), Words())


def of(plan: Plan, epoch: int, rows: Sequence[Any] = ROWS) -> Iterator[Packet]:
    return (replace(packet, epoch=epoch) for packet in packets(plan, rows))


@pytest.fixture
def once(kafka_broker: Kafka) -> Once:
    return Once(kafka_broker)


def at(name: str, act: Callable[[], None], turn: int = 1) -> Callable[[str], None]:
    """Do something at a moment, the first time or a later one; what it does passes unwatched."""
    left = [turn]

    def hook(now: str) -> None:
        if now == name:
            left[0] -= 1
            if left[0] == 0:
                act()

    return hook


def lost() -> None:
    raise SinkUnavailable("the answer was lost")


# --- one owner -----------------------------------------------------------------------------------


def test_a_failure_at_each_moment(once: Once) -> None:
    """Each call to the brokers fails once: before it was made, or because its answer was lost."""
    driver = once.sink(1)
    counted: list[str] = []
    number = 0

    def next_plan() -> tuple[Plan, list[Any], list[bytes]]:
        nonlocal number
        number += 1
        rows = [(s, p, [b"%d:" % number + v for v in values]) for s, p, values in ROWS]
        return once.plan(driver, number), rows, [v for *_, values in rows for v in values]

    plan, rows, wanted = next_plan()
    with watched(counted.append):
        driver.deliver(of(plan, 1, rows))
        driver.publish(plan, [], tables_of(plan.stretch))
    names = dict.fromkeys(counted)
    assert {"begin transactions", "commit transaction", "transaction committed"} <= names.keys()
    for name in names:
        for turn in sorted({1, counted.count(name)}):
            plan, rows, more = next_plan()
            wanted += more
            done = False
            with watched(at(name, lost, turn)):
                while not done:
                    try:
                        driver.deliver(of(plan, 1, rows))
                        driver.publish(plan, [], tables_of(plan.stretch))
                        done = True
                    except SinkUnavailable as err:
                        assert "the answer was lost" in str(err)
    driver.close()
    found = [v for v in once.seen() if v != MARK]
    assert sorted(found) == sorted(wanted)
    assert once.seen().count(MARK) == 3 * number  # each micro-batch tells it to each partition


def test_a_task_is_tried_again_while_it_still_runs(once: Once) -> None:
    driver = once.sink(1)
    plan = once.plan(driver)
    first, second = once.sink(), once.sink()
    with (
        watched(at("commit transaction", lambda: second.deliver(of(plan, 1)))),
        pytest.raises(SinkUnavailable),
    ):
        first.deliver(of(plan, 1))
    assert sorted(once.seen()) == SENT
    first.deliver(of(plan, 1))  # and once more, of both
    driver.publish(plan, [], tables_of(plan.stretch))
    once.complete()


def test_on_another_number_of_cores(once: Once) -> None:
    """Which tasks send what may differ from one attempt to the next."""
    driver = once.sink(1)
    plan = once.plan(driver)
    alone, shared = once.sink(), once.sink()
    alone.deliver(p for p in of(plan, 1) if p.partition == 0)
    with watched(at("commit transaction", lost, 2)), pytest.raises(SinkUnavailable):
        shared.deliver(of(plan, 1))
    for number in range(2):  # segment by segment, as without Spark
        once.sink().deliver(p for p in of(plan, 1) if p.segment == number)
    driver.publish(plan, [], tables_of(plan.stretch))
    once.complete()


@pytest.mark.parametrize("again", [Again.SAME, Again.EQUIVALENT])
def test_a_long_micro_batch_is_several_transactions(
    once: Once, again: Again, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails in between goes on from there."""
    monkeypatch.setattr(lanes, "_EARLY", 1e9)  # each transaction is too old at once
    driver = once.sink(1)
    plan = once.plan(driver, again=again)
    commits: list[str] = []

    def broken() -> Iterator[Packet]:
        yield from (packet for packet in of(plan, 1) if packet.segment == 0)
        raise ZeroDivisionError

    with watched(commits.append), pytest.raises(ZeroDivisionError):
        driver.deliver(broken())
    # What is read anew may differ: of that, a segment is shown as a whole.
    assert once.seen() == ([b"a1", b"a2", b"b1"] if again is Again.SAME else [])
    with watched(commits.append):
        driver.deliver(of(plan, 1))
    assert commits.count("transaction committed") > 2
    driver.publish(plan, [], tables_of(plan.stretch))
    once.complete()


def test_what_is_discarded_is_shown_no_more(once: Once) -> None:
    driver = once.sink(1)
    plan = once.plan(driver)
    early, late = once.sink(), once.sink()

    def discard() -> None:
        assert driver.discard(plan)

    with watched(at("commit transaction", discard)), pytest.raises(SinkUnavailable):
        early.deliver(of(plan, 1))
    with pytest.raises(PlanDiscarded):
        late.deliver(of(plan, 1))
    assert once.seen() == []
    once.carry_out(driver, once.plan(driver), 1)
    once.complete()


# --- one owner that opens again: with a changed flow, or after a failure -------------------------


def test_what_was_planned_before_it_opened_again(once: Once) -> None:
    """A plan of the earlier opening is carried out once, and so is what follows it."""
    first = once.sink(1)
    old = once.plan(first)
    first.deliver(p for p in of(old, 1) if p.partition == 0)  # a lane of it is committed
    first.close()
    second = once.sink(1)
    once.carry_out(second, old, 1)
    once.complete()
    with pytest.raises(Fenced):
        first.publish(old, [], tables_of(old.stretch))
    for number in (2, 3):  # each opening plans one
        once.carry_out(second, once.plan(second, number), 1)
        second.close()
        second = once.sink(1)
    assert sorted(once.seen()) == sorted(3 * [*SENT, MARK, MARK, MARK])


def test_what_is_planned_anew_after_it_opened_again(once: Once) -> None:
    """It is other content under the number of a plan that lanes know, and all of it is shown."""
    wanted: list[bytes] = []
    sink = once.sink(1)
    discarded = once.plan(sink)
    assert sink.discard(discarded)
    for _ in range(3):
        sink = once.sink(1)
        with pytest.raises(PlanDiscarded):
            once.sink().deliver(of(discarded, 1))
        for _ in range(2):
            discarded = once.plan(sink)
            sink.deliver(of(discarded, 1))
            wanted += SENT
            assert sink.discard(discarded)
        sink.close()
    sink = once.sink(1)
    once.carry_out(sink, once.plan(sink), 1)
    assert sorted(once.seen()) == sorted([*wanted, *SENT, MARK, MARK, MARK])


@pytest.mark.parametrize(
    ("name", "turn"),
    [
        ("transaction committed", 1),  # the claim itself is in the ledger
        ("begin transactions", 2),  # of the first lane
        ("begin transactions", 3),
    ],
)
def test_a_claim_that_failed_on_its_way(once: Once, name: str, turn: int) -> None:
    sink = once.sink()
    with watched(at(name, lost, turn)):
        try:
            sink.open(Owner(FEED, 1), None)
        except SinkUnavailable:
            sink.open(Owner(FEED, 1), None)
    once.carry_out(sink, once.plan(sink), 1)
    once.complete()


# --- two owners ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["begin transactions", "produce", "commit transaction"])
def test_a_task_of_an_owner_that_was_replaced(once: Once, name: str) -> None:
    """Its successor does all of the work while it stands at a moment; then it goes on."""
    plan = once.plan(once.sink(1))
    old = once.sink()

    def take_over() -> None:
        once.carry_out(once.sink(2), plan, 2)

    with watched(at(name, take_over)), pytest.raises((Fenced, SinkUnavailable)):
        old.deliver(of(plan, 1))
    with pytest.raises(Fenced):
        old.deliver(of(plan, 1))
    once.complete()


@pytest.mark.parametrize("name", ["produce", "commit transaction"])
def test_a_driver_that_was_replaced(once: Once, name: str) -> None:
    old = once.sink(1)
    plan = once.plan(old)
    old.deliver(of(plan, 1))

    def take_over() -> None:
        once.carry_out(once.sink(2), plan, 2)

    with watched(at(name, take_over)), pytest.raises(SinkUnavailable):
        old.publish(plan, [], tables_of(plan.stretch))
    with pytest.raises(Fenced):
        old.publish(plan, [], tables_of(plan.stretch))
    with pytest.raises(SinkOwned):
        once.sink(1)
    once.complete()


def test_its_successor_goes_on_where_somebody_replaced_disturbs_it(once: Once) -> None:
    once.sink(1)
    new = once.sink(2)
    plan = once.plan(new)
    new.deliver(of(plan, 2))
    disturb = once.sink()

    def late() -> None:
        with pytest.raises(SinkOwned):
            disturb.open(Owner(FEED, 1), None)

    with watched(at("begin transactions", late)):
        once.carry_out(new, plan, 2)
    once.complete()


# --- kill -9 -------------------------------------------------------------------------------------


def _doomed(uri: str, plan: dict[str, Any], epoch: int, name: str, turn: int) -> None:
    """Carry a plan out in a process that dies at a moment."""
    sink = build(uri)
    found = Plan.from_json(plan)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with watched(at(name, die, turn)):
        sink.open(Owner(FEED, epoch), None)
        sink.deliver(of(found, epoch))
        sink.publish(found, [], tables_of(found.stretch))


@pytest.mark.parametrize(
    ("name", "turn"),
    [
        ("commit transaction", 2),  # of a lane: the owner's claim was the first
        ("transaction committed", 2),  # one lane is shown, the other is not
        ("transaction committed", 3),  # all rows are, and nothing behind them
        ("transaction committed", 4),  # all is shown, and nobody was told
    ],
)
def test_killed_and_taken_over(once: Once, name: str, turn: int) -> None:
    plan = once.plan(once.sink(1))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    child = context.Process(target=_doomed, args=(once.uri(), plan.to_json(), 2, name, turn))
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    once.carry_out(once.sink(3), plan, 3)
    once.complete()


# --- what is refused -----------------------------------------------------------------------------


def test_what_cannot_be(once: Once) -> None:
    once.more = "required-acks=1"
    with pytest.raises(OptionsConflict, match="required-acks"):
        once.sink()
    once.more, own = "", once.ledger
    once.ledger = once.topic
    with pytest.raises(OptionsConflict, match="ledger-topic"):
        once.sink()
    once.ledger = own
    once.more = "transaction-timeout=1h"
    with pytest.raises(SinkUnwritable, match="transaction.max.timeout.ms"):
        once.sink().probe(Owner(FEED, 1))
    once.more = "auto-create-topic=false"
    once.broker.create_topic(once.topic, 3)
    with pytest.raises(TopicRefused, match="with 5 partitions and cleanup.policy=compact"):
        once.sink().probe(Owner(FEED, 1))
    assert once.ledger not in once.broker.topics()  # nothing was made by asking
    once.broker.create_topic(once.ledger, 5, {"cleanup.policy": "delete"})
    for act in (lambda: once.sink().probe(Owner(FEED, 1)), lambda: once.sink(1)):
        with pytest.raises(TopicRefused, match="set it to compact"):
            act()


def test_a_ledger_that_is_not_its_own(once: Once, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = once.sink(3)
    plan = once.plan(sink)
    once.carry_out(sink, plan, 3)
    with pytest.raises(SinkOwned, match=f"is the ledger of changefeed {FEED}"):
        once.sink().probe(Owner("other", 1))
    with monkeypatch.context() as another_process:
        another_process.setattr(announcer, "_OURS", set())
        with pytest.raises(SinkOwned, match="another meta database"):
            once.sink(3)  # of another meta database: no two runs of one have the same number
    assert once.sink(3)
    once.broker.delete_topic(once.ledger)
    with pytest.raises(TargetLost, match=once.ledger):
        once.sink(4, plan.sink_state, continues=True)
    once.complete()


def test_no_right_to_transactions(guarded_broker: Kafka) -> None:
    once = Once(guarded_broker)
    guarded_broker.forbid("WRITE", f"{once.ledger}.driver", kind="TRANSACTIONAL_ID")
    with pytest.raises(RowferryError) as raised:
        once.sink(1)
    assert raised.value.verdict is Verdict.STOP
    assert "rights" in str(raised.value)


def test_more_lanes_than_before(once: Once) -> None:
    sink = once.sink(1)
    plan = once.plan(sink)
    sink.deliver(p for p in of(plan, 1) if p.partition == 0)
    once.more = "transaction-lanes=5"
    assert once.broker.topics()[once.ledger] == 3
    wider = once.sink(2, None)
    once.carry_out(wider, plan, 2)  # as it was recorded
    once.complete()
    assert once.broker.topics()[once.ledger] == 6
