"""The pages say what is: promises, names, codes, options, settings and commands are checked."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from page_examples import (
    PAGES,
    ROOT,
    Block,
    all_blocks,
    blocks,
    commands,
    table_rows,
)
from rowferry.control.store.tables import VERSION_TABLE, MetaTable
from rowferry.errors import BY_CODE, RowferryError
from rowferry.face.cli import main as cli
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.declared import parse_declared
from rowferry.testing import validators

LANGUAGES = {"sh", "python", "toml", "yaml", "json", "sql", "text"}
CONFIGS = ("toml", "yaml", "json")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def read(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


# --- promises ------------------------------------------------------------------------------------


def named_validators(page: str) -> dict[str, str]:
    """Return the page's table of promises: promise to validator."""
    rows = table_rows(page, "|promise|validator")
    return {promise: name.strip("`") for promise, _, name in rows}


def test_every_promise_has_the_validator_that_the_page_names() -> None:
    named = named_validators(read("guarantees.md"))
    assert list(named) == [f"P{n}" for n in range(1, 11)]
    for promise, name in named.items():
        assert getattr(validators, name).promise == promise


def test_every_validator_is_on_the_page() -> None:
    shipped = {name for name in validators.__all__ if hasattr(getattr(validators, name), "promise")}
    assert shipped == set(named_validators(read("guarantees.md")).values())


# --- names, codes, tables ------------------------------------------------------------------------


def lost_names(text: str) -> list[str]:
    """Return names of ours in back quotes that cannot be imported."""
    return [name for name in re.findall(r"`(rowferry(?:\.\w+)+)`", text) if not _is_there(name)]


def _is_there(name: str) -> bool:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


def wrong_codes(text: str) -> list[str]:
    """Return error codes that do not exist, and rows that give a code another name."""
    found = [c for c in re.findall(r"RF-\d{4}", text) if c not in BY_CODE]
    named = re.findall(r"^\| (RF-\d{4}) \| (\w+) \|", text, re.MULTILINE)
    return found + [c for c, name in named if c in BY_CODE and BY_CODE[c].__name__ != name]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_names_and_codes_exist(page: Path) -> None:
    text = page.read_text()
    # Files that the demonstration and a run write are paths, and tables downstream no modules.
    others = r"`rowferry\.(?:owner|lock|progress|changefeed|tmp|rowferry_\w+)/?`"
    assert lost_names(re.sub(others, "", text)) == []
    assert wrong_codes(text) == []


def test_wrong_names_and_codes_are_found() -> None:
    loop = "rowferry.control.feed.loop.Loop"
    text = f"`{loop}.stepp` `rowferry.nope` `{loop}.step`"
    assert lost_names(text) == ["rowferry.control.feed.loop.Loop.stepp", "rowferry.nope"]
    assert wrong_codes("RF-9999\n| RF-1001 | BadUri |") == ["RF-9999", "RF-1001"]


def test_errors_named_in_prose_exist() -> None:
    known = {error.__name__ for error in BY_CODE.values()}
    text = "".join(page.read_text() for page in PAGES if page.name != "adding-a-codec.md")
    for name in re.findall(r"\(`([A-Z]\w+)`\)", text):
        assert name in known, name


def test_the_meta_databases_tables_are_on_the_page() -> None:
    named = [name.strip("`") for name, _ in table_rows(read("architecture.md"), "table|content")]
    assert sorted(named) == sorted([*MetaTable.metadata.tables, VERSION_TABLE])


def test_spark_settings_are_those_of_the_session() -> None:
    source = (ROOT / "src/rowferry/spark/session.py").read_text()
    rows = table_rows(read("running.md"), "setting|value|why")
    assert rows
    for key, value, _ in rows:
        assert f'"{key.strip("`")}": "{value.strip("`")}"' in source


def test_every_verb_of_the_store_is_on_the_page() -> None:
    rows = table_rows(read("reference-store.md"), "command|what it does")
    named = {name.strip("`") for name, _ in rows}
    group = typer.main.get_command(cli.app).commands["refstore"]  # type: ignore[attr-defined]
    assert named == {f"rowferry refstore {verb}" for verb in group.commands}


def test_pages_are_linked_from_one_another() -> None:
    text = "".join(page.read_text() for page in PAGES)
    for name in ("architecture", "guarantees", "running", "reference-store", "options", "errors"):
        assert f"{name}.md)" in text or f"{name}.md#" in text, name


def test_anchors_exist() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", page.read_text()):
            there = (page.parent / target).read_text() if target else page.read_text()
            titles = re.findall(r"^#+ (.*)$", there, re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles]


# --- examples ------------------------------------------------------------------------------------


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert [str(b) for b in all_blocks() if b.language not in LANGUAGES] == []


def refusal(words: list[str]) -> str:
    """Return why a `rowferry …` command line would be refused; empty: it is fine."""
    command, context, arguments = typer.main.get_command(cli.app), None, words[1:]
    name = "rowferry"
    while True:
        try:
            context = command.make_context(name, list(arguments), parent=context)
        except typer.Exit:  # it has told its version
            return ""
        except typer.exceptions.TyperException as err:
            return str(err)
        inner = getattr(command, "commands", None)
        if inner is None:
            return ""
        name, *arguments = [*context._protected_args, *context.args]
        if name not in inner:
            return f"no command {name}"
        command = inner[name]


