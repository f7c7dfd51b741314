"""Logins: hashed passwords, tokens with an end, what guessing costs, and files that change."""

from __future__ import annotations

import base64
import logging
import os
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from front_kit import Front
from typer.testing import CliRunner

from page_examples import all_blocks, commands
from rowferry.control.operator.actor import Role
from rowferry.errors import AccessDenied, BadOption, LoginDelayed
from rowferry.face import credentials
from rowferry.face.cli.main import app
from rowferry.face.credentials import KnownLogins, Token, User, hashed, is_right, token_digest
from rowferry.face.delays import Delays
from rowferry.face.fresh import Fresh
from rowferry.face.gate import Gate

FEEDS = "/api/v2/changefeeds"
WORD = secrets.token_hex(8)


def basic(name: str, word: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{word}".encode()).decode()


def status(front: Front, authorization: str) -> int:
    return front.ask("GET", FEEDS, headers={"authorization": authorization}).status


def test_a_password_is_kept_as_a_salted_hash() -> None:
    first, second = hashed(WORD), hashed(WORD)
    assert first != second and first.startswith("scrypt$16384$8$1$") and WORD not in first
    assert is_right(WORD, first) and is_right(WORD, second)
    for wrong in ("", WORD + "x", WORD[:-1], "\ud800"):
        assert not is_right(wrong, first)


def test_files_are_made_by_commands_and_read(tmp_path: Path) -> None:
    users, tokens = tmp_path / "users", tmp_path / "tokens"
    run = CliRunner(env={"ROWFERRY_PASSWORD": WORD})

    def access(*words: str) -> str:
        done = run.invoke(app, ["access", *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout.strip()

    for name, role in (("ann", "viewer"), ("bob@example.com", "operator"), ("ann", "admin")):
        access("user", name, "--role", role, "--file", str(users))
    made = {
        days: access(
            "token", f"ci-{days}", "--role", "operator", "--days", days, "--file", str(tokens)
        )
        for days in ("7", "0")
    }
    text = users.read_text() + tokens.read_text()
    assert WORD not in text and not any(word in text for word in made.values())
    assert users.stat().st_mode & 0o777 == tokens.stat().st_mode & 0o777 == 0o600
    gate = Gate.read(tokens, users)
    seen = [
        gate.admit(login, "1.2.3.4", "rest")
        for login in (basic("ann", WORD), basic("bob@example.com", WORD), f"Bearer {made['7']}")
    ]
    assert [(one.name, one.role) for one in seen] == [
        ("ann", Role.ADMIN),
        ("bob@example.com", Role.OPERATOR),
        ("ci-7", Role.OPERATOR),
    ]
    access("remove", "ci-7", "--file", str(tokens))
    with pytest.raises(AccessDenied):
        Gate.read(tokens, users).admit(f"Bearer {made['7']}", "1.2.3.4", "rest")
    for words in (["user", "a:b"], ["user", "x", "--role", "god"], ["token", "x y"]):
        done = run.invoke(app, ["access", *words, "--file", str(users)])
        assert isinstance(done.exception, BadOption)


def test_the_pages_commands_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner(env={"ROWFERRY_PASSWORD": WORD})
    lines = [w for b in all_blocks("sh") if b.page == "security.md" for w in commands(b)]
    made, token, removed = [w[1:] for w in lines if w[1] == "access"]
    said = [run.invoke(app, words, catch_exceptions=False).stdout for words in (made, token)]
    gate = Gate.read(tmp_path / "tokens.txt", tmp_path / "users.txt")
    assert gate.admit(basic("ann", WORD), "", "rest").role is Role.OPERATOR
    assert gate.admit(f"Bearer {said[1].strip()}", "", "rest").name == "nightly-check"
    assert run.invoke(app, removed).exit_code == 0
    assert (tmp_path / "tokens.txt").read_text() == ""


def test_one_word_is_a_token_of_an_admin(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"\ufeff{WORD}\r\n")  # as some editors write files
    assert Gate.read(file).admit(f"bearer  {WORD}", "", "rest").role is Role.ADMIN
    assert Gate.read().is_open


@pytest.mark.parametrize(
    ("users", "words"),
    [
        ("", "names no user"),
        ("ann:secretword", "line 1: .*rowferry access user"),
        ("# x\nann:admin:secretword", "line 2: .*rowferry access user"),
        (":admin:scrypt$", "line 1"),
        ("ann:god:" + hashed("x", (2, 8, 1)), "viewer, operator, admin"),
        ("ann:admin:scrypt$99999999$8$1$AAAAAAAAAAAAAAAA$AAAA", "damaged"),
        ("ann:admin:scrypt$x", "damaged"),
        (f"ann:admin:{hashed('x', (2, 8, 1))}\n" * 2, "there already"),
    ],
)
def test_users_that_cannot_be_meant_are_refused(tmp_path: Path, users: str, words: str) -> None:
    file = tmp_path / "users"
    file.write_text(users)
    with pytest.raises(BadOption, match=words) as refused:
        Gate.read(None, file)
    assert "secretword" not in str(refused.value)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ("", "holds no token"),
        ("two words", "one word"),
        ("one\nother", "name:role:end"),
        ("ci:admin:soon:sha256$" + "0" * 64, "2027-01-31"),
        ("ci:admin:never:sha256$00", "damaged"),
        ("ci:admin:never:md5$00", "sha256"),
    ],
)
def test_tokens_that_cannot_be_meant_are_refused(tmp_path: Path, tokens: str, words: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(tokens)
    with pytest.raises(BadOption, match=words):
        Gate.read(file)


def test_a_token_ends(opened: Callable[..., Front], monkeypatch: pytest.MonkeyPatch) -> None:
    ends = time.time() + 1000
    gate = Gate(KnownLogins({}, (Token("ci", Role.VIEWER, token_digest(WORD), ends),)))
    front = opened(gate=gate)
    assert status(front, f"Bearer {WORD}") == 200
    later = ends + 1
    monkeypatch.setattr("rowferry.face.gate.time.time", lambda: later)  # remembered, and yet
    assert status(front, f"Bearer {WORD}") == 401


def test_a_day_counts_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    today = datetime.now(UTC).date()
    for day, admitted in ((today, True), (today - timedelta(days=1), False)):
        word, line = credentials.token_line("ci", Role.VIEWER, day)
        file.write_text(line)
        assert (KnownLogins.read(file).token(word) is not None) is admitted


def test_guessing_costs_time(
    opened: Callable[..., Front], caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    delays = Delays(free=2, first_s=8.0, most_s=20.0, clock=lambda: clock[0])
    known = KnownLogins(
        {"ann": User(Role.ADMIN, hashed(WORD))}, (Token("t", Role.ADMIN, b"x" * 32),)
    )
    front = opened(gate=Gate(known, delays))
    with caplog.at_level(logging.WARNING, "audit"):
        assert [status(front, basic("ann", "x")) for _ in range(3)] == [401] * 3
    assert caplog.text.count("a login failed, from 127.0.0.1 by rest") == 3
    said = front.ask("GET", FEEDS, headers={"authorization": basic("ann", WORD)})
    assert said.status == 429 and said.words.startswith("[RF-1034] ")  # not even the right one
    assert "retry-after" in said.headers
    clock[0] += 8.1
    assert status(front, basic("ann", "x")) == 401
    clock[0] += 8.1
    assert status(front, basic("ann", WORD)) == 429  # twice as long
    clock[0] += 8.1
    assert status(front, basic("ann", WORD)) == 200
    assert status(front, "Bearer guess") == 401
    assert status(front, basic("ann", WORD)) == 200  # who is known is not kept out
    assert status(front, "") == 401  # nothing was guessed


def test_delays_grow_end_and_stay_small() -> None:
    clock = [0.0]
    delays = Delays(free=1, first_s=1.0, most_s=4.0, clock=lambda: clock[0])
    waits = []
    for _ in range(5):
        delays.failed("a")
        waits.append(delays.wait_s("a"))
    assert waits == [0.0, 1.0, 2.0, 4.0, 4.0] and delays.wait_s("b") == 0.0
    clock[0] = 9.0
    delays.failed("a")
    assert delays.wait_s("a") == 0.0  # all is forgotten
    for number in range(5000):
        delays.failed(str(number))
    assert len(delays._failed) == 4096


def test_delays_are_by_network_where_one_client_has_many_addresses() -> None:
    delays = Delays(free=2)
    for number in range(3):
        delays.failed(f"2001:db8::{number + 1:x}")
        delays.failed(f"10.0.0.{number + 1}")
        delays.failed(("10.1.0.1", "::ffff:10.1.0.1", "::ffff:a01:1")[number])
    for waiting in ("2001:db8::ffff", "2001:db8::1%eth0", "10.1.0.1", "::ffff:10.1.0.1"):
        assert delays.wait_s(waiting) > 0.0
    for free in ("2001:db8:0:1::1", "10.0.0.1", "::ffff:10.0.0.1", "unix:here"):
        assert delays.wait_s(free) == 0.0


def test_a_wrong_name_is_hashed_like_a_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    right = credentials.is_right
    monkeypatch.setattr(credentials, "is_right", lambda w, k: asked.append(k) or right(w, k))
    known = KnownLogins({"ann": User(Role.ADMIN, hashed(WORD))})
    assert known.user("ann", "x") is known.user("nobody", "x") is known.user("nobody", "") is None
    assert len(asked) == 3
    assert len({kept.rsplit("$", 2)[0] for kept in asked}) == 1  # at the same cost


def test_many_logins_at_once_are_not_all_hashed(
    opened: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rowferry.face.rest.guard._MOST_LOGINS", 0)
    front = opened(gate=Gate.of(users={"ann": WORD}))
    assert status(front, basic("ann", WORD)) == 429
    assert front.ask("GET", "/health").status == 200


def test_files_that_change_count_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    gate = Gate(Fresh([file], lambda: KnownLogins.read(file), every_s=0.0))
    assert gate.admit("Bearer first", "", "rest").role is Role.ADMIN

    def written(text: str) -> None:
        new = tmp_path / "new"
        new.write_text(text)
        os.replace(new, file)

    written("second")
    assert gate.remembered("Bearer first", "", "rest") is None  # though it was remembered
    with pytest.raises(AccessDenied):
        gate.admit("Bearer first", "", "rest")
    assert gate.admit("Bearer second", "", "rest").role is Role.ADMIN
    with caplog.at_level(logging.ERROR):
        written("no token at all")
        assert gate.admit("Bearer second", "", "rest").role is Role.ADMIN
    assert "what it said before counts" in caplog.text
    file.unlink()
    assert gate.admit("Bearer second", "", "rest").role is Role.ADMIN
    assert isinstance(LoginDelayed("x"), AccessDenied)
