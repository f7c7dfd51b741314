"""The range protocol over TLS and with tokens, between real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rowferry.control.operator.checks.prepare import prepare
from rowferry.errors import (
    BadOption,
    LoginRefused,
    OptionsConflict,
    RowferryError,
    SourceUnavailable,
    StoreRefused,
)
from rowferry.flow.capture.range_log.client import RangeClient
from rowferry.flow.capture.range_log.client_access import PLAIN, RangeAccess
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster, _Process
from rowferry.refstore.guard import read_guard, read_tokens
from rowferry.refstore.rpc import RpcServer
from rowferry.testing.harness import wait_for
from rowferry.testing.servers.certificates import Certificates

TOKEN = "a-token-of-the-store"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("range-tls")
    for name in ("ours", "theirs"):
        Certificates.make(found / name)
    for name, tokens in (("tokens", f"{TOKEN}\nan-older-one\n"), ("wrong", "guessed\n")):
        (found / name).write_text(tokens)
        (found / name).chmod(0o600)
    return found


@pytest.fixture(scope="module")
def access(folder: Path) -> RangeAccess:
    ours = folder / "ours"
    return RangeAccess(
        True,
        ca=str(ours / "ca.pem"),
        cert=str(ours / "client.pem"),
        key=str(ours / "client_key.pem"),
        token=TOKEN,
    )


def options(folder: Path, tokens: str = "tokens") -> tuple[str, ...]:
    server = str(folder / "ours" / "server.pem")
    files = ("--tls-cert", server, "--tls-key", server, "--tls-ca", f"{folder}/ours/ca.pem")
    return (*files, "--tls-mutual", "--token-file", f"{folder}/{tokens}")


@pytest.fixture(scope="module")
def cluster(folder: Path, access: RangeAccess) -> Iterator[LocalCluster]:
    with (
        LocalCluster(folder / "store", 1, guard_options=options(folder), access=access) as running,
        running.store() as store,
    ):
        store.ddl("CREATE DATABASE d")
        store.ddl("CREATE TABLE d.t (id bigint PRIMARY KEY)")
        yield running


def asked(address: str, access: RangeAccess) -> int:
    client = RangeClient(address, "me", access=access)
    try:
        return client.timestamp()
    finally:
        client.close()


def test_a_changefeed_reads_with_certificate_and_token(
    cluster: LocalCluster, access: RangeAccess, folder: Path
) -> None:
    uri = f"range+ssl://{cluster.master_address}?ca={access.ca}&cert={access.cert}&key={access.key}"
    sink = f"file://{folder}/out?protocol=csv"
    ready = prepare(f"{uri}&token={TOKEN}", sink)
    assert [str(t.id) for t in ready.tables] == ["d.t"]
    assert TOKEN not in str(ready.spec.source) and TOKEN not in repr(ready.spec)
    with pytest.raises(LoginRefused, match="does not know our token") as refused:
        prepare(f"{uri}&token=guessed", sink)
    assert "guessed" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"token": "guessed"}, LoginRefused, "does not know our token"),
        ({"token": ""}, LoginRefused, "does not know our token"),
        ({"ca": "theirs"}, LoginRefused, "not signed by one of the authorities in ca"),
        ({"cert": "", "key": ""}, RowferryError, "UNAVAILABLE|wants a certificate"),
        ({"tls": False}, SourceUnavailable, r"range\+ssl://"),
    ],
    ids=str,
)
def test_others_are_told_why_they_are_not_let_in(
    cluster: LocalCluster,
    access: RangeAccess,
    folder: Path,
    change: dict[str, str],
    error: type[RowferryError],
    words: str,
) -> None:
    assert asked(cluster.master_address, access) > 0
    assert asked(cluster.master_address, replace(access, token="an-older-one")) > 0
    if "ca" in change:
        change = {"ca": str(folder / "theirs" / "ca.pem")}
    for address in (cluster.master_address, cluster.addresses[0]):
        with pytest.raises(error, match=words):
            asked(address, replace(access, **change))


def test_a_server_without_tls_is_named(access: RangeAccess) -> None:
    server = RpcServer({})
    try:
        with pytest.raises(LoginRefused, match="does not speak TLS"):
            asked(server.listen("127.0.0.1:0"), access)
    finally:
        server.stop()


def test_a_data_server_with_another_token_leads_nothing(
    cluster: LocalCluster, access: RangeAccess, folder: Path
) -> None:
    with Store(cluster.master_address, access=replace(access, token="x")) as stranger:
        with pytest.raises(StoreRefused, match="does not know our token"):
            stranger.ddl("CREATE DATABASE e")
    log = folder / "stranger.stderr"
    words = ["data", "--listen", "127.0.0.1:0", "--master", cluster.master_address]
    server = _Process([*words, "--data-dir", str(folder / "x"), *options(folder, "wrong")], log)
    try:
        server.wait_ready()
        wait_for(lambda: "[RF-6004]" in log.read_text(), "its complaint", 120, 0.1)
        with cluster.store() as store:
            assert len(store.servers()) == 1
    finally:
        server.end(signal.SIGKILL)
    assert "guessed" not in log.read_text()


def test_settings_that_do_not_go_together(folder: Path) -> None:
    for given, words in (
        (RangeAccess(ca="x"), "ca needs TLS"),
        (RangeAccess(True, cert="x"), "belong together"),
        (RangeAccess(token="x"), "token needs TLS"),
    ):
        with pytest.raises(OptionsConflict, match=words):
            given.check("store.example.com:4400")
    RangeAccess(token="x").check("127.0.0.1:4400")
    with pytest.raises(BadOption, match="no header"):
        RangeAccess(True, token="x\r\ny").check("h:1")
    some = folder / "x"
    for wrong, words in (
        ((some, None, None, False, None), "belong together"),
        ((some, some, None, False, None), "needs --tls-ca"),
        ((None, None, some, True, None), "--tls-mutual needs"),
    ):
        with pytest.raises(BadOption, match=words):
            read_guard(*wrong)
    open_file = folder / "open"
    open_file.write_text("t\n")
    open_file.chmod(0o644)
    with pytest.raises(BadOption, match="chmod 600"):
        read_tokens(open_file)
    assert read_guard(None, None, None, False, None).access == PLAIN
