"""Where in its source's log each changefeed is, as numbers that Prometheus can draw."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rowferry.flow.capture.contract import ShowsPosition

_NUMBERED: Final = re.compile(r".*\.(\d+)")  # the name of a log file


class PositionGauges(Collector):
    """Shows the whole numbers of positions, and the numbers of log files."""

    def __init__(self) -> None:
        self._positions: dict[str, tuple[ShowsPosition, Mapping[str, Any]]] = {}

    def note(self, changefeed: str, source: Any, position: Mapping[str, Any]) -> None:
        """Take in a position, and the source class that can read it."""
        if isinstance(source, ShowsPosition):
            self._positions[changefeed] = (source, position)

    def sources(self) -> set[Any]:
        """Return the source classes that positions were noted with."""
        return {source for source, _ in list(self._positions.values())}

    def forget(self, changefeed: str) -> None:
        """Show nothing more of a changefeed."""
        self._positions.pop(changefeed, None)

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers."""
        gauge = self._family()
        for changefeed, (source, position) in list(self._positions.items()):
            for name, value in source.shown_position(position).items():
                number = _number(value)
                if number is not None:
                    gauge.add_metric((changefeed, name), number)
        yield gauge

    def describe(self) -> Iterator[Metric]:
        """Yield the metric without changefeeds."""
        yield self._family()

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "rowferry_source_position",
            "Where in the source's log a changefeed is: number of the file, offset, log indexes.",
            labels=("changefeed", "of"),
        )


def _number(value: str) -> float | None:
    if value.isdecimal():
        return float(value)
    numbered = _NUMBERED.fullmatch(value)
    return float(numbered[1]) if numbered else None
