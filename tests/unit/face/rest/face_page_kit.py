"""Pages with the addresses of a test in the place of their own."""

from __future__ import annotations

from pathlib import Path

from page_examples import ROOT, blocks

SOURCE_ON_PAGES = "range://127.0.0.1:7001"


def page(name: str, source: str = "", folder: Path = Path("/data")) -> str:
    """Return a page with the addresses of this test in the place of its own."""
    text = (ROOT / "docs" / name).read_text()
    return text.replace(SOURCE_ON_PAGES, source).replace("file:///data/", f"file://{folder}/")


def python_block(name: str, text: str) -> str:
    (found,) = [b.text for b in blocks(name, text) if b.language == "python"]
    return found
