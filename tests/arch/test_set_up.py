"""The Makefile's checks of the machine, and the lock file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from source_tree import ROOT

from lanes import APART

GOOD_JAVA = 'openjdk version "17.0.15" 2025-04-15'
NEW_JAVA = 'openjdk version "25" 2025-09-16'
OLD_JAVA = 'openjdk version "11.0.2" 2019-01-15'
OLDEST_JAVA = 'java version "1.8.0_402"'


class Machine:
    """A search path with nothing on it but the tools that a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        for tool in ("sh", "sed", "head"):
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)
        self.java_home: Path | None = None

    def script(self, path: Path, body: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def python(self, name: str = "python3") -> None:
        self.script(self.bin / name, f'exec "{sys.executable}" "$@"')

    def java(self, version: str) -> None:
        self.script(self.bin / "java", f"echo '{version}' >&2")

    def home(self, folder: Path, version: str | None) -> None:
        self.java_home = folder
        if version is not None:
            self.script(folder / "bin" / "java", f"echo '{version}' >&2")

    def check(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `make tools`."""
        make = shutil.which("make")
        assert make is not None, "make is needed"
        env = {"PATH": str(self.bin), "SHELL": str(self.bin / "sh")}
        if self.java_home:
            env["JAVA_HOME"] = str(self.java_home)
        return subprocess.run(
            [make, "tools", *arguments],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    def refusal(self, *arguments: str) -> str:
        """Return the one line with which `make` refuses."""
        result = self.check(*arguments)
        lines = (result.stdout + result.stderr).splitlines()
        assert result.returncode != 0
        assert len(lines) == 1, lines
        return lines[0]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("version", [GOOD_JAVA, NEW_JAVA])
def test_a_machine_with_all_tools_passes(machine: Machine, version: str) -> None:
    machine.python()
    machine.java(version)
    result = machine.check()
    assert (result.returncode, result.stderr) == (0, "")


def test_no_python(machine: Machine) -> None:
    machine.java(GOOD_JAVA)
    assert "needs Python 3.11 or newer and found none: install it" in machine.refusal()


def test_old_python(machine: Machine) -> None:
    machine.java(GOOD_JAVA)
    machine.script(machine.bin / "python3", "exit 1")  # as `sys.exit(version < …)` would
    assert "needs Python 3.11 or newer" in machine.refusal()


def test_a_newer_python_beside_an_old_one_is_found(machine: Machine) -> None:
    machine.java(GOOD_JAVA)
    machine.script(machine.bin / "python3", "exit 1")
    machine.python("python3.12")
    assert machine.check().returncode == 0


def test_a_named_python_is_the_only_one_tried(machine: Machine) -> None:
    machine.java(GOOD_JAVA)
    machine.python()
    assert "needs Python 3.11" in machine.refusal("PYTHON=nope")


def test_python_without_venv(machine: Machine) -> None:
    machine.java(GOOD_JAVA)
    machine.script(
        machine.bin / "python3",
        f'case "$2" in *venv*) exit 1;; esac\nexec "{sys.executable}" "$@"',
    )
    assert "has no venv module: install it" in machine.refusal()


def test_no_java(machine: Machine) -> None:
    machine.python()
    assert "needs Java 17 or newer for Spark and found none at java: install" in machine.refusal()


@pytest.mark.parametrize(("version", "shown"), [(OLD_JAVA, "11"), (OLDEST_JAVA, "1")])
def test_old_java(machine: Machine, version: str, shown: str) -> None:
    machine.python()
    machine.java(version)
    assert f"found {shown} at java" in machine.refusal()


def test_java_home_comes_before_the_search_path(machine: Machine, tmp_path: Path) -> None:
    machine.python()
    machine.java(OLD_JAVA)
    machine.home(tmp_path / "good", GOOD_JAVA)
    assert machine.check().returncode == 0
    machine.java(GOOD_JAVA)
    machine.home(tmp_path / "old", OLD_JAVA)
    assert f"found 11 at {tmp_path}/old/bin/java" in machine.refusal()
    machine.home(tmp_path / "empty", None)
    assert f"found none at {tmp_path}/empty/bin/java" in machine.refusal()


def test_help_names_every_target() -> None:
    make = shutil.which("make")
    assert make is not None
    shown = subprocess.run([make, "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in (
        "setup",
        "demo",
        "test",
        "test-rest",
        "test-all",
        "test-unit",
        "test-tidb",
        "test-spark",
        "fmt",
        "bench",
        "docs",
        "wheel",
        "site",
        "clean",
    ):
        assert re.search(rf"^make {target} +\w", shown.stdout, re.MULTILINE), target


def test_every_folder_of_tests_is_collected_but_those_with_a_target(
    request: pytest.FixtureRequest,
) -> None:
    """Targets of their own name them: whoever names none asks for all others."""
    ask = request.config.hook.pytest_ignore_collect
    folders = {f for f in (ROOT / "tests").iterdir() if any(f.rglob("test_*.py"))}
    left = {f.name for f in folders if ask(collection_path=f, path=None, config=request.config)}
    assert left == set(APART) and len(folders) > 5


def test_scripts_can_be_run() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


# --- the lock file -------------------------------------------------------------------------------


def hosts_and_paths(lock: str) -> set[str]:
    """Return what a lock file says about where packages are: only the machine knows that."""
    found = set(re.findall(r"https?://([^/\"\s]+)", lock))
    return found | set(re.findall(r"(?:file://|^-\S+ |@ )(/?\S+)", lock, re.MULTILINE))


def stale(lock: str, project: str) -> set[str]:
    """Return the project's dependencies that a lock file lacks or pins outside their bounds."""
    asked = tomllib.loads(project)
    pinned = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock, re.MULTILINE))
    found = set()
    for text in [*asked["dependency-groups"]["dev"], *_of_product(asked)]:
        name, bounds = _split(text)
        version = pinned.get(name)
        if version is None or not SpecifierSet(bounds).contains(version):
            found.add(name)
    return found


