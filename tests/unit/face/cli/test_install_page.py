"""The page about installing: its commands are carried out, the line it shows is the real one."""

from __future__ import annotations

from cli_kit import Run

from page_examples import ROOT, blocks, commands
from rowferry import __version__
from rowferry.registry import EXTRAS

PAGE = (ROOT / "docs" / "install.md").read_text()


def test_the_version_is_told(run: Run) -> None:
    assert ["rowferry", "--version"] in [w for b in blocks("install.md", PAGE) for w in commands(b)]
    ended = run("--version")
    assert (ended.out, ended.err, ended.code) == (f"rowferry {__version__}\n", "", 0)


def test_the_line_about_a_missing_library_is_the_real_one() -> None:
    line = "[RF-1029] sink kafka needs the library confluent_kafka, which is not installed here; "
    assert f"    {line}run: pip install 'rowferry[{EXTRAS['confluent_kafka']}]'\n" in PAGE
