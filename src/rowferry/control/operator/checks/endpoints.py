"""A source, or a sink, that is asked about on its own, before there is a changefeed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from rowferry.change.dialect import SourceDialect
from rowferry.control.operator.checks.health import FAILED, OK, Health, sink_health, source_health
from rowferry.control.operator.operation_forms import ChangedSettings
from rowferry.control.operator.settings.redaction import (
    refuse_moved_secrets,
    restored,
    restored_uri,
)
from rowferry.control.operator.settings.table_rules import EVERYTHING, refuse_rule_files, with_rules
from rowferry.errors import OddAnswer, RowferryError, SinkError, cure_of
from rowferry.flow.assemble import (
    assemble,
    check_reach,
    format_of,
    option_tables,
    secret_tables,
    sink_traits,
)
from rowferry.flow.capture.contract import ListedTable, ListsTables
from rowferry.flow.sink.blackhole import NOWHERE
from rowferry.registry import SINKS, SOURCES
from rowferry.secrets.sources import SecretSources
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import FeedOptions
from rowferry.spec.reach import Reach
from rowferry.spec.rules.filter import FilterOptions
from rowferry.spec.secrets import Hiding

MOST_DATABASES: Final = 1000
MOST_TABLES: Final = 2000
_SOURCE: Final = "source"
Side: TypeAlias = Literal["source", "sink"]
_ALONE: Final = "alone"  # the id of a changefeed that is never stored


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A source or a sink, and the settings that belong to it.

    Attributes:
        stored: of an existing changefeed, whose secrets `***` stands for; None: there is none.
    """

    side: Side
    uri: str
    config: Mapping[str, Any] = field(default_factory=dict)
    stored: ChangefeedSpec | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """Databases of a source, or tables of one of them; `more`: not all are named."""

    databases: tuple[str, ...] = ()
    tables: tuple[ListedTable, ...] = ()
    more: bool = False


def check_endpoint(end: Endpoint, reach: Reach, secrets: SecretSources) -> tuple[Health, ...]:
    """Return what each check of a source, or of a sink, finds. Writes nothing.

    What is wrong with the settings is a check that failed; nothing is raised.
    """
    try:
        spec = _spec(end, reach)
        resolved = secrets.resolved(spec)
    except RowferryError as err:
        return (Health("settings", FAILED, str(err), cure_of(err.code)),)
    hiding = Hiding.of(resolved, secret_tables(resolved))
    checks = [Health("settings", OK, str(spec.source if end.side == _SOURCE else spec.sink))]
    ask = source_health if end.side == _SOURCE else _sink_checks
    checks += _answered(lambda: ask(resolved), end.side, str(spec.changefeed_id))
    return tuple(replace(h, words=hiding.hide(h.words), cure=hiding.hide(h.cure)) for h in checks)


def list_source(end: Endpoint, database: str, reach: Reach, secrets: SecretSources) -> Listed:
    """Return the databases of a source or, of a named one, its tables; a bounded number.

    Raises:
        RowferryError: one line that says why it cannot be asked.
    """
    spec = with_rules(_spec(end, reach), [EVERYTHING])
    resolved = secrets.resolved(spec)
    flow = assemble(resolved)
    with flow.hiding.in_errors():
        try:
            source = flow.capture
            dialect = source.DIALECT
            if not isinstance(source, ListsTables):
                tables = [table.id for table in source.probe(flow.decide)]
                if not database:
                    return _bounded_databases(sorted({name.database for name in tables}), dialect)
                names = [name.table for name in tables if name.database == database]
                return _bounded_tables([ListedTable(name) for name in names])
            if database:
                return _bounded_tables(list(source.tables_of(database, MOST_TABLES + 1)))
            return _bounded_databases(list(source.databases(MOST_DATABASES + 1)), dialect)
        except RowferryError:
            raise
        except Exception as err:
            raise OddAnswer(_senseless(spec.source.address)) from err


def _bounded_databases(names: list[str], dialect: SourceDialect) -> Listed:
    kept = tuple(name for name in names if not dialect.is_system_database(name))
    return Listed(databases=kept[:MOST_DATABASES], more=len(names) > MOST_DATABASES)


def _bounded_tables(tables: list[ListedTable]) -> Listed:
    return Listed(tables=tuple(tables[:MOST_TABLES]), more=len(tables) > MOST_TABLES)


def _answered(ask: Callable[[], Iterator[Health]], side: str, who: str) -> Iterator[Health]:
    """Yield what checks find; an answer that makes no sense is one that failed."""
    try:
        yield from ask()
    except RowferryError as err:
        yield Health(side, FAILED, str(err), cure_of(err.code))
    except Exception:
        error = OddAnswer if side == _SOURCE else SinkError
        yield Health(side, FAILED, str(error(_senseless(who))), cure_of(error.code))


def _senseless(who: str) -> str:
    return f"{who} gives an answer that makes no sense; the server's log has more"


def _sink_checks(spec: ChangefeedSpec) -> Iterator[Health]:
    codec = format_of(spec)
    return sink_health(spec, codec, SINKS.load(spec.sink.scheme)(spec, codec))


def _spec(end: Endpoint, reach: Reach) -> ChangefeedSpec:
    """Return the settings of a changefeed whose other side is nowhere, checked."""
    refuse_rule_files(end.config)
    old = end.stored
    config, uri = end.config, end.uri
    if old is not None:
        config = restored(config, old.config)
        uri = restored_uri(uri, old.source if end.side == _SOURCE else old.sink)
    of_source = end.side == _SOURCE
    spec, _ = build_spec(
        uri if of_source else f"{SOURCES.names()[0]}://{_ALONE}",
        NOWHERE if of_source else uri,
        _part(config, of_source),
        _ALONE,
        tables=option_tables,
        sinks=sink_traits,
    )
    check_reach(reach, spec)
    if old is not None:
        given = ChangedSettings(
            source_uri=end.uri if of_source else None,
            sink_uri=None if of_source else end.uri,
            config=_part(end.config, of_source),
        )
        refuse_moved_secrets(old, spec, given)
    return spec


def _part(config: Mapping[str, Any], of_source: bool) -> dict[str, Any]:
    """Return the settings of a side; with the source come those that choose tables."""
    if not of_source:
        return {key: value for key, value in config.items() if key != _SOURCE}
    own = (_SOURCE, FilterOptions.TABLE.section, *FeedOptions.TABLE.names())
    return {key: value for key, value in config.items() if key in own}
