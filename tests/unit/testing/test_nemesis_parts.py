"""The parts of the nemesis that can be wrong on their own: choices, notes, sights, report."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kit_scenario import ACCOUNT, FULL, account, add_column, chunk, insert, row

from rowferry.change.chunk import Op, SchemaChange
from rowferry.change.position import RangeProgress, Stage
from rowferry.change.table import TableId
from rowferry.errors import (
    BadInput,
    RowferryError,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    TransactionAborted,
)
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.sink.storage.index_file import metadata_content
from rowferry.flow.sink.storage.schema_file import of_change, of_table
from rowferry.refstore.rows.mutations import OP_DELETE, OP_INSERT, OP_UPDATE
from rowferry.refstore.workload import START_BALANCE, Bank
from rowferry.spec.build import build_spec
from rowferry.testing.feed import DeliveredRows, WatchedFeed, Where
from rowferry.testing.nemesis_events import EVENTS, Report, check_weights, draw
from rowferry.testing.nemesis_judge import lost_a_snapshot, total_stays, windows_of
from rowferry.testing.nemesis_notes import Notebook, Write, settle
from rowferry.testing.nemesis_source import MadeTables, random_value
from rowferry.testing.nemesis_watch import Sight, Watch, deliver_sights
from rowferry.testing.validators import SnapshotWindow

# --- choices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ({"transfer": 1, "earthquake": 1}, "earthquake"),
        ({"transfer": 1, "split": -1}, "'split' is negative"),
        ({"split": 5}, "nothing writes"),
        ({"transfer": 0, "mixed": 0}, "nothing writes"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(events: dict[str, int], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        check_weights(events)


def test_usual_weights_pass() -> None:
    check_weights(EVENTS)


def drawn(weights: dict[str, int], done: Counter[str], times: int = 2000) -> Counter[str | None]:
    dice = random.Random(5)
    return Counter(draw(weights, lambda kind: kind != "never", done, dice) for _ in range(times))


def test_events_come_by_weight() -> None:
    found = drawn({"a": 1, "b": 3, "c": 0, "never": 100}, Counter(a=1, b=1, c=1))
    assert set(found) == {"a", "b"}
    assert 2.4 < found["b"] / found["a"] < 3.7


def test_what_has_not_happened_yet_comes_soon() -> None:
    found = drawn({"rare": 1, "often": 10_000}, Counter(often=9))
    assert found["rare"] > 800


def test_nothing_comes_where_nothing_is_ready() -> None:
    assert drawn({"never": 1, "off": 0}, Counter(), 3) == {None: 3}


def test_the_same_number_gives_the_same_events() -> None:
    first, second = (
        [draw(EVENTS, lambda kind: True, Counter(), dice) for _ in range(50)]
        for dice in (random.Random(9), random.Random(9))
    )
    assert first == second


# --- outcomes ------------------------------------------------------------------------------------


class Work:
    """A transaction that ends as told."""

    def __init__(self, end: int | RowferryError, outcome: int = 0) -> None:
        self._end, self._outcome = end, outcome
        self.asked = 0

    def commit(self) -> int:
        if isinstance(self._end, RowferryError):
            raise self._end
        return self._end

    def outcome(self) -> int:
        self.asked += 1
        return self._outcome

    def written(self) -> list[Write]:
        return [(ACCOUNT, OP_INSERT, row(1, "ann", 5))]


def ended(work: Any) -> tuple[int, list[int], int]:
    """Return what `settle` says, the noted commits, and the doubts."""
    notes = Notebook()
    notes.note_table(account())
    found = settle(work, notes, lambda w: w.commit())
    commits = [ts for ts, _ in notes.history().changes(ACCOUNT)]
    return found, commits, notes.resolved_doubts


def test_an_acknowledged_commit_is_noted() -> None:
    work = Work(17)
    assert ended(work) == (17, [17], 0)
    assert not work.asked


@pytest.mark.parametrize("error", [TransactionAborted("busy"), StoreError("exists"), BadInput("x")])
def test_a_refused_commit_is_not_noted(error: RowferryError) -> None:
    work = Work(error, outcome=17)
    assert ended(work) == (0, [], 0)
    assert not work.asked


def test_a_lost_answer_is_asked_for_and_noted_if_it_was_committed() -> None:
    assert ended(Work(StoreUnavailable("no answer"), outcome=23)) == (23, [23], 1)


def test_a_lost_answer_of_a_rolled_back_commit_is_not_noted() -> None:
    assert ended(Work(StoreUnavailable("no answer"), outcome=0)) == (0, [], 1)


def test_a_damaged_store_is_not_taken_for_a_refusal() -> None:
    with pytest.raises(StoreDamaged):
        ended(Work(StoreDamaged("byte 7")))


# --- notes ---------------------------------------------------------------------------------------


def test_images_follow_the_version_in_force_at_the_commit() -> None:
    notes = Notebook()
    notes.note_table(account())
    notes.note_commit(30, [(ACCOUNT, OP_UPDATE, row(1, "ann", 6))])  # before its DDL is noted
    notes.note_commit(10, [(ACCOUNT, OP_INSERT, row(1, "ann", 5))])
    notes.note_schema_changes([add_column(20)])
    notes.note_commit(40, [(ACCOUNT, OP_DELETE, {"id": 1})])
    found = [(ts, c.op, c.key, c.after) for ts, c in notes.history().changes(ACCOUNT)]
    assert found == [
        (10, Op.INSERT, (1,), row(1, "ann", 5)),
        (30, Op.UPDATE, (1,), row(1, "ann", 6, note="x")),
        (40, Op.DELETE, (1,), None),
    ]


def test_a_row_of_no_table_does_not_fit() -> None:
    notes = Notebook()
    notes.note_commit(10, [(ACCOUNT, OP_INSERT, row(1, "ann", 5))])
    with pytest.raises(BadInput, match="had no table"):
        notes.history()


def test_names_of_made_tables_come_back() -> None:
    made = MadeTables()
    first, second = made.free()[:2]
    made.replace(None, first)
    made.replace(first, second)
    assert made.names() == [second]
    assert first in made.free()
    made.replace(second, None)
    assert made.names() == []


def test_random_values_fit_their_columns() -> None:
    dice = random.Random(1)
    for column in account().columns:
        found = [random_value(column, dice, is_key=False) for _ in range(200)]
        assert (None in found) == column.nullable
        length = column.type.length
        assert all(len(v) <= length for v in found if isinstance(v, str) and length)


# --- sights --------------------------------------------------------------------------------------


def test_a_sight_shows_files_up_to_the_index() -> None:
    sight = Sight(5, {"d/t/1/2026-01-01": 2}, frozenset({"d/t/meta/schema_1_0000000007.json"}))
    home = "d/t/1/2026-01-01"
    shown = [n for n in (1, 2, 3) if sight.shows(f"{home}/CDC{n:020d}.json")]
    assert shown == [1, 2]
    assert not sight.shows("d/t/2/2026-01-01/CDC00000000000000000001.json")
    assert sight.shows("d/t/meta/schema_1_0000000007.json")
    assert not sight.shows("d/t/meta/schema_2_0000000007.json")


def test_every_checkpoint_is_seen_once(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "out", pause_s=60)
    watch.look()  # there is no directory yet
    (tmp_path / "out").mkdir()
    for checkpoint_ts in (3, 3, 8):
        (tmp_path / "out" / "metadata").write_bytes(metadata_content(checkpoint_ts))
        watch.look()
    watch.stop()
    assert [s.checkpoint_ts for s in watch.sights] == [3, 8]
    assert watch.checkpoint_ts == 8
    assert watch.failures == []


def test_a_watch_that_cannot_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_bytes(b"{")
    watch = Watch(tmp_path, pause_s=60)
    watch.stop()
    assert "the watch ended" in watch.failures[0]


class Diary:
    """A consumer that writes down what comes."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.lines: list[str] = []

    def note_rows(self, rows: DeliveredRows) -> None:
        self.lines += [f"row {key[0]}" for key in rows.keys]

    def note_schema_change(self, change: SchemaChange, where: Where) -> None:
        self.lines.append(change.query)

    def note_watermark(self, commit_ts: int, where: Where) -> None:
        self.lines.append(f"mark {commit_ts}")

    def note_resolved(self, commit_ts: int) -> None: ...

    def finish(self) -> None: ...


