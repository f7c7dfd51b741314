"""Finds and loads compiled kernels: each module with a `warm()` compiles its own on tiny input."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from pathlib import Path
from types import ModuleType

import rowferry.flow


def kernel_modules(package: ModuleType = rowferry.flow) -> list[str]:
    """Return the names of a package's modules that have kernels to warm up."""
    names = []
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        spec = importlib.util.find_spec(module.name)
        if spec and spec.origin and "\ndef warm(" in Path(spec.origin).read_text():
            names.append(module.name)
    return sorted(names)


def load_kernels(package: ModuleType = rowferry.flow) -> int:
    """Load (or compile) a package's kernels into this process; returns the number of modules."""
    names = kernel_modules(package)
    for name in names:
        importlib.import_module(name).warm()
    return len(names)
