from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from avro_cases import TOPIC, avro, foreign_read, inserts, table
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rowferry.change.chunk import Rows
from rowferry.errors import (
    BadOption,
    RowferryError,
    SchemaRefused,
    SinkUnavailable,
    SinkUnwritable,
    Verdict,
)
from rowferry.flow.encode.avro.registry import RegistryAddress, SchemaRegistry
from rowferry.testing.registry_stub import registry_stub

SCHEMA = '{"type":"string"}'


def test_a_schema_is_registered_and_read_back_once() -> None:
    with registry_stub() as stub:
        client = SchemaRegistry(RegistryAddress(stub.url))
        number = client.register("a/b-value", SCHEMA)
        assert client.register("a/b-value", SCHEMA) == number
        assert stub.requests == [("POST", "/subjects/a%2Fb-value/versions")]
        assert client.schema(number) == client.schema(number) == SCHEMA
        assert stub.requests[1:] == [("GET", f"/schemas/ids/{number}")]


def test_the_probe_knows_registries_of_several_makers() -> None:
    with registry_stub() as stub:
        SchemaRegistry(RegistryAddress(stub.url)).probe()
        assert stub.requests == [("GET", "/")]
        for greeting in (b"", b"<html>hello</html>", b'{"version": 1}'):
            stub.greeting = greeting
            SchemaRegistry(RegistryAddress(stub.url)).probe()
        stub.faults = [(404, b"no such page")]
        SchemaRegistry(RegistryAddress(stub.url)).probe()
        assert ("POST", "/") not in stub.requests and stub.subjects == {}


def test_the_probe_refuses_what_is_no_registry() -> None:
    with registry_stub() as stub:
        stub.faults = [(200, b"<html>"), (200, b"<html>")]
        with pytest.raises(SinkUnwritable, match="not as a schema registry"):
            SchemaRegistry(RegistryAddress(stub.url)).probe()
        with pytest.raises(SinkUnwritable, match=r"404.*whole address"):
            SchemaRegistry(RegistryAddress(stub.url + "/elsewhere")).probe()


@pytest.mark.parametrize(
    ("status", "error"),
    [(409, SchemaRefused), (422, SchemaRefused), (404, SinkUnwritable), (302, SinkUnwritable)]
    + [(401, SinkUnwritable), (403, SinkUnwritable)]
    + [(500, SinkUnavailable), (503, SinkUnavailable), (429, SinkUnavailable)],
)
def test_each_answer_has_its_verdict(status: int, error: type[RowferryError]) -> None:
    words = b'{"error_code":%d,"message":"reader lacks field a"}' % status
    with registry_stub() as stub:
        client = SchemaRegistry(RegistryAddress(stub.url))
        stub.faults = [(status, words)]
        with pytest.raises(error, match=f"{status}.*'t-value'.*reader lacks field a") as found:
            client.register("t-value", SCHEMA)
        assert type(found.value) is error
        assert found.value.verdict is (Verdict.RETRY if error is SinkUnavailable else Verdict.STOP)
        assert client.register("t-value", SCHEMA) == 1  # the failure was not remembered


def test_an_answer_without_an_id_is_refused() -> None:
    with registry_stub() as stub:
        client = SchemaRegistry(RegistryAddress(stub.url))
        for body in (b"{}", b'{"id":0}', b"[]", b"no json"):
            stub.faults = [(200, body)]
            with pytest.raises(SinkUnwritable, match="without giving an id"):
                client.register("t-value", SCHEMA)
        stub.faults = [(200, b"{}")]
        with pytest.raises(SinkUnwritable, match="no schema for the id 1"):
            client.schema(1)


def test_a_registry_that_is_not_there_may_come_back() -> None:
    with registry_stub() as stub:
        gone = stub.url
    client = SchemaRegistry(RegistryAddress(gone))
    with pytest.raises(SinkUnavailable, match=f"{gone} does not answer: .*refused"):
        client.probe()


# --- login ----------------------------------------------------------------------------------------


def rows() -> Rows:
    return inserts(table("c int"), {"id": 1, "c": 1})


def test_the_user_may_stand_in_the_address_or_in_options() -> None:
    with registry_stub(login="al ice:geh@im:ß") as stub:
        host = stub.url.removeprefix("http://")
        quoted = "al%2520ice:geh%2540im%253A%25C3%259F"  # once for the address, once for its place
        for codec in (
            avro(schema_registry=f"http://{quoted}@{host}"),
            avro(
                schema_registry=stub.url,
                schema_registry_user="al%20ice",
                schema_registry_password="geh%40im%3A%C3%9F",
            ),
        ):
            codec.probe()
            assert codec.encode_rows(rows(), 0, TOPIC).row_count == 1


def test_a_wrong_password_is_refused_and_never_printed() -> None:
    with registry_stub(login="alice:right") as stub:
        host = stub.url.removeprefix("http://")
        codec = avro(schema_registry=f"http://alice:{'wr' + 'ong'}@{host}")
        with pytest.raises(SinkUnwritable, match="401.*schema-registry-user") as found:
            codec.probe()
        assert "wrong" not in str(found.value) and "right" not in str(found.value)
        assert "wrong" not in repr(RegistryAddress("http://x", "alice", "wrong"))


# --- TLS ------------------------------------------------------------------------------------------


def certificate(folder: Path, name: str) -> tuple[str, str]:
    """A certificate that signed itself, and its key; made anew."""
    key = ec.generate_private_key(ec.SECP256R1())
    title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(title)
        .issuer_name(title)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(paths[0]), str(paths[1])


def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    ours, our_key = certificate(tmp_path, "client")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    tls.load_verify_locations(ours)
    tls.verify_mode = ssl.CERT_REQUIRED
    with registry_stub(tls=tls) as stub:
        shown = {"schema_registry_cert": ours, "schema_registry_key": our_key}
        where = {"schema_registry": stub.url}
        avro(**where, **shown, schema_registry_ca=cert).probe()
        avro(**where, **shown, schema_registry_insecure_skip_verify="true").probe()
        with pytest.raises(SinkUnwritable, match="certificate verify failed.*schema-registry-ca"):
            avro(**where, **shown).probe()
        with pytest.raises(RowferryError):
            avro(**where, schema_registry_ca=cert).probe()


def test_files_that_are_no_certificates_are_refused_by_option(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    where = {"schema_registry": "https://127.0.0.1:9"}
    for path in (empty, tmp_path / "absent"):
        with pytest.raises(BadOption, match="schema-registry-ca"):
            avro(**where, schema_registry_ca=path).probe()
        with pytest.raises(BadOption, match="schema-registry-cert.*-key"):
            avro(**where, schema_registry_cert=path, schema_registry_key=path).probe()


def test_a_table_that_is_another_one_at_the_same_commit_ts() -> None:
    """As after a second reset to one place: its rows need a schema of their own."""
    with registry_stub() as stub:
        codec = avro(schema_registry=stub.url)
        for columns, row in (("a int", {"id": 1, "a": 2}), ("b text", {"id": 1, "b": "x"})) * 2:
            encoded = codec.encode_rows(inserts(table(columns), row), 0, TOPIC)
            (message,) = encoded.values.to_pylist()
            schema = stub.schemas[int.from_bytes(message[1:5], "big")]
            assert foreign_read(schema, message) == row
