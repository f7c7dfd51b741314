"""What a measurement of lake tables keeps: each figure at once, and a run goes on with its file."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture(autouse=True)
def bench_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("lake_r", "report")) or name == "lake":
            del sys.modules[name]


def test_each_figure_is_in_the_file_at_once(tmp_path: Path) -> None:
    from lake_results import Results
    from report import Figure

    place = tmp_path / "lake.json"
    results = Results(place)
    for number in range(3):
        results.note(Figure(f"f{number}", 1.0))
        assert len(json.loads(place.read_text())["figures"]) == number + 1
    again = Results(place, go_on=True)
    assert again.has("f0", "f2") and not again.has("f0", "f3")
    assert again.about["at"] == results.about["at"]
    again.note(Figure("f1", 2.0))
    again.note(Figure("f3", 3.0))
    assert [(f.name, f.rows_per_s) for f in Results(place, True).figures] == [
        ("f0", 1.0), ("f1", 2.0), ("f2", 1.0), ("f3", 3.0)
    ]  # fmt: skip
    Results(place).note(Figure("new"))
    assert [f.name for f in Results(place, True).figures] == ["new"]


def test_a_file_of_another_machine_is_not_gone_on_with(tmp_path: Path) -> None:
    from lake_results import Results
    from report import Figure

    place = tmp_path / "lake.json"
    Results(place).note(Figure("f"))
    place.write_text(json.dumps({**json.loads(place.read_text()), "cores": 999}))
    with pytest.raises(SystemExit, match="cores = 999"):
        Results(place, go_on=True)
    Results(place).note(Figure("f"))


def test_rivals_run_at_sizes_that_they_hold() -> None:
    from lake import rival_rows

    rows = [1_000_000, 100_000_000, 10_000_000]
    assert rival_rows(rows, None) == [1_000_000, 10_000_000]
    assert rival_rows(rows, [200_000, 20_000]) == [20_000, 200_000]
    assert rival_rows(rows, []) == []


def test_a_run_that_broke_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lake
    from lake_results import Results

    monkeypatch.setattr(lake, "SETTINGS", lake.SETTINGS[:2])
    monkeypatch.setattr(lake, "WORKLOADS", ("insert", "mixed"))
    asked = Namespace(
        rows=[400], changes=[20], turns=1, text_key=False, alone=True, rival_rows=None
    )
    merged: list[str] = []
    merge = lake.LakeTable.merge_small_files

    def noted(table: Any) -> float:
        merged.append(type(table.sink).__name__)
        if len(merged) == 2:
            raise MemoryError("in the middle")
        found: float = merge(table)
        return found

    monkeypatch.setattr(lake.LakeTable, "merge_small_files", noted)
    place = tmp_path / "lake.json"
    with pytest.raises(MemoryError):
        lake.Bench(tmp_path / "a", None, asked, Results(place)).run()
    first = [f.name for f in Results(place, True).figures]
    assert [name.partition(":")[0] for name in first] == ["delta, files, 400 rows"] * 3
    lake.Bench(tmp_path / "b", None, asked, Results(place, True)).run()
    assert [f.name for f in Results(place, True).figures][:3] == first
    assert len(Results(place, True).figures) == 6
    assert len(merged) == 3, "what was there is not measured again"
