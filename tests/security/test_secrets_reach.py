"""A server uses only files, variables and addresses that its operator allowed.

The requests are those of a stranger who may create changefeeds, over real HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import urllib3

from rowferry.control.feed import leaving
from rowferry.control.operator.operations import ChangedSettings, Operations, Wanted
from rowferry.control.operator.settings.redaction import refuse_moved_secrets
from rowferry.control.operator.statements.execute import execute
from rowferry.control.operator.trace.forms import TraceRequest
from rowferry.control.store.contract import MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.errors import BadOption, NotAllowed, SecretsNeeded
from rowferry.face.about import About
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import serve
from rowferry.flow.assemble import check_reach, option_tables, secret_tables
from rowferry.flow.decide.decisions import Decisions
from rowferry.refstore.cluster import LocalCluster
from rowferry.registry import CODECS, ROW_FORMATS, SINKS, SOURCES, load_format
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import own_tables
from rowferry.spec.option import Option, OptionTable
from rowferry.spec.reach import Reach
from rowferry.spec.uri import Uri
from rowferry.testing.receiver import HttpReceiver

ABOUT = About("127.0.0.1:8300", "0.1.0", 1_700_000_000.0, "here")
VARIABLE, VALUE = "ROWFERRY_TEST_VARIABLE", "Bearer of-the-server-itself"
Answer: TypeAlias = tuple[int, str]


class Stranger:
    """Talks to a server over HTTP, and knows its meta database to look at what was stored."""

    def __init__(self, url: str, store: MetaStore, source: str) -> None:
        self._url, self.store, self._source = url, store, source
        self._pool = urllib3.PoolManager()

    def create(self, sink: str, config: dict[str, Any] | None = None, id: str = "feed") -> Answer:
        body = {"changefeed_id": id, "source_uri": self._source, "sink_uri": sink}
        return self._send("POST", "/api/v2/changefeeds", {**body, "replica_config": config or {}})

    def foresee(self, sink: str) -> Answer:
        """Create it as a dry run, by a statement."""
        text = f"EXPLAIN CREATE CHANGEFEED feed FROM '{self._source}' INTO '{sink}'"
        return self._send("POST", "/api/rowferry/sql", {"statement": text})

    def pause(self) -> Answer:
        return self._send("POST", "/api/v2/changefeeds/feed/pause", {})

    def update(self, **changes: Any) -> Answer:
        return self._send("PUT", "/api/v2/changefeeds/feed", changes)

    def _send(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        headers = {"Content-Type": "application/json"}
        answer = self._pool.request(
            method, self._url + path, body=json.dumps(body).encode(), headers=headers
        )
        return answer.status, answer.data.decode()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("reach-store"), 1) as cluster:
        with cluster.store() as store:
            store.ddl("CREATE DATABASE shop")
            store.ddl("CREATE TABLE shop.orders (id bigint PRIMARY KEY, note varchar(20))")
        yield f"range://{cluster.master_address}"


@pytest.fixture
def opened(source: str, tmp_path: Path) -> Iterator[Callable[[Reach], Stranger]]:
    with ExitStack() as held:

        def made(reach: Reach) -> Stranger:
            store = open_store(f"sqlite:///{tmp_path / 'meta.db'}")
            held.callback(store.close)
            app = create_app(Operations(store, reach=reach), ABOUT)
            serving = held.enter_context(serve(app, "127.0.0.1:0"))
            return Stranger(serving.url, store, source)

        yield made


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver() as found:
        yield found


def refused(answer: Answer, option: str) -> None:
    assert answer[0] == 400, answer
    assert "RF-1031" in answer[1] and option in answer[1], answer


def test_a_server_allows_nothing_by_itself(
    opened: Callable[[Reach], Stranger],
    receiver: HttpReceiver,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(VARIABLE, VALUE)
    stranger = opened(Reach())
    http = f"http://127.0.0.1:{receiver.port}/?protocol=canal-json"
    kafka = "kafka://127.0.0.1:1/topic?protocol="
    there = tmp_path / "there.pem"
    there.write_text("x")
    refused(stranger.create(f"file://{tmp_path}/out?protocol=csv"), "--allow-root")
    refused(stranger.create(http), "--allow-host")
    for file in (there, tmp_path / "absent.pem"):  # the answer does not tell which of them exists
        refused(stranger.create(f"{kafka}canal-json&ca={file}"), "--allow-file")
        refused(stranger.create(f"mysql://u@127.0.0.1:1/?ssl-ca={file}"), "--allow-file")
        refused(stranger.create(f"gcs://b/p?protocol=csv&credentials-file={file}"), "--allow-file")
    refused(stranger.create("s3://b/p?protocol=csv&profile=default"), "--allow-file")
    refused(stranger.create("s3://b/p?protocol=csv&endpoint=http://127.0.0.1:1"), "--allow-host")
    refused(stranger.create(f"{kafka}avro&schema-registry=http://127.0.0.1:1"), "--allow-host")
    kept = {"large-message-handle-option": "claim-check"}
    for place, flag in (
        (f"file://{tmp_path}/claims", "--allow-root"),
        ("s3://b/p?endpoint=http://127.0.0.1:1", "--allow-host"),
        (f"s3://b/p?ca={there}", "--allow-file"),
    ):
        claims = {**kept, "claim-check-storage-uri": place}
        config = {"sink": {"kafka_config": {"large_message_handle": _snake(claims)}}}
        refused(stranger.create(f"{kafka}open-protocol", config), flag)
        redo = {"consistent": {"level": "eventual", "storage": place}}
        refused(stranger.create("mysql://u@127.0.0.1:1/", redo), flag)
    assert stranger.store.feeds() == ()
    assert receiver.seen == [] and not (tmp_path / "out").exists()


def _snake(section: dict[str, str]) -> dict[str, str]:
    return {key.replace("-", "_"): value for key, value in section.items()}


def test_no_variable_of_the_server_is_sent(
    source: str, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The REST form has no section for the HTTP sink: the verb is called as statements call it."""
    monkeypatch.setenv(VARIABLE, VALUE)
    config = {"sink": {"http-config": {"authorization-env": VARIABLE}}}
    url = f"http://127.0.0.1:{receiver.port}/?protocol=canal-json"
    store = open_store(f"sqlite:///{tmp_path / 'meta.db'}")
    try:
        host = f"127.0.0.1:{receiver.port}"
        desk = Operations(store, reach=Reach(hosts=(host,)))
        with pytest.raises(Exception, match="RF-1031.*--allow-env") as said:
            desk.create(Wanted(source, url, "feed", config))
        assert VALUE not in str(said.value)
        allowed = Operations(store, reach=Reach(hosts=(host,), env=(VARIABLE,)))
        assert allowed.create(Wanted(source, url, "feed", config)).feed.id == "feed"
    finally:
        store.close()


