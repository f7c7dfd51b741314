"""Upkeep by the owner of a lake: in bounded pieces, written by tasks, committed under its claim."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from iceberg_kit import IcebergLake
from lake_kit import PLAIN, Lake, Model, ordered
from rowferry.change.chunk import Op
from rowferry.errors import Fenced
from rowferry.face.cli.downstream.lake import app
from rowferry.flow.sink.contract import HasUpkeep
from rowferry.flow.sink.lake.table_upkeep import Merge


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


def grown(lake: Lake, steps: int = 6) -> Model:
    model = Model(PLAIN, 4)
    for _ in range(steps):
        lake.step(PLAIN, model.changes(30))
    return model


def orphans(lake: Lake) -> list[str]:
    found = CliRunner().invoke(app, ["orphans", lake.uri], catch_exceptions=False)
    return found.stdout.splitlines()[:-1]


def test_tasks_write_what_the_owner_commits(lake: Lake) -> None:
    model = grown(lake)
    assert isinstance(lake.sink, HasUpkeep)
    (piece,) = lake.sink.due_upkeep(5)
    work = json.loads(json.dumps(piece.work))
    assert piece.bytes == lake.sink.table_statuses()[0].bytes
    before = lake.rows()
    made = lake.built().do_upkeep(work)
    merge = Merge.from_json(work)
    content = (lake.root / merge.path).read_bytes()
    assert lake.built().do_upkeep(work) == made  # by a task that is tried again
    assert (lake.root / merge.path).read_bytes() == content
    assert lake.rows() == before
    assert lake.sink.commit_upkeep([(piece, made)]) >= 6
    assert [p.rpartition("/")[2] for p in lake.data_files()] == [merge.name]
    assert ordered(lake.rows(), ["id"]) == model.expected()
    assert lake.sink.due_upkeep(5) == ()
    lake.step(PLAIN, model.changes(30))
    assert ordered(lake.rows(), ["id"]) == model.expected()


def test_no_more_pieces_than_asked_for_and_none_too_large(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path, "&target-file-size=1MiB")
    lake.uri = lake.uri.replace("optimize-after=0", "optimize-after=2")
    lake.open()
    random = Random(7)
    for number in range(6):
        notes = [random.randbytes(28).hex() for _ in range(12_000)]
        rows = [{"id": number * 12_000 + i, "note": note} for i, note in enumerate(notes)]
        lake.step(PLAIN, [(Op.INSERT, None, row) for row in rows])
    every = lake.sink.due_upkeep(100)
    assert len(every) > 2
    assert all(piece.bytes <= 1 << 20 for piece in every)
    assert len(lake.sink.due_upkeep(2)) == 2
    files = [add["path"] for piece in every for add in piece.work["files"]]
    assert len(files) == len(set(files))


def test_what_was_changed_meanwhile_is_left_out_and_its_file_removed(lake: Lake) -> None:
    model = grown(lake)
    (piece,) = lake.sink.due_upkeep(5)
    made = lake.built().do_upkeep(piece.work)
    key = next(iter(model.rows))
    old, new = model.rows[key], model.image(key)
    model.rows[key] = new
    lake.step(PLAIN, [(Op.UPDATE, old, new)])
    lake.sink.commit_upkeep([(piece, made)])
    assert not (lake.root / Merge.from_json(piece.work).path).exists()
    assert ordered(lake.rows(), ["id"]) == model.expected()


def test_who_was_replaced_commits_nothing_and_its_file_is_an_orphan(lake: Lake) -> None:
    model = grown(lake)
    late = lake.sink
    (piece,) = late.due_upkeep(5)
    made = lake.built().do_upkeep(piece.work)
    lake.open()
    before = lake.commits()
    with pytest.raises(Fenced):
        late.commit_upkeep([(piece, made)])
    assert lake.commits() == before
    merge = Merge.from_json(piece.work)
    assert merge.path in orphans(lake)
    lake.step(PLAIN, model.changes(30))
    (again,) = lake.sink.due_upkeep(5)
    assert Merge.from_json(again.work).name != merge.name  # nobody can write to it any more
    lake.sink.commit_upkeep([(again, lake.built().do_upkeep(again.work))])
    assert merge.path in orphans(lake)
    assert ordered(lake.rows(), ["id"]) == model.expected()


def test_a_new_owner_finds_what_an_earlier_one_has_left(lake: Lake) -> None:
    model = grown(lake)
    lake.open()
    assert lake.sink.due_upkeep(5) == ()  # nothing was published yet
    lake.publish(lake.plan(PLAIN, 0), PLAIN, [])
    assert lake.sink.due_upkeep(5) == ()
    (status,) = lake.sink.table_statuses()
    assert (status.directory, status.rows) == ("shop/orders", len(model.rows))
    assert len(lake.sink.due_upkeep(5)) == 1


def test_what_the_tables_are_made_of(lake: Lake) -> None:
    model = grown(lake)
    (known,) = lake.sink.table_statuses()
    found = CliRunner().invoke(app, ["status", lake.uri, "--json"], catch_exceptions=False)
    (told,) = json.loads(found.stdout)["tables"]
    names = ("directory", "version", "files", "rows", "deleted", "bytes", "checkpoint_ts")
    assert [told[name] for name in names] == [getattr(known, name) for name in names]
    assert known.rows == len(model.rows) and known.deleted > 0
    assert known.checkpoint_ts == json.loads(found.stdout)["checkpoint_ts"]
    lake.step(PLAIN, model.changes(30))
    assert lake.sink.table_statuses()[0].version > known.version


def test_deletes_alone_are_summed_up(tmp_path: Path) -> None:
    """Where no file is worth to be written anew, and deletes are in many files."""
    lake = IceLake(tmp_path / "lake", "&target-file-size=1MiB")
    lake.open()
    rows = [{"id": i, "note": f"{i * 7919 % 99991}-{i * 104729 % 1299709}"} for i in range(90_000)]
    lake.step(PLAIN, [(Op.INSERT, None, row) for row in rows])
    lake.uri = lake.uri.replace("optimize-after=0", "optimize-after=4")
    lake.open()
    for row in rows[:5]:
        lake.step(PLAIN, [(Op.DELETE, row, None)])
    (piece,) = lake.sink.due_upkeep(5)
    assert piece.work["files"] == []
    assert lake.sink.commit_upkeep([(piece, lake.built().do_upkeep(piece.work))]) == 5
    assert len(lake.rows("id")) == 89_995
    assert lake.sink.due_upkeep(5) == ()
