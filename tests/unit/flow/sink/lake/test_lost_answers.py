"""Merges whose commit is there although its answer was lost, or said the contrary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iceberg_kit import IcebergLake
from lake_kit import PLAIN, Lake, Model, ordered
from rowferry.change.chunk import Op
from rowferry.errors import FileConflict, SinkUnavailable
from rowferry.flow.sink.lake.iceberg.catalog import IcebergCatalog
from rowferry.flow.sink.lake.table_upkeep import Merge
from rowferry.flow.sink.storage.local_files import LocalFiles
from rowferry.moment import watched

STEPS = 6
COMMITTED = ("delta version committed", "iceberg snapshot committed")


class Killed(BaseException):
    pass


class Unattended:
    """A lake that does no upkeep by itself after a micro-batch."""

    def look_after(self, most: int = 1000) -> int:
        return 0


class DeltaLake(Unattended, Lake):
    pass


class IceLake(Unattended, IcebergLake):
    pass


@pytest.fixture(params=[DeltaLake, IceLake], ids=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    found: Lake = request.param(tmp_path / "lake")
    found.uri = found.uri.replace("optimize-after=0", "optimize-after=4")
    found.open()
    return found


def grown(lake: Lake) -> Model:
    model = Model(PLAIN, 4)
    for _ in range(STEPS):
        lake.step(PLAIN, model.changes(30))
    return model


@contextmanager
def lost(error: BaseException) -> Iterator[None]:
    """The answer to the next commit is lost."""
    told: list[str] = []

    def end(name: str) -> None:
        if name in COMMITTED and not told:
            told.append(name)
            raise error

    with watched(end):
        yield
    assert told


@contextmanager
def denied(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The next commit is done, and its answer says that somebody else was first.

    As of a catalog or a store behind something that sends a request twice.
    """
    told: list[str] = []
    create, commit = LocalFiles.create, IcebergCatalog.commit

    def created(self: LocalFiles, path: str, data: bytes) -> bool:
        made = create(self, path, data)
        if "_delta_log" in path and not told:
            told.append(path)
            raise FileConflict(path)
        return made

    def committed(self: IcebergCatalog, directory: str, *rest: Any) -> bool:
        done = commit(self, directory, *rest)
        if told:
            return done
        told.append(directory)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "create", created)
        patch.setattr(IcebergCatalog, "commit", committed)
        yield
    assert told


def merged(lake: Lake) -> tuple[list[tuple[Any, dict[str, Any]]], Merge]:
    """What is to be committed: one file for all that are there."""
    (piece,) = lake.sink.due_upkeep(5)
    return [(piece, lake.built().do_upkeep(piece.work))], Merge.from_json(piece.work)


def require_whole(lake: Lake, model: Model) -> None:
    """All rows are there once, now and after the next changes."""
    assert ordered(lake.rows(), ["id"]) == model.expected()
    lake.step(PLAIN, model.changes(30))
    assert ordered(lake.rows(), ["id"]) == model.expected()


def test_a_merge_is_committed_once_when_its_answer_was_lost(lake: Lake) -> None:
    model = grown(lake)
    done, merge = merged(lake)
    with pytest.raises(SinkUnavailable), lost(SinkUnavailable("no answer")):
        lake.sink.commit_upkeep(done)
    commits = lake.commits()
    assert lake.sink.commit_upkeep(done) == len(merge.files)
    assert lake.commits() == commits
    assert [p.rpartition("/")[2] for p in lake.data_files()] == [merge.name]
    require_whole(lake, model)


def test_the_next_round_knows_the_merge_whose_answer_was_lost(lake: Lake) -> None:
    model = grown(lake)
    done, merge = merged(lake)
    with pytest.raises(SinkUnavailable), lost(SinkUnavailable("no answer")):
        lake.sink.commit_upkeep(done)
    assert lake.sink.due_upkeep(5) == ()  # nothing is written a second time
    assert [p.rpartition("/")[2] for p in lake.data_files()] == [merge.name]
    require_whole(lake, model)