def test_what_was_allowed_works(
    opened: Callable[[Reach], Stranger], receiver: HttpReceiver, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "feeds").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path)
    stranger = opened(Reach(roots=(str(root),), hosts=(f"127.0.0.1:{receiver.port}",)))
    assert stranger.create(f"file://{root}/feeds/one?protocol=csv", id="one")[0] == 200
    http = f"http://127.0.0.1:{receiver.port}/?protocol=canal-json"
    assert stranger.create(http, id="two")[0] == 200
    for outside in (
        tmp_path / "rooted",
        root / ".." / "x",
        root / "link" / "x",
        root / "a/../../x",
    ):
        refused(stranger.create(f"file://{outside}?protocol=csv"), "--allow-root")
    refused(stranger.create("http://127.0.0.1:9/?protocol=canal-json"), "--allow-host")


def test_what_is_stored_is_used_no_further_than_allowed(
    opened: Callable[[Reach], Stranger], receiver: HttpReceiver
) -> None:
    """By a server that allows less than the one that stored it, or that allows less by now."""
    allowing = opened(Reach(hosts=("*",)))
    assert allowing.create(f"http://127.0.0.1:{receiver.port}/?protocol=canal-json")[0] == 200
    desk = Operations(allowing.store, reach=Reach())
    asked = len(receiver.seen)
    with pytest.raises(NotAllowed, match="--allow-host"):
        desk.trace("feed", TraceRequest("shop.orders", (("id", "1"),)))
    with pytest.raises(NotAllowed, match="--allow-host"):
        desk.drop_tables("feed", ["shop.orders"])
    with pytest.raises(NotAllowed, match="--allow-host"):
        check_reach(Reach(), allowing.store.feeds()[0].spec)
    assert desk.remove("feed") is not None and allowing.store.feeds() == ()
    assert len(receiver.seen) == asked


