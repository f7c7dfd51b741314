"""The harness of a registered name, or a failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import pytest

T = TypeVar("T")


def harness_named(name: str, known: Mapping[str, T], what: str) -> T:
    """Return the harness of a registered name; one without it fails all tests of its suite."""
    if name not in known:
        pytest.fail(f"no harness for {what} {name!r}: add it to {what.split()[-1]}_harness.py")
    return known[name]
