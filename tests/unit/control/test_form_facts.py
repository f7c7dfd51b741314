"""What forms are made of: every class of the registry, with what it says about itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar, get_args

import pytest

from rowferry.control.operator.settings.form_facts import form_facts
from rowferry.control.operator.statements.forms import STATEMENTS
from rowferry.control.operator.statements.parsed import Statement
from rowferry.control.operator.statements.syntax import parse
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.sink.blackhole import Blackhole
from rowferry.flow.sink.contract import SinkTraits
from rowferry.registry import CODECS, ROW_FORMATS, SINKS, SOURCES, Registry
from rowferry.spec.feed_options import own_tables
from rowferry.spec.option import OptionTable, Section, one_of, option, text
from rowferry.spec.reach import ANYWHERE, Reach
from rowferry.spec.uri_form import UriForm, UriPart


class ToyOptions(Section, section="sink.toy"):
    colour = option(one_of("red", "blue"), "red", "What it is painted with.", uri=True)
    pin = option(text(), "", "What opens it.", secret=True)


class ToySink(Blackhole):
    """A sink that says how its URI is filled in."""

    TRAITS: ClassVar[SinkTraits] = replace(
        Blackhole.TRAITS,
        form=UriForm("Toy box", address=UriPart("Shelf", "a1"), path=None, login=False),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (ToyOptions.TABLE,)


class PlainSink(Blackhole):
    """A sink that says nothing of its URI."""

    TRAITS: ClassVar[SinkTraits] = SinkTraits(takes_files=False, needs_shuffle=False)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType("toy_sinks")
    module.__dict__.update(ToySink=ToySink, PlainSink=PlainSink)
    monkeypatch.setitem(sys.modules, "toy_sinks", module)
    places = {**SINKS._places, "toy": "toy_sinks:ToySink", "plain": "toy_sinks:PlainSink"}
    monkeypatch.setattr(SINKS, "_places", places)
    yield


def one(facts: dict[str, Any], scheme: str, side: str = "sinks") -> dict[str, Any]:
    found: dict[str, Any] = next(kind for kind in facts[side] if kind["scheme"] == scheme)
    return found


def options(facts: dict[str, Any], places: list[int]) -> dict[str, dict[str, Any]]:
    return {
        f"{facts['tables'][place]['section']}.{o['key']}".lstrip("."): o
        for place in places
        for o in facts["tables"][place]["options"]
    }


def test_a_new_sink_is_in_the_form_by_being_registered(toys: None) -> None:
    facts = form_facts(ANYWHERE)
    toy = one(facts, "toy")
    assert toy["title"] == "Toy box" and toy["path"] is None and toy["login"] is False
    assert toy["address"] == {"label": "Shelf", "example": "a1", "needed": True}
    assert toy["protocol"] == "allowed" and "canal-json" in toy["protocols"]
    assert "parquet" not in toy["protocols"]  # it takes no files of rows
    known = options(facts, toy["tables"])
    colour, pin = known["sink.toy.colour"], known["sink.toy.pin"]
    assert colour["kind"] == "choice" and colour["choices"] == ["red", "blue"]
    assert (colour["default"], colour["doc"]) == ("red", "What it is painted with.")
    assert pin["secret"] is True and pin["default"] == ""
    plain = one(facts, "plain")
    assert plain["title"] == "plain" and plain["login"] is True  # all parts are asked for
    assert plain["address"] and plain["path"] and not plain["address"]["needed"]
    assert "sink.toy.colour" not in options(facts, plain["tables"])


def test_every_class_and_every_option_is_there() -> None:
    facts = form_facts(ANYWHERE)
    assert [kind["scheme"] for kind in facts["sources"]] == SOURCES.names()
    assert [kind["scheme"] for kind in facts["sinks"]] == SINKS.names()
    offered = options(facts, list(range(len(facts["tables"]))))
    tables = [*Decisions.TABLES]
    registries: tuple[Registry[Any], ...] = (SOURCES, SINKS, CODECS, ROW_FORMATS)
    for registry in registries:
        for name in registry.names():
            tables += registry.load(name).TABLES
    for name in SINKS.names():
        tables += own_tables(SINKS.load(name).TRAITS)
    for table in tables:
        for declared in table.options:
            hidden = declared.no_effect or declared.shape.kind == "none"
            assert (table.path(declared.key) in offered) is not bool(hidden), declared.key
    for kind in (*facts["sources"], *facts["sinks"]):
        assert kind["title"] and not kind["missing"]
        assert not (kind["address"] and kind["address"]["label"] == "Address"), kind["scheme"]


def test_each_protocol_is_offered_where_it_can_be_used() -> None:
    facts = form_facts(ANYWHERE)
    assert one(facts, "s3")["protocols"] == ["canal-json", "csv", "json", "parquet"]
    assert one(facts, "https")["protocols"] == ["canal-json", "debezium", "json", "simple"]
    kafka = one(facts, "kafka+ssl")
    assert "avro" in kafka["protocols"] and "parquet" not in kafka["protocols"]
    assert one(facts, "mysql")["protocols"] == [] and one(facts, "mysql")["protocol"] == "none"
    assert "sink.csv.delimiter" in options(facts, facts["protocols"]["csv"])


def test_kinds_of_fields() -> None:
    facts = form_facts(ANYWHERE)
    offered = options(facts, list(range(len(facts["tables"]))))
    kinds = {
        "force-replicate": "flag",
        "sink.kafka-config.compression": "choice",
        "sink.dispatchers": "json",
        "sink.http-config.headers": "texts",
        "sink.time-zone": "text",
        "synced-status.checkpoint-interval": "number",
    }
    assert {path: offered[path]["kind"] for path in kinds} == kinds
    assert not any(o["default"] for o in offered.values() if o["secret"])


def test_references_that_the_server_would_not_use_are_marked() -> None:
    allowed = {r["kind"]: r["allowed"] for r in form_facts(Reach(env=("A",)))["references"]}
    assert allowed == {"env": True, "file": False, "vault": False}
    assert all(r["allowed"] for r in form_facts(ANYWHERE)["references"])


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    for name in [n for n in sys.modules if n.startswith("rowferry.flow.sink.kafka")]:
        monkeypatch.delitem(sys.modules, name)
    places = {"kafka": SINKS._places["kafka"], "file": SINKS._places["file"]}
    monkeypatch.setattr(SINKS, "_places", places)
    facts = form_facts(ANYWHERE)
    assert "pip install 'rowferry[kafka]'" in one(facts, "kafka")["missing"]
    assert one(facts, "kafka")["protocols"] == [] and not one(facts, "file")["missing"]


def test_every_statement_has_an_example_that_can_be_read() -> None:
    made = {type(parse(one.example)) for one in STATEMENTS}
    assert made == set(get_args(Statement))
    for one in STATEMENTS:
        words = [word for word in one.form.split() if not word.startswith("<")]
        said = one.example.replace("(", " ( ").replace(")", " ) ").split()
        assert [word for word in said if word in words][:3] == words[:3], one.title
