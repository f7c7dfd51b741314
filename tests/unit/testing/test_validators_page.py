"""The page about the validators: its example is carried out, its names are there."""

from __future__ import annotations

import re
from importlib import import_module

from page_examples import ROOT, blocks, table_rows

PAGE = (ROOT / "docs" / "validators.md").read_text()


def test_the_example_runs() -> None:
    (block,) = blocks("validators.md", PAGE)
    session: dict[str, object] = {"__name__": "page"}
    exec(compile(block.text, str(block), "exec"), session)
    assert len(session["failures"]) == 2  # type: ignore[arg-type]


def test_every_public_name_is_there() -> None:
    rows = table_rows(PAGE, "module|names")
    assert len(rows) == 6
    for module, words in rows:
        found = import_module(module.strip("`"))
        for name in re.findall(r"`(\w+)`", words):
            assert hasattr(found, name), f"{module}: {name}"