def test_a_merge_is_committed_once_when_it_is_told_that_another_was_first(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = grown(lake)
    done, merge = merged(lake)
    with denied(monkeypatch):
        assert lake.sink.commit_upkeep(done) == len(merge.files)
    assert (lake.root / merge.path).exists()
    assert [p.rpartition("/")[2] for p in lake.data_files()] == [merge.name]
    require_whole(lake, model)


def test_files_merged_by_hand_stay_when_it_is_told_that_another_was_first(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = grown(lake)
    with denied(monkeypatch):
        (found,) = lake.built().upkeep().optimize(0)
    assert found == ("shop/orders", STEPS)
    require_whole(lake, model)


def test_a_process_that_is_killed_behind_the_commit_of_a_merge(lake: Lake) -> None:
    model = grown(lake)
    done, merge = merged(lake)
    with pytest.raises(Killed), lost(Killed()):
        lake.sink.commit_upkeep(done)
    lake.open()
    assert [p.rpartition("/")[2] for p in lake.data_files()] == [merge.name]
    require_whole(lake, model)


def test_a_merged_file_that_was_replaced_meanwhile_stays_for_earlier_versions(lake: Lake) -> None:
    model = grown(lake)
    done, merge = merged(lake)
    with pytest.raises(SinkUnavailable), lost(SinkUnavailable("no answer")):
        lake.sink.commit_upkeep(done)
    lake.step(PLAIN, [(Op.DELETE, row, None) for row in model.expected()])
    model.rows.clear()
    list(lake.sink.upkeep().optimize(0))
    assert merge.name not in [p.rpartition("/")[2] for p in lake.data_files()]
    assert lake.sink.commit_upkeep(done) == len(merge.files)
    assert (lake.root / merge.path).exists()
    require_whole(lake, model)


@pytest.mark.parametrize("late", [False, True], ids=["never", "late"])
def test_a_commit_that_comes_to_a_catalog_elsewhere_after_its_plan_was_given_up(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory's lock was given back long before; the plan's files are gone."""
    monkeypatch.setattr(IcebergCatalog, "file", "")
    commit, sent = IcebergCatalog.commit, []

    def unanswered(self: IcebergCatalog, *what: Any) -> bool:
        sent.append((self, *what))
        raise SinkUnavailable("no answer")

    lake, model = IceLake(tmp_path / "lake"), Model(PLAIN, 4)
    lake.open()
    lake.step(PLAIN, model.changes(30))
    before = model.expected()
    plan = lake.plan(PLAIN)
    receipts = lake.write(plan, PLAIN, [model.changes(30)])
    with monkeypatch.context() as patch, pytest.raises(SinkUnavailable):
        patch.setattr(IcebergCatalog, "commit", unanswered)
        lake.publish(plan, PLAIN, receipts)
    lake.open()
    assert lake.sink.discard(plan) is False
    if late:
        assert commit(*sent[0]) is False
    assert ordered(lake.rows(), ["id"]) == before


def test_another_merge_does_not_write_over_one_that_may_still_come_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both follow the same snapshot, for the same micro-batch."""

    def unanswered(*_: Any) -> bool:
        raise SinkUnavailable("no answer")

    lake = IceLake(tmp_path / "lake")
    lake.uri = lake.uri.replace("optimize-after=0", "optimize-after=4")
    lake.open()
    grown(lake)
    done, merge = merged(lake)
    half = Merge.from_json({**merge.to_json(), "name": "half.parquet", "files": [*merge.files[:3]]})
    other = [(replace(done[0][0], work=half.to_json()), lake.built().do_upkeep(half.to_json()))]
    (folder,) = lake.root.glob("shop/orders*/metadata")
    with monkeypatch.context() as patch:
        patch.setattr(IcebergCatalog, "commit", unanswered)
        with pytest.raises(SinkUnavailable):
            lake.sink.commit_upkeep(done)
        first = {path: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(SinkUnavailable):
            lake.sink.commit_upkeep(other)
    assert {path: path.read_bytes() for path in first} == first
