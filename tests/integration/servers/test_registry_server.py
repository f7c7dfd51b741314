"""Schema registries: life, subjects, compatibility."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from process_kit import is_gone

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers import SchemaRegistryServer


def record(*fields: dict[str, Any]) -> dict[str, str]:
    """Return a request body with the schema of a record."""
    return {"schema": json.dumps({"type": "record", "name": "r", "fields": fields})}


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "int"}


def test_a_schema_that_old_readers_cannot_read_is_refused(
    schema_registry: SchemaRegistryServer,
) -> None:
    registry, subject = schema_registry, "servers-value"
    path = f"/subjects/{subject}/versions"
    registry.ask("POST", path, record(A))
    with pytest.raises(SourceUnavailable, match="409"):
        registry.ask("POST", path, record(A, B))  # a reader of the new one needs a default
    registry.ask("POST", path, record(A, B | {"default": 0}))
    assert subject in registry.subjects()
    assert registry.versions(subject) == [1, 2]
    assert [f["name"] for f in registry.schema(subject)["fields"]] == ["a", "b"]
    registry.set_compatibility("NONE", subject)
    registry.ask("POST", path, record(B))
    registry.delete_subject(subject)
    assert subject not in registry.subjects()


def test_life(tmp_path: Path) -> None:
    with SchemaRegistryServer.start(tmp_path) as registry:
        registry.ask("POST", "/subjects/kept/versions", record(A))
        pid, url = registry.pid, registry.url
        registry.kill()
        assert is_gone(pid)
        with pytest.raises(SourceUnavailable):
            registry.subjects()
        registry.restart()
        assert (registry.url, registry.subjects()) == (url, ["kept"])
        assert registry.ask("GET", "/config")["compatibilityLevel"] == "BACKWARD"
        pid = registry.pid
    assert is_gone(pid)
