"""An S3 server: MinIO."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

from rowferry.testing.servers.certificates import Certificates
from rowferry.testing.servers.child import HOST
from rowferry.testing.servers.objects.object_server import BUCKET, ObjectServer
from rowferry.testing.servers.programs import GoProgram


class Minio(ObjectServer):
    """MinIO on one folder; its user and password are made anew for each server."""

    program = GoProgram(
        "minio-20260212",
        "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c",
        "minio",
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.user, self.password = secrets.token_hex(8), secrets.token_hex(16)

    @classmethod
    def start_with_tls(cls, folder: Path) -> Self:
        """Make a server that speaks TLS, with certificates of its own."""
        server = cls(folder)
        server.certificates = made = Certificates.make(folder / "pem")
        key, mark, certificate = made.server.read_text().partition("-----BEGIN CERTIFICATE")
        known = folder / "certs"
        known.mkdir()
        (known / "private.key").write_text(key)
        (known / "public.crt").write_text(mark + certificate)
        return server.begin()

    def arguments(self) -> list[str]:
        """Return what follows the program on the command line."""
        data = self.folder / "data"
        (data / BUCKET).mkdir(exist_ok=True)  # a folder that is there at its start is a bucket
        tls = ["--certs-dir", str(self.folder / "certs")] if self.certificates else []
        return ["server", "--quiet", *tls, "--address", f"{HOST}:{self.port}", str(data)]

    def environment(self) -> dict[str, str]:
        """Return its environment: the login, and nothing that it would tell others."""
        own = {
            "MINIO_ROOT_USER": self.user,
            "MINIO_ROOT_PASSWORD": self.password,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "MINIO_CALLHOME_ENABLE": "off",
            "HOME": str(self.folder),
        }
        return {**os.environ, **own}

    def answers(self) -> bool:
        """Whether the server can read and write."""
        return self.ask("GET", "/minio/health/cluster") == 200

    def make_bucket(self) -> None:
        """Nothing: the bucket was there at the start."""

    def parameters(self) -> dict[str, str]:
        """Return the parameters of a sink URI."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access-key": self.user,
            "secret-access-key": self.password,
        }

    def uri(self, prefix: str, **parameters: str) -> str:
        """Return a sink URI for a prefix of the bucket."""
        return f"s3://{BUCKET}/{prefix}?{urlencode({**self.parameters(), **parameters})}"
