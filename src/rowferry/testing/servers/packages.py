"""Server programs from Debian packages, unpacked into a private folder: nothing is installed.

The packages come from the Debian mirror that the machine's own apt configuration names; apt checks
signatures and hashes. No root is needed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rowferry.errors import SourceUnavailable

_KEYS: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_CHECKOUT: Final = Path(__file__).parents[4]


@dataclass(frozen=True, slots=True)
class Fetched(ABC):
    """A folder to fetch.

    Attributes:
        name: the folder's name in the cache.
    """

    name: str

    @property
    def folder(self) -> Path:
        """Where it is."""
        return cache() / self.name / "root"

    @property
    def lock(self) -> str:
        """The lock of the cache that whoever fetches it holds."""
        return self.name

    def ensure(self) -> Path:
        """Return the folder; fetch it if it is not there.

        On repeat: quick. Processes that call it at once wait for each other.

        Raises:
            SourceUnavailable: it cannot be had here.
        """
        if not self.folder.exists():
            with locked(self.lock):
                if not self.folder.exists():
                    part = self.folder.with_name("root.part")
                    shutil.rmtree(part, ignore_errors=True)
                    part.mkdir(parents=True)
                    self.fetch(part)
                    part.rename(self.folder)
        return self.folder

    @abstractmethod
    def fetch(self, part: Path) -> None:
        """Fill a folder."""


@dataclass(frozen=True, slots=True)
class Packages(Fetched):
    """Packages of a Debian suite, unpacked, with all that they depend on."""

    suite: str
    packages: tuple[str, ...]

    def fetch(self, part: Path) -> None:
        """Download the packages, and unpack them into a folder."""
        work = self.folder.parent / "apt"
        for archive in _fetch(self.suite, self.packages, work):
            _run(["dpkg-deb", "--extract", str(archive), str(part)], f"unpack {archive.name}")
        shutil.rmtree(work)

    def program(self, path: str) -> list[str]:
        """Return the start of a command that runs one of the programs, with its own libraries."""
        root = self.ensure()
        libraries = [*root.glob("lib/*-linux-gnu"), *root.glob("usr/lib/*-linux-gnu")]
        loader = next(p for folder in libraries for p in folder.glob("ld-linux-*.so.*"))
        return [str(loader), "--library-path", ":".join(map(str, libraries)), str(root / path)]


def cache() -> Path:
    """Return the folder that keeps servers: `ROWFERRY_SERVERS`, or one in the checkout."""
    chosen = os.environ.get("ROWFERRY_SERVERS")
    if chosen:
        return Path(chosen).absolute()
    if (_CHECKOUT / "pyproject.toml").exists():
        return _CHECKOUT / ".cache" / "servers"
    return Path.home() / ".cache" / "rowferry" / "servers"


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock of the cache, against other processes that fill it."""
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(suite: str, packages: Sequence[str], work: Path) -> list[Path]:
    """Download packages and their dependencies; an interrupted download goes on."""
    for needed in ("apt-get", "dpkg-deb"):
        if shutil.which(needed) is None:
            raise SourceUnavailable(
                f"{' and '.join(packages)} cannot be had: this machine has no {needed}; "
                "run the tests on Debian, or point ROWFERRY_SERVERS at a filled folder"
            )
    for folder in ("lists/partial", "archives/partial", "state", "none"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    (work / "status").touch()
    signed = f"[signed-by={_KEYS}] " if _KEYS.exists() else ""
    (work / "sources.list").write_text(f"deb {signed}{_mirror()} {suite} main\n")
    settings = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": work / "none",
        "Dir::Etc::preferences": work / "none" / "preferences",
        "Dir::Etc::preferencesparts": work / "none",
        "Dir::State": work / "state",
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work,
        "Dir::Cache::archives": work / "archives",
        "APT::Sandbox::User": "",  # the folder may be closed to apt's own user
        "APT::Install-Recommends": "false",
        "Acquire::Retries": "3",
        "Acquire::http::Timeout": "60",
    }
    apt = ["apt-get", "--quiet", "--yes", *(f"-o{key}={value}" for key, value in settings.items())]
    _run([*apt, "-oAPT::Update::Error-Mode=any", "update"], f"read the index of Debian {suite}")
    _run([*apt, "--download-only", "install", *packages], f"fetch {' and '.join(packages)}")
    return sorted((work / "archives").glob("*.deb"))


def _mirror() -> str:
    """Return the address of the Debian mirror that this machine uses."""
    shown = _run(
        [
            "apt-get",
            "-oAPT::Get::IndexTargets::ReleaseInfo=false",  # also before the first `update`
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE)",
            "Created-By: Packages",
        ],
        "read apt's configuration",
    )
    for line in shown.splitlines():
        address, _, release = line.partition(" ")
        if "-" not in release:  # not the security or updates archive: they have no such suite
            return address
    raise SourceUnavailable("apt's configuration on this machine names no Debian mirror")


def _run(command: Sequence[str], aim: str) -> str:
    """Run a tool and return its output; its failure is one line of ours."""
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    if result.returncode != 0:
        complaints = [line for line in result.stderr.splitlines() if line.startswith(("E:", "W:"))]
        reason = " ".join(complaints[:2]) or result.stderr.strip()[-300:]
        raise SourceUnavailable(f"cannot {aim}: {reason}")
    return result.stdout
