"""The examples on README.md and the pages in docs/: fenced blocks, shell commands, tables."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_PATIENCE_S = 1200  # an upper bound for a machine under load, never reached by working code
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, first line, language and text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, text: str) -> list[Block]:
    """Return a page's fenced blocks; one without a language is taken for a shell's."""
    return [
        Block(page, text[: m.start()].count("\n") + 1, m[1].strip() or "sh", m[2])
        for m in _FENCE.finditer(text)
    ]


def all_blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages that have one of these languages (none given: all)."""
    found = [b for page in PAGES for b in blocks(page.name, page.read_text())]
    return [b for b in found if not languages or b.language in languages]


def commands(block: Block) -> list[list[str]]:
    """Return a shell block's commands as words; comments are left out, continued lines joined."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def toy_codec() -> tuple[str, str, str]:
    """Return the name of the codec that a page adds, its class's place, and its module."""
    page = (ROOT / "docs" / "adding-a-codec.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    ((name, place),) = re.findall(r'`"([\w-]+)": "([\w.]+:\w+)"`', page)
    return name, place, code


def toy_vectors() -> dict[str, str]:
    """Return the files of its vectors, by their paths below `tests/vectors/<name>/`."""
    page = (ROOT / "docs" / "adding-a-codec.md").read_text()
    lead = re.escape("`tests/vectors/<name>/")
    return dict(re.findall(lead + r"([\w./-]+)`:\n\n```text\n(.*?)```", page, re.DOTALL))


def carried_out(command: Sequence[str], folder: Path, **environment: str) -> str:
    """Carry a command of a page out in a folder, as a reader would, and return what it printed.

    Raises:
        AssertionError: it fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}"
    return done.stdout


def table_rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the table whose first line holds these headings."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            inside = False
        elif [c.strip() for c in heading.split("|")] == cells:
            inside = True
        elif inside and not set("".join(cells)) <= set("-:"):
            found.append(cells)
    return found
