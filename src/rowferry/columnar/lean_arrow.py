"""Arrow without pandas, where nobody uses both.

Arrow looks for pandas when it makes its first array from Python values: if that is installed, it is
imported, for a third of a second that a command's first row waits for.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any


class _NoPandas(MetaPathFinder):
    """Says that there is no pandas."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not looked for now", name=fullname)


def look_for_no_pandas() -> None:
    """Let Arrow in this process not care for pandas; for processes of ours, never a user's.

    Arrow asks once. Whoever imports pandas himself gets it, and `to_pandas` works. On repeat, or
    where pandas is there already: nothing.
    """
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
