"""The wheel, as it is built: what is in it, what is not, and that it works without the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from source_tree import ROOT, imports, module_name, read_sources

PUBLIC = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs" / "validators.md").read_text(), re.M)
NOT_SHIPPED = (
    "servers",
    "histories",
    "nemesis",
    "harness",
    "mysql_history",
    "slow_binlog",
    "receiver",
    "registry_stub",
    "search_front",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build it of the stubs that are there: others import them while this runs."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "HATCH_BUILD_NO_HOOKS": "true"},
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def unmet(sources: dict[str, str], tree: set[str]) -> list[str]:
    """Return imports of modules of the tree that are not among these sources."""
    ours = {module_name(path) for path in sources}
    found = []
    for path, text in sources.items():
        for line, target in imports(path, text):
            base, _, name = target.partition(":")
            if base.split(".")[0] != "rowferry":
                continue
            inner = base.removeprefix("rowferry").removeprefix(".")
            joined = f"{inner}.{name}".strip(".")
            module = joined if joined in tree else inner
            if module not in ours:
                found.append(f"{path}:{line}: rowferry.{module} is not there")
    return found


def test_what_only_our_own_tests_use_is_left_out(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    kept = tuple(f"rowferry/testing/{name}" for name in NOT_SHIPPED)
    assert [n for n in names if n.startswith(kept)] == []
    tops = {"rowferry", "pyspark_rowferry", "rowferry-0.1.0.dist-info"}
    assert {n.split("/")[0] for n in names} == tops
    assert [n for n in names if "__pycache__" in n or n.endswith((".nbi", ".nbc"))] == []


def test_everything_else_is_there(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    source = ROOT / "src"
    wanted = {p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file()}
    left_out = {
        name
        for name in wanted - names
        if "__pycache__" not in name and not name.startswith("rowferry/testing/")
    }
    assert left_out == set()
    assert any(n.endswith("_pb2_grpc.py") for n in names)
    assert {"rowferry/py.typed", "rowferry/face/web/static/index.html"} <= names


def test_its_fields_are_those_of_the_project(wheel: zipfile.ZipFile) -> None:
    (metadata,) = (n for n in wheel.namelist() if n.endswith("dist-info/METADATA"))
    fields = Parser().parsestr(wheel.read(metadata).decode())
    assert (fields["Name"], fields["License-Expression"]) == ("rowferry", "Apache-2.0")
    assert fields["License-File"] == "LICENSE"
    assert wheel.read(metadata.replace("METADATA", "licenses/LICENSE")) == (
        (ROOT / "LICENSE").read_bytes()
    )
    assert fields["Description-Content-Type"] == "text/markdown"
    assert len(fields.get_all("Project-URL", [])) == 4


def test_no_module_of_it_imports_one_that_is_left_out(wheel: zipfile.ZipFile) -> None:
    sources = {n: wheel.read(n).decode() for n in wheel.namelist() if n.endswith(".py")}
    tree = {module_name(path) for path in read_sources()}
    assert len(tree) > len(sources) > 300
    assert unmet(sources, tree) == []


def idle(sources: dict[str, str], public: list[str]) -> list[str]:
    """Return modules of the test kit that are there, though no public one needs them."""
    ours = {module_name(path): path for path in sources}
    waiting = [n for n in ours if not n.startswith("testing.")]
    waiting += [n.removeprefix("rowferry.") for n in public]
    needed: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in needed or name not in ours:
            continue
        needed.add(name)
        for _, target in imports(ours[name], sources[ours[name]]):
            base, _, inner = target.removeprefix("rowferry.").partition(":")
            waiting += [base, f"{base}.{inner}"]
    return sorted(ours.keys() - needed)


def test_no_part_of_the_kit_is_there_for_our_own_tests_alone(wheel: zipfile.ZipFile) -> None:
    sources = {
        n: wheel.read(n).decode()
        for n in wheel.namelist()
        if n.startswith("rowferry/") and n.endswith(".py")
    }
    assert idle(sources, PUBLIC) == []
    planted = {**sources, "rowferry/testing/of_tests.py": "import os"}
    assert idle(planted, PUBLIC) == ["testing.of_tests"]


def test_an_import_of_what_is_left_out_is_found() -> None:
    sources = {
        "rowferry/__init__.py": "",
        "rowferry/a.py": "import rowferry.kit.gone\nfrom rowferry import b",
        "rowferry/b.py": "def f():\n    from rowferry.kit import gone, name",
        "rowferry/kit/__init__.py": "name = 1",
    }
    assert unmet(sources, {"", "a", "b", "kit", "kit.gone"}) == [
        "rowferry/a.py:1: rowferry.kit.gone is not there",
        "rowferry/b.py:2: rowferry.kit.gone is not there",
    ]


def test_it_works_without_the_checkout(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """The public modules, the demonstration and the registry are loaded from the wheel alone."""
    wheel.extractall(tmp_path / "there")
    modules = [*PUBLIC, "rowferry.face.cli.demo", "rowferry.face.cli.server", "rowferry.warm"]
    modules.append("pyspark_rowferry")
    code = f"""
import importlib, importlib.util, rowferry
assert rowferry.__file__.startswith({str(tmp_path)!r}), rowferry.__file__
for name in {modules!r}:
    importlib.import_module(name)
assert importlib.util.find_spec("rowferry.testing.servers") is None
print("loaded")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "there")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "loaded\n", done.stderr
