"""Lets these tests call commands as those of the whole line do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # run_kit
