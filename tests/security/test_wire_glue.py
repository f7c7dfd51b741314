"""AWS Glue as a catalog, in the hands of somebody else: its answers, refusals, and the login."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from web_rogue_kit import Answer, Asked, Rogue, as_json, rogue

from rowferry.errors import (
    BadOption,
    NotAllowed,
    OptionsConflict,
    RowferryError,
    SinkUnavailable,
    SinkUnwritable,
)
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.lake.iceberg.glue import amazon_http, amazon_login
from rowferry.registry import SINKS
from rowferry.spec.build import build_spec
from rowferry.spec.reach import Reach
from rowferry.spec.secrets import secrets_of

MOST = 1 << 20
SECRET = "the-secret-of-the-access-key"
TOKEN = "the-token-of-the-session"
GRANTED = "a-secret-that-was-granted"
LOGIN = f"access-key=an-access-key&secret-access-key={SECRET}&session-token={TOKEN}"
NO_TABLES = as_json({"__type": "EntityNotFoundException", "Message": "Database not found."}, 400)


def refusal(status: int, kind: str, words: str = "no") -> Answer:
    return as_json({"__type": kind, "Message": words}, status)


def flow_of(catalog: str, folder: Path, sink: str = "", **lake: str) -> Any:
    config = {"sink": {"lake": {"catalog": catalog, **lake}}}
    uri = sink or f"iceberg+file://{folder}/lake"
    spec, _ = build_spec(
        "range://127.0.0.1:1", uri, config, "feed", tables=option_tables, sinks=sink_traits
    )
    return assemble(spec)


def probe(at: Rogue, folder: Path, login: str = LOGIN) -> None:
    """Ask a sink whether its catalog answers, as the dry run of a changefeed does."""
    flow = flow_of(f"glue://eu-central-1?endpoint={at.url}&{login}".rstrip("&"), folder)
    try:
        flow.sink.probe(Owner("feed", 1))
    finally:
        flow.sink.close()


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (refusal(400, "AccessDeniedException"), None, ""),  # rights may be for some databases
        (refusal(400, "EntityNotFoundException"), None, ""),
        (refusal(400, "UnrecognizedClientException"), SinkUnwritable, "correct access-key"),
        (refusal(403, "InvalidSignatureException"), SinkUnwritable, "refuses the login"),
        (refusal(400, "x#ExpiredTokenException"), SinkUnwritable, "ExpiredTokenException: no;"),
        (refusal(500, "InternalServiceException"), SinkUnavailable, "InternalServiceException"),
        (Answer([b"<html>"], 502), SinkUnavailable, "it answers 502"),
        (Answer([b"<html>"], 404), SinkUnavailable, "it answers 404"),
        (Answer([b"<html>"]), SinkUnavailable, "is none of Glue's"),
        (as_json([]), SinkUnavailable, "is none of Glue's"),
        (Answer([b'{"a":' + b"[" * 100_000]), SinkUnavailable, "is none of Glue's"),
        (Answer(status=307, headers={"Location": "http://127.0.0.2:9/"}), SinkUnavailable, "leads"),
        (
            Answer([gzip.compress(bytes(99))], 200, {"Content-Encoding": "gzip"}),
            SinkUnavailable,
            "its answer is compressed",
        ),
        (Answer([bytes(MOST), b"x"]), SinkUnavailable, f"more than {MOST} bytes"),
    ],
)
def test_what_glue_answers(
    answer: Answer,
    kind: type[RowferryError] | None,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amazon_http, "_MOST_BYTES", MOST)
    with rogue(lambda _: answer) as glue:
        if kind is None:
            probe(glue, tmp_path)
            return
        with pytest.raises(kind, match=rf"the Iceberg catalog glue://eu-central-1.*{words}"):
            probe(glue, tmp_path)


def listing(action: str, answer: Answer) -> Callable[[Asked], Answer]:
    """Return a Glue that knows the database shop, and one answer of its own."""

    def answered(asked: Asked) -> Answer:
        name = asked.headers["X-Amz-Target"].partition(".")[2]
        if name == action:
            return answer
        return as_json({"DatabaseList": [{"Name": "shop"}], "Database": {}, "TableList": []})

    return answered


def test_pages_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amazon_http, "_MOST_BYTES", MOST)
    page = as_json({"TableList": [{"Name": "x" * 1000}] * 100, "NextToken": "more"})
    with rogue(listing("GetTables", page)) as glue:
        flow = flow_of(f"glue://eu-central-1?endpoint={glue.url}&{LOGIN}", tmp_path)
        with pytest.raises(SinkUnavailable, match="its answer has more than"):
            flow.sink._catalog.tables()
        flow.sink.close()
    assert 5 < len(glue.seen) < 20


@pytest.mark.parametrize(
    ("action", "answer", "kind", "words"),
    [
        ("GetTable", refusal(400, "AccessDeniedException"), SinkUnwritable, "glue:GetTable is not"),
        ("GetTable", as_json({"Table": 1}), SinkUnavailable, "has no Table"),
        ("GetTable", refusal(400, "InvalidInputException"), SinkUnwritable, "refuses GetTable: I"),
        ("GetTables", as_json({"TableList": [1]}), SinkUnavailable, "has no TableList"),
        ("GetDatabases", refusal(403, "AccessDenied"), SinkUnwritable, "glue:GetDatabases is not"),
    ],
)
def test_refusals_of_single_requests(
    action: str, answer: Answer, kind: type[RowferryError], words: str, tmp_path: Path
) -> None:
    with rogue(listing(action, answer)) as glue:
        flow = flow_of(f"glue://eu-central-1?endpoint={glue.url}&{LOGIN}", tmp_path)
        catalog = flow.sink._catalog
        with pytest.raises(kind, match=words):
            catalog.load("shop/orders") if action == "GetTable" else catalog.tables()
        flow.sink.close()


def test_a_database_that_may_not_be_made(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Answer:
        made = asked.headers["X-Amz-Target"] == "AWSGlue.CreateDatabase"
        return refusal(400, "AccessDeniedException") if made else NO_TABLES

    with rogue(answer) as glue:
        flow = flow_of(f"glue://eu-central-1?endpoint={glue.url}&{LOGIN}", tmp_path)
        words = (
            "there is no database 'shop', and the login may not make it .glue:CreateDatabase is not"
        )
        with pytest.raises(SinkUnwritable, match=words):
            flow.sink._catalog.commit("shop/orders", None, (), ())
        flow.sink.close()


@pytest.mark.parametrize("kind", ["ThrottlingException", "RequestLimitExceeded"])
def test_throttled_requests_are_made_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with rogue(lambda _: refusal(400, kind) if len(busy.seen) < 4 else NO_TABLES) as busy:
        probe(busy, tmp_path)
    assert len(busy.seen) == 4 and pauses == sorted(pauses) and len(set(pauses)) == 3
    with rogue(lambda _: refusal(400, kind, "Rate exceeded")) as busy:
        with pytest.raises(SinkUnavailable, match="Rate exceeded; it takes no more requests"):
            probe(busy, tmp_path)
    assert 4 < len(busy.seen) < 10


# --- the login -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 403, 500])
@pytest.mark.parametrize("kind", ["InvalidInputException", "UnrecognizedClientException"])
def test_glue_repeats_the_login(status: int, kind: str, tmp_path: Path) -> None:
    def answer(asked: Asked) -> Answer:
        assert asked.headers["x-amz-security-token"] == TOKEN
        return refusal(status, kind, f"you sent {SECRET}, {TOKEN} as {asked.headers}")

    with rogue(answer) as glue:
        flow = flow_of(f"glue://eu-central-1?endpoint={glue.url}&{LOGIN}", tmp_path)
        with pytest.raises(RowferryError, match="you sent") as said:
            flow.sink._catalog.load("shop/orders")
        flow.sink.close()
    words = str(said.value)
    assert not any(one in words for one in (SECRET, TOKEN, "an-access-key")), words


def test_what_is_secret_in_an_address() -> None:
    catalog = f"glue://eu-central-1?{LOGIN}"
    config = {"sink": {"lake": {"catalog": catalog}}}
    spec, _ = build_spec(
        *("range://127.0.0.1:1", "iceberg+s3://bucket/lake", config, "feed"),
        tables=option_tables,
        sinks=sink_traits,
    )
    assert {SECRET, TOKEN, "an-access-key"} <= secrets_of(spec, option_tables(spec))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("endpoint=http://169.254.169.254", "endpoint: .* does not talk to 169.254.169.254:80"),
        ("profile=admin", "profile: .* --allow-file"),
        ("ca=/etc/shadow", "ca: .* --allow-file"),
        (LOGIN, ""),
    ],
)
def test_what_a_server_may_reach(parameters: str, words: str) -> None:
    config = {"sink": {"lake": {"catalog": f"glue://eu-central-1?{parameters}"}}}
    spec, _ = build_spec(
        *("range://127.0.0.1:1", "iceberg+s3://bucket/lake", config, "feed"),
        tables=option_tables,
        sinks=sink_traits,
    )
    if not words:
        Reach().check(spec, SINKS.load("iceberg+s3").TABLES)
        return
    with pytest.raises(NotAllowed, match=f"sink.lake.catalog, {words}"):
        Reach().check(spec, SINKS.load("iceberg+s3").TABLES)


@pytest.mark.parametrize(
    ("catalog", "kind", "words"),
    [
        ("glue://", BadOption, "write glue://REGION or glue://REGION/ACCOUNT, such as"),
        ("glue://evil.example", BadOption, "write glue://REGION"),
        ("glue://eu-central-1:443", BadOption, "write glue://REGION"),
        ("glue://eu-central-1/lake", BadOption, "where ACCOUNT has 12 digits"),
        ("glue://eu-central-1/123456789012/x", BadOption, "where ACCOUNT has 12 digits"),
        (f"glue://ann:{SECRET}@eu-central-1", BadOption, "keys are parameters"),
        ("glue://eu-central-1?warehouse=s3://b/p", BadOption, "warehouse is no parameter of glue"),
        ("glue://eu-central-1?endpoint=host:80", BadOption, "endpoint = 'host:80': write it as"),
        ("glue://eu-central-1?endpoint=http://h&allow-http=yes", BadOption, "write true or false"),
        ("glue://eu-central-1?endpoint=http://h", OptionsConflict, "or add allow-http=true"),
        (f"glue://eu-central-1?secret-access-key={SECRET}", OptionsConflict, "give both or none"),
        ("hive://host:9083", BadOption, "no catalog of that kind .* glue .AWS Glue."),
    ],
)
def test_addresses_that_cannot_be(
    catalog: str, kind: type[RowferryError], words: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=f"sink.lake.catalog.*{words}") as said:
        flow_of(catalog, tmp_path)
    assert SECRET not in str(said.value) and "\n" not in str(said.value)


@pytest.mark.parametrize("option", ["catalog-name", "catalog-token", "catalog-scope"])
def test_options_of_other_catalogs(option: str, tmp_path: Path) -> None:
    with pytest.raises(OptionsConflict, match=f"{option} says nothing to AWS Glue"):
        flow_of("glue://eu-central-1", tmp_path, **{option: "x"})


# --- roles ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let this machine have no login of its own."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "ROLE_ARN"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def granted(lives: timedelta = timedelta(hours=1), **names: str) -> dict[str, str]:
    end = (datetime.now(UTC) + lives).strftime("%Y-%m-%dT%H:%M:%SZ")
    keys = {"AccessKeyId": "ROLE", "SecretAccessKey": GRANTED, "Token": TOKEN, "Expiration": end}
    return keys | names


def asked_by(glue: Rogue) -> list[tuple[str, str]]:
    """The access keys and tokens by which Glue was asked."""
    return [
        (
            one.headers["Authorization"].partition("Credential=")[2].partition("/")[0],
            one.headers.get("x-amz-security-token", ""),
        )
        for one in glue.seen
    ]


@pytest.fixture
def glue() -> Iterator[Rogue]:
    with rogue(lambda _: NO_TABLES) as running:
        yield running


def test_no_login_anywhere(glue: Rogue, tmp_path: Path) -> None:
    with pytest.raises(SinkUnwritable, match="there is no login .* no access-key"):
        probe(glue, tmp_path, "")
    assert glue.seen == []


def test_keys_of_the_environment_and_of_profiles(
    glue: Rogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text("[p]\naws_access_key_id=OF-P\naws_secret_access_key=x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OF-ENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    probe(glue, tmp_path, "")
    probe(glue, tmp_path, "profile=p")
    probe(glue, tmp_path)
    assert asked_by(glue) == [("OF-ENV", ""), ("OF-P", ""), ("an-access-key", TOKEN)]


def test_the_role_of_a_container(
    glue: Rogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that end are asked for anew."""
    file = tmp_path / "token"
    file.write_text("for-containers\n")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(file))
    with rogue(lambda _: as_json(granted(timedelta(seconds=9)))) as role:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{role.url}/keys")
        flow = flow_of(f"glue://eu-central-1?endpoint={glue.url}", tmp_path)
        for _ in range(2):
            flow.sink._catalog.check()
        flow.sink.close()
    assert asked_by(glue) == [("ROLE", TOKEN)] * 2
    assert [(one.path, one.headers["Authorization"]) for one in role.seen] == [
        ("/keys", "for-containers")
    ] * 2


