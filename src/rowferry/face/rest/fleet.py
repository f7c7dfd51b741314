"""TiCDC's paths about servers: captures, processors, health, status, time, logs, tables."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from fastapi import APIRouter
from pydantic import BaseModel

from rowferry.control.operator.actor import Role, require
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.contract import FeedRecord, FleetServer
from rowferry.errors import BadOption, MetaUnavailable
from rowferry.face.about import About
from rowferry.face.rest import answers
from rowferry.face.rest.answers import CLUSTER, KEYSPACE, Nothing, TableNames
from rowferry.face.rest.bodies import LogLevelBody, PdBody, RedactBody, VerifyBody
from rowferry.face.rest.changefeeds import Named, not_supported, wanted
from rowferry.face.sources import Sources
from rowferry.spec.feed_options import FeedOptions

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}


# TiCDC's own client refuses servers whose version is below v6.2.0.
_SPEAKS: Final = "v8.5.0"
_NOT_SEMVER: Final = re.compile(r"[^0-9A-Za-z.-]")
_FILTERING: Final = ("filter", FeedOptions.case_sensitive.key, FeedOptions.force_replicate.key)


class Capture(BaseModel):
    """A server."""

    id: str
    is_owner: bool
    address: str
    cluster_id: str


class CaptureList(BaseModel):
    """The servers that are alive, by address."""

    total: int
    items: list[Capture]


class ServerStatus(BaseModel):
    """The server that answers."""

    version: str
    git_hash: str
    id: str
    cluster_id: str
    pid: int
    is_owner: bool
    liveness: int


class RunningOn(BaseModel):
    """A changefeed and the server that runs it."""

    keyspace: str
    changefeed_id: str
    capture_id: str


class RunningList(BaseModel):
    """The changefeeds that servers run."""

    total: int
    items: list[RunningOn]


class TableIds(BaseModel):
    """Tables of one changefeed on one server."""

    table_ids: list[int]


class Tso(BaseModel):
    """A time: milliseconds since 1970, and a counter."""

    timestamp: int
    logic_time: int


class RedactMode(BaseModel):
    """Whether secrets are hidden in logs."""

    previous_mode: str
    current_mode: str


def owner_of(feed: FeedRecord, now: float) -> str:
    """Return the instance that runs a changefeed now; empty: none."""
    lease = feed.lease
    return lease.holder.instance if lease and lease.expires_at > now else ""


def fleet_paths(operations: Operations, about: About, sources: Sources) -> APIRouter:
    """Return the paths."""
    paths = APIRouter(tags=["servers"])

    def first(servers: tuple[FleetServer, ...]) -> str:
        return servers[0].holder.instance if servers else about.instance

    @paths.get("/api/v2/captures", summary="The servers that are alive")
    def captures() -> CaptureList:
        servers = operations.servers()
        items = [
            Capture(
                id=s.holder.instance,
                is_owner=s.holder.instance == first(servers),
                address=s.address,
                cluster_id=CLUSTER,
            )
            for s in servers
        ]
        return CaptureList(total=len(items), items=items)

    @paths.get("/api/v2/processors", summary="Which server runs which changefeed")
    def processors() -> RunningList:
        now = time.time()
        items = [
            RunningOn(keyspace=KEYSPACE, changefeed_id=f.id, capture_id=owner)
            for f in operations.feeds()
            if (owner := owner_of(f, now))
        ]
        return RunningList(total=len(items), items=items)

    @paths.get(
        "/api/v2/processors/{changefeed_id}/{capture_id}", summary="Tables of a changefeed there"
    )
    def processor(changefeed_id: Named, capture_id: str) -> TableIds:
        seen = operations.see(changefeed_id, 0.0)
        runs = owner_of(seen.feed, time.time()) == capture_id
        return TableIds(table_ids=answers.table_ids(seen.ranges) if runs else [])

    @paths.get("/status", include_in_schema=False)
    @paths.get("/api/v2/status", summary="The server that answers")
    def status() -> ServerStatus:
        return ServerStatus(
            version=f"{_SPEAKS}+rowferry.{_NOT_SEMVER.sub('-', about.version)}",
            git_hash="",
            id=about.instance,
            cluster_id=CLUSTER,
            pid=os.getpid(),
            is_owner=first(operations.servers()) == about.instance,
            liveness=0,
        )

    pulse = Pulse(operations.servers)

    @paths.get("/health", include_in_schema=False)
    @paths.get("/api/v2/health", summary="Whether the server works; needs no login")
    async def health() -> Nothing:
        await pulse.felt()
        return Nothing()

    @paths.post("/api/v2/tso", summary="The server's clock as a timestamp")
    def tso(body: PdBody | None = None) -> Tso:
        return Tso(timestamp=time.time_ns() // 1_000_000, logic_time=0)

    @paths.post("/api/v2/log", summary="Change how much this server logs")
    def log(body: LogLevelBody) -> Nothing:
        require(Role.ADMIN, "the level of the log")
        level = _LEVELS.get(body.log_level.lower())
        if level is None:
            raise BadOption(
                f"fail to change log level: {body.log_level!r}; use {' '.join(_LEVELS)}"
            )
        logging.getLogger().setLevel(level)
        return Nothing()

    @paths.post("/api/v2/log/redact", summary="Secrets are always hidden in logs")
    def redact(body: RedactBody) -> RedactMode:
        if body.redact_info_log.strip().lower() != "on":
            raise BadOption("redact_info_log: secrets are always hidden; the only mode is 'on'")
        return RedactMode(previous_mode="on", current_mode="on")

    def foreseen(asked: Wanted) -> TableNames:
        # Tables without a key are listed, not refused: the client asks its user about them.
        config = {**asked.config, FeedOptions.ignore_ineligible_table.key: True}
        return answers.table_names(operations.create(replace(asked, config=config), dry_run=True))

    @paths.post("/api/v2/verify_table", summary="What a changefeed would capture")
    def verified_tables(body: VerifyBody) -> TableNames:
        return foreseen(wanted(body, sources))

    @paths.post("/api/v2/get_all_tables", summary="What a filter would capture")
    def all_tables(body: VerifyBody) -> TableNames:
        asked = wanted(body.model_copy(update={"sink_uri": ""}), sources)
        config = {key: asked.config[key] for key in _FILTERING if key in asked.config}
        return foreseen(replace(asked, config=config))

    equal = "servers are equal; ask the one that should stop to stop"
    not_supported(paths, "POST", "/api/v2/owner/resign", equal)
    meta = "the meta database is read with SQL, and rowferry meta keeps it"
    not_supported(paths, "GET", "/api/v2/unsafe/metadata", meta)
    not_supported(paths, "POST", "/api/v2/unsafe/resolve_lock", "sources here have no such locks")
    keeps = "sources here keep their logs as they are set to"
    not_supported(paths, "DELETE", "/api/v2/unsafe/service_gc_safepoint", keeps)
    return paths


_PATIENCE_S: Final = 20.0


class Pulse:
    """Asks once for all who want to know at the same time."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="health")
        self._asked: asyncio.Future[object] | None = None

    async def felt(self) -> None:
        """Return when the meta database has answered.

        Raises:
            RowferryError: it did not, or not in time.
        """
        if self._asked is None or self._asked.done():
            loop = asyncio.get_running_loop()
            self._asked = loop.run_in_executor(self._pool, self._ask)
        try:
            await asyncio.wait_for(asyncio.shield(self._asked), _PATIENCE_S)
        except TimeoutError:
            raise MetaUnavailable("the meta database does not answer") from None
