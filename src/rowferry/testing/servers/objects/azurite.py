"""A server that speaks Azure Blob Storage's protocol: Azurite."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from email.utils import formatdate
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.child import HOST
from rowferry.testing.servers.objects.object_server import BUCKET, ObjectServer
from rowferry.testing.servers.programs import NodeProgram

_ACCOUNT: Final = "rowferryaccount"
_VERSION: Final = "2023-11-03"


class Azurite(ObjectServer):
    """Azurite's blob service with one account, whose key is made anew for each server."""

    program = NodeProgram("azurite-3.37.0", "azurite@3.37.0", "azurite/dist/src/blob/main.js")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.account_key = base64.b64encode(secrets.token_bytes(64)).decode()

    def arguments(self) -> list[str]:
        """Return what follows the program on the command line."""
        listen = ["--blobHost", HOST, "--blobPort", str(self.port)]
        quiet = ["--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence"]
        return [*listen, *quiet]

    def environment(self) -> dict[str, str]:
        """Return its environment: the account and its key."""
        return {**os.environ, "AZURITE_ACCOUNTS": f"{_ACCOUNT}:{self.account_key}"}

    def answers(self) -> bool:
        """Whether the server refuses who does not log in."""
        return self.ask("GET", f"/{_ACCOUNT}/{BUCKET}?restype=container") in (400, 403, 404)

    def make_bucket(self) -> None:
        """Make the container; on repeat: nothing."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
        path = f"/{_ACCOUNT}/{BUCKET}"
        # Shared Key: eleven lines without a value, the x-ms headers, the resource.
        signed = "PUT" + "\n" * 12
        signed += "".join(f"{k}:{v}\n" for k, v in sorted(headers.items()))
        signed += f"/{_ACCOUNT}{path}\nrestype:container"
        key = base64.b64decode(self.account_key)
        digest = hmac.new(key, signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
        status = self.ask("PUT", f"{path}?restype=container", headers)
        if status not in (201, 409):
            raise SourceUnavailable(f"Azurite did not make the container: status {status}")

    def parameters(self) -> dict[str, str]:
        """Return the parameters of a sink URI."""
        return {
            "endpoint": f"{self.endpoint}/{_ACCOUNT}",
            "account-name": _ACCOUNT,
            "account-key": self.account_key,
        }

    def uri(self, prefix: str, **parameters: str) -> str:
        """Return a sink URI for a prefix of the container."""
        return f"azure://{BUCKET}/{prefix}?{urlencode({**self.parameters(), **parameters})}"
