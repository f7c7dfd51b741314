"""Arrow in our own processes does not import pandas; whoever wants pandas gets it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from rowferry.columnar.lean_arrow import look_for_no_pandas
{first}
import pyarrow as pa
pa.array([1, 2]), pa.table({{"a": ["x"]}}).to_pylist()
print("pandas" in sys.modules)
import pandas
look_for_no_pandas()
print(list(pa.table({{"a": [7]}}).to_pandas()["a"]))
"""


def _run(first: str) -> list[str]:
    script = SCRIPT.format(first=first)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


def test_pandas_is_not_imported_until_somebody_does() -> None:
    assert _run("look_for_no_pandas()")[:2] == ["False", "[7]"]
    assert _run("")[:2] == ["True", "[7]"]  # what Arrow does by itself
