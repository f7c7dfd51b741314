"""Vectors that live outside the tree: the JSON file that ROWFERRY_VECTORS names."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

VARIABLE = "ROWFERRY_VECTORS"


@cache
def _all() -> list[dict[str, Any]]:
    path = os.environ.get(VARIABLE)
    if not path:
        return []
    found: list[dict[str, Any]] = json.loads(Path(path).read_text("utf-8"))["vectors"]
    return found


def cases(area: str) -> list[dict[str, Any]]:
    """Return the vectors of one area; none when the variable is not set."""
    found = [v for v in _all() if v["area"] == area]
    assert found or not _all(), f"{VARIABLE} holds no vector of area {area!r}"
    return found
