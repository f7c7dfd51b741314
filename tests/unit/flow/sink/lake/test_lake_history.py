"""Earlier versions of lake tables: which one holds everything up to a moment; others read it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from iceberg_kit import IcebergLake
from lake_kit import NOON, PLAIN, Lake, Model, ordered
from rowferry.change.chunk import DdlKind
from rowferry.errors import NoSuchVersion
from rowferry.face.cli.main import main
from rowferry.flow.sink.lake.history import TableCommit, TableHistory, commit_at

KINDS = pytest.mark.parametrize("kind", [Lake, IcebergLake], ids=["delta", "iceberg"])


def rows_at(lake: Lake, version: int) -> list[dict[str, Any]]:
    """A version's rows as others read it."""
    if isinstance(lake, IcebergLake):
        rows: list[dict[str, Any]] = lake.iceberg().scan(snapshot_id=version).to_arrow().to_pylist()
        return ordered(rows, ("id",))
    table = DeltaTable(str(lake.root / "shop/orders"), version=version)
    read = QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
    return ordered(pa.table(read).to_pylist(), ("id",))


def reached(lake: Lake) -> int:
    return int(lake.sink.upkeep().progress().checkpoint_ts)


@KINDS
def test_each_moment_has_its_version(kind: type[Lake], tmp_path: Path) -> None:
    lake, model = kind(tmp_path), Model(PLAIN, 4)
    lake.open()
    expected = {}
    for number in range(1, 6):
        if number == 4:
            lake.step(PLAIN, [])  # nothing of this table; others went on
        else:
            lake.step(PLAIN, model.changes(12))
        expected[NOON + number] = model.expected()
    list(lake.sink.upkeep().optimize(1))
    history = lake.sink.history("shop/orders")
    for moment, rows in expected.items():
        commit = commit_at(history, moment, reached(lake))
        assert rows_at(lake, commit.version) == rows, moment
        assert (commit.checkpoint_ts or 0) >= moment
        ours = history.version(commit.version)
        read = [
            row
            for part in ours.parts
            for rows_ in ours.rows(part, lake.sink._files.get(part.path).data, ["id", "note"])
            for row in rows_.to_pylist()
        ]
        assert ordered(read, ("id",)) == rows
    with pytest.raises(NoSuchVersion, match=f"complete up to commit-ts {NOON + 5} only"):
        commit_at(history, NOON + 6, reached(lake))
    with pytest.raises(NoSuchVersion, match="nothing earlier was ever there"):
        commit_at(history, NOON, reached(lake))


@KINDS
def test_a_schema_change_is_part_of_its_moment(kind: type[Lake], tmp_path: Path) -> None:
    lake, model = kind(tmp_path), Model(PLAIN, 4)
    lake.open()
    lake.step(PLAIN, model.changes(5), changes=[lake.change(DdlKind.TRUNCATE_TABLE, PLAIN)])
    commit = commit_at(lake.sink.history("shop/orders"), NOON + 1, reached(lake))
    assert rows_at(lake, commit.version) == []


def test_expired_versions_are_refused(tmp_path: Path) -> None:
    ice, model = IcebergLake(tmp_path / "ice", "&history=2"), Model(PLAIN, 4)
    delta = Lake(tmp_path / "delta")
    for lake in (ice, delta):
        lake.open()
        for _ in range(4):
            lake.step(PLAIN, model.changes(12))
    with pytest.raises(NoSuchVersion, match="earlier ones have expired"):
        commit_at(ice.sink.history("shop/orders"), NOON + 1, reached(ice))
    list(delta.sink.upkeep().optimize(1))
    history = delta.sink.history("shop/orders")
    early = commit_at(history, NOON + 2, reached(delta))
    history.require(early.version)
    for path in list(delta.sink.upkeep().expired(1 << 60, 0)):
        delta.sink.upkeep().remove(path)
    with pytest.raises(NoSuchVersion, match="has expired: .*parquet was deleted"):
        history.require(early.version)
    history.require(commit_at(history, NOON + 4, reached(delta)).version)


class Given(TableHistory):
    """A history that a test makes up."""

    shown = "t"

    def __init__(self, *commits: TableCommit) -> None:
        self._commits = list(commits)

    def commits(self) -> list[TableCommit]:
        return self._commits

    def begins(self) -> bool:
        return True


def test_while_a_table_is_filled_it_has_no_version() -> None:
    filling = [TableCommit(n, 10 + n, 0, 0, settled=False) for n in range(2)]
    with pytest.raises(NoSuchVersion, match="being filled"):
        commit_at(Given(*filling), 5, 0)
    # The watermark has moved: nobody has changed the table since it was filled.
    late = 20 << 18
    assert commit_at(Given(*filling), late, late).version == 1
    with pytest.raises(NoSuchVersion, match="its first version"):
        commit_at(Given(*filling), 5, late)
    # A reset fills it anew: what it was before stays what it was then.
    again = [
        TableCommit(0, 1, late, 0),
        TableCommit(1, 30, late, late, settled=False),
        TableCommit(2, 31, late, late, settled=False),
        TableCommit(3, 32, late + 9, late, settled=True),
    ]
    assert commit_at(Given(*again[:3]), late, late).version == 0
    with pytest.raises(NoSuchVersion, match="complete up to"):
        commit_at(Given(*again[:3]), late + 1, late)
    assert commit_at(Given(*again), late + 1, late + 9).version == 3


@KINDS
def test_the_command(
    kind: type[Lake],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake, model = kind(tmp_path), Model(PLAIN, 4)
    lake.open()
    for _ in range(2):
        lake.step(PLAIN, model.changes(12))

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rowferry", "lake", "at", lake.uri, *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    code, out, _ = call(str(NOON + 1), "--json")
    (one,) = json.loads(out)["tables"]
    assert (code, one["table"], one["checkpoint_ts"]) == (0, "shop.orders", NOON + 1)
    assert all(str(one["version"]) in text for text in one["read"].values())
    code, out, _ = call(str(NOON + 1), "--table", "shop.*")
    assert code == 0 and f"shop.orders: version {one['version']}, all up to" in out
    assert "2023-05-09T12:00:00" in out
    code, out, err = call("2020-01-01T00:00:00Z")
    assert code != 0 and "RF-1062" in err and "its first version is of commit-ts" in err
    assert call("soon")[0] != 0 and call(str(NOON + 1), "--table", "other.*")[0] != 0
