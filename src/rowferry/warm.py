"""Compiles every kernel once, so that the on-disk cache holds it: `python -m rowferry.warm`.

A worker then loads machine code instead of compiling for seconds in front of the first rows.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import time

import rowferry.flow
import rowferry.refstore


def kernel_modules() -> list[str]:
    """Return the names of all modules that have kernels to warm up."""
    found = []
    for package in (rowferry.flow, rowferry.refstore):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            spec = module.module_finder.find_spec(module.name, None)  # type: ignore[call-arg]
            source = spec.loader.get_source(module.name) if spec and spec.loader else None  # type: ignore[attr-defined]
            if source and "\ndef warm(" in source:
                found.append(module.name)
    return sorted(found)


def main() -> int:
    """Warm everything; prints one line with the time it took."""
    began = time.monotonic()
    names = kernel_modules()
    for name in names:
        importlib.import_module(name).warm()
    print(f"kernels of {len(names)} modules are compiled ({time.monotonic() - began:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
