"""A subscription to one table as the changefeed that it stands for, and back as its row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from rowferry.change.table import TableId
from rowferry.control.operations import Wanted
from rowferry.control.store.contract import Feed
from rowferry.errors import BadOption
from rowferry.spec.changefeed_id import check_changefeed_id
from rowferry.spec.feed_options import TOP

TYPES: Final = ("mysql", "kafka", "http", "storage")
_PLAIN: Final = re.compile(r"[$_0-9A-Za-z]+")
_ROUTE: Final = ("mysql_db", "mysql_table")


@dataclass(frozen=True, slots=True)
class Subscription:
    """Who wants the changes of which table, and where."""

    name: str
    table: TableId
    type: str
    config: Mapping[str, str]

    def wanted(self, source_uri: str) -> Wanted:
        """Return the changefeed to create; `source_uri` in the configuration wins.

        Raises:
            BadOption: a type that is not known, or a key that is missing or contradicts another.
            BadChangefeedId: the name cannot be a changefeed's.
        """
        rest = {key: value for key, value in self.config.items() if key != "source_uri"}
        sink = self._sink_uri(rest)
        config: dict[str, Any] = {"case-sensitive": True, "filter": {"rules": [rule(self.table)]}}
        self._route(rest, config)
        parameters = _settings(rest, config)
        if parameters:
            sink += ("&" if "?" in sink else "?") + urlencode(parameters, quote_via=quote)
        return Wanted(
            source_uri=self.config.get("source_uri") or source_uri,
            sink_uri=sink,
            changefeed_id=check_changefeed_id(self.name),
            config=config,
        )

    def _sink_uri(self, rest: dict[str, str]) -> str:
        """Take the keys that say where to write out of `rest`; `uri` wins over all others."""
        if self.type not in TYPES:
            raise BadOption(f"sink.type {self.type!r}: use one of {', '.join(TYPES)}")
        places = {
            "mysql": ("mysql_host", "mysql_port", "mysql_user", "mysql_password"),
            "kafka": ("brokers", "topic"),
            "http": ("url",),
            "storage": (),
        }[self.type]
        found = {key: rest.pop(key, "") for key in places}
        if uri := rest.pop("uri", ""):
            return uri
        needed = {"mysql": ("mysql_host",), "kafka": ("brokers", "topic"), "http": ("url",)}
        for key in needed.get(self.type, ("uri",)):
            if not found.get(key):
                raise BadOption(f"sink.config lacks {key!r}, which type {self.type!r} needs")
        match self.type:
            case "mysql":
                return _mysql_uri(found)
            case "kafka":
                return f"kafka://{found['brokers']}/{quote(found['topic'], safe='')}"
            case _:
                return found["url"]

    def _route(self, rest: dict[str, str], config: dict[str, Any]) -> None:
        """Take the target's name out of `rest`."""
        database, table = (rest.pop(key, "") for key in _ROUTE)
        if (database or table) and self.type != "mysql":
            raise BadOption(f"sink.config: {' and '.join(_ROUTE)} are for type 'mysql' only")
        route = {"target-schema": database, "target-table": table}
        if given := {key: value for key, value in route.items() if value}:
            config["sink"] = {"dispatchers": [{"matcher": [rule(self.table)], **given}]}


def rule(table: TableId) -> str:
    """Return the filter rule that means this table and no other."""
    return f"{_quoted(table.database)}.{_quoted(table.table)}"


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _mysql_uri(found: Mapping[str, str]) -> str:
    host, port = found["mysql_host"], found["mysql_port"] or "3306"
    if not port.isdecimal() or int(port) > 65535:
        raise BadOption("sink.config has a mysql_port that is no port's number")
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    login = quote(found["mysql_user"], safe="")
    if found["mysql_password"]:
        login += ":" + quote(found["mysql_password"], safe="")
    return f"mysql://{login}{'@' if login else ''}{host}:{port}/"


def _settings(rest: Mapping[str, str], config: dict[str, Any]) -> dict[str, str]:
    """Put options into the configuration, and return those that belong to the sink's URI.

    A name with dots (`sink.csv.delimiter`) and one of the top level stand in the configuration.
    """
    parameters: dict[str, str] = {}
    for written, value in rest.items():
        key = written.replace("_", "-")
        *sections, last = key.split(".")
        if not sections and key not in TOP.names():
            parameters[key] = value
            continue
        here = config
        for section in sections:
            here = here.setdefault(section, {})
            if not isinstance(here, dict):
                raise BadOption(f"sink.config: {written!r} is no option")
        if last in here and sections:
            raise BadOption(f"sink.config: {written!r} is decided by the request itself")
        here[last] = value
    return parameters


@dataclass(frozen=True, slots=True)
class SubscribeRow:
    """A row of the meta database's table `subscribe`, with the sink's secrets masked."""

    cluster_id: int
    db_name: str
    table_name: str
    subscribe_name: str
    table_id: int
    master_addrs: str
    sink: str
    cancel: int
    owner: str


def subscribe_row(feed: Feed, cluster_id: int, table: TableId, table_id: int) -> SubscribeRow:
    """Return the row of one table of a changefeed."""
    return SubscribeRow(
        cluster_id=cluster_id,
        db_name=table.database,
        table_name=table.table,
        subscribe_name=feed.id,
        table_id=table_id,
        master_addrs=feed.spec.source.address,
        sink=str(feed.spec.sink),
        cancel=int(feed.cancel),
        owner=str(feed.lease.holder) if feed.lease else "",
    )