class _Left(Exception):
    """A sink was made, to take leave of it."""


def test_a_removed_one_takes_leave_only_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(spec: ChangefeedSpec) -> Any:
        raise _Left

    monkeypatch.setattr(leaving, "assemble", made)
    spec = _written_to("http://169.254.169.254/x")
    leaving.leave_sink(spec, reach=Reach())
    with pytest.raises(_Left):
        leaving.leave_sink(spec)


def test_a_dry_run_says_no_as_well(opened: Callable[[Reach], Stranger], tmp_path: Path) -> None:
    stranger = opened(Reach(roots=(str(tmp_path),)))
    refused(stranger.foresee("file:///etc/cron.d?protocol=csv"), "--allow-root")
    status, said = stranger.foresee(f"file://{tmp_path}/out?protocol=csv")
    assert status == 200, said


def test_an_update_reaches_no_further(
    opened: Callable[[Reach], Stranger], receiver: HttpReceiver
) -> None:
    stranger = opened(Reach(hosts=(f"127.0.0.1:{receiver.port}",)))
    http = f"http://127.0.0.1:{receiver.port}/?protocol=canal-json"
    assert stranger.create(http)[0] == 200
    assert stranger.pause()[0] == 200
    refused(stranger.update(sink_uri="http://127.0.0.1:9/?protocol=canal-json"), "--allow-host")


def test_secrets_stay_where_they_were_meant_for(
    opened: Callable[[Reach], Stranger], receiver: HttpReceiver
) -> None:
    """The stranger may update a changefeed whose secrets only its maker knows."""
    stranger = opened(Reach(hosts=("*",)))
    at = f"127.0.0.1:{receiver.port}"
    made = f"http://me:pass-word-1@{at}/in?protocol=canal-json&key=forwarded-1"
    assert stranger.create(made)[0] == 200
    assert stranger.pause()[0] == 200
    with HttpReceiver() as thief:
        there = f"127.0.0.1:{thief.port}"
        for url in (
            f"http://me:***@{there}/in?protocol=***&key=***",
            f"http://{there}/in?protocol=canal-json&key=***",
            f"https://me:***@{at}/in?protocol=canal-json&key=***",
        ):
            status, said = stranger.update(sink_uri=url)
            assert status == 400 and "instead of ***" in said, said
        assert thief.seen == []
        moved = f"http://me:pass-word-2@{there}/in?protocol=canal-json&key=forwarded-2"
        assert stranger.update(sink_uri=moved)[0] == 200  # written out, they may go anywhere


def test_secrets_of_the_configuration_stay_too(source: str, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'meta.db'}")
    try:
        with HttpReceiver() as mine, HttpReceiver() as thief:
            desk = Operations(store)
            token = {"http-config": {"bearer-token": "token-of-mine"}}
            url = f"http://127.0.0.1:{mine.port}/?protocol=canal-json"
            desk.create(Wanted(source, url, "feed", {"sink": token}))
            desk.pause("feed")
            moved = url.replace(str(mine.port), str(thief.port))
            shown = {"sink": {"http-config": {"bearer-token": "***"}}}
            for changed in (
                ChangedSettings(sink_uri=moved),
                ChangedSettings(sink_uri=moved, config=shown),
            ):
                with pytest.raises(Exception, match=r"RF-1032.*instead of \*\*\*"):
                    desk.update("feed", changed)
            for more in ("", ", sink.http-config.timeout = '3s'", ", case-sensitive = true"):
                with pytest.raises(SecretsNeeded):
                    execute(desk, f"ALTER CHANGEFEED feed SET (sink_uri = '{moved}'{more})")
            execute(desk, "ALTER CHANGEFEED feed SET (case-sensitive = true)")
            kept = desk.see("feed").feed.spec.config
            assert kept == {"sink": token, "case-sensitive": True}
            again = {"sink": {"http-config": {"bearer-token": "token-of-mine"}}}
            desk.update("feed", ChangedSettings(sink_uri=moved, config=again))
            same = ChangedSettings(sink_uri=moved + "&timeout=3s", config=shown)
            assert (
                desk.update("feed", same).spec.section("sink.http-config")
                == again["sink"]["http-config"]
            )
    finally:
        store.close()


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("h.example", ["http://h.example", "https://H.example.:9/x"], ["http://g.h.example"]),
        ("h.example:80", ["http://h.example"], ["https://h.example", "http://h.example:81"]),
        (
            "*.example",
            ["http://a.example", "http://a.b.example"],
            ["http://example", "http://ex", "http://evil\\.example", "http://evil\\@a.example"],
        ),
        ("10.0.0.0/8", ["http://10.1.2.3"], ["http://11.0.0.1", "http://10.1", "http://0xa000001"]),
        (
            "127.0.0.1",
            ["http://127.0.0.1:5"],
            ["http://2130706433", "http://127.1", "http://[::1]"],
        ),
        ("[::1]:80", ["http://[::1]/"], ["http://[::1]:81", "http://[::2]"]),
        ("*", ["http://any.thing:1"], ["http://"]),
    ],
)
def test_patterns_of_hosts(pattern: str, yes: list[str], no: list[str]) -> None:
    reach = Reach(hosts=(pattern,))
    for url in yes:
        reach._check_address(url, "x")
    for url in no:
        with pytest.raises(Exception, match="RF-1031"):
            reach._check_address(url, "x")


