from __future__ import annotations

import pytest

from rowferry.errors import BadUri
from rowferry.spec.uri import Uri


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


def test_errors_never_show_the_uri() -> None:
    for text in ("mysql://me:hunter2@[h/", "kafka://me:hunter2@h?a=1&a=2", "x://me:hunter2@h/#f"):
        with pytest.raises(BadUri) as caught:
            Uri.parse(text, "sink")
        assert "hunter2" not in str(caught.value)
