"""Which kernels are compiled is known; the first run itself is in tests/integration."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from cli_kit import Run

from rowferry import warm

KERNEL = """
CALLS = []

def warm():
    CALLS.append(1)
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with one module of kernels, in place of ours."""
    folder = tmp_path / "smallkernels"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "one.py").write_text(KERNEL)
    package = ModuleType("smallkernels")
    package.__path__ = [str(folder)]
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(warm, "_PACKAGES", (package,))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    yield folder
    for name in ("smallkernels", "smallkernels.one"):
        sys.modules.pop(name, None)


def test_what_is_compiled_is_known_until_a_kernel_changes(small: Path, run: Run) -> None:
    told: list[tuple[int, int]] = []
    assert not warm.is_compiled()
    assert warm.compile_all(lambda done, of: told.append((done, of))) == 1
    assert told == [(0, 1), (1, 1)]
    assert warm.is_compiled()
    assert run("warm").out == "all kernels are compiled\n"
    (small / "other.py").write_text("x = 1\n")
    assert warm.is_compiled()  # it holds no kernel
    (small / "one.py").write_text(KERNEL + "\n")
    assert not warm.is_compiled()
    warm.compile_all(lambda done, of: None)
    warm.forget()
    assert not warm.is_compiled()


def test_a_kernel_that_does_not_compile_is_not_noted(small: Path) -> None:
    (small / "one.py").write_text("\ndef warm():\n    raise SystemError\n")
    with pytest.raises(SystemError):
        warm.compile_all(lambda done, of: None)
    assert not warm.is_compiled()


def test_a_child_that_is_done_ends_well_while_its_parent_lives(tmp_path: Path) -> None:
    code = "from rowferry import warm; warm._PACKAGES = (); raise SystemExit(warm.main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, "--for-parent"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        stdin=subprocess.PIPE,  # open until it has ended
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        assert (child.wait(), child.stdout.read(), child.stderr.read()) == (0, "0/0\n", "")
