from __future__ import annotations

import pytest

from rowferry.errors import BadOption
from rowferry.face.cli.options.spark import known_master, read_settings
from rowferry.face.cli.output import counted


@pytest.mark.parametrize(
    "text",
    [
        *("local", "local[*]", "local[4]", "local[2,3]", "local-cluster[2,1,1024]"),
        *("yarn", "spark://a:7077,b:7077", "k8s://https://h:443"),
    ],
)
def test_masters_that_spark_knows(text: str) -> None:
    assert known_master(text) == text


@pytest.mark.parametrize("text", ["", "foo", "local[]", "local[x]", "localhost:7077", "spark://"])
def test_other_masters_are_refused_before_java_starts(text: str) -> None:
    with pytest.raises(BadOption, match=r"--spark-master .*write local\[\*\]"):
        known_master(text)


def test_settings() -> None:
    assert read_settings(["a.b=c=d", "e="]) == {"a.b": "c=d", "e": ""}
    for pair in ("a", "=b"):
        with pytest.raises(BadOption, match="write key=value"):
            read_settings([pair])


def test_numbers_have_their_nouns() -> None:
    assert [counted(n, "table") for n in (0, 1, 2000)] == ["0 tables", "1 table", "2,000 tables"]
    assert [counted(n, "micro-batch") for n in (1, 2)] == ["1 micro-batch", "2 micro-batches"]