@pytest.mark.parametrize("pattern", ["", "a*b", "*.*.c", "10.0.0.0/99", "a b", "10.0.0.1/8"])
def test_a_pattern_that_means_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(BadOption, match="--allow-host"):
        Reach(hosts=(pattern,))


# Options that take any text, and name nothing outside of the changefeed: what they are.
_PLAIN = {
    "cluster-id": "a name in tables of active-active",
    "sink.cloud-storage-config.spool-base-dir": "read for compatibility, and used nowhere",
    "sink.cloud-storage-config.sse-kms-key-id": "a name in the store's own service",
    "sink.csv.binary-encoding-method": "what is none of its words is the default",
    "sink.csv.null": "a text in files",
    "sink.debezium.debezium-name": "a name in messages",
    "sink.kafka-config.compression": "what is none of its words is the default",
    "sink.kafka-config.sasl-oauth-client-id": "a user's name",
    "sink.kafka-config.sasl-oauth-scopes": "words that the token's giver knows",
    "sink.kafka-config.sasl-user": "a user's name",
    "sink.kafka-config.schema-registry-user": "a user's name",
    "sink.lake.catalog-name": "a name in the catalog",
    "sink.lake.catalog-scope": "words that the token's giver knows",
    "sink.mysql-config.meta-database": "a database of the sink",
    "sink.mysql-config.time-zone": "a zone's name, checked against the known ones",
    "sink.postgresql-config.meta-schema": "a schema of the sink",
    "sink.pulsar-config.basic-user-name": "a user's name",
    "sink.pulsar-config.oauth2.oauth2-audience": "words that the token's giver knows",
    "sink.pulsar-config.oauth2.oauth2-client-id": "a user's name",
    "sink.pulsar-config.oauth2.oauth2-scope": "words that the token's giver knows",
    "sink.rabbitmq-config.virtual-host": "a name in the broker",
    "sink.search-config.aws-region": "part of a signature",
    "sink.search-config.routing-column": "a column's name",
    "sink.terminator": "a text in files",
    "source.start-gtid": "a place in the log",
    "source.start-position": "a place in the log",
    "transform.salt-check": "a digest that the changefeed keeps for itself",
}
_NAMES_SOMETHING = ("/etc/passwd", "/etc/shadow.d/x-1", "http://169.254.169.254/", "file:///etc/x")


def _takes(option: Option[Any], text: str) -> bool:
    try:
        option.shape.parse(text)
    except (ValueError, BadOption):
        return False
    return True


def _all_options() -> dict[str, Option[Any]]:
    owners: list[Any] = [SOURCES.load(n) for n in SOURCES.names()]
    owners += [SINKS.load(n) for n in SINKS.names()]
    owners += [load_format(n) for n in (*CODECS.names(), *ROW_FORMATS.names())]
    tables = {table for owner in owners for table in owner.TABLES}
    for sink in SINKS.names():
        tables.update(own_tables(SINKS.load(sink).TRAITS))
    tables.update(Decisions.TABLES)
    return {table.path(o.key): o for table in tables for o in table.options}


