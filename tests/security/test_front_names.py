"""A page whose name was made to lead here: an open server answers only under its own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from front_kit import Front
from typer.testing import CliRunner

from rowferry.errors import BadOption
from rowferry.face.cli.main import app
from rowferry.face.gate import Gate
from rowferry.face.names import ServerNames, refuse_open_door

FEEDS = "/api/v2/changefeeds"
PAUSE = f"{FEEDS}/one/pause"
EVIL = {"host": "evil.example:8300"}


def asked(front: Front, headers: Mapping[str, str], method: str = "GET", path: str = FEEDS) -> int:
    return front.ask(method, path, headers=headers).status


def test_another_name_is_refused(front: Front) -> None:
    for path in (FEEDS, "/", "/metrics", "/openapi.json", "/web/app.js"):
        said = front.ask("GET", path, headers=EVIL)
        assert said.status == 421 and "another name" in said.words
    same_page = {**EVIL, "origin": "http://evil.example:8300", "sec-fetch-site": "same-origin"}
    assert asked(front, same_page, "POST", PAUSE) == 421
    for host in (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::1",
        "@",
    ):
        assert asked(front, {"host": host}) == 421, host
    # It tells nothing, and those who watch over servers ask under any name.
    assert asked(front, EVIL, path="/health") == asked(front, EVIL, path="/api/v2/health") == 200


def test_own_names_and_addresses_are_known(front: Front) -> None:
    for host in (
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1:8300",
        "[::1]:8300",
        "10.1.2.3",
        "ferry.example",
    ):
        assert asked(front, {"host": host}) == 200, host


def test_a_proxys_word_counts_only_from_a_proxy(opened: Callable[..., Front]) -> None:
    told = {"host": "evil.example", "x-forwarded-host": "ferry.example"}
    post = {
        **told,
        "host": "ferry.example",
        "x-forwarded-host": "cdc.example",
        "origin": "https://cdc.example",
    }
    strangers = opened(names=ServerNames.read(["ferry.example:1"], ["cdc.example"], ["10.0.0.0/8"]))
    assert asked(strangers, told) == 421
    assert asked(strangers, post, "POST", PAUSE) == 403
    proxy = opened(names=ServerNames.read(["ferry.example:1"], ["cdc.example"], ["127.0.0.0/8"]))
    assert asked(proxy, told) == 200
    assert asked(proxy, {**told, "x-forwarded-host": "ferry.example, evil.example"}) == 421
    assert asked(proxy, post, "POST", PAUSE) == 400  # there is no such changefeed


def test_with_a_login_any_name_will_do(opened: Callable[..., Front]) -> None:
    front = opened(gate=Gate.of("word"))
    assert asked(front, EVIL) == 401
    assert asked(front, {**EVIL, "authorization": "Bearer word"}) == 200


def test_names_of_another_form_are_refused() -> None:
    for name in ("", "a:1", "http://a", "a/b"):
        with pytest.raises(BadOption, match="--server-name"):
            ServerNames.read([], [name])
    for proxy in ("", "proxy.example", "10.0.0.1/8"):
        with pytest.raises(BadOption, match="--trusted-proxy"):
            ServerNames.read([], [], [proxy])


def test_an_open_server_is_for_this_machine_only() -> None:
    for address in ("127.0.0.1:0", "localhost:1", "[::1]:1"):
        refuse_open_door(address, "--addr")
    for address in ("0.0.0.0:1", "[::]:1", "192.0.2.1:1"):
        with pytest.raises(BadOption, match="--grpc-addr .*--open-to-all"):
            refuse_open_door(address, "--grpc-addr")
    for flags in (
        ["--addr", "0.0.0.0:0"],
        ["--grpc-addr", "0.0.0.0:0"],
        ["--addr", "0.0.0.0:0", "--server-name", "cdc.example"],
    ):
        done = CliRunner().invoke(app, ["server", *flags])
        assert isinstance(done.exception, BadOption) and "--open-to-all" in str(done.exception)
