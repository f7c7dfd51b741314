"""Spark's Python daemon with our kernels loaded: workers fork from it and start warm.

Spark starts it as `python -m rowferry.spark.daemon` (see `session`). Without it every worker would
import and load everything again in front of its first segment.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

from rowferry.columnar.lean_arrow import look_for_no_pandas
from rowferry.flow.warm import load_kernels
from rowferry.spark.versions import serve_workers

# glibc's names for its settings, and what suits buffers of some MB that come and go.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_BUFFER_BYTES: Final = 64 << 20
_IDLE_BYTES: Final = 256 << 20


def main() -> None:
    """Load what every task needs, then serve workers as Spark's own daemon does."""
    _keep_buffers()
    look_for_no_pandas()
    load_kernels()
    # Spark's workers collect garbage after every task; what all of them share is none, and to walk
    # through it each time takes longer than many tasks do.
    gc.freeze()
    serve_workers()


def _keep_buffers() -> None:
    """Let the C library keep large buffers: fetching each one anew costs a fifth of encoding."""
    with suppress(OSError, AttributeError):  # another C library decides by itself
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _BUFFER_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _IDLE_BYTES)


if __name__ == "__main__":
    main()
