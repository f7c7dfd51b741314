"""The files of the web page: readable in dark and light, complete, and from nowhere else."""

from __future__ import annotations

import re

import pytest

from rowferry.face.web import FOLDER

CSS = (FOLDER / "style.css").read_text()
FILES = sorted(FOLDER.iterdir())


def colours(theme: int) -> dict[str, str]:
    """Return the palette of light (0) or dark (1)."""
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\);", CSS)
    return {name: shades[theme] for name, *shades in pairs}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(theme: int) -> None:
    shades = colours(theme)
    words = ("text", "muted", "accent", "normal", "warning", "pending", "stopped", "failed")
    pairs = [(w, back) for w in (*words, "finished") for back in ("card", "back")]
    pairs += [("on-accent", "accent"), ("failed", "failed-soft"), ("text", "warning-soft")]
    pairs += [("text", "failed-soft"), ("muted", "failed-soft")]
    pairs += [("warning", "warning-soft"), ("muted", "warning-soft")]
    weak = [(a, b) for a, b in pairs if contrast(shades[a], shades[b]) < 4.5]
    assert weak == []


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_every_file_that_is_named_is_there() -> None:
    text = "".join(f.read_text() for f in FILES)
    named = set(re.findall(r'"(?:/web/|\./)([\w.]+\.(?:js|css|svg))"', text))
    assert named | {"index.html"} == {f.name for f in FILES}


def test_nothing_comes_from_elsewhere() -> None:
    for file in FILES:
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        loads = re.findall(r"(?:src|href|url|import|fetch)\W{1,3}(?:https?:)?//", text)
        assert loads == [], file.name
        assert not re.search(r"innerHTML|insertAdjacentHTML|eval\(", text), file.name
    assert "<script>" not in (FOLDER / "index.html").read_text()  # the server's policy forbids it
