"""Each sink of Iceberg tables, read by its manifests, and by pyiceberg."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake_harness import DeltaHarness, DeltaObjectHarness, UpsertHarness
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from sink_harness import FEED, FlakyFileHarness, SinkHarness

from rowferry.flow.sink.lake.iceberg.state import IcebergState, StateReader
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers.queues.amazon import Amazon

_OWN = ("rowferry.owner", "rowferry.lock")
_ORDERS = "shop/orders"


class IcebergHarness(DeltaHarness):
    """Iceberg tables in a directory, each change a row: data files in their order."""

    scheme: ClassVar[str] = "iceberg+file"

    def uri(self) -> str:
        return f"{super().uri()}&catalog=file://{self._catalog_file()}"

    def _catalog_file(self) -> Path:
        return Path(f"{self.place}.catalog.db")

    def plain_uri(self) -> str:
        """The target, reached by the shortest way."""
        return self.uri()

    def state(self) -> IcebergState:
        spec = ChangefeedSpec(FEED, self.spec().source, Uri.parse(self.plain_uri(), "sink"))
        sink: Any = SINKS.load(self.scheme)(spec, None)
        return StateReader(sink._catalog, _ORDERS).read(None)

    def visible_rows(self) -> list[bytes]:
        content, state = self.content(), self.state()
        files = sorted(state.files.values(), key=lambda f: (f.entry.sequence_number or 0, f.path))
        tables = [pq.read_table(pa.BufferReader(content[f.path])) for f in files]
        return [v.encode() for t in tables for v in t.column("note").to_pylist()]

    def visible_changes(self) -> list[str]:
        state = self.state()
        if not state.exists:
            return []
        ordered = sorted(state.metadata.snapshots, key=lambda s: s.sequence_number or 0)
        told = [s.summary.additional_properties for s in ordered if s.summary is not None]
        texts = [t["rowferry.statement"] for t in told if "rowferry.statement" in t]
        return [text for text in texts if text != "discard"]

    def traces(self) -> dict[str, bytes]:
        """Everything but the snapshot in which a table notes that a plan was given up."""
        return {
            path: data
            for path, data in self.content().items()
            if path not in _OWN and "/metadata/" not in path
        } | {"snapshots": "\n".join(self._snapshots()).encode()}

    def _snapshots(self) -> list[str]:
        state = self.state()
        made = state.metadata.snapshots if state.exists else []
        return [
            str(s.snapshot_id)
            for s in made
            if s.summary is None
            or s.summary.additional_properties.get("rowferry.statement") != "discard"
        ]


class IcebergUpsertHarness(IcebergHarness, UpsertHarness):
    """The same with a row for each key, as pyiceberg reads them; values are their own keys."""

    def visible_rows(self) -> list[bytes]:
        place = self._catalog_file()
        if not place.exists() or not self.state().exists:
            return []
        catalog = SqlCatalog("rowferry", uri=f"sqlite:///{place}")
        table: Table = catalog.load_table(("shop", "orders"))
        return [v.encode() for v in sorted(table.scan().to_arrow().column("note").to_pylist())]


class FlakyIcebergHarness(IcebergUpsertHarness, FlakyFileHarness):
    """Every call of the storage fails once, before it was done or after."""


class GlueHarness(IcebergHarness):
    """The same with AWS Glue as the catalog: a region of its own, since tables have one name."""

    server: Amazon

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(place, patch)
        self._region = f"test-{uuid4().hex}"

    def uri(self) -> str:
        login = "access-key=of-tests&secret-access-key=of-tests"
        catalog = f"glue://{self._region}?endpoint={self.server.endpoint}&{login}"
        return f"{DeltaHarness.uri(self)}&catalog={quote(catalog, safe='')}"


class IcebergObjectHarness(IcebergHarness, DeltaObjectHarness):
    """Iceberg tables in a bucket, reached through a relay that can be cut."""

    def uri(self) -> str:
        return f"{DeltaObjectHarness.uri(self)}&catalog=file://{self._catalog_file()}"

    def plain_uri(self) -> str:
        uri = self._uri(self.server.client_port)
        more = f"mode={self.mode}&catalog=file://{self._catalog_file()}"
        return uri.replace("protocol=csv", more)


def _objects(scheme: str) -> type[IcebergObjectHarness]:
    return type(f"IcebergObjectHarness_{scheme}", (IcebergObjectHarness,), {"scheme": scheme})


ICEBERG_SERVERS = {
    "iceberg+azure": "azure_server",
    "iceberg+gs": "gcs_server",
    "iceberg+s3": "s3_server",
}

ICEBERG_HARNESSES: dict[str, Callable[[Path, pytest.MonkeyPatch], SinkHarness]] = {
    "iceberg+file": IcebergHarness,
    "iceberg+file+upsert": IcebergUpsertHarness,
    "iceberg+file+flaky": FlakyIcebergHarness,
    "iceberg+file+glue": GlueHarness,
    **{scheme: _objects(scheme) for scheme in ICEBERG_SERVERS},
}
