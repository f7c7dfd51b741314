"""What docs/active-active.md says is so."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

from decide_kit import chunk, decided, decisions, made
from typer.testing import CliRunner

from page_examples import ROOT, all_blocks, commands, table_rows
from rowferry.change.chunk import Op
from rowferry.change.own_tables import MARK
from rowferry.face.cli.main import app
from rowferry.flow.assemble import option_tables, sink_traits
from rowferry.mysql.feed_mark import MARK_SQL_MODE
from rowferry.spec.active_active import read_active_active
from rowferry.spec.build import build_spec

PAGE = (ROOT / "docs" / "active-active.md").read_text()
TABLE = made("CREATE TABLE t (id INT PRIMARY KEY, _tidb_softdelete_time TIMESTAMP(6) NULL)")
TIMES = {"not deleted": None, "deleted": "2025-03-10 00:00:00.000000"}


def test_what_readers_see() -> None:
    rows = table_rows(PAGE, "change|old row|new row|what is sent")
    assert len(rows) == len(set(product(TIMES, TIMES))) + 2 * len(TIMES)
    first, *_ = [b for b in all_blocks("toml") if b.page == "active-active.md"]
    assert "soft-delete-tables" in first.text
    found = decisions({"soft-delete-tables": ["shop.*"]})
    for change, old, new, sent in rows:
        before, after = (
            {"id": 1, "_tidb_softdelete_time": TIMES[word]} if word else None for word in (old, new)
        )
        op = Op[change.split()[0].upper()]
        told = [o.name.lower() for o, _, _ in decided(found, chunk(TABLE, (op, before, after)))]
        assert told == ([] if sent == "nothing" else [sent]), (change, old, new)


def test_settings_and_marks(tmp_path: Path) -> None:
    _, second = [b for b in all_blocks("toml") if b.page == "active-active.md"]
    (tmp_path / "feed.toml").write_text(second.text)
    file = tmp_path / "feed.toml"
    spec, _ = build_spec(
        "range://h:1", "mysql://u:p@h/", file, tables=option_tables, sinks=sink_traits
    )
    mode = read_active_active(spec)
    assert mode.enabled and mode.emulated and mode.cluster_index == 1
    assert MARK_SQL_MODE in PAGE and f"`{MARK}`" in PAGE


def test_prepare_prints_statements() -> None:
    block, _ = [b for b in all_blocks("sh") if b.page == "active-active.md"]
    (words,) = commands(block)
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0
    made_triggers = re.findall(
        r"^CREATE TRIGGER .* BEFORE (\w+) ON `shop`\.`(\w+)` .* END \$\$$", done.output, re.M
    )
    assert made_triggers == [*product(("INSERT", "UPDATE", "DELETE"), ("orders",))] + [
        *product(("INSERT", "UPDATE", "DELETE"), ("items",))
    ]
    assert done.output.count("'rowferry cluster-index 1'") == len(made_triggers)
    refused = CliRunner().invoke(
        app, ["active-active", "prepare", "shop.*", "--key", "id", "--cluster-index", "1"]
    )
    assert refused.exit_code != 0
