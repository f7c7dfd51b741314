"""Versions of Spark that are refused, and the hash that the oldest one shuffles by."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from page_examples import ROOT
from rowferry.errors import WrongSpark
from rowferry.spark import datasource, session, versions


@pytest.mark.parametrize("release", [(3, 5), (4, 4), (5, 0)])
def test_a_version_that_nobody_tried_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: tuple[int, int]
) -> None:
    monkeypatch.setattr(versions, "RELEASE", release)
    monkeypatch.setattr(versions.pyspark, "__version__", "{}.{}.7".format(*release))
    words = (
        rf"pyspark {release[0]}\.{release[1]}\.7 is installed, .* runs with 4\.0 to 4\.3; install"
    )
    with pytest.raises(WrongSpark, match=words):
        session.open_session("test", tmp_path / "logs")
    with pytest.raises(WrongSpark, match=words):
        datasource.register(None)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_what_may_be_installed_is_what_is_known() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (bounds,) = (Requirement(a).specifier for a in asked if a.startswith("pyspark"))
    known = [f"{major}.{minor}" for major in (3, 4, 5) for minor in range(9)]
    fits = [k for k in known if bounds.contains(Version(f"{k}.1"))]
    ends = versions.OLDEST, versions.NEWEST
    assert [fits[0], fits[-1]] == ["{}.{}".format(*one) for one in ends]


@pytest.mark.parametrize(
    ("number", "found"), [(0, 933211791), (1, -559580957), (2, 1765031574), (3, -1823081949)]
)
def test_the_hash_is_sparks(number: int, found: int) -> None:
    assert versions.spark_hash(number) == found
