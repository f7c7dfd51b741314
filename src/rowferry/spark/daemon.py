"""Spark's Python daemon with our kernels loaded: workers fork from it and start warm.

Spark starts it as `python -m rowferry.spark.daemon` (see `session`). Without it every worker would
import and load everything again in front of its first segment.
"""

from __future__ import annotations

from pyspark import daemon

from rowferry.flow.warm import load_kernels


def main() -> None:
    """Load what every task needs, then serve workers as Spark's own daemon does."""
    load_kernels()
    daemon.manager()


if __name__ == "__main__":
    main()
