"""Where the targets find what makes valid inputs."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path += [str(_TESTS / name) for name in ("contract", "unit/flow/capture/binlog")]
