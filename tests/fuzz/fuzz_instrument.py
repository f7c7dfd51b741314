"""Readers that tell which of their branches an input took: bytecode is changed as it is imported.

What Numba compiles must stay as it is: modules with kernels are left out, as are those of libraries
that are written in C.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fuzz_driver import Target

SOURCES: Final = Path(__file__).parents[2] / "src"
# Libraries that read what others send in Python, beside our own package.
LIBRARIES: Final = ("sqlglot", "tomllib", "yaml")
_COMPILED: Final = re.compile(r"\b(numba|njit|compiled)\b")
MISSING: Final = (
    "make fuzz-guided needs atheris, which has no package for this machine or this Python: it has "
    "them for Linux on x86_64 and Python 3.11 to 3.13; make fuzz works everywhere"
)


def with_kernels() -> list[str]:
    """Return the modules of ours that Numba reads the bytecode of."""
    files = [f for f in SOURCES.rglob("*.py") if _COMPILED.search(f.read_text())]
    names = [".".join(f.relative_to(SOURCES).with_suffix("").parts) for f in files]
    return [name.removesuffix(".__init__") for name in names]


def instrumented(module: str) -> tuple[Target, ...]:
    """Return a module's targets; those that they read with are imported with their branches known.

    Targets that kernels alone read are left out: coverage of them is not seen.
    """
    import atheris

    hook = atheris.instrument_imports(
        include=["rowferry", *LIBRARIES, module], exclude=with_kernels()
    )
    hook.__enter__()  # for good: readers import some modules with their first input
    with contextlib.redirect_stderr(io.StringIO()):  # a line for each module
        loaded = importlib.import_module(module)
        targets: tuple[Target, ...] = tuple(t for t in loaded.TARGETS if not t.kernel)
    return targets


def is_available() -> bool:
    """Return whether this machine has the library that guides."""
    return importlib.util.find_spec("atheris") is not None and sys.platform == "linux"
