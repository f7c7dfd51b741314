"""Transactions of one range: order, closed timestamps, recovery, snapshots, splits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from range_kit import META, Timer, head_of, log_of, open_range, request, snapshot_of

from rowferry.errors import StoreDamaged
from rowferry.refstore import cdc as cdc_half
from rowferry.refstore.cdc import CdcRefused
from rowferry.refstore.meta import Fault, RequestRefused
from rowferry.refstore.range import RangeOptions
from rowferry.refstore.rows.mutations import OP_DELETE, OP_INSERT, OP_UPDATE
from rowferry.refstore.split import split
from rowferry.wire import range_cdc_pb2 as cdc
from rowferry.wire import store_pb2 as wire


def refused(code: int) -> pytest.RaisesExc[RequestRefused]:
    return pytest.RaisesExc(RequestRefused, check=lambda err: err.code == code)


def test_one_range_transactions_carry_the_value_before(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    first = held.write(request(timer.next(), {b"a": b"1", b"b": b"1"}))
    second = held.write(request(timer.next(), {b"a": b"2", b"b": None}))
    rows, answer = log_of(held)
    assert rows == [
        (b"a", b"1", None, first),
        (b"b", b"1", None, first),
        (b"a", b"2", b"1", second),
        (b"b", b"", b"1", second),
    ]
    assert answer.current_log_index == 2
    assert answer.closed_ts >= second


def test_without_old_value(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer(), RangeOptions(without_old_value=True))
    held.write(request(timer.next(), {b"a": b"1"}))
    held.write(request(timer.next(), {b"a": b"2"}))
    assert [old for _, _, old, _ in log_of(held)[0]] == [None, None]
    assert cdc_half.register(held, "me").without_old_value


def test_commits_out_of_order_are_logged_in_order(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    a, b = timer.next(), timer.next()
    held.prepare(request(a, {b"a": b"1"}))
    held.prepare(request(b, {b"b": b"1"}))
    early, late = timer.next(), timer.next()
    held.commit(b, late)
    assert log_of(held)[0] == []
    assert head_of(held).closed_ts < early
    held.commit(a, early)
    assert [(key, ts) for key, _, _, ts in log_of(held)[0]] == [(b"a", early), (b"b", late)]
    timer.seconds += 1  # the reading is old now, a new one is taken
    assert head_of(held).closed_ts > late


def test_a_held_back_commit_survives_a_restart(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    a, b = timer.next(), timer.next()
    held.prepare(request(a, {b"a": b"1"}))
    held.prepare(request(b, {b"b": b"1"}))
    early, late = timer.next(), timer.next()
    held.commit(b, late)
    held.close()
    again = open_range(tmp_path, timer)
    assert log_of(again)[0] == []
    assert head_of(again).closed_ts < early
    with refused(Fault.CONFLICT):
        again.write(request(timer.next(), {b"b": b"2"}))
    again.commit(a, early)
    assert [key for key, _, _, _ in log_of(again)[0]] == [b"a", b"b"]
    again.close()
    third = open_range(tmp_path, timer)
    assert [key for key, _, _, _ in log_of(third)[0]] == [b"a", b"b"]


def test_a_one_range_write_waits_behind_a_prepared_one(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    a = timer.next()
    held.prepare(request(a, {b"a": b"1"}))
    wrote = held.write(request(timer.next(), {b"b": b"1"}))
    assert log_of(held)[0] == []
    held.close()
    again = open_range(tmp_path, timer)
    again.roll_back(a)
    assert [(key, ts) for key, _, _, ts in log_of(again)[0]] == [(b"b", wrote)]


def test_conflicts(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    early = timer.next()
    held.write(request(timer.next(), {b"a": b"1"}))
    with refused(Fault.CONFLICT):
        held.write(request(early, {b"a": b"2"}))
    held.prepare(request(timer.next(), {b"b": b"1"}))
    with refused(Fault.CONFLICT):
        held.prepare(request(timer.next(), {b"b": b"2", b"c": b"2"}))
    held.prepare(request(timer.next(), {b"c": b"2"}))


@pytest.mark.parametrize(
    ("key", "value", "op", "code"),
    [
        (b"a", b"2", OP_INSERT, Fault.DUPLICATE_KEY),
        (b"x", b"2", OP_UPDATE, Fault.NO_SUCH_ROW),
        (b"x", None, OP_DELETE, Fault.NO_SUCH_ROW),
    ],
)
def test_what_must_be_true_before(
    tmp_path: Path, key: bytes, value: bytes | None, op: int, code: int
) -> None:
    held = open_range(tmp_path, timer := Timer())
    held.write(request(timer.next(), {b"a": b"1"}))
    with refused(code):
        held.write(request(timer.next(), {key: value}, ops=[op]))
    assert head_of(held).current_log_index == 1


def test_keys_outside_or_out_of_order_are_refused(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    with refused(Fault.BAD_REQUEST):
        held.write(request(timer.next(), {b"zz": b"1"}))
    bad = request(timer.next(), {b"b": b"1", b"c": b"1"})
    bad.mutations.keys = b"cb"
    with refused(Fault.BAD_REQUEST):
        held.write(bad)
    bad.mutations.key_ends = b"\xff" * 16
    with refused(Fault.BAD_REQUEST):
        held.write(bad)


def test_a_rolled_back_transaction_cannot_come_back(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    start = timer.next()
    assert held.status(start) == (wire.StatusReply.ROLLED_BACK, 0)
    with refused(Fault.ROLLED_BACK):
        held.prepare(request(start, {b"a": b"1"}))
    held.close()
    with refused(Fault.ROLLED_BACK):
        open_range(tmp_path, timer).prepare(request(start, {b"a": b"1"}))


def test_status_of_pending_expired_and_committed(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    start = timer.next()
    held.prepare(request(start, {b"a": b"1"}))
    assert held.status(start) == (wire.StatusReply.PENDING, 0)
    commit_ts = timer.next()
    held.commit(start, commit_ts)
    held.commit(start, commit_ts)  # a repeat does nothing
    assert held.status(start) == (wire.StatusReply.COMMITTED, commit_ts)
    assert head_of(held).current_log_index == 1
    with refused(Fault.ROLLED_BACK):
        held.commit(start, commit_ts + 1)
    late = timer.next()
    held.prepare(request(late, {b"b": b"1"}))
    timer.seconds += 2.5
    assert held.status(late) == (wire.StatusReply.ROLLED_BACK, 0)
    held.write(request(timer.next(), {b"b": b"2"}))


def test_only_the_deciding_range_gives_up_by_itself(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    own, others = timer.next(), timer.next()
    held.prepare(request(own, {b"a": b"1"}))
    held.prepare(request(others, {b"b": b"1"}, primary=False))
    assert held.abandoned() == []
    timer.seconds += 2.5
    assert [t.start_ts for t in held.abandoned()] == [others]
    assert held.status(own) == (wire.StatusReply.ROLLED_BACK, 0)
    with refused(Fault.CONFLICT):
        held.write(request(timer.next(), {b"b": b"2"}))


def test_compaction_keeps_state_outcomes_and_open_transactions(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    decided, still = timer.next(), timer.next()
    held.prepare(request(decided, {b"a": b"1"}))
    commit_ts = timer.next()
    held.commit(decided, commit_ts)
    held.prepare(request(still, {b"b": b"1"}))
    assert held.compact(0) == 2
    held.close()
    again = open_range(tmp_path, timer)
    assert again.status(decided) == (wire.StatusReply.COMMITTED, commit_ts)
    with refused(Fault.CONFLICT):
        again.write(request(timer.next(), {b"b": b"2"}))
    with pytest.raises(CdcRefused) as err:
        log_of(again)
    assert err.value.error.code == cdc.CDCError.LOG_COMPACTED
    assert err.value.error.first_log_index == 2
    again.commit(still, timer.next())
    assert [key for key, _, _, _ in log_of(again, 1)[0]] == [b"b"]
    version = cdc_half.register(again, "me").init_snapshot_version
    assert [row[:2] for row in snapshot_of(again, version)] == [(b"a", b"1"), (b"b", b"1")]


def test_compacting_part_of_the_log(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    for n in range(4):
        held.write(request(timer.next(), {b"a": b"%d" % n}))
    assert held.compact(2) == 3
    assert [v for _, v, _, _ in log_of(held, 2)[0]] == [b"2", b"3"]
    with refused(Fault.BAD_REQUEST):
        held.compact(9)


def test_a_snapshot_stays_while_rows_change(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer(), RangeOptions(part_bytes=2000))
    rows = {b"k%04d" % n: b"v" * 20 for n in range(500)}
    wrote = held.write(request(timer.next(), dict(rows)))
    held.write(request(timer.next(), {b"k0003": None}))
    made = cdc_half.register(held, "me")
    held.write(request(timer.next(), {b"k0001": b"new", b"k9": b"new"}))
    del rows[b"k0003"]
    expected = [(k, v, wrote) for k, v in sorted(rows.items())]
    assert snapshot_of(held, made.init_snapshot_version, max_bytes=700) == expected
    bounds = ["", *made.split_keys, ""]
    assert len(bounds) > 4
    parts = []
    for low, high in zip(bounds, bounds[1:], strict=False):
        # A part is [low, high): the key just below `low` is given as the last one seen.
        before = (
            (bytes.fromhex(low)[:-1] + bytes([bytes.fromhex(low)[-1] - 1])).hex() if low else ""
        )
        part = snapshot_of(held, made.init_snapshot_version, end_key=high)
        parts += [r for r in part if not before or r[0] >= bytes.fromhex(low)]
    assert parts == expected
    rows_after, _ = log_of(held, made.init_snapshot_version)
    assert all(ts > made.snapshot_ts for _, _, _, ts in rows_after)


def test_a_snapshot_holds_nothing_above_its_ts(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    read_before = held.clock.reading()
    wrote = held.write(request(timer.next(), {b"a": b"1"}))
    # The write came between the reading and the lock.
    held.clock.reading = lambda max_age_ms=50: read_before  # type: ignore[method-assign]
    made = cdc_half.register(held, "me")
    assert snapshot_of(held, made.init_snapshot_version) == [(b"a", b"1", wrote)]
    assert made.snapshot_ts >= wrote
    assert held.write(request(timer.next(), {b"a": b"2"})) > made.snapshot_ts


def test_no_snapshot_is_made_by_a_leader_that_has_let_go(tmp_path: Path) -> None:
    """Its timestamp may be one from after the next leader's first commits."""
    timer = Timer()
    held = open_range(tmp_path, timer)
    held.write(request(1, {b"c": b"1"}))
    reading = held.clock.reading

    def late() -> int:
        held.close()
        return reading()

    held.clock.reading = late  # type: ignore[method-assign]
    with pytest.raises(RequestRefused) as err:
        cdc_half.register(held, "me")
    assert err.value.code == Fault.NOT_LEADER


