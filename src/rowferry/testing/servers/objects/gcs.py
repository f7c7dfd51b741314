"""A server that speaks Google Cloud Storage's protocol: fake-gcs-server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from rowferry.testing.servers.child import HOST
from rowferry.testing.servers.objects.gcs_front import GcsFront
from rowferry.testing.servers.objects.object_server import BUCKET, ObjectServer
from rowferry.testing.servers.programs import GoProgram


class FakeGcs(ObjectServer):
    """It keeps objects in memory, and lets everybody in; clients reach it through `GcsFront`."""

    program = GoProgram(
        "fake-gcs-server-1.56.1", "github.com/fsouza/fake-gcs-server@v1.56.1", "fake-gcs-server"
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = ""
        self._front: GcsFront | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_front": None}

    def kill(self) -> None:
        """End the server at once, and the front. On repeat: nothing."""
        super().kill()
        front, self._front = self._front, None
        if front is not None:
            front.__exit__(None, None, None)

    def arguments(self) -> list[str]:
        """Return what follows the program on the command line."""
        listen = ["-scheme", "http", "-host", HOST, "-port", str(self.port)]
        seen_as = ["-public-host", f"{HOST}:{self.port}", "-external-url", self.endpoint]
        return [*listen, *seen_as, "-backend", "memory", "-log-level", "error"]

    def environment(self) -> dict[str, str]:
        """Return this process's environment."""
        return dict(os.environ)

    def answers(self) -> bool:
        """Whether the server lists buckets."""
        return self.ask("GET", "/storage/v1/b?project=rowferry") == 200

    def make_bucket(self) -> None:
        """Make the bucket, and the front that clients reach it by."""
        self._front = GcsFront(self.endpoint).__enter__()
        self.address = self._front.url
        headers = {"Content-Type": "application/json"}
        self.ask("POST", "/storage/v1/b?project=rowferry", headers, json.dumps({"name": BUCKET}))

    def parameters(self) -> dict[str, str]:
        """Return the parameters of a sink URI."""
        return {"endpoint": self.address, "anonymous": "true"}

    def uri(self, prefix: str, **parameters: str) -> str:
        """Return a sink URI for a prefix of the bucket."""
        return f"gcs://{BUCKET}/{prefix}?{urlencode({**self.parameters(), **parameters})}"
