"""Certificates for servers on 127.0.0.1 and their clients, made at run time."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rowferry.testing.servers.child import HOST

_DAY: Final = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files of one authority.

    Attributes:
        ca: the authority's certificate, which clients and servers trust.
        server: the server's key, then its certificate (for `localhost` and 127.0.0.1).
        client: the client's certificate.
        client_key: the client's key.
    """

    ca: Path
    server: Path
    client: Path
    client_key: Path

    @classmethod
    def make(cls, folder: Path) -> Self:
        """Write new ones into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(*(folder / f"{n}.pem" for n in ("ca", "server", "client", "client_key")))
        authority = ec.generate_private_key(ec.SECP256R1())
        ca = _certificate("rowferry test authority", authority, authority, None)
        made.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
        for name in ("server", "client"):
            key = ec.generate_private_key(ec.SECP256R1())
            signed = _certificate(name, key, authority, ca)
            text = signed.public_bytes(serialization.Encoding.PEM)
            if name == "server":
                _write_secret(made.server, _pem(key) + text)
            else:
                made.client.write_bytes(text)
                _write_secret(made.client_key, _pem(key))
        return made


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate | None,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    public = signer.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.subject if ca else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.BasicConstraints(ca=ca is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
    )
    if ca is None:
        builder = builder.add_extension(_SIGNS, critical=True)
    else:
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(signer, hashes.SHA256())


_SIGNS: Final = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_secret(path: Path, text: bytes) -> None:
    path.touch(0o600)
    path.write_bytes(text)
