"""Compiles every kernel once for the on-disk cache: `python -m rowferry.warm [--fresh]`.

A worker then loads machine code instead of compiling for seconds in front of the first rows. A file
beside the cache says for which sources, libraries and processor all of it is there.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from llvmlite import binding  # type: ignore[import-untyped]

import rowferry
import rowferry.columnar
import rowferry.downstream.verify
import rowferry.flow
import rowferry.mysql
import rowferry.refstore
from rowferry.flow.warm import kernel_modules

_PACKAGES = (
    rowferry.columnar,
    rowferry.mysql,
    rowferry.flow,
    rowferry.refstore,
    rowferry.downstream.verify,
)


def forget() -> None:
    """Remove cached machine code: the cache misses a change in a kernel that another one calls."""
    _note().unlink(missing_ok=True)
    for package in _PACKAGES:
        for folder in package.__path__:
            for cached in Path(folder).rglob("*.nb[ic]"):
                cached.unlink()


def is_compiled() -> bool:
    """Return whether all kernels were compiled as they are now; a quick look at the disk."""
    with suppress(OSError):
        return _note().read_text() == _fingerprint()
    return False


def compile_all(tell: Callable[[int, int], None]) -> int:
    """Compile what the cache lacks, in this process, and note that all of it is there.

    Processes that compile at once wait for each other.

    Args:
        tell: is called with how many modules are done, and of how many.

    Returns:
        The number of modules.
    """
    with _turn():
        names = [name for package in _PACKAGES for name in kernel_modules(package)]
        for done, name in enumerate(names):
            tell(done, len(names))
            importlib.import_module(name).warm()
        tell(len(names), len(names))
        with suppress(OSError):  # without the note it is looked at again next time
            part = _note().with_suffix(f".{os.getpid()}")
            part.write_text(_fingerprint())
            part.replace(_note())
    return len(names)


def _note() -> Path:
    """Return the file that says what is compiled: beside the cache, if that can be written."""
    name = f"rowferry-kernels.{sys.implementation.cache_tag}"
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    beside = Path(rowferry.__file__).parent / "__pycache__"
    if chosen:
        folder = Path(chosen)
    elif os.access(beside if beside.exists() else beside.parent, os.W_OK):
        folder = beside
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rowferry"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def _fingerprint() -> str:
    """Return what machine code depends on: sources of kernels, the compiler and the processor."""
    seen = [platform.python_version(), version("numba"), version("llvmlite")]
    seen += [binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()]
    for package in _PACKAGES:
        for folder in map(Path, package.__path__):
            for path in sorted(folder.rglob("*.py")):
                if "\ndef warm(" in path.read_text():
                    stat = path.stat()
                    seen.append(f"{path.relative_to(folder)} {stat.st_mtime_ns} {stat.st_size}")
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()


@contextmanager
def _turn() -> Iterator[None]:
    try:
        lock = open(_note().with_suffix(".lock"), "w")
    except OSError:  # nobody can write there, so nobody is waited for
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _end_with_parent() -> None:
    """End when standard input does: whoever started this process is gone."""

    def watch() -> None:
        while os.read(0, 1024):  # not by sys.stdin: its lock must be free when Python ends
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """Warm everything; prints one line with the time it took, or lines as `3/40` for a parent."""
    began = time.monotonic()
    if "--fresh" in sys.argv[1:]:
        forget()
    if "--for-parent" in sys.argv[1:]:
        _end_with_parent()
        compile_all(lambda done, of: print(f"{done}/{of}", flush=True))
        return 0
    count = compile_all(lambda done, of: None)
    print(f"kernels of {count} modules are compiled ({time.monotonic() - began:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
