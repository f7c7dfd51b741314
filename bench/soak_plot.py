"""Charts over time as SVG, written by hand: lines, a legend, marks for what was done to the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 900, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 54, 40
COLOURS = ("#1f6feb", "#d1495b", "#2e8b57", "#b8860b", "#7b4fb5", "#5f6b7a")


@dataclass(frozen=True)
class Line:
    """A name and its points, (minutes or what else lies along, value); a None breaks the line."""

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Mark:
    """Something that happened at a minute."""

    minute: float
    name: str


def chart(
    path: Path,
    title: str,
    unit: str,
    lines: Sequence[Line],
    marks: Sequence[Mark],
    log: bool,
    along: str = "minutes",
) -> None:
    """Write one chart; `log` is for the vertical axis, where 0 is drawn at its lower end."""
    values = [v for line in lines for _, v in line.points if v is not None]
    minutes = [m for line in lines for m, _ in line.points]
    if not values:
        return
    last = max(minutes) or 1.0
    low, high, ticks = _log_axis(values) if log else _axis(max(values))

    def x(minute: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * minute / last

    def y(value: float) -> float:
        share = (
            (math.log10(max(value, low)) - math.log10(low)) / (math.log10(high) - math.log10(low))
            if log
            else value / high
        )
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="16" font-size="14">{escape(title)}</text>',
    ]
    for tick in ticks:
        parts.append(
            f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#e2e5e9"/>'
            f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{_short(tick)}</text>'
        )
    parts.append(f'<text x="{LEFT - 6}" y="{TOP - 8}" text-anchor="end">{escape(unit)}</text>')
    step = next((s for s in (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 240) if last / s <= 14), last)
    for n in range(int(last / step) + 1):
        parts.append(
            f'<text x="{x(n * step):.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">'
            f"{_short(n * step)}</text>"
        )
    parts.append(
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{escape(along)}</text>'
    )
    for number, mark in enumerate(marks, 1):
        at = x(mark.minute)
        parts.append(
            f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#8a929c" stroke-dasharray="3 3">'
            f"<title>{escape(mark.name)}</title></path>"
            f'<text x="{at:.1f}" y="{TOP - 2}" text-anchor="middle" fill="#5f6b7a">{number}</text>'
        )
    place = LEFT
    for line, colour in zip(lines, COLOURS, strict=False):
        drawn, pen = [], "M"
        for minute, value in line.points:
            if value is None:
                pen = "M"
                continue
            drawn.append(f"{pen}{x(minute):.1f} {y(value):.1f}")
            pen = "L"
        parts.append(
            f'<path d="{"".join(drawn)}" fill="none" stroke="{colour}" stroke-width="1.4"/>'
            f'<path d="M{place} 30h14" stroke="{colour}" stroke-width="3"/>'
            f'<text x="{place + 18}" y="34">{escape(line.name)}</text>'
        )
        place += 34 + round(6.2 * len(line.name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _axis(highest: float) -> tuple[float, float, list[float]]:
    highest = highest or 1.0
    size = 10 ** math.floor(math.log10(highest))
    step = next(s * size for s in (0.2, 0.25, 0.5, 1, 2, 2.5) if highest / (s * size) <= 5)
    count = math.ceil(highest / step)
    return 0.0, step * count, [step * n for n in range(count + 1)]


def _log_axis(values: Sequence[float]) -> tuple[float, float, list[float]]:
    lowest = min((v for v in values if v > 0), default=0.1)
    low = 10.0 ** math.floor(math.log10(lowest))
    high = 10.0 ** max(math.ceil(math.log10(max(values) or 1.0)), math.log10(low) + 1)
    count = round(math.log10(high / low))
    return low, high, [low * 10**n for n in range(count + 1)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
