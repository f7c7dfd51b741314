"""The page of lake tables: its Python is carried out, its tables are those of the code."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from iceberg_kit import IcebergLake
from lake_kit import NOON, PLAIN, Lake, Model
from page_examples import all_blocks
from rowferry.change.chunk import Op
from rowferry.change.sqltype import KINDS, SqlType
from rowferry.flow.sink.lake.columns import LakeColumns, lake_kind
from rowferry.registry import SINKS

PAGE = Path(__file__).parents[5] / "docs/lake.md"


def test_the_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, model = Lake(tmp_path / "lake"), Model(PLAIN, 1)
    lake.open()
    lake.step(PLAIN, model.changes(20))
    ice = IcebergLake(tmp_path / "ice")
    ice.open()
    ice.step(PLAIN, [(Op.INSERT, None, {"id": n, "note": None}) for n in range(3)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # else it asks for one more library
    session: dict[str, Any] = {}
    for block in all_blocks("python"):
        if block.page == PAGE.name:
            exec(compile(block.text, str(block), "exec"), session)
    assert len(session["frame"]) == len(model.rows) > 0
    assert session["count"] == 2
    assert len(session["pandas_frame"]) == 2 and session["iceberg_frame"].shape == (3, 2)
    assert session["in_delta"] == len(model.rows) and session["in_iceberg"] == 3
    assert len(session["delta_frame"]) == sum(key > (0,) for key in model.rows)
    assert capsys.readouterr().out == f"1 {NOON + 1}\n{NOON + 1}\n"


def test_every_uri_and_type_is_on_the_page() -> None:
    text = PAGE.read_text()
    lakes = [n for n in SINKS.names() if n.startswith(("delta+", "iceberg+"))]
    assert [n for n in lakes if f"`{n}:" not in text] == []
    lake = LakeColumns("upsert", "null")
    kinds = {lake_kind(lake.type_of(SqlType(name))).partition("(")[0] for name in KINDS}
    assert [kind for kind in kinds if f"`{kind}" not in text] == []


def test_the_pipeline_calls_what_spark_has() -> None:
    """No published library of tables fits that Spark: the calls are held against its signatures."""
    pipelines = importlib.import_module("pyspark.pipelines")  # versions before 4.1 lack it
    page = PAGE.read_text().partition("### A declarative pipeline")[2].partition("\n## ")[0]
    example = ast.parse(dedent("\n".join(x for x in page.split("\n") if x[:4] in ("    ", ""))))
    called = {
        node.func.attr: node
        for node in ast.walk(example)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    for name in ("create_streaming_table", "create_auto_cdc_flow"):
        call = called[name]
        named = {one.arg or "": None for one in call.keywords}
        inspect.signature(getattr(pipelines, name)).bind(*call.args, **named)
    left_out = next(k for k in called["create_auto_cdc_flow"].keywords if "except" in str(k.arg))
    assert ast.literal_eval(left_out.value) == [
        "_op",
        "_commit_ts",
        "_commit_time",
        "_seq",
        "_before",
    ]
