"""A subscription to one table as the changefeed that it stands for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from rowferry.change.table import TableId
from rowferry.control.operator.operations import Wanted
from rowferry.control.store.contract import Subscribing
from rowferry.errors import BadChangefeedId, BadOption, MissingLibrary
from rowferry.registry import SINKS
from rowferry.spec.changefeed import check_changefeed_id
from rowferry.spec.feed_options import top_level_names
from rowferry.spec.sink_traits import PlaceKeys

_PLAIN: Final = re.compile(r"[$_0-9A-Za-z]+")
_ROUTE: Final = ("mysql_db", "mysql_table")
_NAME: Final = re.compile(r"[0-9A-Za-z_]([0-9A-Za-z_.-]*[0-9A-Za-z_])?")
_LONGEST: Final = 255
_DEEPEST: Final = 8  # parts of an option's name


@dataclass(frozen=True, slots=True)
class Subscription:
    """Who wants the changes of which table, and where.

    Attributes:
        cluster_id: as the request has it.
    """

    name: str
    table: TableId
    type: str
    config: Mapping[str, str]
    cluster_id: int = 0

    @property
    def changefeed_ids(self) -> tuple[str, ...]:
        """The ids that its changefeed may have, the best first: the name, if it can be one."""
        whole = "\0".join((str(self.cluster_id), *self.table, self.name))
        mark = hashlib.sha256(whole.encode()).hexdigest()[:16]
        words = re.sub(r"[^0-9A-Za-z]+", "-", self.name)[:100].strip("-")
        made = check_changefeed_id(f"{words}-{mark}" if words else mark)
        try:
            return check_changefeed_id(self.name), made
        except BadChangefeedId:
            return (made,)

    def wanted(self, source_uri: str, changefeed_id: str) -> Wanted:
        """Return the changefeed to create.

        Raises:
            BadOption: a type that is not known, or a key that is missing or contradicts another.
        """
        rest = {key: value for key, value in self.config.items() if key != "source_uri"}
        sink = self._sink_uri(rest)
        config: dict[str, Any] = {"case-sensitive": True, "filter": {"rules": [rule(self.table)]}}
        self._route(rest, config)
        parameters = _settings(rest, config)
        if parameters:
            sink += ("&" if "?" in sink else "?") + urlencode(parameters, quote_via=quote)
        return Wanted(
            source_uri=source_uri,
            sink_uri=sink,
            changefeed_id=changefeed_id,
            config=config,
            subscribing=Subscribing(self.name, self.table),
            cluster_id=self.cluster_id,
        )

    def _sink_uri(self, rest: dict[str, str]) -> str:
        """Take the keys that say where to write out of `rest`; `uri` wins over all others."""
        known = types()
        if self.type not in known:
            if self.type in SINKS.names():
                SINKS.load(self.type)  # says which library is not installed
            raise BadOption(f"sink.type {self.type!r}: use one of {', '.join(known)}")
        uri, place = rest.pop("uri", ""), known[self.type]
        place_values = {key: rest.pop(key, "") for key in place.keys}
        if uri:
            return uri
        for key in place.needed:
            if not place_values[key]:
                raise BadOption(f"sink.config lacks {key!r}, which type {self.type!r} needs")
        return place.uri(place_values)

    def _route(self, rest: dict[str, str], config: dict[str, Any]) -> None:
        """Take the target's name out of `rest`."""
        database, table = (rest.pop(key, "") for key in _ROUTE)
        if (database or table) and not types()[self.type].takes_tables:
            ones = " or ".join(repr(kind) for kind, place in types().items() if place.takes_tables)
            raise BadOption(f"sink.config: {' and '.join(_ROUTE)} are for type {ones} only")
        route = {"target-schema": database, "target-table": table}
        if given := {key: value for key, value in route.items() if value}:
            config["sink"] = {"dispatchers": [{"matcher": [rule(self.table)], **given}]}


def types() -> dict[str, PlaceKeys]:
    """Return the kinds of sinks that subscriptions may name, as far as they are installed."""
    kinds = {}
    for scheme in SINKS.names():
        with suppress(MissingLibrary):
            traits = SINKS.load(scheme).TRAITS
            if traits.place_keys is not None:
                kinds[traits.kind] = traits.place_keys
    return dict(sorted(kinds.items()))


def check_subscriber_name(text: str) -> str:
    """Return `text`, which may name a subscriber.

    Raises:
        BadOption: it cannot.
    """
    if len(text) > _LONGEST:
        raise BadOption(
            f"subscriber_name has {len(text)} characters; at most {_LONGEST} are allowed"
        )
    if not _NAME.fullmatch(text):
        raise BadOption(
            f"subscriber_name {text!r}: use letters a-z, A-Z, digits and _, with - and . between "
            "them"
        )
    return text


def rule(table: TableId) -> str:
    """Return the filter rule that means this table and no other."""
    return f"{_quoted(table.database)}.{_quoted(table.table)}"


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _settings(rest: Mapping[str, str], config: dict[str, Any]) -> dict[str, str]:
    """Put options into the configuration, and return those that belong to the sink's URI.

    A name with dots (`sink.csv.delimiter`) and one of the top level stand in the configuration.
    """
    parameters: dict[str, str] = {}
    top_level, seen = top_level_names(), dict[str, str]()
    for written, value in rest.items():
        key = written.replace("_", "-")
        if (other := seen.setdefault(key, written)) != written:
            raise BadOption(f"sink.config: {other!r} and {written!r} are the same option; give one")
        *sections, last = key.split(".")
        if len(sections) > _DEEPEST:
            raise BadOption(f"sink.config has a key with more than {_DEEPEST} parts")
        if not sections and key not in top_level:
            parameters[key] = value
            continue
        here = config
        for section in sections:
            here = here.setdefault(section, {})
            if not isinstance(here, dict):
                raise BadOption(f"sink.config: {written!r} is no option")
        if last in here:
            raise BadOption(f"sink.config: {written!r} is decided by the request itself")
        here[last] = value
    return parameters
