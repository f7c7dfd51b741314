"""The page about subscriptions: its example runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from face_page_kit import page, python_block

from page_examples import table_rows
from rowferry.control.operator.operations import Operations
from rowferry.face import rpc
from rowferry.face.sources import Sources
from rowferry.face.subscription import types


def test_the_example_of_the_grpc_page(
    operations: Operations, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = python_block("grpc.md", page("grpc.md", source, tmp_path))
    with rpc.serve(operations, "127.0.0.1:0", sources=Sources(default=source)) as serving:
        exec(compile(code.replace("127.0.0.1:8301", serving.address), "grpc.md", "exec"), {})
    sink = f"file://{tmp_path}/out?protocol=csv"
    assert capsys.readouterr().out == f"orders-copy {sink} 0\norders-copy 1\n"
    rows = table_rows(page("grpc.md"), "type|keys of `config`")
    assert [row[0].strip("`") for row in rows] == list(types())
