"""What cannot be done as written: one line, an exit code, and nothing was touched."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from run_kit import Result, call, tree

from rowferry import __version__
from rowferry.change.table import TableId
from rowferry.refstore.cluster import LocalCluster

USER_FAULT, OTHER_FAULT = 2, 1
HOME = "shop/orders/100/2023-05-09"
DEAD = "range://127.0.0.1:1"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store with the tables shop.orders and, without a key, shop.log."""
    with LocalCluster(tmp_path_factory.mktemp("store"), 1) as cluster:
        with cluster.store() as store:
            store.ddl("CREATE DATABASE shop")
            store.ddl("CREATE TABLE shop.orders (id bigint PRIMARY KEY, note varchar(20))")
            store.ddl("CREATE TABLE shop.log (line varchar(20))")
            store.load(TableId("shop", "orders"), [{"id": 1, "note": "x"}])
        yield f"range://{cluster.master_address}"


@dataclass
class Asked:
    """A command line that would work, and changes to it."""

    source: str
    sink: str = "file://{folder}/out?protocol=csv"
    config: str | None = '[filter]\nrules = ["shop.orders"]\n'
    config_name: str = "feed.toml"
    more: list[str] = field(default_factory=list)

    def arguments(self, folder: Path) -> list[str]:
        sink = self.sink.replace("{folder}", str(folder))
        found = ["run", "--source", self.source, "--sink-uri", sink, "--until", "caught-up"]
        if self.config is not None:
            (folder / self.config_name).write_text(self.config)
            found += ["--config", self.config_name]
        return found + [m.replace("{folder}", str(folder)) for m in self.more]


# Said before anybody is asked; what is wrong in the words themselves comes before it, or behind.
FIRST_LINE = f"rowferry {__version__}: asking source and sink\n"


def refuse(
    asked: Asked,
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    patch: pytest.MonkeyPatch,
    code: int = USER_FAULT,
) -> tuple[str, str]:
    """Run it; return the error's code and words. Nothing may be written, removed or changed."""
    arguments = asked.arguments(folder)
    before = tree(folder)
    result = call(folder, capfd, patch, arguments)
    assert tree(folder) == before
    assert (result.code, result.out.removeprefix(FIRST_LINE)) == (code, ""), result
    return result.refusal()


