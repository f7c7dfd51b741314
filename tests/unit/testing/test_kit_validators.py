"""Each validator passes a sound feed and fails a broken one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kit_scenario import (
    ACCOUNT,
    FULL,
    Ddl,
    Mark,
    account,
    add_column,
    bank,
    broken_promises,
    chunk,
    delete,
    good_feed,
    insert,
    row,
    run,
    truncate,
    update,
    with_row,
)

from rowferry.change.chunk import Op
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.errors import BadInput
from rowferry.testing.feed import Delivered, FeedFacts, WatchedFeed, Where
from rowferry.testing.model import History
from rowferry.testing.validators import (
    AllPromises,
    BeforeImagesTrue,
    DeliveryOracle,
    NothingLostOrInvented,
    PerKeyOrder,
    RebuildMatches,
    RightVersions,
    SnapshotMeetsLog,
    SnapshotWindow,
    WatermarkHolds,
)

# Places in good_feed(bank, 25, 45, 70):
#   0 i1@10  1 i2@10  2 u1@20  3 u2@20  4 W25  5 i3@30  6 u3@40  7 W45  8 d3@50  9 u1@60
#   10 u1@70  11 W70


def feed(*marks: int) -> tuple[DeliveryOracle, list]:
    oracle = DeliveryOracle(bank(), FULL)
    return oracle, good_feed(oracle, *(marks or (25, 45, 70)))


def failures_of(kind, events, oracle, *args, **options) -> list[str]:
    first = oracle.facts if kind in (PerKeyOrder, WatermarkHolds) else oracle
    more = (oracle,) if kind in (PerKeyOrder, WatermarkHolds) else ()
    return run(events, oracle.facts, kind(first, *more, *args), **options)


def test_a_sound_feed_breaks_nothing():
    oracle, events = feed()
    whole = AllPromises.of(oracle)
    assert run(events, FULL, whole) == []
    assert whole.unchecked == ["P6: DDLs: the feed carries none"]


def test_honest_repeats_break_nothing():
    oracle, events = feed()
    assert broken_promises(events[:8] + events[4:], oracle) == {"P3"}  # W45, then W25
    again = events[:7] + events[5:7] + events[7:]  # replay since the last watermark
    assert broken_promises(again, oracle) == set()
    whole = events[:11] + [e for e in events[:11] if isinstance(e, Delivered)] + events[11:]
    assert broken_promises(whole, oracle) == set()


# --- P1 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [0, 3, 6, 8, 9, 10])
def test_p1_finds_a_lost_row(lost: int):
    oracle, events = feed()
    [words] = failures_of(NothingLostOrInvented, events[:lost] + events[lost + 1 :], oracle)
    assert words.startswith("P1: lost: bank.account")
    assert f"at {events[lost].commit_ts}" in words


def test_p1_asks_only_up_to_the_watermark():
    oracle, events = feed(25)
    assert failures_of(NothingLostOrInvented, events[:5], oracle) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"commit_ts": 41},
        {"key": (9,)},
        {"after": row(3, "cyx", 0)},
        {"op": Op.INSERT},
    ],
)
def test_p1_finds_an_invented_row(changes):
    oracle, events = feed()
    found = failures_of(NothingLostOrInvented, with_row(events, 6, **changes), oracle)
    assert any(f.startswith("P1: invented: topic/0@5") for f in found)


def test_p1_refuses_repeats_when_told_to():
    oracle, events = feed()
    again = [*events[:7], *events[5:7], *events[7:]]
    found = run(again, FULL, NothingLostOrInvented(oracle, allow_repeats=False))
    assert [f.split(" (")[0] for f in found] == ["P1: repeated: topic/0@4: bank.account"] + [
        "P1: repeated: topic/0@5: bank.account"
    ]


def test_p1_without_commit_ts_matches_contents_and_says_so():
    facts = FeedFacts(carries_before=False, carries_commit_ts=False)
    oracle = DeliveryOracle(bank(), facts)
    events = good_feed(oracle, 70)
    sound = NothingLostOrInvented(oracle)
    assert run(events, facts, sound) == []
    assert "no commit-ts" in " ".join(sound.unchecked) or "carries none" in sound.unchecked[0]
    assert len(run(events[:3] + events[4:], facts, NothingLostOrInvented(oracle))) == 1
    strange = with_row(events, 3, after=row(2, "bob", 51))
    assert len(run(strange, facts, NothingLostOrInvented(oracle))) == 2


# --- P2 ------------------------------------------------------------------------------------------


def test_p2_finds_swapped_changes_of_a_key():
    oracle, events = feed()
    events[9], events[10] = events[10], events[9]
    [words] = failures_of(PerKeyOrder, events, oracle)
    assert "first seen after the change at 70" in words
    assert run(events, FULL, PerKeyOrder(FULL)) == [words]  # needs no history


def test_p2_lets_different_keys_change_places():
    oracle, events = feed()
    events[8], events[9] = events[9], events[8]
    assert failures_of(PerKeyOrder, events, oracle) == []


@pytest.mark.parametrize("place", [9, 10])
def test_p2_finds_a_repeat_with_another_content(place: int):
    oracle, events = feed()
    changed = events[place]._replace(after=row(1, "ann", 51))
    [words] = failures_of(PerKeyOrder, [*events[:11], changed, events[11]], oracle)
    assert "another content" in words


def test_p2_finds_a_repeat_with_other_bytes():
    oracle, events = feed()
    changed = events[9]._replace(digest=2)
    [words] = failures_of(PerKeyOrder, [*events[:11], changed], oracle)
    assert "other bytes" in words


def test_p2_checks_the_order_inside_a_transaction():
    history = History()
    history.note_table(account())
    one, two, three = row(1, "a", 1), row(1, "a", 2), row(1, "a", 3)
    history.note_commit(10, [insert(one), update(one, two), update(two, three)])
    oracle = DeliveryOracle(history, FULL)
    events = good_feed(oracle, 10)
    assert failures_of(PerKeyOrder, events, oracle) == []
    assert failures_of(PerKeyOrder, events[:2] + events, oracle) == []
    events[1], events[2] = events[2], events[1]
    [words] = failures_of(PerKeyOrder, events[:2], oracle)
    assert "inside its transaction" in words
    assert "order inside" in PerKeyOrder(FULL).unchecked[0]


def test_p2_lets_equal_changes_of_one_transaction_pass():
    history = History()
    history.note_table(account())
    one, two = row(1, "a", 1), row(1, "a", 2)
    history.note_commit(10, [insert(one)])
    history.note_commit(20, [update(one, one), update(one, one), update(one, two)])
    oracle = DeliveryOracle(history, FULL)
    events = good_feed(oracle, 20)
    assert failures_of(PerKeyOrder, events, oracle) == []
    back = [*events[:1], events[3], *events[1:3]]
    assert "inside its transaction" in failures_of(PerKeyOrder, back, oracle)[0]


def test_p2_finds_a_key_on_two_partitions():
    facts = replace(FULL, key_affinity=True)
    oracle = DeliveryOracle(bank(), facts)
    events = good_feed(oracle, 70)
    assert failures_of(PerKeyOrder, events, oracle) == []
    [words] = failures_of(PerKeyOrder, with_row(events, 3, where=Where("topic/1", 0)), oracle)
    assert "was on topic/0" in words


def test_p2_says_what_it_cannot_check():
    facts = FeedFacts(carries_before=False, carries_commit_ts=False)
    assert len(PerKeyOrder(facts).unchecked) == 2


# --- P3 ------------------------------------------------------------------------------------------


def test_p3_finds_a_watermark_that_goes_back():
    oracle, events = feed()
    assert failures_of(WatermarkHolds, events, oracle) == []
    [words] = failures_of(WatermarkHolds, [*events, Mark(69)], oracle)
    assert words == "P3: @0: watermark 69 after 70"


def test_p3_finds_a_row_behind_the_watermark():
    oracle, events = feed()
    [words] = failures_of(WatermarkHolds, [*events[:3], events[4], events[3]], oracle)
    assert "first seen after watermark 25" in words


def test_p3_lets_repeats_pass_and_finds_changed_ones():
    oracle, events = feed()
    assert failures_of(WatermarkHolds, [*events[:5], events[3]], oracle) == []
    changed = events[3]._replace(after=row(2, "bob", 51))
    assert len(failures_of(WatermarkHolds, [*events[:5], changed], oracle)) == 1


def test_p3_takes_each_partition_by_itself():
    oracle, events = feed()
    lanes = [Mark(25, "topic/1"), events[0], Mark(25, "topic/0"), Mark(20, "topic/1")]
    [words] = failures_of(WatermarkHolds, lanes, oracle, containers=["topic/0", "topic/1"])
    assert words.startswith("P3: topic/1")


# --- P4 ------------------------------------------------------------------------------------------


def test_p4_finds_a_difference_at_a_watermark_even_if_it_heals():
    oracle, events = feed(60, 70)
    lost = [e for e in events if not (isinstance(e, Delivered) and e.commit_ts == 60)]
    [words] = failures_of(RebuildMatches, lost, oracle)
    assert "different: bank.account (1,) at watermark 60" in words


def test_p4_asks_an_invariant_at_every_watermark():
    def total(tables) -> str | None:
        found = sum(r["balance"] for r in tables.get(ACCOUNT, {}).values())
        return None if found in (0, 100) else f"total is {found}, not 100"

    oracle, events = feed(10, 20)
    assert run(events, FULL, RebuildMatches(oracle, total)) == []
    half = [e for e in events if not (isinstance(e, Delivered) and e[3:5] == (20, (2,)))]
    found = run(half, FULL, RebuildMatches(oracle, total))
    assert "P4: at watermark 20: total is 90, not 100" in found


def test_p4_applies_schema_changes_of_the_feed():
    history = bank()
    ddl = truncate(65)
    history.note_schema_change(ddl)
    facts = replace(FULL, schema_changes_go_to="partition-0")
    oracle = DeliveryOracle(history, facts)
    events = good_feed(oracle, 70)
    sound = [*events[:8], Ddl(ddl), *events[8:]]
    assert failures_of(RebuildMatches, sound, oracle) == []
    [words] = failures_of(RebuildMatches, events, oracle)
    assert "resurrected: bank.account (2,)" in words


def test_p4_follows_new_columns_without_ddl_in_the_feed():
    history = bank()
    history.note_schema_change(add_column(75))
    oracle = DeliveryOracle(history, FULL)
    assert failures_of(RebuildMatches, good_feed(oracle, 70, 80), oracle) == []


def test_p4_finds_a_transaction_in_two_files():
    oracle, events = feed()
    assert run(events, FULL, RebuildMatches(oracle, one_container=True)) == []
    split = with_row(events, 3, where=Where("other", 1))
    [words] = run(split, FULL, RebuildMatches(oracle, one_container=True))
    assert "began in topic/0" in words


def test_p4_without_commit_ts_compares_at_the_end_and_says_so():
    facts = FeedFacts(carries_before=False, carries_commit_ts=False)
    oracle = DeliveryOracle(bank(), facts)
    events = good_feed(oracle, 25, 70)
    sound = RebuildMatches(oracle)
    assert run(events, facts, sound) == []
    assert "compared at the end" in sound.unchecked[0]
    assert len(run(events[:-2], facts, RebuildMatches(oracle))) == 1
    history = bank()
    history.note_schema_change(truncate(65))
    with pytest.raises(BadInput, match="without DDLs"):
        RebuildMatches(DeliveryOracle(history, facts))


def test_p4_starts_from_the_rows_at_the_start():
    oracle = DeliveryOracle(bank(), FULL, start_ts=45)
    assert len(oracle.expected) == 3
    assert broken_promises(good_feed(oracle, 70), oracle) == set()


def test_p4_says_that_a_table_has_no_key():
    keyless = TableSchema(ACCOUNT, 7, 1, account().columns)
    history = History()
    history.note_table(keyless)
    history.note_commit(10, [insert(row(1, "a", 1))])
    oracle = DeliveryOracle(history, FULL)
    validator = RebuildMatches(oracle)
    run(good_feed(oracle, 10), FULL, validator)
    assert validator.unchecked == ["P4: bank.account: it has no key"]


# --- P5 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "before"),
    [(2, row(1, "ann", 61)), (8, row(3, "cy", 0)), (6, None), (0, row(1, "x", 0))],
)
def test_p5_finds_a_wrong_before_image(place, before):
    oracle, events = feed()
    assert failures_of(BeforeImagesTrue, events, oracle) == []
    [words] = failures_of(BeforeImagesTrue, with_row(events, place, before=before), oracle)
    assert "before is" in words


def test_p5_takes_partial_images_only_where_allowed():
    _, events = feed()
    partial = with_row(events, 8, before={"id": 3})
    assert len(failures_of(BeforeImagesTrue, partial, DeliveryOracle(bank(), FULL))) == 1
    facts = replace(FULL, partial_images=True)
    assert failures_of(BeforeImagesTrue, partial, DeliveryOracle(bank(), facts)) == []
    wrong = with_row(events, 8, before={"id": 3, "owner": "x"})
    assert len(failures_of(BeforeImagesTrue, wrong, DeliveryOracle(bank(), facts))) == 1


def test_p5_knows_before_images_that_the_writer_did_not():
    history = History()
    history.note_table(account())
    history.note_commit(10, [insert(row(1, "a", 1))])
    history.note_commit(20, [update(row(1, "a", 1), row(1, "a", 2))._replace(before=None)])
    oracle = DeliveryOracle(history, FULL)
    assert oracle.expected[1].before == row(1, "a", 1)


def test_p5_says_what_it_cannot_check():
    facts = FeedFacts(carries_before=False, carries_commit_ts=True)
    oracle = DeliveryOracle(bank(), facts)
    validator = BeforeImagesTrue(oracle)
    blind = [
        e._replace(before=None) if isinstance(e, Delivered) and e.op is Op.UPDATE else e
        for e in good_feed(oracle, 70)
    ]
    assert run(blind, facts, validator) == []
    assert "no before-images" in validator.unchecked[0]


# --- P6 ------------------------------------------------------------------------------------------


def evolving(goes_to: str) -> tuple[DeliveryOracle, list]:
    history = History()
    history.note_table(account(5))
    history.note_commit(10, [insert(row(1, "a", 1))])
    history.note_schema_change(add_column(20))
    history.note_commit(30, [insert(row(2, "b", 1, note="n"))])
    oracle = DeliveryOracle(history, replace(FULL, schema_changes_go_to=goes_to))
    events = good_feed(oracle, 30)
    return oracle, [events[0], Ddl(add_column(20)), *events[1:]]


def test_p6_passes_right_versions_and_a_later_first_one():
    oracle, events = evolving("partition-0")
    parts = ("topic/0",)
    assert failures_of(RightVersions, events, oracle, parts) == []
    assert failures_of(RightVersions, with_row(events, 0, version=7), oracle, parts) == []


@pytest.mark.parametrize(("place", "version"), [(0, 20), (2, 5), (0, 11), (0, 4)])
def test_p6_finds_a_wrong_version(place: int, version: int):
    oracle, events = evolving("partition-0")
    wrong = with_row(events, place, version=version)
    [words] = failures_of(RightVersions, wrong, oracle, ("topic/0",))
    assert f"version {version}" in words


def test_p6_finds_a_lost_an_invented_and_a_misplaced_ddl():
    oracle, events = evolving("partition-0")
    parts = ("topic/0", "topic/1")
    [words] = failures_of(RightVersions, [events[0], *events[2:]], oracle, parts)
    assert "lost: DDL" in words
    strange = Ddl(replace(add_column(20), query="DROP TABLE x"))
    assert "made no DDL" in failures_of(RightVersions, [strange, *events], oracle, parts)[0]
    elsewhere = [events[0], Ddl(add_column(20), "topic/1"), *events[2:]]
    assert "belongs on" in failures_of(RightVersions, elsewhere, oracle, parts)[0]


def test_p6_finds_a_ddl_on_the_wrong_side_of_rows():
    oracle, events = evolving("partition-0")
    late = [events[0], events[2], events[1], events[3]]
    assert "comes after topic/0@1" in failures_of(RightVersions, late, oracle, ("topic/0",))[0]
    early = [events[1], events[0], *events[2:]]
    assert "new after the DDL" in failures_of(RightVersions, early, oracle, ("topic/0",))[0]


def test_p6_wants_a_ddl_on_all_partitions():
    oracle, events = evolving("all-partitions")
    parts = ("topic/0", "topic/1")
    [words] = failures_of(RightVersions, events, oracle, parts)
    assert "did not come on topic/1" in words
    both = [*events[:2], Ddl(add_column(20), "topic/1"), *events[2:]]
    assert failures_of(RightVersions, both, oracle, parts) == []


def test_p6_lets_snapshot_rows_have_a_version_of_their_window():
    history = evolving("nowhere")[0].history
    oracle = DeliveryOracle(history, FULL, [SnapshotWindow(ACCOUNT, 15, 25)])
    after = row(1, "a", 1, note="x")
    shot = Delivered(ACCOUNT, 20, Op.INSERT, 15, (1,), None, after, Where("f", 1))
    for version, sound in ((5, True), (20, True), (25, True), (26, False), (4, False)):
        found = failures_of(RightVersions, [shot._replace(version=version)], oracle)
        assert (found == []) is sound, version


# --- P7 and snapshots ----------------------------------------------------------------------------

WINDOW = SnapshotWindow(ACCOUNT, 25, 45)


def snapshot_feed() -> tuple[DeliveryOracle, list]:
    """A snapshot at 25 that read key 3 at 40, then the log from 25 on."""
    oracle = DeliveryOracle(bank(), FULL, [WINDOW])
    shots = [
        Delivered(ACCOUNT, 1, Op.INSERT, 25, (r["id"],), None, r, Where("topic/0", 90), 1)
        for r in (row(1, "ann", 50), row(2, "bob", 50), row(3, "cyd", 0))
    ]
    log = good_feed(oracle, 45, 70)
    return oracle, [Mark(25), *shots, *log]


# 0 W25  1 s1  2 s2  3 s3  4 i3@30  5 u3@40  6 W45  7 d3@50  8 u1@60  9 u1@70  10 W70


def test_a_sound_snapshot_breaks_nothing():
    oracle, events = snapshot_feed()
    assert [e.commit_ts for e in events] == [25, 25, 25, 25, 30, 40, 45, 50, 60, 70, 70]
    assert broken_promises(events, oracle) == set()


def test_a_snapshot_may_begin_again_with_newer_images():
    oracle, events = snapshot_feed()
    first = events[3]._replace(after=row(3, "cy", 0))
    assert broken_promises([*events[:2], first, *events[1:]], oracle) == set()


def test_older_images_of_the_window_may_be_left_out():
    oracle, events = snapshot_feed()
    assert broken_promises([*events[:4], *events[6:]], oracle) == set()


def test_p7_finds_a_missing_snapshot_row():
    oracle, events = snapshot_feed()
    [words] = failures_of(SnapshotMeetsLog, [*events[:2], *events[3:]], oracle)
    assert words.startswith("P7: missing: bank.account (2,) at watermark 45")


def test_p7_finds_a_resurrected_row():
    history = bank()
    history.note_commit(15, [insert(row(8, "eve", 0))])
    history.note_commit(35, [delete(row(8, "eve", 0))])
    oracle = DeliveryOracle(history, FULL, [WINDOW])
    _, sound = snapshot_feed()
    shot = sound[1]._replace(key=(8,), after=row(8, "eve", 0))
    log = good_feed(oracle, 45, 70)
    assert broken_promises([*sound[:4], shot, *log], oracle) == set()
    lost = [e for e in log if not (isinstance(e, Delivered) and e.commit_ts == 35)]
    [words] = failures_of(SnapshotMeetsLog, [*sound[:4], shot, *lost], oracle)
    assert "resurrected: bank.account (8,)" in words
    assert "P4" in broken_promises([*sound[:4], shot, *lost], oracle)


def test_p7_finds_rows_that_no_snapshot_can_hold():
    oracle, events = snapshot_feed()
    old = with_row(events, 1, after=row(1, "ann", 60))
    assert "never held" in failures_of(SnapshotMeetsLog, old, oracle)[0]
    as_update = with_row(events, 1, op=Op.UPDATE)
    assert "must be an insert" in failures_of(SnapshotMeetsLog, as_update, oracle)[0]
    before = with_row(events, 1, commit_ts=20)
    assert "older than the snapshot" in failures_of(SnapshotMeetsLog, before, oracle)[0]


def test_the_window_is_closed_by_the_watermark():
    oracle, events = snapshot_feed()
    late = events[3]._replace(after=row(3, "cy", 0))
    assert broken_promises([*events[:7], late, *events[7:]], oracle) >= {"P2", "P3"}
    assert "P5" in broken_promises(with_row(events, 8, before=None), oracle)
    assert "P5" not in broken_promises(with_row(events, 5, before=None), oracle)


def test_log_rows_do_not_settle_before_the_snapshot_does():
    oracle, events = snapshot_feed()
    late = [*events[1:3], events[4], Mark(35), events[3], *events[6:]]
    for kind in (SnapshotMeetsLog, RebuildMatches):
        [words] = failures_of(kind, late, oracle)
        assert "different: bank.account (3,) at watermark 45" in words


def test_p7_says_that_a_snapshot_never_ended():
    oracle, events = snapshot_feed()
    validator = SnapshotMeetsLog(oracle)
    run(events[:4], FULL, validator)
    assert "no watermark reached 45" in validator.unchecked[0]


# --- forms of updates, chunks --------------------------------------------------------------------


def key_mover() -> History:
    history = History()
    history.note_table(account())
    history.note_commit(10, [insert(row(1, "a", 1))])
    history.note_commit(20, [update(row(1, "a", 1), row(2, "a", 1))])
    return history


def test_updates_of_keys_are_expected_as_the_feed_writes_them():
    split = DeliveryOracle(key_mover(), FULL).expected
    assert [(e.op, e.key) for e in split[1:]] == [(Op.DELETE, (1,)), (Op.INSERT, (2,))]
    whole = DeliveryOracle(key_mover(), replace(FULL, updates="whole")).expected
    assert [(e.op, e.key) for e in whole[1:]] == [(Op.UPDATE, (2,))]
    every = DeliveryOracle(bank(), replace(FULL, updates="split-all")).expected
    assert {e.op for e in every} == {Op.INSERT, Op.DELETE}


def test_whole_updates_of_keys_leave_no_old_row():
    facts = replace(FULL, updates="whole")
    oracle = DeliveryOracle(key_mover(), facts)
    rows = chunk(account(), key_mover().changes(ACCOUNT))
    whole = AllPromises.of(oracle)
    taken = WatchedFeed(facts, [whole])
    taken.note_rows(rows, Where("f", 1))
    taken.note_watermark(20)
    assert taken.finish() == []


def test_chunks_say_the_same_as_single_rows():
    oracle, _ = feed()
    changes = bank().changes(ACCOUNT)
    for raw in (None, [b"%d" % i for i in range(len(changes))]):
        whole = AllPromises.of(oracle)
        taken = WatchedFeed(FULL, [whole])
        taken.note_rows(chunk(account(), changes[:5]), Where("f", 1), raw and raw[:5])
        taken.note_rows(chunk(account(), changes[3:]), Where("f", 4), raw and raw[3:])
        taken.note_watermark(70)
        assert taken.finish() == []
    taken = WatchedFeed(FULL, [PerKeyOrder(FULL, oracle)])
    taken.note_rows(chunk(account(), changes), Where("f", 1), raw)
    taken.note_rows(chunk(account(), changes[:1]), Where("f", 1), [b"other"])
    assert "other bytes" in taken.finish()[0]


def test_a_watermark_counts_when_every_partition_has_it():
    oracle, events = feed()
    validator = NothingLostOrInvented(oracle)
    taken = WatchedFeed(FULL, [validator], containers=["a", "b"])
    taken.note_watermark(70, Where("a"))
    assert validator.failures == []
    taken.note_watermark(15, Where("b"))
    assert len(validator.failures) == 2
    with pytest.raises(BadInput, match="not one of"):
        taken.note_watermark(80, Where("c"))


def test_key_columns_can_be_named():
    table = TableSchema(ACCOUNT, 7, 1, account().columns)
    changes = bank().changes(ACCOUNT)
    validator = NothingLostOrInvented(DeliveryOracle(bank(), FULL))
    taken = WatchedFeed(FULL, [validator], keys={ACCOUNT: ("id",)})
    taken.note_rows(chunk(table, changes), Where("f", 1))
    taken.note_watermark(70)
    assert taken.finish() == []


def test_tables_that_are_not_captured_do_not_count():
    oracle = DeliveryOracle(bank(), FULL, keeps=lambda table: table != ACCOUNT)
    assert broken_promises([Mark(70)], oracle) == set()


def test_only_the_first_failures_are_kept_in_words():
    oracle, events = feed()
    validator = NothingLostOrInvented(oracle)
    strange = events[0]._replace(commit_ts=11)
    run([strange] * 150, FULL, validator)
    assert (len(validator.failures), validator.failed) == (100, 150)


def test_a_unique_key_of_another_column_splits_updates_too():
    schema = replace(
        account(),
        indexes=(
            *account().indexes,
            replace(account().indexes[0], id=2, primary=False, columns=("owner",)),
        ),
    )
    history = History()
    history.note_table(schema)
    history.note_commit(10, [insert(row(1, "a", 1))])
    history.note_commit(20, [update(row(1, "a", 1), row(1, "b", 1))])
    oracle = DeliveryOracle(history, FULL)
    assert [e.op for e in oracle.expected] == [Op.INSERT, Op.DELETE, Op.INSERT]
    assert broken_promises(good_feed(oracle, 20), oracle) == set()


def test_new_columns_show_in_before_images():
    history = History()
    history.note_table(account())
    history.note_commit(10, [insert(row(1, "a", 1))])
    history.note_schema_change(add_column(20))
    after = row(1, "a", 2, note="x")
    history.note_commit(30, [update(row(1, "a", 1), after)._replace(before=None)])
    oracle = DeliveryOracle(history, FULL)
    assert oracle.expected[1].before == row(1, "a", 1, note="x")
    assert (
        Column(4, "note", SqlType("varchar", length=9), default="x")
        in oracle.versions.at(ACCOUNT, 30).columns
    )
