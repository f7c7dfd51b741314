"""Tests of outside vectors exist only where ROWFERRY_VECTORS names a file."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("ROWFERRY_VECTORS") else ["test_*_outside.py"]
