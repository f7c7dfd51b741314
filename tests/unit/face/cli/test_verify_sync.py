"""Which sides can be compared at a sync point, and how."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from rowferry.downstream.verify.side import DatabaseSide, StorageSide
from rowferry.errors import NotSupported, OptionsConflict
from rowferry.face.cli.downstream import verify_sync
from rowferry.face.cli.downstream.verify_sync import SyncPoint, at_sync_point
from rowferry.face.cli.output import Printer
from rowferry.face.cli.remote.client import Access
from rowferry.mysql.session import Flavour, ServerFacts

SPARK: Any = nullcontext()


def database(version: str, flavour: Flavour = Flavour.MYSQL) -> DatabaseSide:
    side = DatabaseSide.__new__(DatabaseSide)  # without a server
    side.facts = ServerFacts(flavour, (8, 0, 11), version, 1, "one")
    return side


def opened(a: Any, b: Any, changefeed: str = "") -> Any:
    asked = SyncPoint(Access(), changefeed, 4, 60)
    return at_sync_point([a, b], asked, SPARK, Printer("json"))


def test_tidb_is_read_at_its_newest_sync_point(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def newest(*given: Any) -> tuple[int, int]:
        asked.extend(given)
        return 400, 500

    monkeypatch.setattr(verify_sync, "read_at_newest", newest)
    a, b = (database("8.0.11-TiDB-v8.5.0", Flavour.TIDB) for _ in range(2))
    assert opened(a, b, "one") is SPARK and asked == [a, b, "one"]
    assert "comparing A at 400 with B at 500" in capsys.readouterr().err


def test_what_cannot_be_compared_so() -> None:
    tidb, mysql = database("8.0.11-TiDB-v8.5.0", Flavour.TIDB), database("8.4.2")
    storage = StorageSide.__new__(StorageSide)
    for sides in ((storage, mysql), (mysql, storage)):
        with pytest.raises(OptionsConflict, match="compares two databases"):
            opened(*sides, "one")
    for sides in ((tidb, mysql), (mysql, tidb)):
        with pytest.raises(NotSupported, match="or TiDB on both"):
            opened(*sides, "one")
    with pytest.raises(OptionsConflict, match="--changefeed"):
        opened(mysql, mysql)
