"""Secrets in the meta database: encrypted, bound to their settings, open to the key only."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from rowferry.change.plan import Plan, Stretch
from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.feed.running import Conditions, HeldLease, Running
from rowferry.control.fleet.server import Member
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.operator.settings.redaction import redacted_config
from rowferry.control.store.contract import MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.errors import BadOption, SecretsLocked
from rowferry.face.cli.main import app
from rowferry.flow.assemble import secret_tables
from rowferry.spark import shipping
from rowferry.spark.job import SegmentTask
from rowferry.spark.shared import DriverRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.reach import ANYWHERE
from rowferry.spec.sealing import SecretKeys, add_key, opened, refuse_locked, sealed
from rowferry.spec.uri import Uri
from rowferry.testing.harness import wait_for

SECRETS = ("s0urce/p@ss", "br0ker&pass", "reg/istry", "oauth-secret-word", "bucket-secret-key")
PLAIN = ("127.0.0.1:1", "ann", "canal-json", "bucket/p")


def a_feed(name: str = "orders") -> ChangefeedSpec:
    return ChangefeedSpec(
        name,
        Uri.parse("mysql://ann:s0urce%2Fp%40ss@127.0.0.1:1/", "source"),
        Uri.parse(
            "kafka://127.0.0.1:1/t?protocol=canal-json&sasl-user=u&sasl-password=br0ker%26pass"
            "&schema-registry=http://me:reg%252Fistry%40127.0.0.1:2",
            "sink",
        ),
        {
            "sink": {
                "kafka-config": {
                    "sasl-oauth-client-secret": "oauth-secret-word",
                    "large-message-handle": {
                        "claim-check-storage-uri": "s3://bucket/p?secret-access-key="
                        "bucket-secret-key"
                    },
                }
            },
            "filter": {"rules": ["a.*"]},
        },
    )


def a_web_feed() -> ChangefeedSpec:
    return ChangefeedSpec(
        "web",
        Uri.parse("range://127.0.0.1:1?token=bucket-secret-key", "source"),
        Uri.parse("http://me:br0ker%26pass@127.0.0.1:2/x?protocol=json&k=reg/istry", "sink"),
        {
            "sink": {
                "http-config": {
                    "bearer-token": "oauth-secret-word",
                    "headers": ["X-Key: s0urce/p@ss", "Y:http://a:oauth-secret-word@c/ "],
                }
            }
        },
    )


def traces(content: bytes) -> list[str]:
    """Return the secrets of which a form is found in bytes."""
    forms = {s: {s, quote(s, safe=""), quote(s), s.replace("/", "%252F")} for s in SECRETS}
    return [s for s in SECRETS if any(form.encode() in content for form in forms[s])]


def all_bytes(folder: Path) -> bytes:
    return b"".join(p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file())


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    add_key(tmp_path / "key", there=False)
    return tmp_path / "key"


@pytest.fixture
def keys(key_file: Path) -> SecretKeys:
    return SecretKeys.given(str(key_file))


def sql(folder: Path) -> str:
    return f"sqlite:///{folder}/meta.db"


@pytest.mark.parametrize("spec", [a_feed(), a_web_feed()], ids=lambda s: s.changefeed_id)
def test_only_secrets_are_encrypted_and_come_back_as_they_were(
    spec: ChangefeedSpec, keys: SecretKeys
) -> None:
    stored = sealed(spec, secret_tables(spec), keys).to_json()
    text = json.dumps(stored)
    assert traces(json.dumps(spec.to_json()).encode()) and not traces(text.encode())
    assert all(word in text for word in PLAIN if word in json.dumps(spec.to_json()))
    assert opened(stored, keys) == spec.to_json()
    again = sealed(spec, secret_tables(spec), keys).to_json()
    assert again != stored and opened(again, keys) == spec.to_json()
    refuse_locked(ChangefeedSpec.from_json(opened(stored, keys)))


def test_a_secret_does_not_follow_to_another_address(keys: SecretKeys) -> None:
    """Whoever writes the meta database cannot have a secret sent elsewhere."""
    spec = a_feed()
    stored = sealed(spec, secret_tables(spec), keys).to_json()
    other = sealed(replace(spec, changefeed_id="b"), secret_tables(spec), keys).to_json()
    for changed in (
        {**stored, "sink": stored["sink"].replace("127.0.0.1:1", "evil.example:1")},
        {**stored, "source": other["source"]},
        {**stored, "changefeed_id": "b"},
        {**stored, "config": {**stored["config"], "filter": {"rules": ["*.*"]}}},
    ):
        found = ChangefeedSpec.from_json(opened(changed, keys))
        assert "s0urce/p@ss" not in traces(found.source.reveal().encode())
        with pytest.raises(SecretsLocked, match="changed by something else"):
            refuse_locked(found)


def test_no_secret_is_in_the_database_or_a_backup(
    tmp_path: Path, keys: SecretKeys, key_file: Path
) -> None:
    (tmp_path / "db").mkdir()
    with closing(open_store(sql(tmp_path / "db"), keys=keys)) as store:
        store.create_changefeed(a_feed())
        store.create_changefeed(a_web_feed())
        changed = replace(a_feed(), target_ts=7)
        assert store.update_spec("orders", changed).spec_version == 2
        assert store.update_spec("orders", changed).spec_version == 2  # equal, though not in bytes
        assert store.spec("orders", 1) == a_feed() and store.state("orders").spec == changed
        found = all_bytes(tmp_path / "db")  # with SQLite's log
        assert b"kafka://127.0.0.1:1/t?protocol=canal-json" in found and not traces(found)
    said = tell("meta", "backup", "--meta", sql(tmp_path / "db"), str(tmp_path / "b.gz"))
    assert f"encrypted with key {keys.first}" in said
    lines = gzip.decompress((tmp_path / "b.gz").read_bytes())
    assert b"kafka://" in lines and not traces(lines)
    to = sql(tmp_path)
    said = tell("meta", "restore", "--meta", to, str(tmp_path / "b.gz"))
    assert f"encrypted with key {keys.first}" in said
    tell("meta", "check", "--meta", to)
    tell("meta", "check", "--meta", to, "--secret-key-file", str(key_file))
    with closing(open_store(to, keys=keys)) as store:
        assert store.spec("web", 1) == a_web_feed()
    add_key(tmp_path / "other", there=False)
    said = tell("meta", "check", "--meta", to, "--secret-key-file", f"{tmp_path}/other", code=1)
    assert f"key {keys.first}, which is not here" in " ".join(said.split())


def tell(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_without_the_key_all_else_goes_on(tmp_path: Path, keys: SecretKeys) -> None:
    with closing(open_store(sql(tmp_path), keys=keys)) as store:
        store.create_changefeed(a_feed())
    other = SecretKeys.of(os.urandom(32))
    for wrong in (None, other):
        with closing(open_store(sql(tmp_path), keys=wrong)) as store:
            plain = replace(a_feed("plain"), source=Uri.parse("mysql://ann@127.0.0.1:1/", "s"))
            if store.feed("plain") is None:
                store.create_changefeed(plain)
            assert [f.id for f in store.feeds()] == ["orders", "plain"]
            feed = store.feed("orders")
            assert feed is not None
            assert str(feed.spec.source) == "mysql://ann:***@127.0.0.1:1/"
            assert "sealed" not in json.dumps(redacted_config(feed.spec))
            words = f"changefeed orders: .*key {keys.first}, which is not here; .*--secret-key-file"
            with pytest.raises(SecretsLocked, match=words):
                ANYWHERE.check(feed.spec, ())
            with pytest.raises(SecretsLocked):  # what cannot be opened is not stored again
                store.update_spec("orders", replace(feed.spec, target_ts=9))
            store.move("orders", Verb.PAUSE)
            store.move("orders", Verb.RESUME)
    with closing(open_store(sql(tmp_path))) as store:  # all of them written out anew
        store.update_spec("orders", replace(a_feed(), target_ts=9))
        assert store.state("orders").spec.target_ts == 9


def test_a_server_says_what_is_missing_and_runs_when_it_comes(
    tmp_path: Path, key_file: Path, keys: SecretKeys
) -> None:
    with closing(open_store(sql(tmp_path), keys=keys)) as store:
        store.create_changefeed(a_feed())
    used = tmp_path / "used"
    add_key(used, there=False)
    stop = threading.Event()
    store = open_store(sql(tmp_path), keys=SecretKeys.given(str(used)))
    member = Member(store, "here:1", Conditions(lambda name: DriverRunner()))
    thread = threading.Thread(target=member.run, args=(stop,), daemon=True)
    thread.start()
    try:
        wait_for(lambda: _error(store) == "RF-2010", "the error in the list", 60, 0.05)
        feed = store.feed("orders")
        assert feed is not None and feed.state is FeedState.WARNING
        used.write_text(used.read_text() + key_file.read_text())  # read again by itself
        wait_for(lambda: _error(store) not in ("", "RF-2010"), "a try at the source", 60, 0.05)
    finally:
        stop.set()
        thread.join(60)
        store.close()


def _error(store: MetaStore) -> str:
    feed = store.feed("orders")
    return feed.error_code if feed else ""


def test_keys_are_changed_and_clear_text_goes(tmp_path: Path) -> None:
    with closing(open_store(sql(tmp_path))) as store:
        store.create_changefeed(a_feed())
        store.update_spec("orders", replace(a_feed(), target_ts=7))
        store.create_changefeed(a_feed("gone"))
        store.remove("gone")  # SQLite leaves the bytes where they are
    meta, file = sql(tmp_path), str(tmp_path / "key")
    assert set(traces(all_bytes(tmp_path))) == set(SECRETS)
    assert isinstance(_fails("meta", "rekey", "--meta", meta), BadOption)
    tell("meta", "new-key", file)
    assert os.stat(file).st_mode & 0o777 == 0o600
    assert isinstance(_fails("meta", "new-key", file), BadOption)
    first = SecretKeys.given(file).first
    with closing(open_store(meta, keys=SecretKeys.given(file))) as store:
        assert store.spec("orders", 1) == a_feed()  # stored before there was a key
    assert "3 of 3 settings" in tell("meta", "rekey", "--meta", meta, "--secret-key-file", file)
    assert not traces(all_bytes(tmp_path))  # nor in what SQLite had set free
    tell("meta", "new-key", file, "--add")
    second = SecretKeys.given(file).first
    assert second != first and SecretKeys.given(file).holds(first)
    assert "3 of 3" in tell("meta", "rekey", "--meta", meta, "--secret-key-file", file)
    assert "0 of 3" in tell("meta", "rekey", "--meta", meta, "--secret-key-file", file)
    Path(file).write_text(Path(file).read_text().splitlines()[0])  # the old one is not needed
    with closing(open_store(meta, keys=SecretKeys.given(file))) as store:
        assert store.spec("orders", 1) == a_feed()
    tell("meta", "new-key", f"{file}2")
    assert isinstance(
        _fails("meta", "rekey", "--meta", meta, "--secret-key-file", f"{file}2"), SecretsLocked
    )


def _fails(*words: str) -> BaseException | None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code
    return done.exception


def test_key_files_of_another_form_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: SecretKeys, key_file: Path
) -> None:
    for content, words in (("", "holds no key"), ("# x\nabc\n", "no key"), ("é", "not ASCII")):
        (tmp_path / "x").write_text(content)
        (tmp_path / "x").chmod(0o600)
        with pytest.raises(BadOption, match=words):
            SecretKeys.given(str(tmp_path / "x"))
    key_file.chmod(0o604)
    with pytest.raises(BadOption, match="chmod 600"):
        SecretKeys.given(str(key_file))
    with pytest.raises(BadOption, match="No such file"):
        SecretKeys.given(str(tmp_path / "none"))
    monkeypatch.setenv("THE_KEY", key_file.read_text())
    assert SecretKeys.given("env:THE_KEY").first == keys.first


def test_a_task_is_shipped_without_clear_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is in the environment of those who run it, not in what they are sent."""
    monkeypatch.delenv(shipping.TASK_KEY, raising=False)
    assert shipping.key_setting(java_runs=True) == {}
    assert shipping.key_setting(java_runs=False)[shipping.SETTING]
    shipping._sealed.cache_clear()
    plan = Plan(1, 1, 0, Stretch((), (), {}))
    sent: list[Any] = [
        pickle.dumps(SegmentTask(a_feed(), plan, {}, with_key=True)) for _ in range(2)
    ]
    assert sent[0] == sent[1]  # workers keep their connections as long as it is the same
    assert b"kafka://127.0.0.1:1" in sent[0] and not traces(sent[0])
    assert os.environ[shipping.TASK_KEY].encode() not in sent[0]
    assert traces(pickle.dumps(SegmentTask(a_feed(), plan, {})))
    assert shipping.unpacked(shipping.packed(a_feed(), True)) == a_feed()
    shipping._sealed.cache_clear()


def test_a_changed_secret_is_used_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "old")
    conditions = Conditions(lambda name: DriverRunner())
    source = Uri.parse("mysql://ann:env:SHOP_PASSWORD@127.0.0.1:1/", "source")
    with closing(open_store(sql(tmp_path))) as store:
        feed = store.create_changefeed(replace(a_feed(), source=source))
        claim = Claim(feed.id, Holder.here(), 1, 10.0)
        running = Running(feed, HeldLease(claim, 0.0), store, conditions)
        running._runs_with = (feed.spec, conditions.secrets.resolved(feed.spec))
        running._look_for_new_secrets()
        assert not running._border.is_set()
        monkeypatch.delenv("SHOP_PASSWORD")
        running._look_for_new_secrets()  # not there for a moment: nothing is changed
        assert not running._border.is_set()
        monkeypatch.setenv("SHOP_PASSWORD", "new")
        running._look_for_new_secrets()
        assert running._border.is_set()
