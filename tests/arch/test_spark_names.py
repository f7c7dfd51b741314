"""Only one module reaches below PySpark's public interface. Planted violations are found."""

from __future__ import annotations

import pytest
from source_tree import SPARK_VERSIONS, private_spark, read_sources


@pytest.mark.parametrize("folder", ["src/rowferry", "tests"])
def test_only_one_module_uses_what_is_private_in_pyspark(folder: str) -> None:
    assert private_spark(read_sources(folder)) == []


def test_that_module_does() -> None:
    text = read_sources()[SPARK_VERSIONS]
    assert len(private_spark({"rowferry/spark/other.py": text})) > 10
    assert private_spark({SPARK_VERSIONS: text}) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("rowferry/spark/x.py", "from pyspark.java_gateway import launch_gateway"),
        ("rowferry/spark/x.py", "from pyspark import daemon"),
        ("rowferry/spark/x.py", "import pyspark.worker"),
        ("rowferry/spark/x.py", "from pyspark.sql import pandas"),
        ("rowferry/spark/x.py", "from pyspark.sql.pandas.types import to_arrow_schema"),
        ("rowferry/spark/x.py", "from pyspark.sql.streaming.datasource import ReadLimit"),
        ("rowferry/spark/x.py", "from pyspark.sql.types import _parse_datatype_string"),
        ("rowferry/spark/x.py", "from py4j.protocol import Py4JError"),
        ("rowferry/spark/x.py", "def f(context):\n    return context._anything"),
        ("rowferry/spark/x.py", "def f(context):\n    return getattr(context, '_anything')"),
        ("rowferry/spark/x.py", "def f(frame):\n    return frame.repartitionById(2, 'n')"),
        ("rowferry/control/x.py", "def f(session):\n    return session._jvm"),
        ("rowferry/control/x.py", "class A:\n    def f(self):\n        self.spark._jsc.stop()"),
        ("tests/x.py", "def f(spark):\n    return spark.sparkContext._gateway.proc"),
        ("tests/x.py", "import py4j"),
    ],
)
def test_a_planted_private_name_is_found(path: str, text: str) -> None:
    assert len(private_spark({path: text})) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from pyspark import SparkConf, SparkContext",
        "from pyspark.sql import functions as sql",
        "from pyspark.sql.datasource import DataSource",
        "class A:\n    def f(self):\n        return self._session.range(3), self.__dict__",
        "def f(task):\n    return task.__call__",
    ],
)
def test_public_names_pass(text: str) -> None:
    assert private_spark({"rowferry/spark/x.py": text}) == []
