from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rowferry.change.table import TableId
from rowferry.errors import BadConfigFile
from rowferry.flow.assemble import decisions_of, sink_traits
from rowferry.spec import config_file
from rowferry.spec.build import build_spec
from rowferry.spec.config_file import inline_rule_files, read_config, read_rule_file

WANTED = {
    "case-sensitive": True,
    "filter": {"rules": ["a.*", "!a.b"]},
    "sink": {"csv": {"null": "\\N", "include-commit-ts": True}, "file-index-digit": 6},
}
TOML = r"""
case-sensitive = true
[filter]
rules = ["a.*", "!a.b"]
[sink]
file-index-digit = 6
[sink.csv]
null = '\N'
include-commit-ts = true
"""
YAML = r"""
case-sensitive: true
filter:
  rules: ["a.*", "!a.b"]
sink:
  csv:
    null: \N
    include-commit-ts: true
    quote: ~
  file-index-digit: 6
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("f.toml", TOML),
        ("f.yaml", YAML),
        ("f.YML", YAML),
        ("f.json", json.dumps({**WANTED, "filter": {**WANTED["filter"], "other": None}})),  # type: ignore[dict-item]
        ("bom.toml", "\ufeff" + TOML),
    ],
)
def test_three_spellings_of_one_configuration(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    assert read_config(file) == WANTED
    json.dumps(read_config(str(file)))


@pytest.mark.parametrize("name", ["f.toml", "f.yaml", "f.json"])
def test_empty_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("\n")
    assert read_config(tmp_path / name) == {}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("f.ini", "", "unknown file type '.ini'; use one of .json, .toml, .yaml, .yml"),
        ("f", "", "unknown file type ''"),
        ("f.toml", "a = \n", "wrong syntax: Invalid value (at line 1, column 5)"),
        ("f.toml", "a = 1\na = 2", "wrong syntax: Cannot overwrite a value"),
        ("f.toml", "a = 2020-01-01\n", "a = 2020-01-01: a date is allowed nowhere"),
        ("f.toml", "[x]\na = [1, 2020-01-01]\n", "x.a[1] = 2020-01-01: a date"),
        ("f.yaml", "a: [1\n", "wrong syntax: expected ',' or ']'"),
        ("f.yaml", "a: 1\nb: 2\na: 3\n", "line 3: the key 'a' is given twice"),
        ("f.yaml", "? [a]\n: 1\n", "wrong syntax: found unhashable key"),
        ("f.yaml", "5: x\n", "the key 5 under the top is not text"),
        ("f.yaml", "a: !!python/object:os.system x\n", "wrong syntax: could not determine"),
        ("f.yaml", "--- {}\n--- {}\n", "wrong syntax: but found another document"),
        ("f.json", "{", "wrong syntax: Expecting property name"),
        ("f.json", '{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ("f.json", "[" * 100_000, "nested too deeply"),
        ("f.yaml", "sink: &a\n  csv: *a\n", "aliases make more than"),
        ("f.json", "[1]", "must hold keys with values, not list"),
        ("f.json", '{"a": {"b": ["x", "\\ud800.t"]}}', "a.b[1]: holds text that is not Unicode"),
        ("f.json", '{"a": {"\\udc00": 1}}', "a: holds text that is not Unicode"),
        ("f.yaml", "text", "must hold keys with values, not str"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(BadConfigFile) as caught:
        read_config(file)
    assert str(caught.value).startswith(f"[RF-1003] {file}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "d.toml").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"a = '\xff'")
    for name, words in {
        "none.toml": "cannot be read: No such file or directory",
        "d.toml": "cannot be read: Is a directory",
        "bytes.toml": "not UTF-8 text (at byte 5)",
    }.items():
        with pytest.raises(BadConfigFile) as caught:
            read_config(tmp_path / name)
        assert str(caught.value) == f"[RF-1003] {tmp_path / name}: {words}"


def test_rule_files_become_part_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules.txt").write_text("\ufeffb.*\n# c\n!b.x\n")
    monkeypatch.chdir(tmp_path)
    config = {"filter": {"rules": ["a.*", " @rules.txt", "z.*"]}, "sink": {}}
    assert inline_rule_files(config) == {
        "filter": {"rules": ["a.*", "b.*", "# c", "!b.x", "z.*"]},
        "sink": {},
    }
    assert inline_rule_files({"filter": {}}) == {"filter": {}}
    rules = [{"matcher": ["@rules.txt"], "columns": ["@a"]}, {"matcher": "@rules.txt"}, 3]
    inlined = [{"matcher": ["b.*", "# c", "!b.x"], "columns": ["@a"]}, *rules[1:]]
    config = {"sink": {"dispatchers": rules}, "filter": {"event-filters": rules}, "top": 1}
    assert inline_rule_files(config) == {
        "sink": {"dispatchers": inlined},
        "filter": {"event-filters": inlined},
        "top": 1,
    }
    config = {"sink": {"lake": {"layouts": rules}}}
    assert inline_rule_files(config) == {"sink": {"lake": {"layouts": inlined}}}
    lists = {"soft-delete-tables": ["@rules.txt", "y.*"], "active-active-tables": ["@rules.txt"]}
    assert inline_rule_files(lists) == {
        "soft-delete-tables": ["b.*", "# c", "!b.x", "y.*"],
        "active-active-tables": ["b.*", "# c", "!b.x"],
    }


def test_an_empty_rule_file_is_for_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "none.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    rules = [{"matcher": ["@none.txt"], "ignore-event": ["all dml"]}]
    config = {"filter": {"rules": ["@none.txt"], "event-filters": rules}}
    spec, _ = build_spec("mysql://db", "file:///o?protocol=csv", config, sinks=sink_traits)
    assert spec.section("filter") == {
        "rules": ["# @none.txt"],
        "event-filters": [{"matcher": ["# @none.txt"], "ignore-event": ["all dml"]}],
    }
    assert not decisions_of(spec).keeps_table(TableId("shop", "orders"))


def test_a_rule_file_is_a_file_with_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_file, "_MOST_RULES", 1000)
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it: who opens it waits
    (tmp_path / "long").write_text("a.b\n" * 251)
    for name, words in {
        str(tmp_path / "pipe"): "no regular file",
        "/dev/zero": "no regular file",
        str(tmp_path / "long"): "more than 1000 bytes",
        str(tmp_path): "Is a directory",
        str(tmp_path / "none"): "No such file",
        "a\0b": "no name",
    }.items():
        with pytest.raises(BadConfigFile, match=words):
            read_rule_file(name)
    (tmp_path / "long").write_text("a.b\n" * 250)
    assert len(read_rule_file(str(tmp_path / "long"))) == 250
