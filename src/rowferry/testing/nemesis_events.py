"""What the nemesis can do, how it chooses, and what it reports."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from rowferry.errors import BadInput

WRITES: Final = ("transfer", "mixed", "made")
SCHEMA: Final = (
    "add-column",
    "drop-column",
    "modify-column",
    "create-table",
    "truncate",
    "rename",
    "drop-table",
)
# How often each is chosen. The last four take seconds, so a few of them fill a run.
EVENTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "transfer": 4,
        "mixed": 2,
        "made": 3,
        "add-column": 5,
        "drop-column": 4,
        "modify-column": 4,
        "create-table": 4,
        "truncate": 3,
        "rename": 3,
        "drop-table": 2,
        "abandon": 8,
        "split": 5,
        "move-leader": 6,
        "compact": 5,
        "kill-server": 3,
        "kill-master": 1,
        "kill-driver": 2,
        "pause": 1,
    }
)


@dataclass
class Report:
    """What a run did and what was wrong with it.

    Attributes:
        counts: how often each event happened; writes count committed transactions.
        watermarks: the checkpoints that were seen, ascending.
        doubts: outcomes that were unknown at first and asked for.
        repeats_allowed: a snapshot was lost, so rows may have come twice.
        failures: broken promises, and whatever else should not have happened.
    """

    seed: int
    protocol: str
    counts: Counter[str] = field(default_factory=Counter)
    watermarks: list[int] = field(default_factory=list)
    doubts: int = 0
    repeats_allowed: bool = False
    failures: list[str] = field(default_factory=list)

    @property
    def hint(self) -> str:
        """How to repeat the run, in one line."""
        return f"repeat with --seed {self.seed} (protocol {self.protocol})"

    def missing(self, kinds: Mapping[str, int]) -> list[str]:
        """Return the kinds with a weight that never happened."""
        return [k for k, weight in kinds.items() if weight and not self.counts[k]]

    def __str__(self) -> str:
        counts = ", ".join(f"{k} {self.counts[k]}" for k in EVENTS if self.counts[k])
        lines = [
            f"events: {counts}",
            f"checkpoints seen: {len(self.watermarks)}; doubts resolved: {self.doubts}; "
            f"snapshot lost: {'yes' if self.repeats_allowed else 'no'}",
            f"failures: {len(self.failures)}",
            *_some(self.failures),
            self.hint,
        ]
        return "\n".join(lines)


def _some(failures: list[str], most: int = 6) -> list[str]:
    """Return the first failures of each promise."""
    shown: Counter[str] = Counter()
    first_failures = []
    for words in failures:
        promise = words.partition(":")[0]
        shown[promise] += 1
        if shown[promise] <= most:
            first_failures.append(words)
    return first_failures


def check_weights(events: Mapping[str, int]) -> None:
    """Refuse weights that cannot be used.

    Raises:
        BadInput: an unknown event, a negative weight, or nothing that writes.
    """
    unknown = sorted(events.keys() - EVENTS.keys())
    if unknown:
        raise BadInput(f"unknown event {unknown[0]!r}; known: {', '.join(EVENTS)}")
    negative = sorted(k for k, w in events.items() if w < 0)
    if negative:
        raise BadInput(f"the weight of {negative[0]!r} is negative")
    if not any(events.get(k) for k in WRITES):
        raise BadInput(f"nothing writes: give one of {', '.join(WRITES)} a weight")


def draw(
    weights: Mapping[str, int],
    ready: Callable[[str], bool],
    done: Counter[str],
    dice: random.Random,
) -> str | None:
    """Return the next event: every second time one that has not happened yet, else by weight.

    None: nothing is ready.
    """
    open_now = [k for k, weight in weights.items() if weight and ready(k)]
    if not open_now:
        return None
    fresh = [k for k in open_now if not done[k]]
    if fresh and dice.random() < 0.5:
        return dice.choice(fresh)
    return dice.choices(open_now, [weights[k] for k in open_now])[0]
