"""How a server takes memory, and gives it back."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from rowferry.control.fleet.memory import MemoryGauges

# Twenty threads that hold memory at once: by itself the C library makes a heap for each of them, up
# to eight for each processor.
HEAPS = """
import ctypes, os, sys, tempfile, threading
from rowferry.control.fleet.memory import share_allocators

library = ctypes.CDLL(None)
library.malloc.restype = library.fopen.restype = ctypes.c_void_p

def heaps():
    with tempfile.NamedTemporaryFile() as file:
        told = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
        library.malloc_info(0, told)
        library.fclose(told)
        return file.read().count(b"<heap nr=")

before = heaps()
share_allocators()
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

# Sixty threads that each make some arrays, let them go, and wait: what stays for them?
THREADS = """
import threading
import numpy as np, pyarrow as pa, pyarrow.compute as pc
from rowferry.control.fleet.memory import share_allocators

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 // 1_000_000

share_allocators()
done, leave = threading.Barrier(61), threading.Event()

def work():
    texts = [pc.cast(pa.array(np.arange(5000)), pa.string()) for _ in range(20)]
    pa.concat_arrays([pc.binary_join_element_wise(one, one, "-") for one in texts])
    del texts
    done.wait()
    leave.wait()

pc.cast(pa.array(np.arange(10)), pa.string())
before = resident()
threads = [threading.Thread(target=work) for _ in range(60)]
for thread in threads:
    thread.start()
done.wait()
print(pa.default_memory_pool().backend_name, resident() - before)
leave.set()
"""

# Every second piece stays, so that the C library finds nothing free at the end of its heap.
HOLES = """
from rowferry.control.fleet.memory import give_back, share_allocators

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 // 1_000_000

share_allocators()
before = resident()
pieces = [b"y" * (100_000 if n % 2 else 1000) for n in range(2000)]
pieces[1::2] = [None] * 1000
held = resident()
give_back()
print(before, held, resident())
"""

# What was made before is not walked through again; what comes later is still collected.
START = """
import gc, weakref
from rowferry.control.fleet.memory import set_start_apart

class Knot:
    def __init__(self):
        self.itself = self

before = len(gc.get_objects())
set_start_apart()
left = len(gc.get_objects())
gone = weakref.ref(Knot())
gc.collect()
print(before, left, gone() is None)
"""


def run(script: str, **environment: str) -> list[str]:
    """Run a script in a process of its own, and return the words that it prints."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC", "GLIBC", "ARROW"))}
    command = [sys.executable, "-c", script]
    ran = subprocess.run(
        command, env={**kept, **environment}, capture_output=True, text=True, check=True
    )
    return ran.stdout.split()


@pytest.mark.parametrize("asked", [None, 12])
def test_threads_share_two_heaps_unless_the_environment_says_otherwise(asked: int | None) -> None:
    environment = {"MALLOC_ARENA_MAX": str(asked)} if asked else {}
    before, after = map(int, run(HEAPS, **environment))
    assert before < 12, "the test means nothing: there were many before"
    assert after == asked if asked else after <= max(2, before) + 1


def test_threads_keep_no_arrow_memory_of_their_own() -> None:
    pool, shared = run(THREADS)
    assert pool == "system"
    other, kept = run(THREADS, ARROW_DEFAULT_MEMORY_POOL="mimalloc")
    assert other == "mimalloc", "the environment decides"
    assert int(shared) * 2 < int(kept), "the test means nothing, or memory stays with threads"


def test_holes_in_heaps_are_given_back() -> None:
    before, held, after = map(int, run(HOLES))
    assert held - before > 50, "the test means nothing: nothing was held"
    assert after - before < 25


def test_the_collector_passes_over_what_is_there_from_the_start() -> None:
    before, left, collected = run(START)
    assert int(before) > 10_000, "the test means nothing: hardly anything was there"
    assert int(left) < 1_000
    assert collected == "True"


class KeepsSome:
    """A source that keeps log in memory."""

    @staticmethod
    def kept_log_bytes() -> int:
        return 5


def test_the_process_and_its_heaps_are_measured() -> None:
    registry = CollectorRegistry()
    registry.register(MemoryGauges(lambda: [KeepsSome, object]))
    kept = pa.array(range(1_000_000))
    lines = dict(
        line.rsplit(" ", 1)
        for line in generate_latest(registry).decode().splitlines()
        if not line.startswith("#")
    )
    shown = {name: float(value) for name, value in lines.items()}
    resident = shown['rowferry_memory_bytes{of="resident"}']
    assert kept.nbytes <= shown['rowferry_memory_bytes{of="arrow"}'] <= resident
    assert 0 < shown['rowferry_memory_bytes{of="heap"}']
    assert shown['rowferry_memory_bytes{of="heap_free"}'] <= resident
    assert shown['rowferry_memory_bytes{of="kept_log"}'] == 5
