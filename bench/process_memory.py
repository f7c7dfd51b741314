"""The largest resident sizes of a driver, of Java and of Spark's workers while something runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

_NOT_OURS = "rowferry.face.cli.refstore"  # the store that whole feeds read from


@dataclass
class Memory:
    """The largest resident sizes seen, in MB."""

    driver: float = 0.0
    java: float = 0.0
    worker: float = 0.0
    together: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Look five times a second until `stop` is set."""
        me = psutil.Process()
        while not self.stop.wait(0.2):
            sizes = {"driver": me.memory_info().rss / 1e6, "java": 0.0}
            workers = []
            for child in me.children(recursive=True):
                try:
                    name, line = child.name(), " ".join(child.cmdline())
                    size = child.memory_info().rss / 1e6
                except psutil.Error:
                    continue
                if _NOT_OURS in line:
                    continue
                if "pyspark" in line and "java" not in name:
                    workers.append(size)
                elif "org.apache.spark" in line:
                    sizes["java"] += size
            self.driver = max(self.driver, sizes["driver"])
            self.java = max(self.java, sizes["java"])
            self.worker = max([self.worker, *workers])
            self.together = max(self.together, sum(sizes.values()) + sum(workers))

    @property
    def figures(self) -> dict[str, int]:
        """What a table shows."""
        return {
            "driver MB": round(self.driver),
            "Java MB": round(self.java),
            "worker MB": round(self.worker),
            "all MB": round(self.together),
        }


@contextmanager
def watched() -> Iterator[Memory]:
    """Watch this process and those below it for as long as the block runs."""
    memory = Memory()
    thread = threading.Thread(target=memory.watch)
    thread.start()
    try:
        yield memory
    finally:
        memory.stop.set()
        thread.join()
