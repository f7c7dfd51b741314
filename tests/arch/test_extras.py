"""Without the libraries of the extras: what still works, and how the rest says what to install.

One process, in which those libraries cannot be imported, tries everything and tells what it saw.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest
from source_tree import OWNERS, ROOT

from rowferry import __version__
from rowferry.errors import MissingLibrary
from rowferry.registry import CODECS, EXTRAS, SINKS, SOURCES, extras_named

OPTIONAL: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
_BUCKETS = ["s3", "gcs", "gs", "azblob", "azure", "delta+s3", "delta+gs", "delta+azure"]
NEEDS = {
    **dict.fromkeys(["source mysql", "source mariadb"], "mysql"),
    **dict.fromkeys(["sink mysql", "sink mysql+ssl", "sink tidb", "sink tidb+ssl"], "mysql"),
    **dict.fromkeys(["sink kafka", "sink kafka+ssl"], "kafka"),
    **dict.fromkeys(["sink postgresql", "sink postgresql+ssl"], "postgres"),
    **dict.fromkeys([f"sink pulsar{n}" for n in ("", "+ssl", "+http", "+https")], "pulsar"),
    **{f"sink {n}{s}": n for n in ("redis", "nats", "rabbitmq") for s in ("", "+ssl")},
    **dict.fromkeys([f"sink {n}" for n in _BUCKETS], "object-storage"),
    **dict.fromkeys([f"sink iceberg+{n}" for n in ("file", "s3", "gs", "azure")], "iceberg"),
}
# Libraries that are imported under another name.
IMPORTED = {"nats_py": "nats", "pulsar_client": "pulsar"}
COMMANDS = {
    "run mysql": "run --source mysql://u@127.0.0.1:1 --sink-uri file://out?protocol=csv",
    "run kafka": "run --source range://127.0.0.1:1 --sink-uri kafka://h/t?protocol=canal-json",
    "consume kafka": "consume kafka://h/t?protocol=canal-json --until end",
    "consume s3": "consume s3://bucket/x?protocol=csv --until end",
    "consume files": "consume file://empty?protocol=csv --until end",
    "apply": "consume file://empty?protocol=csv --until end --apply mysql://u@127.0.0.1:1/",
    "odd files": "consume file://empty?protocol=csv --until end --config feed.toml",
    "meta postgres": "meta check --meta postgresql://u@127.0.0.1:1/d",
    "meta mysql": "meta check --meta mysql://u@127.0.0.1:1/d",
    "server": "server --addr 127.0.0.1:0 --grpc-addr= --meta sqlite:///meta.db",
    "active-active": "active-active progress --sink-uri mysql://u@127.0.0.1:1/",
    "verify": "verify mysql://u@127.0.0.1:1/ mysql://u@127.0.0.1:2/",
    "check-storage": "check-storage file://empty?protocol=csv",
}
BLOCKED = """
import contextlib, importlib, io, json, sys
libraries, commands = json.loads(sys.argv[1])

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in libraries:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
import rowferry.face.cli.demo, rowferry.spark.daemon, rowferry.spark.job, rowferry.warm
from rowferry.face.cli import main
from rowferry.flow.warm import kernel_modules
from rowferry.registry import CODECS, SINKS, SOURCES

seen = {}
for package in rowferry.warm._PACKAGES:
    for name in kernel_modules(package):
        importlib.import_module(name)
for registry in (SOURCES, CODECS, SINKS):
    for name in registry.names():
        try:
            registry.load(name)
            seen[f"{registry.what} {name}"] = ""
        except Exception as err:
            seen[f"{registry.what} {name}"] = str(err)
for name, words in commands.items():
    sys.argv = ["rowferry", *words.split()]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main.main()
        except SystemExit as end:
            code = end.code or 0
    seen[name] = [code, err.getvalue(), out.getvalue()]
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bare")
    (folder / "empty").mkdir()
    (folder / "feed.toml").write_text("[source.mysql]\nnobody-knows = 1\n")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, json.dumps([sorted(EXTRAS), COMMANDS])],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "500"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def line(what: str, library: str, extra: str) -> str:
    return (
        f"[RF-1029] {what} needs the library {library}, which is not installed here; run: "
        f"pip install 'rowferry[{extra}]'"
    )


def test_a_part_without_its_library_names_the_extra(seen: dict[str, Any]) -> None:
    for registry in (SOURCES, CODECS, SINKS):
        for name in registry.names():
            what = f"{registry.what} {name}"
            extra = NEEDS.get(what, "")
            library = next((x for x, e in EXTRAS.items() if e == extra), "")
            assert seen[what] == (line(what, library, extra) if extra else ""), what


@pytest.mark.parametrize(
    ("command", "what", "library"),
    [
        ("run mysql", "source mysql", "pymysql"),
        ("run kafka", "sink kafka", "confluent_kafka"),
        ("consume kafka", "sink kafka", "confluent_kafka"),
        ("consume s3", "sink s3", "obstore"),
        ("apply", "this command", "pymysql"),
        ("odd files", "source mariadb", "pymysql"),
        ("meta postgres", "this command", "psycopg"),
        ("meta mysql", "this command", "pymysql"),
        ("server", "this command", "prometheus_client"),
        ("active-active", "this command", "pymysql"),
        ("verify", "this command", "pymysql"),
    ],
)
def test_a_command_says_in_one_line_what_to_install(
    seen: dict[str, Any], command: str, what: str, library: str
) -> None:
    first = f"rowferry {__version__}: asking source and sink\n" if "run" in command.split() else ""
    assert seen[command] == [2, line(what, library, EXTRAS[library]) + "\n", first]


def test_files_are_read_back_without_any_extra(seen: dict[str, Any]) -> None:
    code, told, _ = seen["consume files"]
    assert (code, "0 rows" in told) == (0, True), told
    code, told, shown = seen["check-storage"]
    assert "RF-1029" not in told + shown


def test_another_missing_module_is_not_taken_for_an_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="rowferry.nowhere"), extras_named("x"):
        __import__("rowferry.nowhere")
    with pytest.raises(MissingLibrary, match=r"x needs the library obstore"), extras_named("x"):
        raise ModuleNotFoundError(name="obstore.store")


# --- the extras of pyproject.toml ----------------------------------------------------------------


def whole(extra: str) -> set[str]:
    """Return the names of an extra's libraries; extras that it is made of are followed."""
    found: set[str] = set()
    for text in OPTIONAL[extra]:
        if inner := re.fullmatch(r"rowferry\[([\w,-]+)\]", text):
            found |= set().union(*(whole(one) for one in inner[1].split(",")))
        else:
            name = re.split(r"[\[<>=]", text)[0].replace("-", "_")
            found.add(IMPORTED.get(name, name))
    return found


def test_each_library_is_in_the_extra_that_is_named() -> None:
    for library, extra in EXTRAS.items():
        assert library in whole(extra) and library in OWNERS
    assert whole("all") == set(EXTRAS)
    assert whole("s3") == whole("gcs") == whole("azure") == {"obstore"}


def test_no_library_of_an_extra_is_installed_by_default() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    always = {re.split(r"[\[<>=]", d)[0].replace("-", "_") for d in project["dependencies"]}
    assert always & set(EXTRAS) == set()


def test_every_extra_is_on_the_page() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    for extra in OPTIONAL:
        assert re.search(rf"^\| `{extra}`", page, re.MULTILINE), extra
