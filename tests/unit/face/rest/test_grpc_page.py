"""The page about subscriptions: its example runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from face_page_kit import page

from page_examples import blocks, table_rows
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.face import rpc
from rowferry.face.sources import Sources
from rowferry.face.subscription import types


def test_the_example_of_the_grpc_page(
    operations: Operations, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page("grpc.md", source, tmp_path)
    first, other = (b.text for b in blocks("grpc.md", text) if b.language == "python")
    with rpc.serve(operations, "127.0.0.1:0", sources=Sources(default=source)) as serving:

        def run(code: str) -> str:
            exec(compile(code.replace("127.0.0.1:8301", serving.address), "grpc.md", "exec"), {})
            return capsys.readouterr().out

        sink = f"file://{tmp_path}/out?protocol=csv"
        assert run(first) == f"orders-copy {sink} 0\norders-copy 1\n"
        operations.create(Wanted(source, sink, "mine", {"filter": {"rules": ["shop.orders"]}}))
        assert list(yaml.safe_load(run(other))["changefeeds"]) == ["mine"]
    rows = table_rows(page("grpc.md"), "type|keys of `config`")
    assert [row[0].strip("`") for row in rows] == list(types())
