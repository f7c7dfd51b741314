"""The commands of docs/security.md, carried out in their order."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from page_examples import all_blocks, commands
from rowferry.control.operator.actor import Role
from rowferry.errors import BadOption
from rowferry.face.cli.main import app
from rowferry.face.credentials import KnownLogins

PASSWORD = "a long enough word"


def test_logins_are_made_and_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROWFERRY_PASSWORD", PASSWORD)
    page = [b for b in all_blocks("sh") if b.page == "security.md"]
    user, token, remove = (c for b in page for c in commands(b) if c[1] == "access")
    shell = CliRunner()
    for words in (user, token):
        done = shell.invoke(app, words[1:])
        assert done.exit_code == 0, done.output
    known = KnownLogins.read(Path("tokens.txt"), Path("users.txt"))
    assert known.user("ann", PASSWORD) is Role.OPERATOR
    assert known.user("ann", "another word") is None
    found = known.token(done.output.strip())
    assert found is not None and (found.name, found.role) == ("nightly-check", Role.VIEWER)
    assert {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {0o600}
    assert shell.invoke(app, remove[1:]).exit_code == 0
    with pytest.raises(BadOption, match=r"tokens\.txt"):
        KnownLogins.read(Path("tokens.txt"))
