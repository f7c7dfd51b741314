"""Every command that takes a login takes references; a new one that does not is found here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer._click.core import Context
from typer.main import get_command
from typer.testing import CliRunner
from vault_kit import small_vault

from rowferry.errors import SecretMissing
from rowferry.face.cli.main import app
from rowferry.face.cli.options.address import given_meta, given_secret
from rowferry.testing.receiver import HttpReceiver

NAME = "A_SECRET_OF_NOBODY"
MISSING = f"env:{NAME}"
MYSQL = f"mysql://ann:{MISSING}@127.0.0.1:1/"
BUCKET = (
    f"s3://b/p?protocol=csv&endpoint=http://127.0.0.1:1&access-key=k&secret-access-key={MISSING}"
)
LAKE = BUCKET.replace("s3://", "delta+s3://").replace("protocol=csv&", "")
KAFKA = f"kafka://127.0.0.1:1/t?protocol=canal-json&sasl-user=u&sasl-password={MISSING}"
FILES = "file:///no/such/directory?protocol=csv"
PLAIN_SOURCE, NOWHERE = "range://127.0.0.1:1", "blackhole://"

# Texts that hold no secret, in whatever command.
PLAIN = frozenset(
    """add addr advertise_addr allow_env allow_host allow_vault as_of cancel capture_id changefeed
    changefeed_id cluster config_type database drop file_type filter_rule grpc_addr ignore_columns
    key keys keyspace listen log_level master name oidc_audience oidc_issuer oidc_jwks
    oidc_role_claim older_than output overwrite_checkpoint_ts owner pd position print_ protocol role
    route row row_key server server_name since
    snapshot spark_master sql start_gtid start_position table tables to trusted_proxy
    until unused_text user where vault_addr vault_namespace vault_role_id
    when""".split()
)
# Texts of one command that hold none, though elsewhere they do; and what a file holds.
PLAIN_HERE = {
    ("init", "file"), ("init", "source"), ("init", "sink"), ("consume", "from_"),
}  # fmt: skip
# It is a file, or a variable, itself: env:NAME.
BY_ITSELF = "secret_key_file"
# What is given to a server: it stores the reference, and looks it up if its operator lets it.
SENT = {
    ("changefeed create", "source"), ("changefeed create", "sink_uri"),
    ("changefeed create", "schema_registry"), ("changefeed create", "config"),
    ("changefeed update", "source"), ("changefeed update", "sink_uri"),
    ("changefeed update", "schema_registry"), ("changefeed update", "config"),
    ("server", "source"), ("sql", "statement"), ("apply", "file"),
}  # fmt: skip
REGISTRY = f"http://u:{MISSING}@127.0.0.1:1"
AVRO = "kafka://127.0.0.1:1/t?protocol=avro"
IN_CONFIG = "kafka://127.0.0.1:1/t?protocol=canal-json&sasl-user=u&sasl-mechanism=plain"
# How each of the others is called with a reference that names nothing.
CALLS: dict[tuple[str, str], list[str]] = {
    ("run", "source"): ["--source", MYSQL, "--sink-uri", NOWHERE],
    ("run", "sink_uri"): ["--source", PLAIN_SOURCE, "--sink-uri", KAFKA],
    ("run", "schema_registry"): [
        "--source", PLAIN_SOURCE, "--sink-uri", AVRO, "--schema-registry", REGISTRY,
    ],
    ("run", "config"): ["--source", PLAIN_SOURCE, "--sink-uri", IN_CONFIG, "--config", "@kafka"],
    ("run", "settings_given"): [
        "--source", PLAIN_SOURCE, "--sink-uri", IN_CONFIG,
        "--set", f"sink.kafka-config.sasl-password={MISSING}",
    ],
    ("run", "spark_conf"): [
        "--source", PLAIN_SOURCE, "--sink-uri", NOWHERE,
        "--spark-conf", f"spark.authenticate.secret={MISSING}",
    ],
    ("run", "meta"): ["--source", PLAIN_SOURCE, "--sink-uri", NOWHERE, "--meta", f"{MYSQL}m"],
    ("doctor", "source"): [MYSQL, NOWHERE],
    ("doctor", "sink_uri"): [PLAIN_SOURCE, KAFKA],
    ("doctor", "config"): [PLAIN_SOURCE, IN_CONFIG, "--config", "@kafka"],
    ("doctor", "settings_given"): [
        PLAIN_SOURCE, IN_CONFIG, "--set", f"sink.kafka-config.sasl-password={MISSING}",
    ],
    ("server", "meta"): ["--meta", f"{MYSQL}m"],
    ("server", "spark_conf"): ["--spark-conf", f"spark.authenticate.secret={MISSING}"],
    ("consume", "sink_uri"): [KAFKA, "--until", "end"],
    ("consume", "apply"): ["@files", "--apply", MYSQL, "--until", "end"],
    ("consume", "config"): [IN_CONFIG, "--config", "@kafka", "--until", "end"],
    ("check-storage", "uri"): [BUCKET],
    ("check-storage", "config"): [BUCKET, "--config", "@csv"],
    ("table", "from_"): ["--from", BUCKET],
    ("table", "config"): ["--from", BUCKET, "--config", "@csv"],
    ("verify", "a"): [MYSQL, FILES],
    ("verify", "b"): ["@files", BUCKET],
    ("verify", "config"): [BUCKET, FILES, "--config", "@csv"],
    ("lake status", "uri"): [LAKE],
    ("lake at", "uri"): [LAKE, "2026-01-01"],
    ("lake optimize", "uri"): [LAKE],
    ("lake orphans", "uri"): [LAKE],
    ("lake expire", "uri"): [LAKE],
    ("redo meta", "storage"): ["--storage", BUCKET],
    ("redo apply", "storage"): ["--storage", BUCKET, "--sink-uri", "mysql://u@h/"],
    ("redo apply", "sink_uri"): ["--storage", "file:///nowhere", "--sink-uri", MYSQL],
    ("active-active progress", "sink_uri"): ["--sink-uri", MYSQL],
    ("active-active forget", "sink_uri"): ["default/a", "1", "--sink-uri", MYSQL],
    ("changefeed remove", "meta"): ["-c", "one", "--local", "--meta", f"{MYSQL}m"],
    ("apply", "meta"): ["-f", "@declared", "--meta", f"{MYSQL}m"],
    ("export", "meta"): ["--meta", f"{MYSQL}m"],
    **{
        (f"meta {name}", "meta"): [*more, "--meta", f"{MYSQL}m"]
        for name, more in {
            "backup": ["@new"], "restore": ["@new"], "migrate": [], "check": [], "rekey": [],
        }.items()
    },
}  # fmt: skip
OF_CLIENTS = ("password", "token")
NEEDED = {
    "source": PLAIN_SOURCE, "sink_uri": NOWHERE, "a": "mysql://u@h/", "b": "mysql://u@h/",
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """One text that a command takes."""

    command: str
    name: str
    option: str
    needed: tuple[str, ...]  # what the command cannot do without


def texts() -> Iterator[Given]:
    """Yield each text of each command; `cli` has the same ones again."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[Given]:
        if hasattr(command, "list_commands"):
            context = Context(command)
            for name in command.list_commands(context):
                if (*path, name) != ("cli",):
                    yield from walk(command.get_command(context, name), (*path, name))
            return
        needed: list[str] = []
        for one in (p for p in command.params if p.required):
            value = NEEDED.get(one.name, "1")
            needed += [value] if one.param_type_name == "argument" else [one.opts[0], value]
        for one in command.params:
            kind = one.type_descriptor.annotation
            if kind in (str, list[str]) or one.name == "config":
                yield Given(" ".join(path), one.name, one.opts[0], tuple(needed))

    yield from walk(get_command(app), ())


