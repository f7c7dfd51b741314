from __future__ import annotations

import pytest

from rowferry.errors import BadUri
from rowferry.spec.uri import Uri, host_port, is_secret_parameter, without_passwords


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:///out?protocol=csv", "/out"),
        ("file:///out/", "/out"),
        ("file:///a/../b//c", "/b/c"),
        ("file:////out", "/out"),
        ("file://localhost/out", "/out"),
        ("file://out", "/work/out"),
        ("file://out/a", "/work/out/a"),
        ("file://./out", "/work/out"),
        ("file://../out", "/out"),
        ("file://a%20b/c%3F", "/work/a b/c?"),
        ("FILE:///out", "/out"),
    ],
)
def test_file_uris_become_absolute(text: str, path: str) -> None:
    uri = Uri.parse(text, "sink").absolute("/work", "sink")
    assert (uri.scheme, uri.address, uri.path) == ("file", "", path)
    assert Uri.parse(uri.reveal(), "sink") == uri


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file://", "names no directory"),
        ("file:///", "names no directory"),
        ("file://..", "names no directory"),
        ("file://~/out", "~"),
        ("file://me:pw@h/out", "names a user"),
    ],
)
def test_file_uris_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(BadUri, match=words):
        Uri.parse(text, "sink").absolute("/work", "sink")


def test_other_uris_are_left_alone() -> None:
    uri = Uri.parse("s3://bucket/a/../b", "sink")
    assert uri.absolute("/work", "sink") is uri


@pytest.mark.parametrize("text", ["/out", "file:/out", "out", "", "//h/out"])
def test_no_scheme(text: str) -> None:
    with pytest.raises(BadUri, match="has no scheme"):
        Uri.parse(text, "sink")


def test_secrets_are_hidden() -> None:
    text = "mysql://me:s%40cret@h:3306/?sasl-password=hunter2&worker-count=3"
    uri = Uri.parse(text, "sink")
    assert uri.password == "s@cret" and uri.parameter("sasl-password") == "hunter2"
    for shown in (str(uri), repr(uri), f"{uri}"):
        assert "cret" not in shown and "hunter2" not in shown and "worker-count=3" in shown
    assert Uri.parse(uri.reveal(), "sink") == uri


def test_which_parameters_are_secret() -> None:
    secret = ("sas-token", "SAS", "account_sas", "sasl-password", "secret-access-key", "access-key")
    assert all(map(is_secret_parameter, secret))
    assert not any(map(is_secret_parameter, ("sasl-mechanism", "sasl-user", "protocol", "key")))


def test_errors_never_show_the_uri() -> None:
    for text in ("mysql://me:hunter2@[h/", "kafka://me:hunter2@h?a=1&a=2", "x://me:hunter2@h/#f"):
        with pytest.raises(BadUri) as caught:
            Uri.parse(text, "sink")
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "mysql://me:hunter2/x@h:3306/",
        "mysql://me:hunter2?x@h:3306/",
        "mysql://me:7/hunter2@h:3306/",
        "mysql://me:7?hunter2@h:3306/",
        "https://me:hunter2/x@h/",
        "mysql://me:hunter2@ h:3306/",
        "mysql://me:hunter2@h:65536/",
        "mysql://me:hunter2@::1:3306/",
    ],
)
def test_a_password_that_was_cut_is_never_taken_for_a_host(text: str) -> None:
    with pytest.raises(BadUri, match=r"write / as %2F") as caught:
        Uri.parse(text, "source")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "kafka://a:9092,[::1]:9092,c/topic",
        "mysql://me@corp:pw@[::1]:3306/",
        "s3://bucket/a@b",
        "https://h:8443/@team?to=a@b",
        "file://a:b/c@d",
        "mysql://h:/",
    ],
)
def test_hosts_that_are_understood(text: str) -> None:
    uri = Uri.parse(text, "sink")
    assert Uri.parse(uri.reveal(), "sink") == uri


@pytest.mark.parametrize("text", ["file:///a\x00b", "file:///a%00b", "file:///\ud800", "x://h\n/"])
def test_characters_that_no_uri_may_have(text: str) -> None:
    with pytest.raises(BadUri, match="no URI may have"):
        Uri.parse(text, "sink")


def test_passwords_are_hidden_in_any_text() -> None:
    assert without_passwords("at mysql://me:a/b@h:3 now") == "at mysql://me:***@h:3 now"
    assert without_passwords('"x://me:a\'b@h", "c@d"') == '"x://me:***@h", "c@d"'
    for plain in ("mysql://<user>:<password>@<host>", "http://h:80/x y@z", "mysql://me@h:3306/"):
        assert without_passwords(plain) == plain


def test_an_ipv6_host_stands_in_brackets() -> None:
    assert host_port("db", 3306) == "db:3306"
    assert host_port("::1", 3306) == "[::1]:3306"
