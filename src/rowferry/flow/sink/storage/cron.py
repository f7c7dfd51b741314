"""Six-field cron texts (seconds first), as far as "when is the next one" goes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

_FIELDS = (
    ("second", 0, 59),
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day", 1, 31),
    ("month", 1, 12),
    ("weekday", 0, 6),
)
_NAMES = {
    "month": "jan feb mar apr may jun jul aug sep oct nov dec".split(),
    "weekday": "sun mon tue wed thu fri sat".split(),
}


@dataclass(frozen=True, slots=True)
class Cron:
    """Moments: those whose second, minute, hour, day and month are in the sets.

    Where day and weekday are both restricted, either of them is enough, as cron has it.
    """

    text: str
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Read `second minute hour day month weekday`; raises ValueError naming the field."""
        parts = text.split()
        if len(parts) != len(_FIELDS):
            raise ValueError(f"expected {len(_FIELDS)} fields, got {len(parts)}")
        sets = (_field(part, *facts) for part, facts in zip(parts, _FIELDS, strict=True))
        return cls(text, *sets)

    def __str__(self) -> str:
        return self.text

    def after(self, moment: datetime) -> datetime | None:
        """Return the first moment after this one; None: there is none within eight years."""
        day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        for _ in range(8 * 366):
            if self._takes(day):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        for second in sorted(self.seconds):
                            candidate = day.replace(hour=hour, minute=minute, second=second)
                            if candidate > moment:
                                return candidate
            day += timedelta(days=1)
        return None

    def _takes(self, day: datetime) -> bool:
        if day.month not in self.months:
            return False
        by_day = day.day in self.days
        by_weekday = day.isoweekday() % 7 in self.weekdays
        if len(self.days) < 31 and len(self.weekdays) < 7:
            return by_day or by_weekday
        return by_day and by_weekday


def _field(part: str, name: str, least: int, most: int) -> frozenset[int]:
    values: set[int] = set()
    for piece in part.split(","):
        span, slash, step = piece.partition("/")
        if slash and not (step.isdecimal() and int(step) > 0):
            raise ValueError(f"{name} field {part!r}: bad step")
        if span in ("*", "?"):
            first, last = least, most
        else:
            low, dash, high = span.partition("-")
            first = _number(low, name, part)
            last = _number(high, name, part) if dash else (most if slash else first)
        if not least <= first <= last <= most:
            raise ValueError(f"{name} field {part!r}: outside {least} to {most}")
        values.update(range(first, last + 1, int(step) if slash else 1))
    return frozenset(values)


def _number(text: str, name: str, part: str) -> int:
    if text.isdecimal():
        return int(text)
    names = _NAMES.get(name, [])
    if text.lower() in names:
        return names.index(text.lower()) + (1 if name == "month" else 0)
    raise ValueError(f"{name} field {part!r}: not a number")
