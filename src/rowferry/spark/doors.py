"""Who may talk to Spark, and who may read its files: nobody but those who hold its secret.

Spark's driver, executors and block managers listen on ports of the machine and read Java objects
from whoever connects. Authentication is on, therefore, wherever Spark runs. On this machine, and
on YARN and Kubernetes, Spark makes a secret of its own for each application. A standalone cluster
has one for all of its daemons and applications, which we must be told. No secret stands on a
command line, which every user of a machine can read.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rowferry.errors import BadOption

AUTHENTICATE: Final = "spark.authenticate"
SECRET: Final = "spark.authenticate.secret"
SECRET_FILE: Final = "spark.authenticate.secret.file"
_ENCRYPT: Final = "spark.network.crypto.enabled"
_ON_THIS_MACHINE: Final = re.compile(r"local(\[.*\])?")
_LOCAL_DIR: Final = "spark.local.dir"
_SOCKET_DIR: Final = "spark.python.unix.domain.socket.dir"
_HIDDEN: Final = re.compile("(?i)secret|password|token|access[.]?key|credential")
_OF_FILES: Final = re.compile("(?i)file$")
_LONGEST_TEMP: Final = 60  # bytes; a socket's path may have 107 in all


def is_hidden(key: str) -> bool:
    """Return whether a setting's value is a secret: it must not stand on a command line."""
    return _HIDDEN.search(key) is not None and key != SECRET_FILE


def holds_secret(key: str) -> bool:
    """Return whether a setting's value is a secret itself, and not the name of its file."""
    return is_hidden(key) and not _OF_FILES.search(key)


def authentication(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by which Spark lets nobody in without its secret.

    What goes from machine to machine is encrypted with it, too.

    Raises:
        BadOption: a standalone cluster's secret is missing, or its file cannot be used.
    """
    if settings.get(AUTHENTICATE, "true").lower() != "true":
        return {}
    on = {AUTHENTICATE: "true"}
    if not _ON_THIS_MACHINE.fullmatch(master):
        on[_ENCRYPT] = settings.get(_ENCRYPT, "true")
    if SECRET in settings or not master.startswith(("spark://", "local-cluster")):
        return on
    if master.startswith("local-cluster"):
        return {**on, SECRET: secrets.token_hex(32)}
    file = settings.get(SECRET_FILE, "")
    if not file:
        raise BadOption(
            f"--spark-master {master}: its secret is missing; put it into a file that only you can "
            f"read and give --spark-conf {SECRET_FILE}=FILE, or --spark-conf {AUTHENTICATE}=false "
            "if this cluster lets everybody in"
        )
    return {**on, SECRET: _secret_in(Path(file)), SECRET_FILE: ""}


def _secret_in(file: Path) -> str:
    try:
        mode, secret = file.stat().st_mode, file.read_text().strip()
    except (OSError, ValueError) as err:
        why = getattr(err, "strerror", None) or "no text"
        raise BadOption(f"--spark-conf {SECRET_FILE}={file} cannot be read: {why}") from None
    if mode & 0o077:
        raise BadOption(f"--spark-conf {SECRET_FILE}={file}: others can read it; run: chmod 600")
    if not secret:
        raise BadOption(f"--spark-conf {SECRET_FILE}={file} is empty")
    return secret


class Room:
    """Folders for what Spark keeps while it runs; only our user can enter them."""

    def __init__(self) -> None:
        self._folders: list[str] = []
        self._made: dict[str, str] = {}

    def settings(self, master: str, settings: Mapping[str, str]) -> dict[str, str]:
        """Return where Spark puts its files: below the folders that it would have used.

        Executors of a cluster have machines, and folders, of their own.
        """
        if not master.startswith("local"):
            return {}
        if self._made:  # Spark runs already
            return self._made
        given = os.environ.pop("SPARK_LOCAL_DIRS", "") or settings.get(_LOCAL_DIR, "")
        temp = tempfile.gettempdir()
        dirs = [self._make(root) for root in (given.split(",") if given else [temp])]
        short = dirs[0] if len(dirs[0]) <= _LONGEST_TEMP else self._make("/tmp")
        self._made = {_LOCAL_DIR: ",".join(dirs), _SOCKET_DIR: settings.get(_SOCKET_DIR) or short}
        return self._made

    def _make(self, root: str) -> str:
        try:
            folder = tempfile.mkdtemp(prefix="rowferry-", dir=root.strip())
        except OSError as err:
            raise BadOption(f"{_LOCAL_DIR}: {root} cannot be used: {err.strerror}") from None
        self._folders.append(folder)
        return folder

    def clear(self) -> None:
        """Remove the folders: Spark has ended."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._folders, self._made = [], {}


def private_folder(folder: Path) -> None:
    """Make a folder that only our user can enter; one that is there stays as it is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def private_file(file: Path) -> int:
    """Open a file to append to, which only our user can read; returns its descriptor."""
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.fchmod(number, 0o600)  # it may be there already
    return number