def test_every_option_that_could_name_something_outside_is_classified() -> None:
    """A file, an address or a variable is named by what takes such a text, whatever it is called.

    A new option that does says what it names, is a secret, or is written down above.
    """
    options = _all_options()
    assert len(options) > 250
    free = {
        path: option
        for path, option in options.items()
        if not option.names
        and not option.secret
        and not option.no_effect
        and option.shape.kind not in ("choice", "flag", "number")
        and any(_takes(option, text) for text in _NAMES_SOMETHING)
    }
    assert set(free) - set(_PLAIN) == set(), "say by `names` what they name, or why nothing"
    for path, option in options.items():
        if option.secret and not option.names:
            assert option.default in ("", None, ()), path  # looked up nowhere, sent as it is


@pytest.mark.parametrize("kind", ["path", "env", "profile", "url", "storage"])
def test_an_option_of_each_kind_is_refused(kind: str) -> None:
    """Whichever sink, source or codec has it: by its own table, as a server checks it."""
    flags = {"path": "--allow-file", "env": "--allow-env", "profile": "--allow-file"}
    texts = {"url": "http://169.254.169.254/", "storage": "http://169.254.169.254/x"}
    value = texts.get(kind, "/etc/x" if kind == "path" else "X")
    reach = Reach(roots=("/",), hosts=("h",))  # the sink itself may be where it is
    refusals = set()
    for path, key, spec in _naming(kind, value):
        with pytest.raises(NotAllowed, match=flags.get(kind, "--allow-host")) as refusal:
            check_reach(reach, spec)
        assert key in str(refusal.value)
        refusals.add(path)
    assert refusals == {path for path, o in _all_options().items() if o.names == kind}


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example\\@login.corp/token",
        "https://evil.example\\.login.corp/token",
        "https://login.corp/a b",
        "https://login.corp/\x07",
        "https://login.corp:99999/",
        "login.corp",
    ],
)
def test_what_programs_read_differently_is_no_address(address: str) -> None:
    """What we take for a login, the library below takes for the end of a host's name."""
    keys = set()
    for path, _, spec in _naming("url", address):
        with pytest.raises(BadOption, match=r"address|write it as"):
            check_reach(Reach(roots=("/",), hosts=("*",)), spec)
        keys.add(path)
    assert len(keys) > 8
    sink = Uri("s3", "", "", "b", "/p", (("endpoint", address),))
    with pytest.raises(BadOption, match="no address of a web service"):
        Reach(hosts=("*",))._check_storage(sink, "consistent.storage")


def _naming(kind: str, value: str) -> Iterator[tuple[str, str, ChangefeedSpec]]:
    """Yield each option that names such a thing, with a changefeed that has this value for it."""
    source = "range://h:1"
    feeds = [(f"{name}://h:1", "blackhole://") for name in SOURCES.names()]
    for name in SINKS.names():
        local = Uri.parse(f"{name}://h/p", "sink").is_local
        protocol = "" if SINKS.load(name).TRAITS.writes_tables else "?protocol=avro"
        feeds.append((source, f"{name}://{'' if local else 'h'}/p{protocol}"))
    for source, sink in feeds:
        bare = ChangefeedSpec("x", Uri.parse(source, "source"), Uri.parse(sink, "sink"))
        for table in secret_tables(bare):
            for one in (o for o in table.options if o.names == kind):
                section: dict[str, Any] = {one.key: value}
                for part in reversed(table.section.split(".")):
                    section = {part: section}
                yield table.path(one.key), one.key, replace(bare, config=section)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("sslkey=/etc/ssl/private/x.key", "sslkey: .* --allow-file"),
        ("passfile=/root/.pgpass", "passfile: .* --allow-file"),
        ("sslrootcert=/etc/shadow", "sslrootcert: .* --allow-file"),
        ("host=169.254.169.254", "host: this server takes only"),
        ("hostaddr=10.0.0.1", "hostaddr: this server takes only"),
        ("service=x", "service: this server takes only"),
        ("sslkeylogfile=/etc/cron.d/x", "sslkeylogfile: this server takes only"),
        ("options=-c%20x%3Dy", "options: this server takes only"),
        ("", ""),
        ("sslmode=verify-full&sslrootcert=system&connect_timeout=5", ""),
    ],
)
def test_the_database_of_a_catalog_names_no_files(parameters: str, words: str) -> None:
    """PostgreSQL's library would read, and write, whatever an address names."""
    catalog = f"postgresql://u:p@db.example/lake?{parameters}"
    spec = ChangefeedSpec(
        *("x", Uri.parse("range://h:1", "source"), Uri.parse("iceberg+s3://b/p", "sink")),
        {"sink": {"lake": {"catalog": catalog}}},
    )
    tables = SINKS.load("iceberg+s3").TABLES
    if not words:
        Reach().check(spec, tables)
        return
    with pytest.raises(NotAllowed, match=words):
        Reach().check(spec, tables)


