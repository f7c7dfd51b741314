"""How a server takes memory from the C library."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Twenty threads that hold memory at once: by itself the C library makes a heap for each of them, up
# to eight for each processor.
SCRIPT = """
import ctypes, os, sys, tempfile, threading
from rowferry.face.cli.server import _give_memory_back

library = ctypes.CDLL(None)
library.malloc.restype = library.fopen.restype = ctypes.c_void_p

def heaps():
    with tempfile.NamedTemporaryFile() as file:
        told = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
        library.malloc_info(0, told)
        library.fclose(told)
        return file.read().count(b"<heap nr=")

before = heaps()
_give_memory_back()
meet = threading.Barrier(20)

def hold():
    library.malloc(1000)
    meet.wait()

threads = [threading.Thread(target=hold) for _ in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(before, heaps())
"""


@pytest.mark.parametrize("asked", [None, 12])
def test_threads_share_two_heaps_unless_the_environment_says_otherwise(asked: int | None) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("GLIBC_TUNABLES",)}
    environment.pop("MALLOC_ARENA_MAX", None)
    if asked:
        environment["MALLOC_ARENA_MAX"] = str(asked)
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    before, after = map(int, run.stdout.split())
    assert before < 12, "the test means nothing: there were many before"
    assert after == asked if asked else after <= max(2, before) + 1
