"""`rowferry` called in this process, with what it printed and what it left behind."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path

import pytest

from rowferry.face.cli.main import main

_ERROR = re.compile(r"\[(RF-\d{4})\] (.+)")


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    def refusal(self) -> tuple[str, str]:
        """Return code and words of the one line on standard error; anything else is a failure."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        found = _ERROR.fullmatch(lines[0])
        assert found, self.err
        return found[1], found[2]


def call(
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    patch: pytest.MonkeyPatch,
    arguments: list[str],
) -> Result:
    """Run a command line in a folder; also what libraries print themselves is seen."""
    capfd.readouterr()
    with patch.context() as here:
        here.chdir(folder)
        here.setattr(sys, "argv", ["rowferry", *arguments])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            _let_go_of_log_files()
    said = capfd.readouterr()
    return Result(code, said.out, said.err)


def _let_go_of_log_files() -> None:
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, logging.FileHandler)]:
        if isinstance(handler, RotatingFileHandler):
            root.removeHandler(handler)
            handler.close()


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder: files with their content, directories with None."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
    }


Command = Callable[..., Result]
