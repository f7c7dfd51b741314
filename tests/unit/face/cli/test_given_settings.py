"""Settings as a command line gives them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from rowferry.errors import BadConfigFile, BadOption
from rowferry.face.cli.options.settings import given_config, table_rules


def test_a_file_alone_stays_a_file_so_that_errors_name_it(tmp_path: Path) -> None:
    assert given_config(None) is None
    assert given_config("feed.toml") == Path("feed.toml")


def test_single_settings_stand_over_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "feed.toml"
    file.write_text(
        'force-replicate = false\n[sink.csv]\ndelimiter = ","\n[filter]\nrules = ["a.*"]'
    )
    given = [
        *("force-replicate=true", "sink.csv.delimiter=;", "sink.csv.quote=''"),
        *("sink.date-separator=day", "scheduler.n=3", 'x.list=["a", "b"]', "x.day=2026-01-02"),
        "x.equals=a=b",
    ]
    assert given_config(str(file), None, given, ["shop.*", "!shop.log"]) == {
        "force-replicate": True,
        "sink": {"csv": {"delimiter": ";", "quote": ""}, "date-separator": "day"},
        "scheduler": {"n": 3},
        "x": {"list": ["a", "b"], "day": "2026-01-02", "equals": "a=b"},
        "filter": {"rules": ["shop.*", "!shop.log"]},
    }


@pytest.mark.parametrize(
    ("settings", "words"), [("protocol", "key=value"), ("=1", "key=value"), ("a.b.c=1", "a holds")]
)
def test_a_setting_that_is_none_is_refused(settings: str, words: str) -> None:
    with pytest.raises(BadOption, match=words):
        given_config(None, None, ["a=1", settings])


def test_standard_input_has_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadOption, match="--config-type"):
        given_config("-")
    with pytest.raises(BadOption, match="--config-type toml"):
        given_config("feed.toml", "toml")
    for kind, text in (("toml", "a = 1"), ("yaml", "a: 1"), ("json", '{"a": 1}')):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert given_config("-", kind) == {"a": 1}
    monkeypatch.setattr("sys.stdin", io.StringIO("a = "))
    with pytest.raises(BadConfigFile, match="standard input: wrong syntax"):
        given_config("-", "toml")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(BadConfigFile, match="unknown type 'ini'; use one of json, toml"):
        given_config("-", "ini")


def test_tables_are_rules(tmp_path: Path) -> None:
    assert table_rules(["a.t", "b.*"], ["!a.log"]) == ["!a.log", "a.t", "b.*"]
    for wrong in ("t", "a.", ".t", "!a.t"):
        with pytest.raises(BadOption, match="database.table"):
            table_rules([wrong], [])
