"""Where Spark's kept classes are, and who is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rowferry.testing.servers.spark import classes as spark_classes
from rowferry.testing.servers.spark.classes import SparkClasses


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROWFERRY_SERVERS", str(tmp_path))
    return tmp_path


def test_nobody_is_told_of_what_is_not_there(cache: Path) -> None:
    kept = SparkClasses.path()
    assert kept.is_relative_to(cache) and SparkClasses.environment() == {}
    kept.parent.mkdir()
    kept.touch()  # of a Java that cannot
    assert SparkClasses.environment() == {}
    kept.write_bytes(b"classes")
    told = SparkClasses.environment()
    assert f"-XX:SharedArchiveFile={kept}" in told["SPARK_SUBMIT_OPTS"].split()
    assert SparkClasses.ensure() == kept and kept.read_bytes() == b"classes"


def test_another_spark_has_a_file_of_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = SparkClasses.path()
    monkeypatch.setattr(spark_classes, "_spark", lambda: cache / "pyspark")
    assert SparkClasses.path() not in (here, cache)


def test_without_java_there_is_nothing_to_tell(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(cache / "nowhere"))
    assert SparkClasses.environment() == {}