def test_a_snapshot_ends_with_its_leader(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    held.write(request(timer.next(), {b"a": b"1"}))
    version = cdc_half.register(held, "me").init_snapshot_version
    held.close()
    again = open_range(tmp_path, timer)
    with pytest.raises(CdcRefused) as err:
        snapshot_of(again, version)
    assert err.value.error.code == cdc.CDCError.SNAPSHOT_GONE


def test_a_cut_answer_closes_no_more_than_it_holds(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    stamps = [held.write(request(timer.next(), {b"a": b"%d" % n})) for n in range(3)]
    rows, answer = log_of(held, max_bytes=1)
    assert [ts for _, _, _, ts in rows] == stamps[:1]
    assert stamps[0] <= answer.closed_ts < stamps[1]
    rows, answer = log_of(held, until_index=2)
    assert [ts for _, _, _, ts in rows] == stamps[:2]
    assert answer.closed_ts < stamps[2]


def test_head_figures(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    stamps = [held.write(request(timer.next(), {b"a": b"%d" % n, b"b": b"1"})) for n in range(4)]
    head = head_of(held, 1, at_ts=stamps[2], mark_bytes=1)
    assert (head.current_log_index, head.index_at_ts, head.log_entries) == (4, 3, 4)
    assert head.last_commit_ts == stamps[3]
    assert [m.index for m in head.marks] == [2, 3]
    assert head.marks[-1].bytes == head.log_bytes
    assert head_of(held, 4).log_bytes == 0


def test_only_one_process_leads(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    with pytest.raises(BlockingIOError):
        open_range(tmp_path, timer)
    held.close()
    open_range(tmp_path, timer).close()
    with refused(Fault.NOT_LEADER):
        held.write(request(timer.next(), {b"a": b"1"}))


def test_another_epoch_is_refused(tmp_path: Path) -> None:
    held = open_range(tmp_path, Timer())
    held.check(1, 1)
    with refused(Fault.STALE_EPOCH):
        held.check(2, 1)
    with refused(Fault.STALE_EPOCH):
        held.check(1, 2)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    held.write(request(timer.next(), {b"a": b"1"}))
    held.compact(0)
    held.close()
    path = tmp_path / "checkpoint"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(StoreDamaged, match="checkpoint"):
        open_range(tmp_path, timer)


def test_a_split_keeps_logs_indexes_and_snapshots(tmp_path: Path) -> None:
    held = open_range(tmp_path / "7-1", timer := Timer())
    stamps = [
        held.write(request(timer.next(), {b"b": b"%d" % n, b"m": b"%d" % n})) for n in range(3)
    ]
    version = cdc_half.register(held, "me").init_snapshot_version
    held.write(request(timer.next(), {b"b": b"9", b"m": b"9"}))
    left, right = split(held, b"h", 8, heartbeat=1)
    assert (left.meta.range_id, left.meta.end, left.meta.version) == (7, b"h", 2)
    assert (right.meta.range_id, right.meta.start, right.meta.version) == (8, b"h", 2)
    assert (right.meta.parent_range_id, right.meta.split_index) == (7, 4)
    for half, key in ((left, b"b"), (right, b"m")):
        rows, answer = log_of(half)
        assert [(k, v) for k, v, _, _ in rows] == [(key, b"%d" % n) for n in (0, 1, 2, 9)]
        assert [ts for _, _, _, ts in rows[:3]] == stamps
        assert answer.current_log_index == 4
        assert snapshot_of(half, version) == [(key, b"2", stamps[2])]
        half.write(request(timer.next(), {key: b"10"}))
        assert log_of(half, 4)[0][0][2] == b"9"
    with refused(Fault.BUSY):
        held.write(request(timer.next(), {b"c": b"1"}))


def test_a_split_at_the_middle(tmp_path: Path) -> None:
    held = open_range(tmp_path / "7-1", timer := Timer())
    held.write(request(timer.next(), {b"k%02d" % n: b"v" for n in range(10)}))
    _, right = split(held, b"", 8, heartbeat=1)
    assert right.meta.start == b"k05"


def test_freezing_ends_only_by_a_later_heartbeat(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    held.drain(heartbeat=5)
    held.assign(held.meta, 0, frozen=False, heartbeat=5)
    with refused(Fault.BUSY):
        held.write(request(timer.next(), {b"a": b"1"}))
    held.assign(held.meta, 0, frozen=False, heartbeat=6)
    held.write(request(timer.next(), {b"a": b"1"}))


def test_a_frozen_table_is_waited_for_before_its_version_matters(tmp_path: Path) -> None:
    meta = replace(META, physical_id=9)
    held = open_range(tmp_path, timer := Timer(), meta=meta)
    held.assign(meta, schema_version=0, frozen=True, heartbeat=1)
    asked = request(timer.next(), {b"a": b"1"})
    asked.schema_version = 4
    with refused(Fault.BUSY):
        held.write(asked)
    held.assign(meta, schema_version=5, frozen=False, heartbeat=2)
    with refused(Fault.SCHEMA_CHANGED):
        held.write(asked)
    held.assign(meta, schema_version=4, frozen=False, heartbeat=3)
    held.write(asked)


def test_reads_see_the_state_at_their_time(tmp_path: Path) -> None:
    held = open_range(tmp_path, timer := Timer())
    held.write(request(timer.next(), {b"a": b"1"}))
    before = timer.next()
    assert held.get([b"a", b"x"], before) == [b"1", None]
    held.write(request(timer.next(), {b"a": b"2"}))
    with refused(Fault.CONFLICT):
        held.get([b"a"], before)
