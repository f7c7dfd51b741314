"""Names that say something, prose that stands on its own, no secrets."""

from __future__ import annotations

import pytest
from source_tree import (
    MOST_MODULES,
    ROOT,
    crowded_rooms,
    empty_names,
    forbidden_prose,
    options_by_hand,
    read_sources,
    repeated_names,
    secrets,
    vague_results,
)

# Name -> why it may stay although it ends in a word from the list.
EXEMPT = {
    "StoredData": "a data file beside a StoredSchema, a schema file",
}


def pages() -> dict[str, str]:
    """Return everything that people read and that is not Python."""
    files = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / ".ci" / "run"]
    files += sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "proto").rglob("*.proto"))
    return {p.relative_to(ROOT).as_posix(): p.read_text() for p in files}


def everything() -> dict[str, str]:
    """Return all that is written by hand."""
    folders = ("src/rowferry", "tests", "bench", "docs", "proto")
    found = pages()
    for folder in folders:
        found |= read_sources(folder)
    return found


def test_names_say_something() -> None:
    assert empty_names(read_sources(), EXEMPT) == []


def test_results_are_named_for_what_they_are() -> None:
    assert vague_results(read_sources()) == []


@pytest.mark.parametrize(
    "text",
    ["def f():\n    found = 1", "def told(): ...", "def f(said): ...", "class C:\n    found: int"]
    + ["def f(self):\n    self._told = 1", "for found in x: ...", "told_at = 0", "_FOUND = 1"],
)
def test_a_vague_result_is_found(text: str) -> None:
    assert len(vague_results({"rowferry/x.py": text})) == 1


def test_names_that_only_hold_such_a_word_pass() -> None:
    assert vague_results({"rowferry/x.py": "foundation = row.found\nunfounded = 2"}) == []


def test_no_public_class_has_the_name_of_another() -> None:
    assert repeated_names(read_sources()) == []


def test_a_repeated_name_is_found() -> None:
    twice = {"rowferry/a.py": "class Answer: ...", "rowferry/b.py": "x = 1\nclass Answer: ..."}
    assert repeated_names(twice) == ["Answer: rowferry/a.py:1, rowferry/b.py:2"]
    assert repeated_names({"rowferry/a.py": "class _Answer: ...\nclass Reply: ..."}) == []


def test_no_room_is_crowded() -> None:
    assert crowded_rooms(read_sources()) == []


def test_a_crowded_room_is_found() -> None:
    room = {f"rowferry/flow/m{n}.py": "" for n in range(MOST_MODULES)}
    assert crowded_rooms({**room, "rowferry/flow/__init__.py": "", "rowferry/x.py": ""}) == []
    assert crowded_rooms({**room, "rowferry/flow/more.py": ""}) == ["rowferry/flow: 26 modules"]


def test_options_are_declared_in_sections() -> None:
    found = [line.split(":")[0] for line in options_by_hand(read_sources())]
    assert found == ["rowferry/spec/feed_options.py"]  # whose section is the sink's to say


@pytest.mark.parametrize("text", ["A: Final = Option('a')", "A = option(text(), '', 'What.')"])
def test_an_option_on_its_own_is_found(text: str) -> None:
    assert len(options_by_hand({"rowferry/x.py": text})) == 1


def test_exemptions_are_needed() -> None:
    assert {line.split("the name ")[1].split()[0] for line in empty_names(read_sources())} == set(
        EXEMPT
    )


@pytest.mark.parametrize(
    "name",
    ["TableManager", "Helper", "StringUtils", "CommonThings", "BaseSink", "AbstractCodec"]
    + [
        "SinkImpl",
        "RowProcessor",
        "Engine",
        "_EventHandler",
        "TableInfo",
        "RowData",
        "FlowContext",
    ],
)
def test_an_empty_name_is_found(name: str) -> None:
    assert len(empty_names({"rowferry/x.py": f"def f():\n    class {name}: ..."})) == 1


@pytest.mark.parametrize("name", ["Based", "Databases", "Information", "EngineError", "Handle"])
def test_names_that_only_look_like_it_pass(name: str) -> None:
    assert empty_names({"rowferry/x.py": f"class {name}: ..."}) == []


@pytest.mark.parametrize("stem", ["utils", "util", "helpers", "common", "base", "manager"])
def test_an_empty_module_name_is_found(stem: str) -> None:
    assert len(empty_names({f"rowferry/flow/{stem}.py": ""})) == 1


def test_prose_stands_on_its_own() -> None:
    assert forbidden_prose({**read_sources(), **read_sources("docs"), **pages()}) == []


@pytest.mark.parametrize("word", ["see" + "d", "Iss" + "ue", "DES" + "IGN", "STY" + "LE"])
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("x.py", "# as the {} says\n"),
        ("x.py", '"""As the {} says."""\n'),
        ("x.py", 'def f():\n    """As the {} says."""\n'),
        ("x.py", 'class C:\n    """Line.\n\n    See {} 5.\n    """\n'),
        ("docs/x.md", "As the {} says.\n"),
    ],
)
def test_forbidden_prose_is_found(path: str, text: str, word: str) -> None:
    assert len(forbidden_prose({path: text.format(word)})) == 1


def test_a_machines_path_is_found() -> None:
    assert len(forbidden_prose({"docs/x.md": "Look in /ro" + "ot/x."})) == 1


def test_code_may_use_any_word() -> None:
    text = "se" + "ed = 5\nrandom.Random(se" + 'ed)\n"""`--se' + 'ed` repeats a run."""\n'
    assert forbidden_prose({"x.py": text}) == []


def test_there_are_no_secrets() -> None:
    exempt = ("tests/", "docs/adding")  # tests of redaction must show what is to be hidden
    found = {path: text for path, text in everything().items() if not path.startswith(exempt)}
    assert secrets(found) == []


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN RSA PRIVATE " + "KEY-----",
        "key = 'AKIA" + "ABCDEFGHIJKLMNOP'",
        "mysql://root:hunter" + "22@db/x",
        "pass" + "word = 'hunter22'",
        "TOK" + 'EN = "abcdef123456"',
    ],
)
def test_a_planted_secret_is_found(text: str) -> None:
    assert len(secrets({"x.py": f"a = 1\n{text}\n"})) == 1


@pytest.mark.parametrize(
    "text", ["mysql://root:***@db/x", "password = ''", "password: str", "https://h/a@b"]
)
def test_what_is_no_secret_passes(text: str) -> None:
    assert secrets({"x.py": text}) == []
