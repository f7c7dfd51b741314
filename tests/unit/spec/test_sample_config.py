"""The sample configuration: it parses, it is complete, and each of its lines is true."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rowferry.control.operator.settings.sample import sample_settings
from rowferry.errors import RowferryError
from rowferry.flow.assemble import option_tables, sink_traits
from rowferry.registry import SINKS
from rowferry.spec.build import build_spec

SOURCE = "mysql://root@127.0.0.1:3306"
PLACES = {
    "file": "file:///tmp/out",
    "kafka": "kafka://127.0.0.1:9092/topic",
    "mysql": "mysql://root@127.0.0.1:3307",
    "http": "http://127.0.0.1:8080/in",
    "blackhole": "blackhole://",
    "s3": "s3://bucket/out",
}
_COMMENTED = re.compile(r"# ([a-z][\w-]*) = (.*)")


@pytest.mark.parametrize("sink", PLACES)
def test_it_is_taken_as_it_is_and_with_every_default_written_out(sink: str, tmp_path: Path) -> None:
    assert sink in SINKS.names()
    needed = SINKS.load(sink).TRAITS.protocol == "needed"
    text = sample_settings("mysql", sink, "canal-json" if needed else "")
    file = tmp_path / "rowferry.toml"
    file.write_text(text)
    spec, _ = build_spec(SOURCE, PLACES[sink], file, "x", tables=option_tables, sinks=sink_traits)
    assert spec.section("filter") == {"rules": ["*.*"]}
    known = {(t.section, o.key): o for t in option_tables(spec) for o in t.options}
    found = dict(commented(text))
    expected = {place for place, o in known.items() if not o.no_effect}
    assert expected - {*found, ("sink", "protocol"), ("filter", "rules")} == set()
    written = {place: text for place, text in found.items() if text != "…" and place in known}
    assert len(written) > 5
    for place, literal in written.items():
        value = tomllib.loads(f"value = {literal}")["value"]
        assert known[place].shape.parse(value) == known[place].default, place


def commented(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield section, key and value of each line that is commented out."""
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif match := _COMMENTED.fullmatch(line):
            yield (section, match[1]), match[2]


def test_what_was_asked_for_stands_in_it() -> None:
    text = sample_settings("mysql", "kafka", "open-protocol", ["shop.*"])
    found = tomllib.loads(text)
    assert found["sink"]["protocol"] == "open-protocol"
    assert found["filter"]["rules"] == ["shop.*"]
    for wrong in (
        *(("oracle", "blackhole", ""), ("mysql", "floppy", "csv")),
        *(("mysql", "file", "morse"), ("mysql", "file", "")),
    ):
        with pytest.raises(RowferryError):
            sample_settings(*wrong)
