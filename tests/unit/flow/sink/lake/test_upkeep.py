"""`rowferry lake`: what it tells, what it merges, and that it removes nothing that is needed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from iceberg_kit import IcebergLake
from lake_kit import PLAIN, Lake, Model, ordered
from rowferry.errors import BadUri
from rowferry.face.cli.downstream.lake import app


def told(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(params=[Lake, IcebergLake], ids=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    found: Lake = request.param(tmp_path / "lake")
    found.open()
    return found


def test_status_optimize_orphans_and_expire(lake: Lake) -> None:
    model = Model(PLAIN, 4)
    for _ in range(6):
        lake.step(PLAIN, model.changes(30))
    found = json.loads(told("status", lake.uri, "--json"))
    (one,) = found["tables"]
    assert (one["directory"], one["rows"], one["mode"]) == (
        "shop/orders",
        len(model.rows),
        "upsert",
    )
    assert one["deleted"] > 0 and one["files"] > 1
    assert "shop/orders" in told("status", lake.uri)
    assert told("orphans", lake.uri) == "0 lake files\n"
    assert " lake files replaced" in told("optimize", lake.uri)
    (after,) = json.loads(told("status", lake.uri, "--json"))["tables"]
    assert (after["files"], after["deleted"], after["rows"]) == (1, 0, len(model.rows))
    assert ordered(lake.rows(), ["id"]) == model.expected()
    # A plan that is pending, and a file that nobody knows.
    plan = lake.plan(PLAIN)
    receipts = lake.write(plan, PLAIN, [model.changes(30)])
    (place,) = lake.root.glob("shop/orders*")
    stray = place / "stray.parquet"
    stray.write_bytes(b"")
    assert (
        told("orphans", lake.uri, "--remove").splitlines()[0] == f"shop/{place.name}/stray.parquet"
    )
    assert not stray.exists()
    lake.publish(plan, PLAIN, receipts)
    assert ordered(lake.rows(), ["id"]) == model.expected()
    assert told("expire", lake.uri, "--older-than", "1000000h") == "0 lake files\n"
    time.sleep(0.01)
    assert told("expire", lake.uri, "--older-than", "0s", "--remove").endswith(
        "lake files deleted\n"
    )
    left = [p.name for p in place.glob("*.parquet")]
    assert len(left) == len(lake.data_files())
    if isinstance(lake, IcebergLake):
        assert lake.commits() == 1  # readers are led to nothing that is gone
    lake.open()
    lake.step(PLAIN, model.changes(30))
    assert ordered(lake.rows(), ["id"]) == model.expected()


def test_a_feed_goes_on_after_files_were_merged_under_it(lake: Lake) -> None:
    model = Model(PLAIN, 12)
    for _ in range(3):
        lake.step(PLAIN, model.changes(30))
    plan = lake.plan(PLAIN)
    receipts = lake.write(plan, PLAIN, [model.changes(30)])
    told("optimize", lake.uri)
    lake.publish(plan, PLAIN, receipts)
    assert ordered(lake.rows(), ["id"]) == model.expected()


def test_what_is_no_lake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadUri, match="holds no tables of a lake; known: delta"):
        told("status", f"file://{tmp_path}")
