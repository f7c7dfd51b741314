"""Logins of a command's addresses need not stand in its words, which all users of a machine see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rowferry.control.store.sql_store import open_store
from rowferry.errors import BadOption
from rowferry.face.cli.main import app
from rowferry.face.cli.options.address import given_address, given_addresses
from rowferry.testing.harness import RunProcess

WORD = "word-of-mine"


def test_an_address_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "address"
    file.write_text("mysql://u:p@h/\n")
    monkeypatch.setenv("SHOP", "kafka://u:p@h/")
    assert given_address(f"@{file}") == "mysql://u:p@h/"
    assert given_address("env:SHOP") == "kafka://u:p@h/"
    assert given_address("range://h:1") == "range://h:1"
    assert given_addresses(["7=env:SHOP", f"@{file}"]) == ["7=kafka://u:p@h/", "mysql://u:p@h/"]


@pytest.mark.parametrize("text", ["@absent", "env:ABSENT_HERE", "@empty", "@two"])
def test_nothing_there_is_told(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text("\n")
    Path("two").write_text(f"{WORD}\n{WORD}\n")
    with pytest.raises(BadOption, match=text) as said:
        given_address(text)
    assert WORD not in str(said.value)


def test_a_real_run_takes_its_login_from_a_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text(f"mysql://ann:{WORD}@127.0.0.1:1/")
    sink = f"file://{tmp_path}/out?protocol=csv"
    with RunProcess(["--source", f"@{source}", "--sink-uri", sink], tmp_path / "work") as run:
        assert run.wait(60) != 0
        assert "ann@127.0.0.1:1" in run.printed() and WORD not in run.printed()


def test_a_meta_database_that_a_file_names(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path / 'meta.db'}").close()
    named = tmp_path / "meta"
    named.write_text(f"sqlite:///{tmp_path / 'meta.db'}")
    found = CliRunner().invoke(app, ["meta", "check", "--meta", f"@{named}", "-o", "json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout) is not None