def put(root: Path, path: str, content: bytes) -> str:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)
    return path


def test_files_come_with_the_first_sight_that_shows_them(tmp_path: Path) -> None:
    spec, _ = build_spec(
        "range://127.0.0.1:1",
        f"file://{tmp_path}?protocol=csv",
        {"sink": {"csv": {"include-commit-ts": True}}},
        tables=option_tables,
        sinks=sink_traits,
    )
    codec = assemble(spec).encode
    documents = [of_table(account(1)), of_change(add_column(25))]
    schema_files = [put(tmp_path, d.path, d.content()) for d in documents]
    home = "bank/account/1/2026-01-01"
    for number in (1, 2, 3):
        rows = chunk(account(1), [(number * 5, insert(row(number, "ann", 5)))])
        content = bytes(codec.encode_rows(rows, 0).value_bytes())
        put(tmp_path, f"{home}/CDC{number:020d}.csv", content)
    put(tmp_path, f"{home}/meta/CDC.index", f"CDC{3:020d}.csv\n".encode())
    put(tmp_path, "metadata", metadata_content(30))
    sights = [
        Sight(3, {home: 1}, frozenset(schema_files[:1])),
        Sight(12, {home: 2}, frozenset(schema_files)),
    ]
    diary = Diary()
    deliver_sights(tmp_path, codec, sights, WatchedFeed(FULL, [diary]))
    ddl = add_column(25).query
    assert diary.lines == ["row 1", "mark 3", "row 2", ddl, "mark 12", "row 3", "mark 30"]


