"""What `rowferry check-storage` prints: plain when piped, a table on a terminal, JSON if asked."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from check_kit import clean
from rich.console import Console
from typer.testing import CliRunner

from rowferry.downstream.storage_check.rules import Rule, StorageFindings
from rowferry.errors import BadOption
from rowferry.face.cli.downstream.check_storage import _show
from rowferry.face.cli.downstream.table import commit_ts
from rowferry.face.cli.main import app


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The command, for a directory with two objects too many and rows above its checkpoint."""
    tree = clean() | {"metadata": b'{"checkpoint-ts":1}', "junk": b"", "hr/[bold]": b""}
    for path, content in tree.items():
        file = tmp_path / "out" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    config = tmp_path / "feed.toml"
    config.write_text("[sink]\nfile-index-digit = 6\n[sink.csv]\ninclude-commit-ts = true\n")
    return ["check-storage", f"file://{tmp_path}/out", "--config", str(config)]


def test_plain_lines_when_piped(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        "unknown-object  hr/[bold]  the layout has no such object",
        "unknown-object  junk  the layout has no such object",
    ]
    assert lines[2].startswith("rows-above-checkpoint  hr/employee/")
    assert lines[-1].endswith(": 2 violations of 1 rule")


def test_json_for_programs(words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["violations"], told["files"], told["rows"]) == (2, 4, 6)
    assert [(r["rule"], r["count"], r["fails"]) for r in told["rules"]] == [
        ("unknown-object", 2, True),
        ("rows-above-checkpoint", 3, False),
    ]


def test_a_table_with_colours_on_a_terminal() -> None:
    findings = StorageFindings()
    findings.add(Rule.GAP_IN_NUMBERS, "a/b", "no file has number 3")
    said = io.StringIO()
    _show(Console(file=said, force_terminal=True, width=100), findings)
    assert "what must hold" in said.getvalue()
    assert "\x1b[31mgap-in-numbers" in said.getvalue()
    assert "1 violation of 1 rule" in said.getvalue()


def test_times_of_as_of() -> None:
    assert commit_ts("470486163128320000") == 470486163128320000
    assert commit_ts("1970-01-01T00:00:00.001Z") == (2 << 18) - 1
    assert commit_ts("1970-01-01 01:00:00.001+01:00") == commit_ts("1970-01-01T00:00:00.001")
    with pytest.raises(BadOption, match="a commit-ts, or a time"):
        commit_ts("yesterday")
