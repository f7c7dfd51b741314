"""The documentation as a site, without building it: its pages, their links, its pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml
from source_tree import ROOT

DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
SECTIONS = ["Start", "Concepts", "Guides", "Reference", "Operations", "Development"]


def listed(nav: Any) -> Iterator[str]:
    """Yield the pages of a navigation, in order."""
    for entry in nav:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else listed(target)


def outside(page: str, text: str) -> list[str]:
    """Return links that a site of `docs/` alone cannot have: to files that are not in it."""
    targets = re.findall(r"\]\(([^)#\s]+)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    here = (DOCS / page).parent
    return [
        target
        for target in targets
        if "://" not in target
        and not ((here / target).exists() and (here / target).resolve().is_relative_to(DOCS))
    ]


def test_every_page_is_in_the_navigation_once() -> None:
    assert [next(iter(entry)) for entry in SITE["nav"]] == SECTIONS
    assert sorted(listed(SITE["nav"])) == sorted(p.name for p in DOCS.glob("*.md"))


def test_links_stay_within_the_site() -> None:
    found = {page.name: outside(page.name, page.read_text()) for page in DOCS.glob("*.md")}
    assert {page: links for page, links in found.items() if links} == {}


def test_links_that_leave_it_are_found() -> None:
    text = "[a](../README.md) [b](nope.md) [c](https://example.com/x) [d](cli.md#completion)"
    assert outside("install.md", text) == ["../README.md", "nope.md"]


def test_a_warning_ends_the_build_and_there_is_a_search() -> None:
    assert SITE["strict"] is True and "search" in SITE["plugins"]
    assert set(SITE["validation"]["links"].values()) == {"warn"}
    assert SITE["theme"]["font"] is False  # no page asks another machine for anything


def test_pictures_are_used_and_drawn_for_light_and_dark() -> None:
    pages = "".join(p.read_text() for p in [ROOT / "README.md", *DOCS.glob("*.md")])
    for picture in (DOCS / "images").iterdir():
        assert f"images/{picture.name})" in pages, picture.name
    drawing = Path(DOCS / "images" / "architecture.svg").read_text()
    root = ElementTree.fromstring(drawing)
    assert root.get("viewBox") and root.find("{http://www.w3.org/2000/svg}title") is not None
    assert "prefers-color-scheme: dark" in drawing
    classes = set(re.findall(r"^    \.(\w+) \{", drawing, re.MULTILINE))
    dark = set(re.findall(r"^      \.(\w+) \{", drawing, re.MULTILINE))
    assert classes - dark == {"name"}  # which sets no colour


def test_figures_of_the_comparison_are_those_that_were_measured() -> None:
    measured = (DOCS / "performance.md").read_text()
    figures = re.findall(r"\b\d+,\d{3}\b", (DOCS / "comparison.md").read_text())
    assert len(figures) == 5
    assert [f for f in figures if f not in measured] == []
