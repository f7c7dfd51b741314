"""Lets these tests run feeds and call commands as their neighbours do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # run_kit
sys.path.insert(0, str(Path(__file__).parents[1] / "binlog"))  # feed_kit
