"""Lets these tests drive the storage sink as its own tests do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "flow" / "sink"))  # storage_kit