def _of_product(project: dict[str, Any]) -> list[str]:
    """Return what the package asks for, with all of its extras."""
    extras = project["project"]["optional-dependencies"].values()
    wanted = [*project["project"]["dependencies"], *(d for extra in extras for d in extra)]
    return [text for text in wanted if not text.startswith("rowferry[")]


def _split(requirement: str) -> tuple[str, str]:
    found = re.match(r"([A-Za-z0-9._-]+?)(?:\[[^]]*\])?\s*([<>=!~][^;]*)?(?:;.*)?$", requirement)
    assert found is not None
    return found[1].lower(), _norm(found[2] or "")


def _norm(specifier: str) -> str:
    return ",".join(sorted(specifier.replace(" ", "").split(",")))


LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()


def test_the_lock_file_works_on_every_machine() -> None:
    assert hosts_and_paths(LOCK) == set()
    assert LOCK.count("==") <= LOCK.count("--hash=sha256:")


def test_the_lock_file_fits_the_project() -> None:
    assert stale(LOCK, PROJECT) == set()


def test_wrong_lock_files_are_found() -> None:
    assert hosts_and_paths("x @ https://mirror.example/x.whl") >= {"mirror.example"}
    assert hosts_and_paths("-f /opt/wheels") == {"/opt/wheels"}
    more = PROJECT.replace("dependencies = [", 'dependencies = [\n    "left-pad>=1",', 1)
    assert stale(LOCK, more) == {"left-pad"}
    assert stale(LOCK, PROJECT.replace('"pytest>=8.4"', '"pytest>=99"')) == {"pytest"}
    assert stale(LOCK, PROJECT.replace('"obstore>=0.8"', '"obstore>=99"')) == {"obstore"}


def test_every_dependency_is_explained() -> None:
    asked = tomllib.loads(PROJECT)
    page = (ROOT / "docs" / "dependencies.md").read_text()
    for name in {_split(d)[0] for d in _of_product(asked)}:
        assert re.search(rf"^\| [^|]*\b{re.escape(name)}\b", page, re.MULTILINE), name
