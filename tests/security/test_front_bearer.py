"""Signed tokens: what is believed, what is not, and keys that change."""

from __future__ import annotations

import base64
import hmac
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from front_kit import Front
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey
from typer.testing import CliRunner

from rowferry.control.operator.actor import Role
from rowferry.errors import AccessDenied, BadOption
from rowferry.face import bearer
from rowferry.face.bearer import TokenIssuer
from rowferry.face.cli.main import app
from rowferry.face.gate import Gate

ISSUER, AUDIENCE = "https://login.example.com", "rowferry"
KEYS: dict[str, Any] = {
    "RS256": RSAKey.generate_key(2048, {"kid": "r"}),
    "ES256": ECKey.generate_key("P-256", {"kid": "e"}),
    "Ed25519": OKPKey.generate_key("Ed25519", {"kid": "o"}),
}


def claims(**more: Any) -> dict[str, Any]:
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": int(time.time()) + 600}
    found = {**usual, "roles": ["x", "rowferry-operator"], **more}
    return {key: value for key, value in found.items() if value is not None}


def signed(said: dict[str, Any], algorithm: str = "RS256", key: Any = None, **header: Any) -> str:
    key = key or KEYS[algorithm]
    head = {"alg": algorithm, "kid": key.kid, **header}
    return jwt.encode(head, said, key, algorithms=[algorithm])


@pytest.fixture
def jwks(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(KeySet(list(KEYS.values())).as_dict(private=False)))
    return path


@pytest.fixture
def issuer(jwks: Path) -> TokenIssuer:
    return TokenIssuer(ISSUER, AUDIENCE, str(jwks))


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_token_of_the_issuer_is_believed(issuer: TokenIssuer, algorithm: str) -> None:
    said = claims(aud=["other", AUDIENCE])
    assert issuer.who(signed(said, algorithm)) == ("ann", Role.OPERATOR, said["exp"])


@pytest.mark.parametrize(
    ("roles", "role"),
    [
        (["rowferry-viewer", "rowferry-admin"], Role.ADMIN),
        ("openid rowferry-viewer", Role.VIEWER),
        (["admin", "operator", "rowferry"], None),  # of something else
        ([], None),
        (None, None),
        ({"rowferry-admin": 1}, None),
        (["rowferry-admin", 7], None),
        (7, None),
    ],
)
def test_the_highest_role_counts_and_none_is_guessed(
    issuer: TokenIssuer, roles: Any, role: Role | None
) -> None:
    found = issuer.who(signed(claims(roles=roles)))
    assert (found and found[1]) == role


def test_a_role_deep_inside(jwks: Path) -> None:
    found = TokenIssuer(ISSUER, AUDIENCE, str(jwks), "realm_access.roles")
    inside = claims(roles=None, realm_access={"roles": ["rowferry-admin"]})
    assert (found.who(signed(inside)) or ("", None))[1] is Role.ADMIN
    assert found.who(signed(claims())) is None
    assert found.who(signed(claims(realm_access="rowferry-admin"))) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"iss": "https://login.example.com/"},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"aud": []},
        {"exp": 1},
        {"exp": None},
        {"exp": "soon"},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"nbf": 1 << 40},
    ],
    ids=str,
)
def test_other_claims_are_refused(issuer: TokenIssuer, wrong: dict[str, Any]) -> None:
    assert issuer.who(signed(claims())) is not None
    assert issuer.who(signed(claims(**wrong))) is None


def test_forged_tokens_are_refused(issuer: TokenIssuer, jwks: Path) -> None:
    good = signed(claims())
    head, body, signature = good.split(".")

    def part(form: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(form).encode()).decode().rstrip("=")

    # The public key taken for a secret that both sides share.
    begin = f"{part({'alg': 'HS256', 'kid': 'r'})}.{body}"
    made = hmac.digest(KEYS["RS256"].as_pem(private=False), begin.encode(), "sha256")
    with_public_key = f"{begin}.{base64.urlsafe_b64encode(made).decode().rstrip('=')}"
    forged = [
        f"{part({'alg': 'none'})}.{body}.",
        f"{part({'alg': 'none', 'kid': 'r'})}.{body}.{signature}",
        f"{head}.{part(claims(roles='rowferry-admin'))}.{signature}",
        f"{head}.{body}.",
        f"{head}.{body}.{signature[:-4]}AAAA",
        signed(claims(), key=RSAKey.generate_key(2048, {"kid": "r"})),
        with_public_key,
        *("", "..", "a.b.c", ".".join([head] * 3), good + "x" * (16 << 10), f"{good}.{good}"),
    ]
    assert [one for one in forged if issuer.who(one) is not None] == []
    shared = OctKey.generate_key(256, {"kid": "r"})
    jwks.write_text(json.dumps({"keys": [shared.as_dict(private=True)]}))
    with pytest.raises(BadOption, match="no set of public keys"):
        TokenIssuer(ISSUER, AUDIENCE, str(jwks))


