"""Makes the format `rowferry` known to every session of Spark, without a call or an import.

Spark looks for installed modules whose names begin with `pyspark_`, and takes the `DefaultSource`
of each.
"""

from __future__ import annotations

from rowferry.spark.datasource import TableSource as DefaultSource

__all__ = ["DefaultSource"]
