"""The examples on the page about protocols do what the page says."""

from __future__ import annotations

import contextlib
import io
import tomllib
from typing import Any

from codec_kit import codec_for
from page_examples import Block, all_blocks
from rowferry.flow.assemble import sink_traits
from rowferry.flow.encode.canal_json.codec import CanalJson
from rowferry.spec.build import build_spec


def page_blocks() -> list[Block]:
    return [b for b in all_blocks() if b.page == "protocols.md"]


def test_the_examples_print_what_the_page_says() -> None:
    *found, _ = page_blocks()
    assert [b.language for b in found] == ["python", "text"] * 3
    names: dict[str, Any] = {}
    for example, wanted in zip(found[::2], found[1::2], strict=True):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example.text, str(example), "exec"), names)
        assert printed.getvalue() == wanted.text


def test_the_configuration_is_accepted() -> None:
    config = tomllib.loads(page_blocks()[-1].text)
    spec, notices = build_spec(
        "mysql://db", "kafka://broker/feed", config, tables=CanalJson.TABLES, sinks=sink_traits
    )
    assert notices == []
    codec_for(CanalJson, spec)