def test_it_opens_the_gate_until_it_ends(
    opened: Callable[..., Front], issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(issuer=issuer)
    assert not gate.is_open and "Bearer" in gate.challenge
    front, said = opened(gate=gate), claims()
    login = {"authorization": f"Bearer {signed(said)}"}
    you = front.ask("GET", "/api/rowferry/overview", headers=login).form["you"]
    assert you == {"name": "ann", "role": "operator"}
    assert front.ask("POST", "/api/v2/log", {"log_level": "info"}, login).status == 403
    assert front.ask("GET", "/api/rowferry/overview").status == 401
    monkeypatch.setattr("rowferry.face.gate.time.time", lambda: said["exp"] + 31.0)
    monkeypatch.setattr("joserfc._rfc7519.claims.time.time", lambda: said["exp"] + 31.0)
    assert front.ask("GET", "/api/rowferry/overview", headers=login).status == 401


@pytest.fixture
def published() -> Iterator[tuple[str, dict[str, Any]]]:
    """An address that gives what stands in `answer`."""
    answer: dict[str, Any] = {"status": 200, "body": b"", "asked": 0}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer["asked"] += 1
            self.send_response(answer["status"])
            self.send_header("location", "/elsewhere")
            self.end_headers()
            self.wfile.write(answer.get(self.path, answer["body"]))

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/keys", answer
        server.shutdown()


def test_keys_come_from_an_address_and_change(
    published: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, answer = published
    first = json.dumps(KeySet([KEYS["RS256"]]).as_dict(private=False)).encode()
    answer["body"] = first
    issuer = TokenIssuer(ISSUER, AUDIENCE, url)
    for _ in range(3):
        assert issuer.who(signed(claims())) is not None
        assert issuer.who(signed(claims(), "ES256")) is None  # not asked for again at once
    assert answer["asked"] == 1
    monkeypatch.setattr(bearer, "_AGAIN_S", 0.0)
    answer["body"] = json.dumps(KeySet([KEYS["ES256"]]).as_dict(private=False)).encode()
    assert issuer.who(signed(claims(), "ES256")) is not None
    assert issuer.who(signed(claims())) is None
    for status, body in ((302, first), (500, first), (200, b"no keys"), (200, b" " * 99)):
        answer["status"], answer["body"] = status, body
        assert issuer.who(signed(claims())) is None
        assert issuer.who(signed(claims(), "ES256")) is not None  # what was known stays


def test_an_issuer_tells_where_its_keys_are(
    published: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearer, "_AGAIN_S", 0.0)
    url, answer = published
    name = url.removesuffix("/keys") + "/realms/data"
    place = "/realms/data/.well-known/openid-configuration"
    answer["/keys"] = json.dumps(KeySet([KEYS["RS256"]]).as_dict(private=False)).encode()
    told = signed(claims(iss=name))

    def believed(**form: Any) -> bool:
        answer[place] = json.dumps(form).encode()
        return TokenIssuer(name, AUDIENCE).who(told) is not None

    assert believed(issuer=name, jwks_uri=url)
    assert not believed(issuer=name + "/", jwks_uri=url)  # another one's
    assert not believed(issuer=name)
    assert not believed(issuer=name, jwks_uri=["x"])
    assert not believed(issuer=name, jwks_uri=url.replace("127.0.0.1", "127.0.0.1.example.com"))
    assert not believed(issuer=name, jwks_uri="file:///etc/passwd")
    answer[place] = b"{" + b" " * (2 << 20) + b"}"
    assert TokenIssuer(name, AUDIENCE).who(told) is None
    with pytest.raises(BadOption, match="does not begin with https"):
        monkeypatch.setattr(
            bearer,
            "_got",
            lambda where: json.dumps({"issuer": ISSUER, "jwks_uri": "http://127.0.0.1/keys"}),
        )
        bearer._jwks_uri(ISSUER)  # no stranger leads us to this machine


def test_an_address_that_is_away_lets_nobody_in() -> None:
    assert TokenIssuer(ISSUER, AUDIENCE, "http://127.0.0.1:1/x").who(signed(claims())) is None


def test_settings_of_another_form_are_refused(tmp_path: Path) -> None:
    for jwks, words in (
        ("http://login.example.com/keys", "https://"),
        ("ftp://login.example.com/keys", "https://"),
        (str(tmp_path / "nope"), "cannot be read"),
    ):
        with pytest.raises(BadOption, match=words):
            TokenIssuer(ISSUER, AUDIENCE, jwks)
    done = CliRunner().invoke(app, ["server", "--oidc-issuer", ISSUER])
    assert isinstance(done.exception, BadOption) and "--oidc-audience" in str(done.exception)
    for name in ("rowferry-login", "http://login.example.com", f"{ISSUER}?x=1"):
        with pytest.raises(BadOption, match="--oidc-jwks"):  # it cannot tell where its keys are
            TokenIssuer(name, AUDIENCE)
    with pytest.raises(AccessDenied):
        Gate.of("x").admit(f"Bearer {signed(claims())}", "", "rest")  # nobody is believed