ALL = list(texts())


def test_every_text_of_every_command_is_known() -> None:
    """A new one either holds no secret, or is called below with a reference."""
    unknown = [
        (one.command, one.name)
        for one in ALL
        if one.name not in PLAIN
        and one.name not in (*OF_CLIENTS, BY_ITSELF)
        and (one.command, one.name) not in {*PLAIN_HERE, *SENT, *CALLS}
    ]
    assert not unknown
    there = {(one.command, one.name) for one in ALL}
    assert {*PLAIN_HERE, *SENT, *CALLS} <= there
    assert {one.name for one in ALL} >= {*PLAIN, *OF_CLIENTS, BY_ITSELF}
    assert len(ALL) > 200


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, list[str]], str]:
    """Carry a command out in a folder of its own; returns all that it said."""
    monkeypatch.delenv(NAME, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kafka.toml").write_text(f'[sink.kafka-config]\nsasl-password = "{MISSING}"\n')
    (tmp_path / "csv.toml").write_text("[sink.csv]\ninclude-commit-ts = true\n")
    (tmp_path / "files").mkdir()
    words = {
        "@kafka": str(tmp_path / "kafka.toml"),
        "@csv": str(tmp_path / "csv.toml"),
        "@files": f"file://{tmp_path}/files?protocol=csv",
        "@declared": str(tmp_path / "feeds.yaml"),
        "@new": str(tmp_path / "meta.jsonl.gz"),
    }

    def call(command: str, given: list[str]) -> str:
        line = [*command.split(), *(words.get(word, word) for word in given)]
        result = CliRunner().invoke(app, line)
        assert result.exit_code != 0, result.output
        return " ".join(f"{result.output}\n{result.exception}".split())

    return call


@pytest.mark.parametrize(("command", "name"), CALLS, ids=lambda word: str(word).replace(" ", "-"))
def test_a_reference_is_looked_up(
    command: str, name: str, called: Callable[[str, list[str]], str]
) -> None:
    told = called(command, CALLS[command, name])
    assert MISSING in told and "is not set here" in told and "RF-2011" in told, told


@pytest.mark.parametrize("name", OF_CLIENTS)
def test_clients_look_up_their_own_login(
    name: str, called: Callable[[str, list[str]], str]
) -> None:
    asking = [one for one in ALL if one.name == name]
    assert len(asking) > 12
    for one in asking:
        user = ["--user", "ann"] if name == "password" else []
        told = called(one.command, [*one.needed, *user, one.option, MISSING])
        assert f"{one.option}: {MISSING}: this environment variable is not set" in told, one


def test_a_client_logs_in_with_what_a_reference_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("the-token-of-a-file\n")
    monkeypatch.setenv(NAME, "a-word-of-the-environment")
    with HttpReceiver() as receiver:
        address = f"http://127.0.0.1:{receiver.uri.rpartition(':')[2].partition('/')[0]}"
        for more in (
            ["--token", f"file:{tmp_path}/token"],
            ["--user", "ann", "--password", MISSING],
            ["--token", "literal:env:x"],
        ):
            CliRunner().invoke(app, ["tso", "query", "--server", address, *more])
        sent = [{k.lower(): v for k, v in r.headers.items()} for r in receiver.taken]
    assert [headers.get("authorization") for headers in sent] == [
        "Bearer the-token-of-a-file",
        "Basic YW5uOmEtd29yZC1vZi10aGUtZW52aXJvbm1lbnQ=",
        "Bearer env:x",
    ]


def test_what_a_server_is_given_stays_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "a-word-of-the-environment")
    with HttpReceiver() as receiver:
        address = f"http://127.0.0.1:{receiver.uri.rpartition(':')[2].partition('/')[0]}"
        line = ["changefeed", "create", "--server", address, "--source", MYSQL]
        CliRunner().invoke(app, [*line, "--sink-uri", KAFKA, "-c", "one", "--no-confirm"])
        bodies = [json.loads(r.body) for r in receiver.taken if r.body]
    assert bodies and all(MISSING in json.dumps(body) for body in bodies)
    assert "a-word-of-the-environment" not in json.dumps(bodies)


