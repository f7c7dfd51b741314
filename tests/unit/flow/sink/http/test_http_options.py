"""What leaves the URI, and what each setting amounts to."""

from __future__ import annotations

import base64
import secrets

import pytest
from http_kit import sink_of, spec_of

from rowferry.errors import BadOption, BadUri, OptionsConflict, RowferryError
from rowferry.flow.assemble import option_tables, sink_traits
from rowferry.flow.encode.canal_json.codec import CanalJson
from rowferry.flow.sink.http.options import HttpSettings, read_settings
from rowferry.spec.build import build_spec
from rowferry.spec.feed_options import own_tables

RANGE = "range://127.0.0.1:1"


def settings(uri: str, **config: object) -> HttpSettings:
    spec = spec_of(uri, **config)
    tables = own_tables(sink_traits(spec.sink.scheme))
    return read_settings(spec, (*tables, *CanalJson.TABLES))


def test_only_declared_options_leave_the_url() -> None:
    found = settings(
        "http://h:8080/in%20box/a?max-batch-rows=7&key=k%26y&protocol=canal-json&compression=gzip"
        "&enable-tidb-extension=true&b=x%20y&empty="
    )
    assert found.address.target == "/in%20box/a?key=k%26y&b=x%20y&empty="
    assert (found.options.max_batch_rows, found.options.compression) == (7, "gzip")


@pytest.mark.parametrize(
    ("uri", "host", "port", "target"),
    [
        ("http://h", "h", 80, "/"),
        ("https://h/x", "h", 443, "/x"),
        ("https://[::1]:8443/", "::1", 8443, "/"),
    ],
)
def test_addresses(uri: str, host: str, port: int, target: str) -> None:
    found = settings(uri).address
    assert (found.host, found.port, found.target) == (host, port, target)


@pytest.mark.parametrize("uri", ["http:///path", "http://h:port/", "http://:80/"])
def test_no_receiver(uri: str) -> None:
    with pytest.raises(BadUri, match="names no (receiver|host:port)"):
        settings(uri)


def test_parameters_of_the_receiver_pass_the_check_and_near_misses_are_told() -> None:
    _, notices = build_spec(
        RANGE,
        "http://h/?tenant=7&max-batch-row=5&authorization=x",
        tables=option_tables,
        sinks=sink_traits,
    )
    (first, second) = notices
    assert "max-batch-row goes to the receiver" in first
    assert "sink.http-config.max-batch-rows" in first
    assert "authorization goes to the receiver" in second


def test_a_wrong_value_is_refused_by_name() -> None:
    with pytest.raises(BadOption, match=r"max-batch-rows.*'0'.*from 1"):
        build_spec(RANGE, "http://h/?max-batch-rows=0", tables=option_tables, sinks=sink_traits)


def test_json_is_the_default_protocol_and_csv_is_refused() -> None:
    assert sink_of("http://h/").TRAITS.needs_shuffle
    with pytest.raises(OptionsConflict, match="csv cannot be sent over http; use protocol=json"):
        sink_of("http://h/?protocol=csv")


# --- headers --------------------------------------------------------------------------------------


def test_ways_to_authorize(monkeypatch: pytest.MonkeyPatch) -> None:
    token, login = secrets.token_hex(8), f"ann:{secrets.token_hex(8)}:x"
    monkeypatch.setenv("RECEIVER_AUTH", f"Custom {token}")
    user, _, rest = login.partition(":")
    basic = "Basic " + base64.b64encode(login.encode()).decode()
    for found, wanted in (
        (settings("http://h/", authorization=f"Raw {token}"), f"Raw {token}"),
        (settings("http://h/", bearer_token=token), f"Bearer {token}"),
        (settings("http://h/", authorization_env="RECEIVER_AUTH"), f"Custom {token}"),
        (settings(f"http://{user}:{rest.replace(':', '%3A')}@h/"), basic),
        (settings("http://h/", headers=[f"authorization: {token}"]), token),
    ):
        assert found.headers == {"Authorization": wanted}
        assert token not in repr(found)
        assert rest not in repr(found)


def test_two_ways_at_once_are_refused() -> None:
    with pytest.raises(OptionsConflict, match="the URI's user.*keep one"):
        settings("http://ann@h/", bearer_token=secrets.token_hex(8))


def test_a_variable_that_is_not_set() -> None:
    with pytest.raises(BadOption, match=r"authorization-env.*NO_SUCH_VARIABLE.*executor"):
        settings("http://h/", authorization_env="NO_SUCH_VARIABLE")


@pytest.mark.parametrize(
    "line",
    ["no colon", ": no name", "bad name: x", "X: two\r\nlines", "Content-Type: x", "rowferry-x: y"],
)
def test_headers_that_cannot_be_sent(line: str) -> None:
    with pytest.raises(BadOption, match="headers") as raised:
        settings("http://h/", headers=[line])
    assert line not in str(raised.value)


def test_further_headers() -> None:
    assert settings("http://h/", headers=["X-Team: a: b", "Y:"]).headers == {
        "X-Team": "a: b",
        "Y": "",
    }


def test_half_a_client_certificate() -> None:
    with pytest.raises(OptionsConflict, match="ssl-cert and ssl-key"):
        settings("https://h/?ssl-cert=/c.pem")


def test_no_parameter_of_a_receiver_is_printed() -> None:
    token = secrets.token_hex(8)
    spec = spec_of(f"http://h/p?code={token}")
    assert token not in str(spec.sink) + repr(spec)
    with pytest.raises(RowferryError) as raised:
        settings(f"http://:80/?code={token}")
    assert token not in str(raised.value)
    assert token not in settings(f"http://h/?code={token}").address.shown
