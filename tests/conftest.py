"""Options and fixtures of the whole suite."""

from __future__ import annotations

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="replay a chaos test")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The number that decides all that is random in a chaos test; printed for a replay."""
    chosen = request.config.getoption("--seed")
    number = int(chosen) if chosen is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {number}; replay with --seed {number}")
    return number