def test_the_role_of_the_machine(
    glue: Rogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only by the version of its service that no proxy can be made to ask."""

    def answer(asked: Asked) -> Answer:
        if asked.method == "PUT" and asked.path == "/latest/api/token":
            return Answer([b"for-machines"])
        if asked.headers.get("X-aws-ec2-metadata-token") != "for-machines":
            return Answer(status=401)
        if asked.path.endswith("/security-credentials/"):
            return Answer([b"writer\n"])
        assert asked.path.endswith("/security-credentials/writer")
        return as_json(granted())

    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    with rogue(answer) as machine:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", machine.url)
        flow = flow_of(f"glue://eu-central-1?endpoint={glue.url}", tmp_path)
        for _ in range(2):
            flow.sink._catalog.check()
        flow.sink.close()
    assert asked_by(glue) == [("ROLE", TOKEN)] * 2 and len(machine.seen) == 3


def identity_answer(status: int = 200) -> Answer:
    if status != 200:
        return Answer([b"<ErrorResponse><Error><Code>AccessDenied</Code></Error>"], status)
    keys = granted()
    keys["SessionToken"] = keys.pop("Token")
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in keys.items())
    return Answer([f"<Credentials>{inner}</Credentials>".encode()])


def test_a_role_by_web_identity(
    glue: Rogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "identity"
    file.write_text("a-web-identity\n")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(file))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/writer")
    with rogue(lambda _: identity_answer()) as tokens:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", tokens.url)
        probe(glue, tmp_path, "")
    sent = parse_qs(tokens.seen[0].body.decode())
    assert sent["WebIdentityToken"] == ["a-web-identity"]
    assert sent["RoleArn"] == ["arn:aws:iam::123456789012:role/writer"]
    assert asked_by(glue) == [("ROLE", TOKEN)]
    with rogue(lambda _: identity_answer(403)) as tokens:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", tokens.url)
        with pytest.raises(SinkUnwritable, match="does not give the role arn.*: AccessDenied; let"):
            probe(glue, tmp_path, "")


@pytest.mark.parametrize(
    "answer",
    [
        Answer([b"<html>"]),
        Answer([b"[1]"]),
        as_json(granted(), 500),
        as_json(granted(Expiration="soon")),
        as_json(granted(AccessKeyId="")),
        as_json(granted(AccessKeyId="a\r\nb")),
        Answer([json.dumps(granted()).encode(), bytes(MOST)]),
    ],
)
def test_whoever_gives_keys_is_not_believed(
    answer: Answer, glue: Rogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amazon_http, "_MOST_BYTES", MOST)
    with rogue(lambda _: answer) as role:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{role.url}/keys")
        with pytest.raises(SinkUnavailable, match="no keys for Amazon's services are given") as err:
            probe(glue, tmp_path, "")
    assert GRANTED not in str(err.value) and glue.seen == []


def test_addresses_of_amazon() -> None:
    for region, end in (("eu-west-1", "amazonaws.com"), ("cn-north-1", "amazonaws.com.cn")):
        assert amazon_login.amazon_address("glue", region).endswith(f"//glue.{region}.{end}")
