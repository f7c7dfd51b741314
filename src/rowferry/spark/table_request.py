"""What a Spark user asks of the data source: its options, read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadOption, NoSuchTable, OptionsConflict, UnknownOption
from rowferry.flow.assemble import decisions_of, sink_traits
from rowferry.flow.capture.contract import Source
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.sink.blackhole import NOWHERE
from rowferry.registry import SOURCES
from rowferry.secrets.environment import sources_of_environment
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import (
    Section,
    one_of,
    option,
    size,
    text,
    unknown_words,
)
from rowferry.spec.uri import Uri


class RequestOptions(Section, section=""):
    """The options of the data source beside those of the changefeed's source."""

    source = option(
        text(),
        "",
        "The source's URI, as `rowferry run --source` takes it: `mysql://…`, `mariadb://…`, "
        "`range://…`; its password may be a reference. Needed.",
        secret=True,
    )
    table_name = option(
        text(),
        "",
        "The table, `database.table`; a part with a point or a backquote in it stands in "
        "backquotes. Needed.",
        key="table",
    )
    starting_position = option(
        one_of("snapshot", "now"),
        "snapshot",
        "Where a new query begins. `snapshot`: the rows that are there now as inserts, then every "
        "change. `now`: only what is changed from now on.",
        key="startingPosition",
    )
    temporal = option(
        one_of("string", "native"),
        "string",
        "DATE, DATETIME and TIMESTAMP as MySQL's text, or as Spark's types; these have no zero "
        "dates: a date with a year, month or day of zero is NULL then.",
    )
    max_bytes = option(
        size(1),
        256 << 20,
        "About how much of the source's log, or of the table, one micro-batch takes.",
        key="maxBytesPerTrigger",
    )


_NAME = re.compile(r"(?:`((?:[^`]|``)+)`|([^.`]+))\.(?:`((?:[^`]|``)+)`|([^.`]+))")
_SNAPSHOT = "snapshot"  # the source's own option for where to begin, where it has one


@dataclass(frozen=True)
class TableRequest:
    """One table of one source, and how it is wanted.

    Attributes:
        spec: the source with its options, and a filter that keeps this table alone; where a secret
            is elsewhere, it holds the reference.
        starts_now: rows that are there already are not wanted.
        native_times: dates and times as Spark's types.
        stretch_bytes: about how much one micro-batch takes.
    """

    spec: ChangefeedSpec
    table: TableId
    starts_now: bool
    native_times: bool
    stretch_bytes: int

    def source(self) -> Source:
        """Return the source; opens nothing.

        Raises:
            SecretMissing: what a reference names cannot be had here.
        """
        return source_of(self.spec)

    def decision(self) -> Decisions:
        """Return the policy that captures the one table, also without a key."""
        return decisions_of(self.spec)

    def present(self) -> TableSchema:
        """Ask the source whether it can be read, and for the table as it is now.

        Raises:
            NoSuchTable: there is none of that name.
            RowferryError: the source cannot be read; the words say what to do.
        """
        if self.source().DIALECT.is_system_database(self.table.database):
            raise NoSuchTable(f"table = {self.table}: system databases are not captured")
        for table in self.source().probe(self.decision()):
            if table.id == self.table:
                return table
        raise NoSuchTable(
            f"table = {self.table}: {self.spec.source} has no such table; correct the name (upper "
            "and lower case count), or create it first"
        )


def source_of(spec: ChangefeedSpec) -> Source:
    """Return the source of settings, with the secrets that they refer to.

    Raises:
        SecretMissing: one cannot be had in this process.
    """
    return SOURCES.load(spec.source.scheme)(sources_of_environment().resolved(spec))


def read_request(options: Mapping[str, str], feed: str) -> TableRequest:
    """Return what the options ask for; `feed` names the reader to the source.

    Beside ours every option of the source can be given, as if it stood in the URI. Keys are taken
    in any case, as Spark does.

    Raises:
        BadInput: one line that names the option at fault and what is allowed.
    """
    ours = {o.key.lower(): o.key for o in RequestOptions.TABLE.options}
    given = {ours[k.lower()]: v for k, v in options.items() if k.lower() in ours}
    others = {k.lower(): v for k, v in options.items() if k.lower() not in ours}
    values = RequestOptions.read(given)
    for needed, example in (
        (RequestOptions.source, "mysql://USER@HOST:3306/"),
        (RequestOptions.table_name, "shop.orders"),
    ):
        if not values[needed]:
            raise BadOption(
                f"the option {needed.key} is missing; add "
                f'.option("{needed.key}", "{example}") with your own'
            )
    table = _table_id(values.table_name)
    tables = SOURCES.load(Uri.parse(values.source, "source").scheme).TABLES
    known = {o.key for t in tables for o in t.options}
    for key in others:
        if key not in known:
            names = {*known, *(o.key for o in RequestOptions.TABLE.options)}
            raise UnknownOption(unknown_words(key, names))
    starts_now = values.starting_position == "now"
    config = _config(table, others)
    if starts_now and _SNAPSHOT in known:
        _begin_now(config["source"], Uri.parse(values.source, "source"))
    spec, _ = build_spec(values.source, NOWHERE, config, feed, tables, sinks=sink_traits)
    _check_images(spec)
    return TableRequest(
        spec=spec,
        table=table,
        starts_now=starts_now,
        native_times=values.temporal == "native",
        stretch_bytes=values.max_bytes,
    )


def _table_id(written: str) -> TableId:
    match = _NAME.fullmatch(written.strip())
    if match is None:
        raise BadOption(
            f"table = {written!r} is not database.table; a name with a point or a backquote in it "
            "stands in backquotes: `my.database`.`my table`"
        )
    parts = (match[1] or match[2], match[3] or match[4])
    quoted = (match[1], match[3])
    return TableId(*(p.replace("``", "`") if q else p for p, q in zip(parts, quoted, strict=True)))


def _config(table: TableId, source: dict[str, str]) -> dict[str, Any]:
    """Return a configuration that keeps one table, whatever its keys."""
    rule = ".".join('"' + part.replace('"', '""') + '"' for part in table)
    return {
        "filter": {"rules": [rule]},
        "case-sensitive": True,
        "force-replicate": True,
        "source": dict(source),
    }


def _begin_now(source: dict[str, str], uri: Uri) -> None:
    """Ask the source for no snapshot, unless it was told something else."""
    asked = uri.parameter(_SNAPSHOT) or source.get(_SNAPSHOT, "never")
    if asked.lower() != "never":
        raise OptionsConflict(
            f"startingPosition = now and snapshot = {asked} contradict each other; give one"
        )
    if not uri.parameter(_SNAPSHOT):
        source[_SNAPSHOT] = "never"


def _check_images(spec: ChangefeedSpec) -> None:
    """Refuse partial row images: a DataFrame has no value for "not known"."""
    key = "partial-row-image"
    if str(spec.written(spec.source, "source", key)).lower() == "allow":
        raise OptionsConflict(
            f"{key} = allow cannot be used with Spark: a column that the log leaves out would look "
            "like NULL; set binlog_row_image = FULL on the server and leave the option out"
        )
