"""The layers hold, and every foreign library has one owner. Planted violations are found."""

from __future__ import annotations

import pytest
from source_tree import (
    MAY_IMPORT,
    OWNERS,
    ROOT,
    read_sources,
    shared_with_the_judged,
    wrong_layers,
    wrong_owners,
)


def test_layers_hold() -> None:
    assert wrong_layers(read_sources()) == []


def test_foreign_libraries_stay_with_their_owners() -> None:
    assert wrong_owners(read_sources()) == []


def test_who_judges_a_rebuild_shares_no_code_with_it() -> None:
    """Else an error of the product's rebuild is one of its judge, too, and nobody sees it."""
    assert shared_with_the_judged(read_sources()) == []


@pytest.mark.parametrize(
    "text",
    [
        "from rowferry.downstream.rebuild.evolve import convert_value",
        "from rowferry.testing.verify import verify_stored",  # which rebuilds by the product
    ],
)
def test_a_judge_that_comes_by_what_it_judges_is_found(text: str) -> None:
    path = "rowferry/testing/model.py"
    planted = {**read_sources(), path: f"{read_sources()[path]}\n{text}\n"}
    found = shared_with_the_judged(planted)
    assert any(way.startswith("testing.validators.rebuilt > ") for way in found)


def test_the_whole_package_is_looked_at() -> None:
    looked_at = read_sources()
    assert "rowferry/errors.py" in looked_at
    assert "rowferry/flow/encode/contract.py" in looked_at
    packages = {p.name for p in (ROOT / "src/rowferry").iterdir() if (p / "__init__.py").exists()}
    covered = {path.split("/")[1] for path in looked_at}
    assert packages <= covered


def planted(path: str, text: str) -> list[str]:
    """Return what is wrong with one module, put among the real ones."""
    among = dict.fromkeys(read_sources(), "") | {path: text}
    return [line for line in wrong_layers(among) if line.startswith(path)]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("rowferry/change/x.py", "from rowferry.spec.option import Option"),
        ("rowferry/change/x.py", "import rowferry.flow.sink.contract"),
        ("rowferry/spec/x.py", "from rowferry.flow.encode.contract import Codec"),
        ("rowferry/spec/x.py", "from rowferry import registry"),
        ("rowferry/errors.py", "from rowferry.change.table import TableId"),
        ("rowferry/flow/encode/csv/codec.py", "from rowferry.flow.sink.storage.paths import x"),
        ("rowferry/flow/encode/csv/codec.py", "from rowferry.registry import SINKS"),
        ("rowferry/flow/encode/csv/codec.py", "from rowferry.flow.assemble import assemble"),
        ("rowferry/flow/encode/csv/codec.py", "from rowferry.wire import range_cdc_pb2"),
        ("rowferry/flow/sink/x/y.py", "from ...capture.range_log import kv"),
        ("rowferry/flow/sink/x.py", "def f():\n    from rowferry.spark.job import run"),
        ("rowferry/flow/assemble.py", "from rowferry.spark.session import session"),
        ("rowferry/spark/job.py", "from rowferry.control.feed.loop import run"),
        ("rowferry/control/feed/loop.py", "from rowferry.face.cli.main import app"),
        ("rowferry/refstore/range.py", "from rowferry.flow.capture.range_log.planner import x"),
        ("rowferry/refstore/range.py", "from rowferry.flow.sink.contract import Sink"),
        ("rowferry/refstore/range.py", "from rowferry.spec.option import Option"),
        ("rowferry/newcomer/x.py", "import os"),
    ],
)
def test_a_planted_wrong_import_is_found(path: str, text: str) -> None:
    (found,) = planted(path, text)
    assert found.startswith(path)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("rowferry/flow/encode/csv/codec.py", "from rowferry.flow.decide.contract import Decision"),
        (
            "rowferry/flow/encode/csv/codec.py",
            "from rowferry.flow.encode.kernels.row_writer import x",
        ),
        ("rowferry/flow/encode/csv/codec.py", "from . import kernels"),
        ("rowferry/flow/assemble.py", "from rowferry.flow.sink.blackhole import Blackhole"),
        ("rowferry/refstore/range.py", "from rowferry.flow.capture.range_log import catalog"),
        ("rowferry/refstore/range.py", "from rowferry.flow.capture.range_log.kv_bytes import x"),
        ("rowferry/control/feed/loop.py", "from rowferry.spark.job import run"),
        ("rowferry/face/cli/x.py", "from rowferry.control.feed.service import run"),
        ("rowferry/change/x.py", "import pyarrow\nfrom rowferry.errors import BadInput"),
    ],
)
def test_right_imports_pass(path: str, text: str) -> None:
    assert planted(path, text) == []


_ELSEWHERE = "rowferry/control/feed/service.py"


@pytest.mark.parametrize("library", sorted(OWNERS))
@pytest.mark.parametrize("form", ["import {}", "from {} import x", "import {}.deep as y"])
def test_a_planted_library_is_found(library: str, form: str) -> None:
    text = form.format(library)
    assert len(wrong_owners({_ELSEWHERE: f"def f():\n    {text}"})) == 1


def test_owners_may_import_their_library() -> None:
    for library, owners in OWNERS.items():
        for owner in owners:
            path = f"rowferry/{owner.rstrip('*').replace('.', '/')}.py"
            assert wrong_owners({path: f"import {library}"}) == []


def test_every_rule_is_about_something_that_exists() -> None:
    names = [path.removeprefix("rowferry/").replace("/", ".") for path in read_sources()]
    for pattern, _ in MAY_IMPORT:
        assert any(n.startswith(pattern.rstrip("*")) for n in names), pattern