# Each: what is asked, the error's code, and what its words must name.
CASES: dict[str, tuple[Asked, str, list[str]]] = {
    "an unknown key in the file": (
        Asked("", config="[sink.csv]\ndelimitre = ','\n"),
        "RF-1001",
        ["feed.toml", "sink.csv.delimitre", "delimiter"],
    ),
    "an unknown section in the file": (
        Asked("", config="[sinks]\nx = 1\n"),
        "RF-1001",
        ["feed.toml", "sinks", "sink"],
    ),
    "an unknown parameter of the sink": (
        Asked("", sink="file://{folder}/out?protocol=csv&flush-intervall=1s"),
        "RF-1001",
        ["sink URI", "flush-intervall", "flush-interval"],
    ),
    "an unknown parameter of the source": (
        Asked("?feed-levle=range"),
        "RF-1001",
        ["source URI", "feed-levle", "feed-level"],
    ),
    "a wrong type in the file": (
        Asked("", config="[sink.csv]\ninclude-commit-ts = 7\n"),
        "RF-1002",
        ["feed.toml", "sink.csv.include-commit-ts", "true or false"],
    ),
    "a section that is no section": (
        Asked("", config="sink = 5\n"),
        "RF-1002",
        ["feed.toml", "sink"],
    ),
    "a duration without a unit": (
        Asked("", sink="file://{folder}/out?protocol=csv&flush-interval=5"),
        "RF-1002",
        ["flush-interval", "unit"],
    ),
    "a word that is not allowed": (
        Asked("?feed-level=rows"),
        "RF-1002",
        ["feed-level", "transaction", "range"],
    ),
    "no protocol": (
        Asked("", sink="file://{folder}/out"),
        "RF-1002",
        ["protocol", "csv", "canal-json"],
    ),
    "an unknown protocol": (
        Asked("", sink="file://{folder}/out?protocol=xml"),
        "RF-1002",
        ["protocol", "xml", "csv"],
    ),
    "a file of an unknown type": (
        Asked("", config_name="feed.ini"),
        "RF-1003",
        ["feed.ini", ".toml", ".yaml", ".json"],
    ),
    "a file with wrong syntax": (
        Asked("", config="[sink\n"),
        "RF-1003",
        ["feed.toml", "line 1"],
    ),
    "a file that is not there": (
        Asked("", config=None, more=["--config", "missing.toml"]),
        "RF-1003",
        ["missing.toml"],
    ),
    "a URI without a scheme": (
        Asked("", sink="{folder}/out?protocol=csv"),
        "RF-1004",
        ["sink", "scheme://"],
    ),
    "an unknown kind of sink": (
        Asked("", sink="ftp://host/out?protocol=csv"),
        "RF-1004",
        ["ftp", "file"],
    ),
    "a filter rule with a syntax error": (
        Asked("", config='[filter]\nrules = ["shop"]\n'),
        "RF-1005",
        ["feed.toml", "shop"],
    ),
    "a filter rule with a bad expression": (
        Asked("", config='[filter]\nrules = ["/a(/.b"]\n'),
        "RF-1005",
        ["/a(/.b"],
    ),
    "a changefeed id with a space": (
        Asked("", more=["-c", "my feed"]),
        "RF-1010",
        ["my feed", "hyphens"],
    ),
    "an empty changefeed id": (Asked("", more=["-c", ""]), "RF-1010", ["''"]),
    "a table that is not there": (
        Asked("", config='[filter]\nrules = ["shop.orders", "shop.ordres"]\n'),
        "RF-1009",
        ["filter.rules", "shop.ordres"],
    ),
    "a database that is not there": (
        Asked("", config='[filter]\nrules = ["shpo.orders"]\n'),
        "RF-1009",
        ["shpo.orders"],
    ),
    "a table without a key": (
        Asked("", config='[filter]\nrules = ["shop.*"]\n'),
        "RF-1011",
        ["shop.log", "force-replicate", "ignore-ineligible-table"],
    ),
    "a meta database of another kind": (
        Asked("", more=["--meta", "oracle://scott:tiger@host/db"]),
        "RF-1004",
        ["meta database", "sqlite:///"],
    ),
    "a meta database that is no URL": (
        Asked("", more=["--meta", "meta.db"]),
        "RF-1004",
        ["meta database", "sqlite:///"],
    ),
    "an end that nobody knows": (Asked("", more=["--until", "noon"]), "RF-1002", ["noon"]),
    "two ends at once": (Asked("", more=["--until-ts", "7"]), "RF-1002", ["--until-ts"]),
    "a Spark setting without a value": (
        Asked("", more=["--spark-conf", "spark.x"]),
        "RF-1002",
        ["--spark-conf", "spark.x"],
    ),
    "settings that exclude each other": (
        Asked(
            "?feed-level=range", sink="file://{folder}/out?protocol=csv&transaction-atomicity=table"
        ),
        "RF-1008",
        ["transaction-atomicity", "feed-level"],
    ),
    "whole transactions of ranges that are read each on its own": (
        Asked("?feed-level=range", sink="mysql://root@127.0.0.1:9/?transaction-atomicity=global"),
        "RF-1008",
        ["transaction-atomicity", "global", "feed-level"],
    ),
    "a redo log of ranges that are read each on its own": (
        Asked(
            "?feed-level=range",
            sink="mysql://root@127.0.0.1:9/",
            config="[consistent]\nlevel = 'eventual'\nstorage = 'file:///redo'\n",
        ),
        "RF-1008",
        ["consistent.level", "feed-level"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused(
    name: str,
    source: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, wanted, named = CASES[name]
    here = Asked(source + asked.source, asked.sink, asked.config, asked.config_name, asked.more)
    code, words = refuse(here, tmp_path, capfd, monkeypatch)
    assert code == wanted, words
    for part in named:
        assert part in words
    assert "tiger" not in words  # a password is never shown


def test_no_table_for_a_wildcard_is_a_note_only(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wildcard speaks of tables to come as well; a name without one does not."""
    from rowferry.control.feed.service import prepare

    config = tmp_path / "feed.toml"
    config.write_text('[filter]\nrules = ["nothing.*", "shop.orders", "!shop.orders"]\n')
    ready = prepare(source, f"file://{tmp_path}/out?protocol=csv", config)
    assert ready.tables == ()
    (told,) = [n for n in ready.notices if "no table of the source matches" in n]
    assert told.endswith("new ones are picked up when created")


def test_a_master_that_does_not_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, words = refuse(Asked(DEAD), tmp_path, capfd, monkeypatch, OTHER_FAULT)
    assert code == "RF-3001"
    assert "127.0.0.1:1" in words


def test_a_directory_that_cannot_be_made(
    source: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "taken").write_text("a file")
    sink = "file://{folder}/taken/out?protocol=csv"
    code, words = refuse(Asked(source, sink), tmp_path, capfd, monkeypatch, OTHER_FAULT)
    assert code == "RF-4003"
    assert str(tmp_path / "taken") in words


def test_a_directory_without_permission(
    source: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    # The superuser may write everywhere, so the answer of the system is put in its place.
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != out)
    code, words = refuse(Asked(source), tmp_path, capfd, monkeypatch, OTHER_FAULT)
    assert code == "RF-4003"
    assert str(out) in words


# --- directories with something in them -----------------------------------------------------------


def own(folder: Path, changefeed: str, epoch: int = 1) -> Path:
    """Make a directory that a changefeed writes to, with one data file."""
    out = folder / "out"
    data = out / HOME
    (data / "meta").mkdir(parents=True)
    (data / f"CDC{1:020d}.csv").write_text("row\n")
    (data / "meta" / "CDC.index").write_text(f"CDC{1:020d}.csv\n")
    (out / "metadata").write_text('{"checkpoint-ts":100}')
    mark = {"changefeed": changefeed, "epoch": epoch, "discards": 0}
    (out / "rowferry.owner").write_text(json.dumps(mark))
    return out


def test_a_directory_of_another_changefeed(
    source: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own(tmp_path, "theirs")
    asked = Asked(source, more=["-c", "mine"])
    code, words = refuse(asked, tmp_path, capfd, monkeypatch, OTHER_FAULT)
    assert code == "RF-4004"
    assert "theirs" in words
    assert "mine" in words


def test_a_directory_of_a_changefeed_that_our_meta_database_does_not_know(
    source: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same id, but the meta database was lost, or is in another folder."""
    own(tmp_path, "mine")
    asked = Asked(source, more=["-c", "mine"])
    code, words = refuse(asked, tmp_path, capfd, monkeypatch, OTHER_FAULT)
    assert code == "RF-4004"
    assert "earlier changefeed of that name" in words


def test_a_directory_of_another_product(
    source: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (own(tmp_path, "x") / "rowferry.owner").unlink()
    code, words = refuse(Asked(source), tmp_path, capfd, monkeypatch, OTHER_FAULT)
    assert code == "RF-4004"
    assert "metadata" in words


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (f"{HOME}/meta/CDC.index", b""),
        (f"{HOME}/meta/CDC.index", b"\xff\x00\n"),
        (f"{HOME}/meta/CDC.index", b"CDC1.json\n"),
        ("metadata", b"{"),
        ("metadata", b'{"checkpoint-ts":"100"}'),
        ("rowferry.owner", b"[]"),
    ],
)
def test_a_damaged_file_of_ours(
    file: str,
    content: bytes,
    source: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = own(tmp_path, "mine", epoch=0)
    (out / file).write_bytes(content)
    asked = Asked(source, more=["-c", "mine"])
    code, words = refuse(asked, tmp_path, capfd, monkeypatch, OTHER_FAULT)
    assert code == "RF-4005"
    assert str(out / file) in words


# --- the meta database ----------------------------------------------------------------------------


def test_a_meta_database_that_is_a_text(
    source: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "notes.txt").write_text("not a database, and longer than its header " * 20)
    asked = Asked(source, more=["--meta", "sqlite:///notes.txt"])
    code, words = refuse(asked, tmp_path, capfd, monkeypatch, OTHER_FAULT)
    assert code == "RF-2005"
    assert "notes.txt" in words


def test_a_database_of_something_else(
    source: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = tmp_path / "photos.db"
    with closing(sqlite3.connect(other)) as made, made:
        made.execute("CREATE TABLE photos (id int)")
        made.execute("INSERT INTO photos VALUES (7)")
    asked = Asked(source, more=["--meta", "sqlite:///photos.db"])
    arguments = asked.arguments(tmp_path)
    result: Result = call(tmp_path, capfd, monkeypatch, arguments)
    assert result.refusal()[0] == "RF-2005"
    assert "photos" in result.refusal()[1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["feed.toml", "photos.db"]
    with closing(sqlite3.connect(other)) as again:
        assert again.execute("SELECT * FROM photos").fetchall() == [(7,)]
        assert len(again.execute("SELECT * FROM sqlite_master").fetchall()) == 1


# --- as a process ---------------------------------------------------------------------------------


def test_a_process_says_one_line_too(tmp_path: Path) -> None:
    """Libraries may print at their import or at the end of a process; ours does not show it."""
    arguments = Asked(DEAD).arguments(tmp_path)
    before = tree(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "rowferry", *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    result = Result(done.returncode, done.stdout, done.stderr)
    assert (result.code, result.out) == (OTHER_FAULT, FIRST_LINE)
    assert result.refusal()[0] == "RF-3001"
    assert tree(tmp_path) == before