def test_a_meta_database_whose_password_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "p/w:@%")
    assert given_meta(f"mysql://ann:{MISSING}@h:1/m?ssl-mode=required") == (
        "mysql://ann:p%2Fw%3A%40%25@h:1/m?ssl-mode=required"
    )
    for left in ("sqlite:////a/file:b#c.db", "postgresql://ann:p%20w@h/m?x=a%2Fb", "mysql://h/m"):
        assert given_meta(left) == left
    assert given_meta("mysql://ann:literal:env:x@h/m") == "mysql://ann:env%3Ax@h/m"


def test_the_store_of_a_shell_that_nobody_names_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many shells have VAULT_ADDR without a token."""
    monkeypatch.setenv("VAULT_ADDR", "https://vault.example.com:8200")
    monkeypatch.delenv("VAULT_TOKEN", raising=False)
    monkeypatch.setenv(NAME, "word")
    assert given_secret(MISSING, "--token") == "word"
    with pytest.raises(SecretMissing, match="--token: vault:kv/a#b: --vault-token-file is missing"):
        given_secret("vault:kv/a#b", "--token")
    with small_vault(tokens={"t": "kv"}, secrets={"kv/a": {"b": "of the store"}}) as vault:
        monkeypatch.setenv("VAULT_ADDR", vault.address)
        monkeypatch.setenv("VAULT_TOKEN", "t")
        assert given_secret("vault:kv/a#b", "--token") == "of the store"