def test_secrets_do_not_follow_any_address() -> None:
    """Of a registry, of whoever gives tokens, of an endpoint, a catalog, an admin interface."""
    found = set()
    for scheme in SINKS.names():
        for table in _tables_of(scheme):
            for one in (o for o in table.options if o.names in ("url", "storage")):
                before, after = (_with_address(scheme, table, one, h) for h in ("a.test", "b.test"))
                kept = ChangedSettings(config=_shown(after))
                with pytest.raises(
                    SecretsNeeded, match=rf"{one.key} is another: write all secrets"
                ):
                    refuse_moved_secrets(before, after, kept)
                refuse_moved_secrets(before, before, kept)
                given = ChangedSettings(sink_uri=after.sink.reveal(), config=after.config)
                refuse_moved_secrets(before, after, given)
                found.add(one.key)
    assert {
        *("endpoint", "schema-registry", "sasl-oauth-token-url", "claim-check-storage-uri"),
        *("catalog", "catalog-token-uri", "web-service-url", "oauth2-issuer-url"),
    } <= found


def _tables_of(scheme: str) -> tuple[OptionTable, ...]:
    spec = ChangefeedSpec("x", Uri.parse("range://h:1", "source"), _sink_of(scheme))
    return option_tables(spec)


def _sink_of(scheme: str) -> Uri:
    protocol = "" if SINKS.load(scheme).TRAITS.writes_tables else "?protocol=avro"
    return Uri.parse(f"{scheme}://ann:a-secret-of-the-uri@h/p{protocol}", "sink")


def _with_address(
    scheme: str, table: OptionTable, option: Option[Any], host: str
) -> ChangefeedSpec:
    """Return a changefeed with a secret in its sink's URI and in a section, and one address."""
    inner: dict[str, Any] = {option.key: f"https://{host}/x"}
    for part in reversed(table.section.split(".")):
        inner = {part: inner}
    inner.setdefault("sink", {})["password-of-mine"] = "a-secret-of-the-section"
    return ChangefeedSpec("x", Uri.parse("range://h:1", "source"), _sink_of(scheme), inner)


def _shown(spec: ChangefeedSpec) -> dict[str, Any]:
    sink = {**spec.config["sink"], "password-of-mine": "***"}
    return {**spec.config, "sink": sink}


def test_no_sink_writes_to_this_machine_where_it_was_not_allowed(tmp_path: Path) -> None:
    """Whatever it makes of the files there: also the tables of a lake."""
    local = [n for n in SINKS.names() if Uri.parse(f"{n}://h/p", "sink").is_file]
    assert {"file", "delta+file", "iceberg+file"} <= set(local)
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "link").symlink_to("/etc")
    reach = Reach(roots=(str(allowed),))
    for scheme in local:
        for path in ("/etc/cron.d", f"{allowed}/../other", f"{allowed}/link/x", f"{allowed}er"):
            with pytest.raises(NotAllowed, match="does not write to .*--allow-root"):
                reach.check(_written_to(f"{scheme}://{path}"), SINKS.load(scheme).TABLES)
        reach.check(_written_to(f"{scheme}://{allowed}/x"), SINKS.load(scheme).TABLES)


def _written_to(sink: str) -> ChangefeedSpec:
    return ChangefeedSpec("x", Uri.parse("range://h:1", "source"), Uri.parse(sink, "sink"))
