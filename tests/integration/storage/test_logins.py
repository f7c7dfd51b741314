"""Logins that are no plain keys: shared access signatures, the file of a service account."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from object_store_kit import files_at

from rowferry.errors import BadOption, SinkUnwritable
from rowferry.flow.sink.storage.files import DirectoryEntry
from rowferry.testing.servers import Azurite


def signature(server: Azurite, rights: str, lives: timedelta = timedelta(hours=1)) -> str:
    """An account's shared access signature for containers and objects of the blob service."""
    end = (datetime.now(UTC) + lives).strftime("%Y-%m-%dT%H:%M:%SZ")
    told = {"sv": "2019-12-12", "ss": "b", "srt": "co", "sp": rights, "se": end}
    lines = [server.parameters()["account-name"], rights, "b", "co", "", end, "", ""]
    signed = "\n".join([*lines, told["sv"], ""]).encode()
    key = base64.b64decode(server.account_key)
    mark = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return urlencode({**told, "sig": mark})


def uri_with(server: Azurite, prefix: str, token: str) -> str:
    told = {k: v for k, v in server.parameters().items() if k != "account-key"}
    return f"azure://rowferry/{prefix}?" + urlencode({**told, "sas-token": token})


def test_a_shared_access_signature(azure_server: Azurite, prefix: str) -> None:
    token = signature(azure_server, "rwdlac")
    files = files_at(uri_with(azure_server, prefix, f"?{token}"))
    files.check_writable()
    assert files.create("a/x", b"one") is True
    stored = files.get("a/x")
    assert stored is not None
    assert files.swap("a/x", b"two", stored) is True
    assert files.swap("a/x", b"three", stored) is False
    assert files.entries("a") == [DirectoryEntry("x", False)]
    # Azurite answers 500 to every removal with a signature, so that is not tried here.
    for weak in (
        signature(azure_server, "rl"),
        signature(azure_server, "rwdlac", -timedelta(hours=1)),
    ):
        with pytest.raises(SinkUnwritable, match="the store answered 403") as raised:
            files_at(uri_with(azure_server, prefix, weak)).create("b", b"x")
        assert "sig=" not in str(raised.value)


def test_the_file_of_a_service_account(tmp_path: Path) -> None:
    """It is read when the sink is made, long before a row comes."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    text = key.decode()
    file = tmp_path / "account.json"
    account = {"client_email": "feed@lake.test", "private_key_id": "1", "private_key": text}
    file.write_text(json.dumps(account))
    files_at(f"gcs://lake/shop?protocol=csv&credentials-file={file}")
    file.write_text(json.dumps({**account, "private_key": text[30:90]}))
    with pytest.raises(BadOption, match="cannot be used") as raised:
        files_at(f"gs://lake/shop?protocol=csv&credentials-file={file}")
    assert text[40:60] not in str(raised.value)
