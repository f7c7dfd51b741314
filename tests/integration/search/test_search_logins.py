"""Logins and certificates: a front that lets nobody in without them, before a real server."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, quote

import pytest
from search_kit import SearchScene

from rowferry.errors import SinkUnwritable
from rowferry.testing.receiver import Refusal
from rowferry.testing.search_front import FrontRequest, Guard, SearchFront
from rowferry.testing.servers.certificates import Certificates

KEY, HIDDEN, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "session/token=="
REGION = "eu-central-1"


def only(wanted: str) -> Guard:
    """Let in whoever has this Authorization."""

    def guard(request: FrontRequest) -> Refusal | None:
        is_known = request.headers.get("Authorization") == wanted
        return None if is_known else Refusal(401, words=b"who are you?")

    return guard


def signed(request: FrontRequest) -> Refusal | None:
    """Let in whoever has signed; the signature is made again, from what AWS documents."""
    fields = {name.lower(): value for name, value in request.headers.items()}
    method, _, rest = fields.get("authorization", "").partition(" ")
    if method != "AWS4-HMAC-SHA256":
        return Refusal(403, words=b"not signed")
    parts = dict(part.strip().split("=", 1) for part in rest.split(","))
    access, day, region, service, end = parts["Credential"].split("/")
    assert (access, region, service, end) == (KEY, REGION, "es", "aws4_request")
    names = parts["SignedHeaders"].split(";")
    assert {"host", "x-amz-date", "x-amz-security-token"} <= set(names)
    path, _, query = request.path.partition("?")
    pairs = sorted(parse_qsl(query, keep_blank_values=True))
    digest = hashlib.sha256(request.body).hexdigest()
    canonical = [
        request.method,
        "/".join(quote(part, safe="-_.~") for part in path.split("/")),
        "&".join(f"{quote(k, safe='-_.~')}={quote(v, safe='-_.~')}" for k, v in pairs),
        "".join(f"{name}:{fields[name].strip()}\n" for name in names),
        ";".join(names),
        digest,
    ]
    assert fields["x-amz-content-sha256"] == digest
    scope = f"{day}/{region}/{service}/aws4_request"
    lines = ["AWS4-HMAC-SHA256", fields["x-amz-date"], scope]
    lines.append(hashlib.sha256("\n".join(canonical).encode()).hexdigest())
    secret = b"AWS4" + HIDDEN.encode()
    for part in (day, region, service, "aws4_request"):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    wanted = hmac.new(secret, "\n".join(lines).encode(), hashlib.sha256).hexdigest()
    return None if parts["Signature"] == wanted else Refusal(403, words=b"wrong signature")


PACKED = base64.b64encode(b"id7:key9").decode()
AWS = f'aws-access-key-id = "{KEY}"\naws-secret-access-key = "{HIDDEN}"\n'
WAYS: dict[str, tuple[Guard, str, str]] = {
    "basic": (only("Basic " + base64.b64encode(b"ada:p/w d").decode()), "ada:p%2Fw%20d@", ""),
    "api-key": (only(f"ApiKey {PACKED}"), "", 'api-key = "id7:key9"\n'),
    "sigv4": (signed, "", f'aws-region = "{REGION}"\n{AWS}aws-session-token = "{TOKEN}"\n'),
}


@contextmanager
def guarded(scene: SearchScene, folder: Path, guard: Guard) -> Iterator[SearchFront]:
    certificates = Certificates.make(folder)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates.server)
    with SearchFront(scene.target.address, tls, guard) as front:
        scene.address, scene.scheme = front.address, "opensearch+ssl"
        scene.authority = f"ssl-ca={certificates.ca}"
        yield front


@pytest.mark.parametrize("way", WAYS)
def test_a_login_over_tls(from_mysql: SearchScene, tmp_path: Path, way: str) -> None:
    scene = from_mysql
    guard, login, config = WAYS[way]
    scene.sql("CREATE TABLE t (id varchar(9) PRIMARY KEY, note varchar(40))")
    scene.sql("INSERT INTO t VALUES ('1', 'a'), ('a b/c', 'ß'), ('ü+', '')")
    with guarded(scene, tmp_path, guard) as front:
        with pytest.raises(SinkUnwritable, match="40[13]") as refused:
            scene.start()
        scene.login = login
        wrong = config.replace("key9", "key8").replace("bPxRfi", "bPxRfj")
        scene.login = login.replace("w%20d", "wrong")
        with pytest.raises(SinkUnwritable) as denied:
            scene.start(config=f"[sink.search-config]\n{wrong}")
        scene.login = login
        packed = "none" if way == "sigv4" else "gzip"  # a signature is over what is sent
        scene.run(config=f"[sink.search-config]\n{config}compression = '{packed}'\n")
        for err in (refused.value, denied.value):
            assert not any(word in str(err) for word in ("p/wrong", "key8", "bPxRfj", TOKEN))
        scene.authority = ""
        with pytest.raises(SinkUnwritable, match="certificate is not trusted.*ssl-ca"):
            scene.start()
        assert front.refused and front.taken
    assert scene.assert_same("t") == 3
