"""Compiles every kernel once for the on-disk cache: `python -m rowferry.warm [--fresh]`.

A worker then loads machine code instead of compiling for seconds in front of the first rows.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import rowferry.downstream.verify
import rowferry.flow
import rowferry.refstore
from rowferry.flow.warm import load_kernels

_PACKAGES = (rowferry.flow, rowferry.refstore, rowferry.downstream.verify)


def forget() -> None:
    """Remove cached machine code: the cache misses a change in a kernel that another one calls."""
    for package in _PACKAGES:
        for folder in package.__path__:
            for cached in Path(folder).rglob("*.nb[ic]"):
                cached.unlink()


def main() -> int:
    """Warm everything; prints one line with the time it took."""
    began = time.monotonic()
    if "--fresh" in sys.argv[1:]:
        forget()
    count = sum(load_kernels(package) for package in _PACKAGES)
    print(f"kernels of {count} modules are compiled ({time.monotonic() - began:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
