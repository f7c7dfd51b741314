"""Kits of the integration tests that slices use, too."""

from __future__ import annotations

import sys
from pathlib import Path

_KITS = Path(__file__).parents[1] / "integration"
sys.path += [str(_KITS / "storage"), str(_KITS / "control")]
