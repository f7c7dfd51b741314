"""Log files: private, put aside when they are long, and not more than some."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from rowferry.face import log_file
from rowferry.face.log_file import LogLimits, log_to_file


@pytest.fixture
def loose() -> Iterator[None]:
    """Put the process's own log back."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        if handler not in before:
            handler.close()
    root.handlers[:] = before
    root.setLevel(level)


def test_files_are_private_and_the_oldest_go(
    tmp_path: Path, loose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "_MEGABYTE", 1000)
    file = tmp_path / "logs" / "feed.log"
    log_to_file(file, LogLimits(1, 2))
    for number in range(100):
        logging.getLogger("rowferry.test").info("line %d, password=hush&x=1", number)
    names = sorted(p.name for p in file.parent.iterdir())
    assert names == ["feed.log", "feed.log.1", "feed.log.2"]
    assert {p.stat().st_mode & 0o777 for p in file.parent.iterdir()} == {0o600}
    text = file.read_text() + (file.parent / "feed.log.1").read_text()
    assert "line 99" in text and "hush" not in text
    assert all(p.stat().st_size <= 1000 for p in file.parent.iterdir())
