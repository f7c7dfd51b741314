"""What docs/changefeeds.md says is so: its tables, and its examples carried out in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from operations_kit import listed_source, table

from page_examples import ROOT, all_blocks, table_rows
from rowferry.control.lifecycle import MOVES, FeedState, Verb
from rowferry.control.operator import owners

PAGE = (ROOT / "docs" / "changefeeds.md").read_text()


def test_the_tables_of_states_are_whole() -> None:
    described = {row[0].strip("`") for row in table_rows(PAGE, "state|meaning")}
    assert described == set(FeedState)
    rows = table_rows(PAGE, "state|" + "|".join(Verb))
    written = {
        (FeedState(row[0].strip("`")), verb): FeedState(cell.strip("`"))
        for row in rows
        for verb, cell in zip(Verb, row[1:], strict=True)
        if cell
    }
    assert written == MOVES
    assert [row[0].strip("`") for row in rows] == list(FeedState)


def test_the_examples_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "PATIENCE_S", 0.0)
    names = ("shop.orders", "shop.items", "shop.audit", "crm.people")
    session: dict[str, Any] = {
        "META": f"sqlite:///{tmp_path}/meta.db",
        "SOURCE": "listed://shop",
        "SINK": f"file://{tmp_path}/out?protocol=csv",
    }
    found = [b for b in all_blocks() if b.page == "changefeeds.md"]
    assert len(found) > 7
    with listed_source(*(table(name) for name in names)):
        for block in found:
            assert block.language == "python"
            exec(compile(block.text, str(block), "exec"), session)
        session["operations"].store.close()
