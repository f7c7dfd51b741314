"""What a form for changefeeds is made of: sources, sinks, protocols and their options.

All of it comes from the registry and from what each class says about itself: a new sink is in the
form by being registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Final

from rowferry.control.operator.statements.forms import STATEMENTS
from rowferry.errors import BadInput, MissingLibrary, OptionsConflict
from rowferry.flow.assemble import format_class
from rowferry.flow.capture.contract import HasForm
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.sink.contract import SinkTraits
from rowferry.names import OWN_CODECS, protocols
from rowferry.registry import ROW_FORMATS, SINKS, SOURCES, load_format
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import ProtocolOptions, own_tables
from rowferry.spec.option import Option, OptionTable, shown
from rowferry.spec.reach import Reach
from rowferry.spec.uri import SAMPLE_WEB_ADDRESS, Uri
from rowferry.spec.uri_form import EVERY_PART, UriForm

_SAMPLE: Final = "sample"


@dataclass(slots=True)
class _Tables:
    """Option tables, each listed once; others name them by their place."""

    listed: list[OptionTable] = field(default_factory=list)

    def places(self, tables: Iterable[OptionTable]) -> list[int]:
        numbers: list[int] = []
        for table in tables:
            if table not in self.listed:
                self.listed.append(table)
            place = self.listed.index(table)
            numbers += [] if place in numbers else [place]
        return numbers


def form_facts(reach: Reach) -> dict[str, Any]:
    """Return all that a form needs; `reach` says which references secrets may be.

    Every source, sink and protocol has the places of its option tables in `tables`.
    """
    known = _known_classes(tuple(SOURCES.names()), tuple(SINKS.names()))
    return {**known, "references": list(_references(reach))}


@lru_cache(maxsize=1)
def _known_classes(sources: tuple[str, ...], sinks: tuple[str, ...]) -> dict[str, Any]:
    """Return what the classes of these schemes say; the first call imports all of them."""
    tables = _Tables()
    return {
        "sources": [_source(scheme, tables) for scheme in sources],
        "sinks": [_sink(scheme, tables) for scheme in sinks],
        "protocols": {
            name: tables.places(load_format(name).TABLES) for name in (*protocols(), *OWN_CODECS)
        },
        "common": tables.places(Decisions.TABLES),
        "tables": [_table(table) for table in tables.listed],
        "statements": [asdict(one) for one in STATEMENTS],
    }


def _source(scheme: str, tables: _Tables) -> dict[str, Any]:
    try:
        kind = SOURCES.load(scheme)
    except MissingLibrary as err:
        return {**_named(scheme, EVERY_PART), "missing": err.words, "tables": []}
    form = kind.FORM if isinstance(kind, HasForm) else EVERY_PART
    return {**_named(scheme, form), "missing": "", "tables": tables.places(kind.TABLES)}


def _sink(scheme: str, tables: _Tables) -> dict[str, Any]:
    try:
        kind = SINKS.load(scheme)
    except MissingLibrary as err:
        nothing: dict[str, Any] = {"protocol": "none", "default_protocol": "", "protocols": []}
        nothing |= {"forwards_parameters": False, "tables": []}
        return {**_named(scheme, EVERY_PART), "missing": err.words, **nothing}
    traits = kind.TRAITS
    return {
        **_named(scheme, traits.form),
        "missing": "",
        "protocol": traits.protocol,
        "default_protocol": traits.default_protocol,
        "forwards_parameters": traits.forwards_parameters,
        "protocols": [name for name in protocols() if _goes_with(scheme, traits, name)],
        "tables": tables.places((*own_tables(traits), *kind.TABLES)),
    }


def _named(scheme: str, form: UriForm) -> dict[str, Any]:
    parts = asdict(form)
    return {"scheme": scheme, **parts, "title": form.title or scheme}


def _goes_with(scheme: str, sink: SinkTraits, protocol: str) -> bool:
    """Return whether a sink can be written in a protocol; both are made, and nothing is opened."""
    if sink.protocol == "none":
        return False
    section = ProtocolOptions.TABLE.section
    config: dict[str, Any] = {section: {ProtocolOptions.protocol.key: protocol}}
    for table in load_format(protocol).TABLES:
        for option in table.options:
            if option.names == "url" and table.section == section:
                config[section][option.key] = SAMPLE_WEB_ADDRESS
    spec = ChangefeedSpec(
        _SAMPLE,
        Uri.parse(f"{SOURCES.names()[0]}://{_SAMPLE}", "source"),
        Uri.parse(f"{scheme}://{_SAMPLE}/{_SAMPLE}", "sink"),
        config,
    )
    try:
        made = format_class(spec)(spec, sink)
        if protocol not in ROW_FORMATS.names():
            SINKS.load(scheme)(spec, made)
    except OptionsConflict:
        return False
    except BadInput:
        return True  # something else is missing, which the user will give
    return True


# --- options -------------------------------------------------------------------------------------


def _table(table: OptionTable) -> dict[str, Any]:
    return {
        "section": table.section,
        "options": [
            _option(o) for o in table.options if not o.no_effect and o.shape.kind != "none"
        ],
    }


def _option(option: Option[Any]) -> dict[str, Any]:
    kind, choices = _kind(option)
    hidden = option.secret or option.default in ("", None, ())
    return {
        "key": option.key,
        "kind": kind,
        "choices": choices,
        "allowed": option.shape.words,
        "default": "" if hidden else shown(option.default),
        "doc": option.doc,
        "uri": option.uri,
        "secret": option.secret,
        "alterable": option.alterable,
    }


def _kind(option: Option[Any]) -> tuple[str, list[str]]:
    """Return what a form offers for an option, and the words to choose from."""
    shape = option.shape
    words = [word.strip() for word in shape.words.split(" | ")]
    if shape.kind != "other":
        return shape.kind, list(shape.choices)
    if len(words) > 1 and all(word and " " not in word for word in words):
        return "choice", words
    if isinstance(option.default, bool):
        return "flag", []
    if isinstance(option.default, int):
        return "number", []
    if isinstance(option.default, list | tuple) or option.default is None:
        return "json", []
    return "text", []


# --- secrets -------------------------------------------------------------------------------------


def _references(reach: Reach) -> Iterator[dict[str, Any]]:
    """Say what may stand in the place of a secret; `allowed`: this server would use some."""
    for kind, title, example, some in (
        ("env", "an environment variable of the server", "SHOP_PASSWORD", reach.env),
        ("file", "a file of the server", "/run/secrets/shop", reach.files),
        ("vault", "a secret store", "kv/shop/db#password", reach.vault),
    ):
        allowed = bool(some) or not reach.limited
        yield {"kind": kind, "title": title, "example": example, "allowed": allowed}
