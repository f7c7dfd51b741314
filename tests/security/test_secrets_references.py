"""References in the place of secrets: env:, file: and vault:, and who may name them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from vault_kit import SmallVault, small_vault

from rowferry.change.table import TableId
from rowferry.control.feed.running import Conditions
from rowferry.control.fleet.server import Member
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.sql_store import open_store
from rowferry.errors import BadOption, NotAllowed, RowferryError, SecretMissing
from rowferry.flow.assemble import assemble, secret_tables
from rowferry.refstore.cluster import LocalCluster
from rowferry.secrets.environment import given_sources, sources_of_environment
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.secrets.vault import Vault, VaultLogin
from rowferry.spark.shared import DriverRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.reach import Reach
from rowferry.spec.secret_reference import SecretReference, read_reference
from rowferry.spec.uri import Uri
from rowferry.testing.harness import wait_for
from rowferry.testing.receiver import HttpReceiver

TOKEN = "hvs.the-token-of-the-server"


def feed(
    source: str = "range://127.0.0.1:1",
    sink: str = "http://127.0.0.1:1/?protocol=json",
    token: str = "",
    headers: tuple[str, ...] = (),
) -> ChangefeedSpec:
    options = {"bearer-token": token, "headers": list(headers)}
    config = {"sink": {"http-config": {k: v for k, v in options.items() if v}}}
    return ChangefeedSpec("web", Uri.parse(source, "source"), Uri.parse(sink, "sink"), config)


@pytest.fixture
def vault() -> Iterator[SmallVault]:
    with small_vault(tokens={TOKEN: "kv/shop"}) as found:
        found.secrets["kv/shop/db"] = {"password": "the stored/one", "port": 7, "empty": ""}
        found.secrets["kv/shop/old"] = None
        found.secrets["kv/other"] = {"password": "not ours"}
        yield found


def of(vault: SmallVault, token: str = TOKEN, namespace: str = "") -> SecretSources:
    return SecretSources(Vault(vault.address, VaultLogin(lambda: token), namespace))


def test_every_place_of_a_secret_takes_a_reference(
    vault: SmallVault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "of the environment")
    (tmp_path / "word").write_text("of a file\n")
    file = f"file:{tmp_path}/word"
    stored = feed(
        source=f"range://127.0.0.1:1?token={file}",
        sink="http://me:vault%3Akv%2Fshop%2Fdb%23password@127.0.0.1:1/?protocol=json",
        headers=("X-Key: env:SHOP_TOKEN", "Y: literal:env:SHOP_TOKEN", "Z: plain"),
    )
    found = of(vault).resolved(stored)
    assert found.source.parameter("token") == "of a file"
    assert found.sink.password == "the stored/one"
    told = ["X-Key: of the environment", "Y: env:SHOP_TOKEN", "Z: plain"]
    assert found.config["sink"]["http-config"]["headers"] == told
    text = json.dumps(stored.to_json())
    assert not any(w in text for w in ("of a file", "stored/one", "of the environment"))
    # Whatever a receiver repeats of them is hidden.
    hiding = assemble(found).hiding
    words = "the stored/one the%20stored%2Fone of a file of the environment"
    assert not set(hiding.hide(words).split()) & {"stored/one", "file", "environment"}
    registry = ChangefeedSpec(
        "k",
        Uri.parse("mysql://u:env:SHOP_TOKEN@127.0.0.1:1/", "source"),
        Uri.parse("kafka://127.0.0.1:1/t?protocol=avro", "sink"),
        {"sink": {"schema-registry": "http://u:env:SHOP_TOKEN@127.0.0.1:2"}},
    )
    whole = NO_STORE.resolved(registry)
    assert whole.source.password == "of the environment"
    assert whole.config["sink"]["schema-registry"] == "http://u:of%20the%20environment@127.0.0.1:2"


@pytest.mark.parametrize(
    "text",
    ["env:", "env:a b", "env:1A", "file:relative", "file:/a\nb", "vault:kv", "vault:kv/x",
     "vault:kv/../sys#a", "vault:kv/./x#a", "vault:/kv/x#a", "vault:kv//x#a", "vault:kv/x#a#b",
     "vault:kv/x?version=1#a", "vault:kv/%2e%2e/x#a"],
)  # fmt: skip
def test_what_begins_like_a_reference_must_be_one(text: str) -> None:
    with pytest.raises(BadOption, match="is a reference; write env:NAME"):
        read_reference(text, "x")


def test_references_are_read() -> None:
    found = read_reference("vault:kv/a-b/c_d.e#f", "x")
    assert found == SecretReference("vault", "kv/a-b/c_d.e", "f")
    assert read_reference("literal:env:x", "x") == "env:x"
    for plain in ("environment:x", "s3cret", "", "ENV:X", "a:b"):
        assert read_reference(plain, "x") == plain


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("vault:kv/shop/none#password", "has no secret kv/shop/none"),
        ("vault:kv/shop/old#password", "has no secret kv/shop/old"),
        ("vault:kv/shop/db#user", "no text under 'user'"),
        ("vault:kv/shop/db#port", "no text under 'port'"),
        ("vault:kv/shop/db#empty", "no text under 'empty'"),
        ("vault:kv/other#password", "does not let us read kv/other; .*`read` on kv/data/other"),
        ("env:NO_SUCH_VARIABLE", "is not set here"),
        ("file:/no/such/file", "cannot be read: No such file"),
        ("file:/dev/zero", "no file with a secret"),
    ],
)
def test_one_that_cannot_be_had_is_named(vault: SmallVault, reference: str, words: str) -> None:
    with pytest.raises(SecretMissing, match=f"changefeed web: {reference}: .*{words}") as told:
        of(vault).resolved(feed(token=reference))
    assert TOKEN not in str(told.value)


def test_the_store_is_asked_as_it_wants_to_be(vault: SmallVault, tmp_path: Path) -> None:
    wanted = feed(token="vault:kv/shop/db#password", headers=("X: vault:kv/shop/db#password",))
    of(vault).resolved(wanted)
    assert vault.asked == ["/v1/kv/data/shop/db"]  # once, though it stands there twice
    vault.namespace = "team"
    with pytest.raises(SecretMissing, match="does not let us read"):
        of(vault).resolved(wanted)
    of(vault, namespace="team").resolved(wanted)
    with pytest.raises(SecretMissing, match="does not let us read"):
        of(vault, token="guessed", namespace="team").resolved(wanted)
    with pytest.raises(SecretMissing, match="--vault-addr"):
        NO_STORE.resolved(wanted)
    for odd, words in ((b"[" * 99, "answers 200"), (b"x" * (2 << 20), "more than 1048576 bytes")):
        vault.odd = odd
        with pytest.raises(SecretMissing, match=words):
            of(vault, namespace="team").resolved(wanted)
    away = SecretSources(Vault("http://127.0.0.1:1", VaultLogin(lambda: TOKEN)))
    with pytest.raises(SecretMissing, match="cannot be asked"):
        away.resolved(wanted)


def test_an_app_role_logs_in_again_when_its_token_ends(
    vault: SmallVault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault.role, wanted = ("r", "s"), feed(token="vault:kv/shop/db#password")
    (tmp_path / "id").write_text("s\n")
    sources = given_sources(vault.address, role_id="r", secret_id_file=tmp_path / "id")
    for _ in range(2):
        sources.resolved(wanted)
    assert vault.given == 1
    vault.tokens = {}
    sources.resolved(wanted)
    assert vault.given == 2
    (tmp_path / "id").write_text("wrong")
    vault.tokens = {}
    with pytest.raises(SecretMissing, match=r"AppRole in \(400\)"):
        sources.resolved(wanted)
    vault.tokens = {TOKEN: "kv/shop"}
    for name, value in (("VAULT_ADDR", vault.address), ("VAULT_TOKEN", TOKEN)):
        monkeypatch.setenv(name, value)
    sources_of_environment().resolved(wanted)
    monkeypatch.delenv("VAULT_TOKEN")
    with pytest.raises(SecretMissing, match="--vault-token-file is missing"):
        sources_of_environment().resolved(wanted)
    with pytest.raises(BadOption, match="--vault-token-file is missing"):
        given_sources(vault.address)
    for address in ("http://vault.example.com:8200", "vault:8200", "https://"):
        with pytest.raises(BadOption, match="--vault-addr"):
            Vault(address, VaultLogin(lambda: TOKEN))


def test_a_server_allows_only_what_its_operator_listed(tmp_path: Path) -> None:
    allowed = Reach(
        hosts=("*",), env=("SHOP_TOKEN",), files=(str(tmp_path),), vault=("kv/shop/", "kv/one")
    )
    for good in ("env:SHOP_TOKEN", f"file:{tmp_path}/x", "vault:kv/shop/a/b#c", "vault:kv/one#c"):
        spec = feed(token=good)
        allowed.check(spec, secret_tables(spec))
    for bad, words in (
        ("env:HOME", "--allow-env"),
        ("file:/etc/hostname", "--allow-file"),
        (f"file:{tmp_path}/../x", "--allow-file"),
        ("vault:kv/shopping/a#c", "--allow-vault"),
        ("vault:kv/one-more#c", "--allow-vault"),
        ("vault:kv/other#c", "--allow-vault"),
    ):
        for spec in (
            feed(token=bad),
            feed(headers=(f"X: {bad}",)),
            feed(source=f"range://127.0.0.1:1?token={bad.replace('#', '%23')}"),
        ):
            with pytest.raises(NotAllowed, match=words):
                allowed.check(spec, secret_tables(spec))
            with pytest.raises(NotAllowed, match=words):
                Reach(hosts=("*",)).check(spec, secret_tables(spec))


def test_a_changefeed_uses_the_value_and_stores_the_reference(
    vault: SmallVault, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a real source and a real receiver."""
    value = "the-value-in-the-store"
    vault.secrets["kv/shop/web"] = {"token": value}
    with (
        LocalCluster(tmp_path / "store", 1) as cluster,
        cluster.store() as store,
        closing(open_store(f"sqlite:///{tmp_path}/meta.db")) as meta,
        HttpReceiver() as receiver,
    ):
        store.ddl("CREATE DATABASE d")
        store.ddl("CREATE TABLE d.t (id bigint PRIMARY KEY)")
        reach = Reach(hosts=("*",), vault=("kv/shop",))
        operations = Operations(meta, reach=reach, secrets=of(vault))
        config = {"sink": {"http-config": {"bearer-token": "vault:kv/shop/web#token"}}}
        wanted = Wanted(
            f"range://{cluster.master_address}", f"{receiver.uri}?protocol=json", "web", config
        )
        made = operations.create(wanted)
        assert made.feed.spec.config["sink"] == config["sink"]
        with store.transaction() as work:
            work.insert(TableId("d", "t"), [{"id": 1}])
        stop = threading.Event()
        conditions = Conditions(lambda name: DriverRunner(), reach=reach, secrets=of(vault))
        thread = threading.Thread(target=Member(meta, "here:1", conditions).run, args=(stop,))
        thread.start()
        try:
            wait_for(lambda: bool(receiver.taken), "a request at the receiver", 120, 0.05)
        finally:
            stop.set()
            thread.join(120)
        assert {r.headers.get("Authorization") for r in receiver.taken} == {f"Bearer {value}"}
        stored = b"".join(p.read_bytes() for p in tmp_path.glob("meta.db*"))
        assert b"vault:kv/shop/web#token" in stored and value.encode() not in stored
        assert value not in caplog.text
        del vault.secrets["kv/shop/web"]
        with pytest.raises(RowferryError, match="vault:kv/shop/web#token: .*has no secret"):
            operations.create(Wanted(wanted.source_uri, wanted.sink_uri, "other", config))
