"""Compiles every kernel once for the on-disk cache: `python -m rowferry.warm [--fresh]`.

A worker then loads machine code instead of compiling for seconds in front of the first rows.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import time
from pathlib import Path

import rowferry.flow
import rowferry.refstore


def kernel_modules() -> list[str]:
    """Return the names of all modules that have kernels to warm up."""
    found = []
    for package in (rowferry.flow, rowferry.refstore):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            spec = importlib.util.find_spec(module.name)
            if spec and spec.origin and "\ndef warm(" in Path(spec.origin).read_text():
                found.append(module.name)
    return sorted(found)


def forget() -> None:
    """Remove cached machine code: the cache misses a change in a kernel that another one calls."""
    for package in (rowferry.flow, rowferry.refstore):
        for folder in package.__path__:
            for cached in Path(folder).rglob("*.nb[ic]"):
                cached.unlink()


def load_kernels() -> int:
    """Load (or compile) every kernel into this process; returns the number of modules."""
    names = kernel_modules()
    for name in names:
        importlib.import_module(name).warm()
    return len(names)


def main() -> int:
    """Warm everything; prints one line with the time it took."""
    began = time.monotonic()
    if "--fresh" in sys.argv[1:]:
        forget()
    count = load_kernels()
    print(f"kernels of {count} modules are compiled ({time.monotonic() - began:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
