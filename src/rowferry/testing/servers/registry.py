"""A schema registry that speaks Confluent's interface: Apicurio."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import urllib3

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.child import HOST
from rowferry.testing.servers.java_server import JavaServer
from rowferry.testing.servers.maven import Jars

_API: Final = "/apis/ccompat/v7"
_SIGN: Final = "Rowferry-Instance"
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(10))


class SchemaRegistryServer(JavaServer):
    """Apicurio Registry 3; its schemas survive a restart."""

    jars = Jars("apicurio-3.0.9", archive="io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all")

    def __init__(self, folder: Path, java_options: Sequence[str] = ()) -> None:
        self._sign = secrets.token_hex(8)
        super().__init__(folder, 1, java_options)

    @classmethod
    def start(cls, folder: Path, java_options: Sequence[str] = ()) -> Self:
        """Make a registry and return when it answers; it checks compatibility `BACKWARD`.

        Args:
            folder: made if it is not there; must hold no registry.
            java_options: they win over the defaults.

        Raises:
            SourceUnavailable: the registry cannot be had, or does not start.
        """
        cls.ensure()
        registry = cls(folder, java_options)
        registry._begin()
        registry.set_compatibility("BACKWARD")  # Confluent's default; this registry's is NONE
        return registry

    @property
    def url(self) -> str:
        """What a client of Confluent's registry is told."""
        return f"http://{HOST}:{self._ports[0]}{_API}"

    def set_compatibility(self, level: str, subject: str = "") -> None:
        """Say what a new version of a schema must be readable by, for all subjects or for one."""
        path = f"/config/{subject}" if subject else "/config"
        self.ask("PUT", path, {"compatibility": level})

    def subjects(self) -> list[str]:
        """Return the names under which schemas are registered."""
        return sorted(self.ask("GET", "/subjects"))

    def versions(self, subject: str) -> list[int]:
        """Return a subject's version numbers."""
        return list(self.ask("GET", f"/subjects/{subject}/versions"))

    def schema(self, subject: str, version: int | str = "latest") -> Any:
        """Return a registered schema, parsed."""
        return json.loads(self.ask("GET", f"/subjects/{subject}/versions/{version}")["schema"])

    def delete_subject(self, subject: str) -> None:
        """Forget a subject with all its versions."""
        self.ask("DELETE", f"/subjects/{subject}")
        self.ask("DELETE", f"/subjects/{subject}?permanent=true")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the parsed answer.

        Raises:
            SourceUnavailable: the registry is down, or the answer is an error.
        """
        text = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        try:
            answer = _http.request(method, self.url + path, body=text, headers=headers)
        except urllib3.exceptions.HTTPError as err:
            raise SourceUnavailable(f"the registry does not answer: {err}") from err
        if answer.headers.get(_SIGN) != self._sign:
            raise SourceUnavailable(f"another server answers at {self.url}")
        if answer.status >= 400:
            answer_text = answer.data.decode(errors="replace")
            raise SourceUnavailable(f"the registry answered {answer.status}: {answer_text}")
        return json.loads(answer.data)

    # --- the process -----------------------------------------------------------------------------

    def arguments(self) -> list[str]:
        """Return what follows Java's own options on the command line."""
        (program,) = self.jars.folder.glob("*-runner.jar")
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": self._ports[0],
            f"quarkus.http.header.{_SIGN}.value": self._sign,
            "quarkus.log.level": "WARN",
            "quarkus.http.access-log.enabled": "false",
            "quarkus.banner.enabled": "false",
            # no delay: what was answered is on disk, also when the server is killed
            "apicurio.datasource.url": f"jdbc:h2:file:{self.folder}/schemas;WRITE_DELAY=0",
        }
        return [*(f"-D{key}={value}" for key, value in settings.items()), "-jar", str(program)]

    def prepare(self) -> None:
        """Nothing: all settings are on the command line."""

    def answers(self) -> bool:
        """Whether this registry lists its subjects."""
        try:
            self.subjects()
        except (SourceUnavailable, ValueError):
            return False
        return True
