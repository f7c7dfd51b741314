"""The public names of the package, and what the registry promises."""

from __future__ import annotations

import tomllib
from types import ModuleType

import pytest
from source_tree import ROOT

import rowferry
from rowferry.errors import UnknownName
from rowferry.registry import CODECS, SINKS, SOURCES, Registry

NEEDED = {
    "protocol": "TRAITS TABLES probe file_head encode_rows batch encode_schema_change "
    "encode_watermark decode decode_message",
    "sink": "TRAITS TABLES dispatch check_tables probe open segment_bytes partition_label allocate "
    "publish discard close",
    "source": "TABLES DIALECT STAMPED_BY_ROWS traits probe planner read",
}
ENTRIES = [(r, name) for r in (SOURCES, CODECS, SINKS) for name in r.names()]


def wrong_exports(package: ModuleType) -> list[str]:
    """Return names that `__all__` promises and that are missing, or the other way round."""
    promised = list(getattr(package, "__all__", []))
    public = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    found = [f"{n} is promised but missing" for n in promised if not hasattr(package, n)]
    found += [f"{n} is promised twice" for n in set(promised) if promised.count(n) > 1]
    return found + [f"{n} is public but not promised" for n in sorted(public - set(promised))]


def test_public_names() -> None:
    assert "__version__" in rowferry.__all__
    assert wrong_exports(rowferry) == []


def test_wrong_exports_are_found() -> None:
    planted = ModuleType("planted")
    planted.__dict__.update({"__all__": ["gone", "here", "here"], "here": 1, "extra": 2, "_own": 3})
    assert wrong_exports(planted) == [
        "gone is promised but missing",
        "here is promised twice",
        "extra is public but not promised",
    ]


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == rowferry.__version__


def missing_parts(loaded: type, what: str) -> list[str]:
    """Return what the contract asks for and a registered class lacks."""
    return [name for name in NEEDED[what].split() if not hasattr(loaded, name)]


@pytest.mark.parametrize(("registry", "name"), ENTRIES, ids=[f"{r.what}-{n}" for r, n in ENTRIES])
def test_every_registered_name_loads(registry: Registry[object], name: str) -> None:
    loaded = registry.load(name)
    assert isinstance(loaded, type)
    assert missing_parts(loaded, registry.what) == []
    assert loaded.__doc__


@pytest.mark.parametrize("registry", [SOURCES, CODECS, SINKS], ids=lambda r: r.what)
def test_an_unknown_name_lists_the_known_ones(registry: Registry[object]) -> None:
    with pytest.raises(UnknownName, match=f"unknown {registry.what} 'nope'; known: ") as caught:
        registry.load("nope")
    for name in registry.names():
        assert name in str(caught.value)


def test_a_registered_name_that_cannot_be_loaded_is_found() -> None:
    broken: Registry[object] = Registry("sink", {"a": "rowferry.nowhere:A", "b": "rowferry:Gone"})
    with pytest.raises(ModuleNotFoundError):
        broken.load("a")
    with pytest.raises(AttributeError):
        broken.load("b")
    assert "publish" in missing_parts(object, "sink")
