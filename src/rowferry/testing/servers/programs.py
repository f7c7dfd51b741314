"""Programs from Go's, Node's and Python's package registries, kept in the servers' cache.

All ask the registry that the machine's own settings name, and check hashes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.packages import Fetched

_FALLBACK: Final = "point ROWFERRY_SERVERS at a filled folder"


@dataclass(frozen=True, slots=True)
class Program(Fetched):
    """A program to fetch.

    Attributes:
        package: what the registry calls it, with its version after the last `@`.
        start: the path of the program inside the folder.
    """

    package: str
    start: str

    @abstractmethod
    def command(self) -> list[str]:
        """Return the start of a command that runs the program."""


class GoProgram(Program):
    """A program that Go builds from its sources; the first time takes minutes."""

    def fetch(self, part: Path) -> None:
        """Build the program, without C libraries, into a folder."""
        # Code that nobody reads in a debugger: a third of the size.
        build = ["install", "-ldflags=-s -w", self.package]
        _run("go", "golang", build, {"GOBIN": str(part), "CGO_ENABLED": "0"}, self.name)

    def command(self) -> list[str]:
        """Return the program's path."""
        return [str(self.folder / self.start)]


@dataclass(frozen=True, slots=True)
class GoModule(Program):
    """A program that Go builds inside a module of ours, which names versions and replacements.

    Attributes:
        module: the text of its `go.mod`, which names the toolchain, too.
    """

    module: str = ""

    def fetch(self, part: Path) -> None:
        """Build the program into a folder."""
        (part / "go.mod").write_text(self.module)
        toolchain = "go" + next(w[1] for w in map(str.split, self.module.splitlines()) if "go" in w)
        settings = {"GOTOOLCHAIN": toolchain, "GOFLAGS": "-mod=mod"}
        build = ["-C", str(part), "build", "-ldflags=-s -w", "-o", self.start, self.package]
        _run("go", "golang", build, settings, self.name)

    def command(self) -> list[str]:
        """Return the program's path."""
        return [str(self.folder / self.start)]


class NodeProgram(Program):
    """A program that Node runs."""

    def fetch(self, part: Path) -> None:
        """Install the package with all that it needs into a folder; its scripts are not run."""
        quiet = ["--no-audit", "--no-fund", "--no-save", "--omit=dev", "--ignore-scripts"]
        install = ["install", "--prefix", str(part), *quiet, self.package]
        _run("npm", "npm", install, {}, self.name)

    def command(self) -> list[str]:
        """Return Node's path and the script's."""
        return [_tool("node", "nodejs", self.name), str(self.folder / "node_modules" / self.start)]


@dataclass(frozen=True, slots=True)
class PythonPackages(Fetched):
    """Packages of Python that come before those of this process, for a process of their own.

    Attributes:
        packages: `name==version` of each; what they need besides is this process's.
    """

    packages: tuple[str, ...]

    def fetch(self, part: Path) -> None:
        """Install the packages into a folder."""
        quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-cache-dir"]
        install = ["-m", "pip", "install", *quiet, "--no-deps", "--target", str(part)]
        _run(sys.executable, "python3-pip", [*install, *self.packages], {}, self.name)

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that finds these packages first."""
        paths = [str(self.ensure()), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _tool(tool: str, debian: str, name: str) -> str:
    program = shutil.which(tool)
    if program is None:
        raise SourceUnavailable(
            f"{name} cannot be had: this machine has no {tool}; "
            f"install it (Debian: apt-get install {debian}), or {_FALLBACK}"
        )
    return program


def _run(
    tool: str, debian: str, arguments: Sequence[str], env: Mapping[str, str], name: str
) -> None:
    """Run a tool; its failure is one line of ours."""
    command = [_tool(tool, debian, name), *arguments]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **env}
    )
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        reason = re.sub(r"://[^/@\s]*@", "://***@", " ".join(lines[-2:]))
        raise SourceUnavailable(f"cannot fetch {name}: {reason[:400]}")
