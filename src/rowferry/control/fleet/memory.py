"""How a server takes memory and gives it back.

A server has hundreds of threads, and each micro-batch takes buffers of some kilobytes to some
megabytes for milliseconds. An allocator that keeps what is free for the thread that freed it, as
Arrow's default one does, then holds many times what is in use, and more with every thread that once
had much to do.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rowferry.flow.capture.contract import KeepsLog

# The C library's settings, by its numbers. With eight heaps for each processor, and large buffers
# cut out of them, most of what was taken once is never given back.
_MALLOC: Final = {-8: 2, -3: 256 << 10, -1: 1 << 20}  # heaps; mapped by itself from; kept free
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class _Heap(ctypes.Structure):
    """What `mallinfo2` tells of all heaps of the C library, in its order."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def share_allocators() -> None:
    """Let all threads of this process share allocators; what the environment says counts more."""
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    if any(name in os.environ for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")):
        return
    with suppress(OSError, AttributeError):  # another C library decides by itself
        library = ctypes.CDLL(None)
        for setting, value in _MALLOC.items():
            library.mallopt(setting, value)


def set_start_apart() -> None:
    """Let the collector pass over what is there now: modules, and what they have made.

    None of it is ever garbage, and whenever the collector walks through all of it, every changefeed
    waits for a tenth of a second.
    """
    gc.collect()
    gc.freeze()


def give_back(collect: bool = False) -> None:
    """Return what is free in the middle of heaps to the system; it takes milliseconds.

    With `collect`, garbage that refers to itself is looked for first, which stops all threads for a
    tenth of a second or so: a process that makes few objects would keep it for hours.
    """
    if collect:
        gc.collect()
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class MemoryGauges(Collector):
    """Shows what the process takes, and how much of it is in use.

    Args:
        sources: returns the source classes that changefeeds of this server have.
    """

    def __init__(self, sources: Callable[[], Iterable[Any]]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers; what the system or the C library does not tell is left out."""
        gauge = self._family()
        with suppress(OSError), open("/proc/self/statm") as file:
            gauge.add_metric(("resident",), int(file.read().split()[1]) * _PAGE)
        gauge.add_metric(("arrow",), pa.total_allocated_bytes())
        with suppress(OSError, AttributeError):
            ask = ctypes.CDLL(None).mallinfo2
            ask.restype = _Heap
            heap = ask()
            gauge.add_metric(("heap",), heap.uordblks + heap.hblkhd)
            gauge.add_metric(("heap_free",), heap.fordblks)
        kept = (s.kept_log_bytes() for s in self._sources() if isinstance(s, KeepsLog))
        gauge.add_metric(("kept_log",), sum(kept))
        yield gauge

    def describe(self) -> Iterator[Metric]:
        """Yield the metric without numbers."""
        yield self._family()

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "rowferry_memory_bytes",
            "Memory of this server's Python process: resident, in use and free in the C library's "
            "heaps, in use by Arrow, and the newest log kept for changefeeds that share it.",
            labels=("of",),
        )
