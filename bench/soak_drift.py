"""Whether a measured quantity drifts: a robust slope, and the rule that judges it.

The slope is Theil and Sen's: the median of the slopes between all pairs of samples that lie at
least a minute apart. Outliers (a collection, a checkpoint, a neighbour on the machine) do not move
it. Only pairs of one *life* count: a life is what belongs together, such as one process between its
start and its end. The first third of each life is warm-up and is left out.

The rule: a quantity drifts if the slope, held for an hour, would add more than `share` of its
level, and more than `floor`. The floor keeps small numbers from drifting by a few.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

APART_S = 60.0  # samples that are closer say more about noise than about drift
WARM_UP = 1 / 3  # of a life
SHARE = 0.05  # of the level, in an hour


@dataclass(frozen=True)
class Rule:
    """From when on growth is drift."""

    floor: float
    share: float = SHARE


@dataclass(frozen=True)
class Drift:
    """What was found of one quantity.

    Attributes:
        level: its median; `slope` is what an hour adds; `allowed` is what an hour may add.
        samples: how many were judged; with none that are apart, nothing can be said.
    """

    level: float
    slope: float
    allowed: float
    samples: int

    @property
    def drifts(self) -> bool:
        """Whether it grows by more than the rule allows."""
        return self.slope > self.allowed


def judge(points: Iterable[tuple[Hashable, float, float]], rule: Rule) -> Drift | None:
    """Judge samples of (life, seconds, value); None: there are too few to judge.

    They may come in any order.
    """
    lives: dict[Hashable, list[tuple[float, float]]] = {}
    for life, at, value in points:
        lives.setdefault(life, []).append((at, value))
    kept = [_without_warm_up(sorted(life)) for life in lives.values()]
    slopes = [_slopes(life) for life in kept]
    values = [value for life in kept for _, value in life]
    if not values or not sum(len(s) for s in slopes):
        return None
    level = float(np.median(values))
    slope = float(np.median(np.concatenate(slopes))) * 3600
    return Drift(level, slope, max(rule.floor, rule.share * abs(level)), len(values))


def _without_warm_up(life: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    begin = life[0][0] + (life[-1][0] - life[0][0]) * WARM_UP
    return [(at, value) for at, value in life if at >= begin]


def _slopes(life: Sequence[tuple[float, float]]) -> npt.NDArray[np.float64]:
    at, value = np.array(life, dtype=np.float64).T
    first, second = np.triu_indices(len(at), 1)
    passed, grown = at[second] - at[first], value[second] - value[first]
    apart = passed >= APART_S
    found: npt.NDArray[np.float64] = grown[apart] / passed[apart]
    return found