@pytest.mark.parametrize("block", all_blocks("sh"), ids=str)
def test_shell_commands_exist(block: Block) -> None:
    found = commands(block)
    assert found
    makefile = (ROOT / "Makefile").read_text()
    for words in found:
        match words[0]:
            case "rowferry":
                assert refusal(words) == "", words
            case "make":
                assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), words
            case "pip":
                assert set(re.findall(r"[\w-]+", words[2])) <= {"rowferry", *EXTRAS}, words
            case other:
                assert other in (".",), f"{words}: nothing checks this command"


@pytest.mark.parametrize(
    "line",
    [
        "rowferry run --source x --sink-uri y --nope z",
        "rowferry run --source x",
        "rowferry walk",
        "rowferry refstore split two --master x",
        "rowferry workload bank --master x --threads 0",
    ],
)
def test_wrong_commands_are_found(line: str) -> None:
    assert refusal(line.split())


def built(block: Block, folder: Path) -> ChangefeedSpec:
    """Return what a configuration on a page asks for, checked as `rowferry run` checks it."""
    file = folder / f"feed.{block.language}"
    file.write_text(block.text)
    sink = f"file://{folder}/out" + ("" if "protocol" in block.text else "?protocol=csv")
    if "[sink.http-config]" in block.text:
        sink = "http://127.0.0.1:1/changes"
    elif "[sink.mysql-config]" in block.text:
        sink = "mysql://root@127.0.0.1:1/"
    elif "[sink.postgresql-config]" in block.text:
        sink = "postgresql://root@127.0.0.1:1/copy"
    elif "[sink.search-config]" in block.text:
        sink = "es://127.0.0.1:1"
    elif "[sink.lake]" in block.text:
        kind = "iceberg" if "catalog = " in block.text else "delta"
        sink = f"{kind}+file://{folder}/out"
    elif "persistent://" in block.text:
        sink = "pulsar://127.0.0.1:1/topic?protocol=canal-json"
    elif "partition = " in block.text:
        sink = "kafka://127.0.0.1:1/topic?protocol=canal-json"
    spec, notices = build_spec(
        "range://127.0.0.1:1", sink, file, "feed", option_tables, sinks=sink_traits
    )
    assert notices == []
    assemble(spec)
    return spec


@pytest.mark.parametrize("block", all_blocks(*CONFIGS), ids=str)
def test_configurations_are_accepted(block: Block, tmp_path: Path) -> None:
    if block.text.startswith("owner:"):
        (declared,) = parse_declared(block.text, block.language, str(block), str(tmp_path))
        assert declared.feeds
        return
    assert built(block, tmp_path).config


def test_the_three_forms_of_a_configuration_say_the_same(tmp_path: Path) -> None:
    found = [b for b in all_blocks(*CONFIGS) if b.page == "running.md"]
    assert [b.language for b in found] == list(CONFIGS)
    first, *others = [built(b, tmp_path).config for b in found]
    assert others == [first, first]


def test_a_wrong_configuration_is_found(tmp_path: Path) -> None:
    wrong = Block("x.md", 1, "toml", "[sink.csv]\ninclude-comit-ts = true\n")
    with pytest.raises(RowferryError, match="include-commit-ts"):
        built(wrong, tmp_path)


@pytest.mark.parametrize("block", all_blocks("python"), ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


def test_blocks_are_found() -> None:
    text = "a\n```\nx \\\n  --y  # z\n```\n```python\n1\n```\n"
    first, second = blocks("p.md", text)
    assert (first.language, first.line, commands(first)) == ("sh", 2, [["x", "--y"]])
    assert (second.language, second.text) == ("python", "1\n")


# --- exit codes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "code", "exit_code"),
    [
        (["--until", "never"], "RF-1002", 2),
        (["--config", "nope.toml"], "RF-1003", 2),
        ([], "RF-3001", 1),
    ],
)
def test_exit_codes_are_those_of_the_page(
    more: list[str],
    code: str,
    exit_code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = f"file://{tmp_path}/out?protocol=csv"
    line = ["rowferry", "run", "--source", "range://127.0.0.1:1", "--sink-uri", sink, *more]
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == exit_code
    assert capsys.readouterr().err.startswith(f"[{code}] ")
    assert list(tmp_path.iterdir()) == []
    rows = table_rows(read("running.md"), "exit code|meaning")
    assert [row[0] for row in rows] == ["0", "2", "1"]


def test_the_size_is_about_what_the_page_says() -> None:
    (thousands,) = re.findall(r"about (\d+) thousand lines", read("development.md"))
    done = subprocess.run(
        ["make", "-s", "size"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert abs(int(done.stdout) - int(thousands) * 1000) < 5000, done.stdout


def test_the_picture_of_the_tree_has_every_folder() -> None:
    """All folders with modules of ours, and none that is gone."""
    page = (ROOT / "docs/architecture.md").read_text()
    drawing = page.split("```text\nsrc/rowferry/\n")[1].split("```")[0]
    drawn, path = set(), [""] * 8
    for line in drawing.splitlines():
        name = re.search(r"[├└]── (\w+)/", line)
        assert name is not None, line
        depth = (name.start()) // 4
        path[depth] = name[1]
        drawn.add("/".join(path[: depth + 1]))
    root = ROOT / "src/rowferry"
    there = {p.parent.relative_to(root).as_posix() for p in root.rglob("*.py")} - {"."}
    assert drawn == there
