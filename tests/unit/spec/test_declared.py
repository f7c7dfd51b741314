"""Files that declare changefeeds: what they may hold, and how they are read together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rowferry.errors import BadInput
from rowferry.spec.config_file import parse_config, write_config
from rowferry.spec.declared import (
    Declaration,
    DeclaredFeed,
    declared_files,
    parse_declared,
    read_declaration,
    read_declared,
)

SINK = "kafka://k:9092/t?protocol=canal-json"
ONE = {"source": "mysql://u@h:3306/", "sink": SINK}


def content(**feeds: Any) -> dict[str, Any]:
    return {"owner": "shop", "changefeeds": feeds}


def test_a_whole_declaration() -> None:
    config = {"filter": {"rules": ["a.*"]}}
    more = {"config": config, "start-ts": 5, "target-ts": 9, "paused": True}
    found = read_declaration({"x-all": ["mine"], **content(one={**ONE, **more}, b=ONE)}, "f.yaml")
    first = DeclaredFeed("b", ONE["source"], SINK)
    assert found == Declaration(
        "shop", (first, DeclaredFeed("one", ONE["source"], SINK, config, 5, 9, True))
    )
    for kind in ("yaml", "json"):
        text = write_config(found.to_json(), kind, "--type")
        assert read_declaration(parse_config(text, kind, "y"), "y") == found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "f.yaml: the key owner is missing"),
        ({"owner": "a b", "changefeeds": {}}, "owner = 'a b': write a name of letters"),
        ({"owner": 7, "changefeeds": {}}, "owner = 7"),
        ({"owner": "a"}, "changefeeds must hold a section for each"),
        ({"owner": "a", "changefeeds": []}, "under its id, not list"),
        ({"ownr": "a"}, "unknown option 'ownr'; did you mean 'owner'?"),
        (content(a_b=ONE), "f.yaml: changefeed id 'a_b'"),
        (content(one=3), "changefeeds.one must be a section"),
        (content(one={"sink": SINK}), "changefeeds.one: source is missing"),
        (content(one={**ONE, "sink": ""}), "changefeeds.one: sink is missing"),
        (content(one={**ONE, "sink": "nowhere"}), "one: the sink URI has no scheme"),
        (content(one={**ONE, "sinc": SINK}), "unknown option 'sinc'; did you mean 'sink'?"),
        (content(one={**ONE, "config": "x.toml"}), "one.config must be a section"),
        (content(one={**ONE, "paused": "yes"}), "one.paused = 'yes'; allowed: true, false"),
        (content(one={**ONE, "start-ts": -1}), "one.start-ts = -1: not a commit-ts"),
        (content(one={**ONE, "target-ts": True}), "one.target-ts = True"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as raised:
        read_declaration(given, "f.yaml")
    assert words in raised.value.words
    assert raised.value.words.startswith("f.yaml: ")


def test_a_password_is_in_no_error() -> None:
    form = {**ONE, "source": "mysql://u:hidden-word@h:3306/?a=1&a=2"}
    with pytest.raises(BadInput) as raised:
        read_declaration(content(one=form), "f.yaml")
    assert "hidden-word" not in str(raised.value)
    assert "hidden-word" not in repr(DeclaredFeed("a", form["source"], SINK))


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


FILE = "owner: {owner}\nchangefeeds:\n  {name}:\n    source: 'mysql://u@h:1/'\n    sink: {sink}\n"


def test_files_and_folders_are_read_together(tmp_path: Path) -> None:
    one = write(tmp_path, "one.yaml", FILE.format(owner="a", name="one", sink="file://out"))
    write(tmp_path, "more/two.yml", FILE.format(owner="b", name="two", sink="file:///x"))
    write(tmp_path, "more/three.yaml", FILE.format(owner="a", name="three", sink="file:///y"))
    write(tmp_path, "more/notes.md", "no declaration")
    write(tmp_path, "more/deeper/four.yaml", "not read: folders are not searched")
    files = declared_files([one, tmp_path / "more", one])
    assert [f.name for f in files] == ["one.yaml", "three.yaml", "two.yml"]
    found = read_declared(files, "/here")
    assert [(d.owner, [f.id for f in d.feeds]) for d in found] == [
        ("a", ["one", "three"]),
        ("b", ["two"]),
    ]
    assert found[0].feeds[0].sink == "file:///here/out"


def test_rules_of_other_files_are_put_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "rules.txt", "a.*\n!a.log\n")
    text = FILE.format(owner="a", name="one", sink="file:///x")
    text += "    config:\n      filter:\n        rules: ['@rules.txt']\n"
    (found,) = parse_declared(text, "yaml", "standard input", str(tmp_path))
    assert found.feeds[0].config == {"filter": {"rules": ["a.*", "!a.log"]}}
    with pytest.raises(BadInput, match=r"standard input: changefeeds.one: .*'nope.txt'"):
        parse_declared(text.replace("rules.txt", "nope.txt"), "yaml", "standard input", "/")


def test_one_changefeed_stands_in_one_file(tmp_path: Path) -> None:
    files = [
        write(tmp_path, name, FILE.format(owner=name[0], name="one", sink="file:///x"))
        for name in ("a.yaml", "b.yaml")
    ]
    with pytest.raises(BadInput, match="changefeed one is declared in .*a.yaml and in .*b.yaml"):
        read_declared(files, "/")


def test_an_empty_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="the folder holds no file"):
        declared_files([tmp_path / "empty"])
    with pytest.raises(BadInput, match="cannot be read"):
        read_declared(declared_files([tmp_path / "nope.yaml"]), "/")