# --- what is checked -----------------------------------------------------------------------------


class Published:
    def __init__(self, tables: list[list[Any]], ranges: tuple[RangeProgress, ...]) -> None:
        self.position = {"tables": tables}
        self.ranges = ranges


def progress(range_id: int, table_id: int, init: int, current: int, ts: int) -> RangeProgress:
    return RangeProgress(
        *("bank", "account", table_id, table_id, range_id, "", "", Stage.LOG),
        init_snapshot_version=init,
        current_snapshot_version=current,
        current_snapshot_ts=ts,
    )


def test_a_snapshot_lasts_from_its_table_to_its_newest_range() -> None:
    state: Any = Published(
        [[7, 1, True, 100], [8, 1, True, 0]],
        (progress(1, 7, 4, 4, 110), progress(2, 7, 5, 5, 130), progress(3, 8, 0, 0, 0)),
    )
    assert windows_of(state) == [SnapshotWindow(TableId("bank", "account"), 100, 130)]
    assert not lost_a_snapshot(state)


def test_a_snapshot_that_was_begun_again_is_noticed() -> None:
    state: Any = Published([[7, 1, True, 100]], (progress(1, 7, 4, 9, 110),))
    assert lost_a_snapshot(state)


def test_the_total_stays() -> None:
    bank = Bank("bank", 2)
    check = total_stays(bank)
    start = {(n,): {"balance": START_BALANCE} for n in range(2)}
    assert check({bank.table: start}) is None
    assert check({}) is not None
    moved = {**start, (0,): {"balance": START_BALANCE - 1}}
    assert "hold 1999, not 2000" in str(check({bank.table: moved}))
    assert check({bank.table: {**start, (2,): {"balance": 0}}}) is not None


def test_a_report_names_what_is_missing_and_how_to_repeat() -> None:
    report = Report(42, "csv", Counter(split=2, transfer=9), [5, 6])
    assert report.missing({"split": 1, "pause": 1, "rename": 0}) == ["pause"]
    report.failures += [f"P1: lost: {n}" for n in range(20)] + ["P4: total"]
    text = str(report)
    assert "split 2" in text
    assert "failures: 21" in text
    assert "P4: total" in text, "each promise is shown, however many failures another has"
    assert text.count("P1: lost") < 20
    assert text.endswith("repeat with --seed 42 (protocol csv)")
    assert len(report.hint.splitlines()) == 1
