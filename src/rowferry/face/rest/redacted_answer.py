"""Answers without the passwords of URLs that may stand in their texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rowferry.face.json_log import redacted


def all_shown(value: Any) -> Any:
    """Return an answer with every text in it redacted."""
    if isinstance(value, Mapping):
        return {key: all_shown(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [all_shown(one) for one in value]
    return redacted(value) if isinstance(value, str) else value
