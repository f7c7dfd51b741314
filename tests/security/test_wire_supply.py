"""What the product is made of, and that it fetches nothing while it runs."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from email.message import Message
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "rowferry"
# Modules whose work is to fetch, and words by which programs or Spark would.
FETCHERS = {"urllib.request", "ftplib", "pip", "ensurepip", "venv", "requests", "xmlrpc.client"}
WORDS = re.compile(
    r"\b(curl|wget|git clone|pip install|uv pip|npm)\b|spark\.jars|--packages|--py-files"
)
HOSTS = re.compile(r"\b(?:https?|ftp)://([A-Za-z0-9.-]+)")
NO_HOSTS = {"127.0.0.1", "localhost", "www.w3.org", "host", "HOST", "."}
# A line that users are told, and who tells it.
TOLD = {"registry.py", "versions.py", "errors.py"}

# Bounds what a library of catalogs does with its own client; it asks nothing by itself.
BOUNDING = {
    "rest_catalog.py": frozenset(
        {
            "requests.PreparedRequest",
            "requests.Response",
            "requests.Session",
            "requests.adapters.HTTPAdapter",
        }
    )
}


def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "deploy" / "audit.py")
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = found
    spec.loader.exec_module(found)
    return found


def fetching(name: str, text: str) -> list[str]:
    """Return what a module would fetch with, or from where."""
    found = []
    for node in ast.walk(ast.parse(text)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
        allowed = BOUNDING.get(name, frozenset())
        whole = any(n == "requests" for n in names) and isinstance(node, ast.Import)
        parts = {n for n in names if n.startswith("requests.")} - {"requests.adapters"}
        fits = not whole and parts <= allowed
        found += [
            f"{name}: imports {n}"
            for n in names
            if n in FETCHERS and not (allowed and n == "requests" and fits)
        ]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if WORDS.search(node.value) and name not in TOLD:
                found.append(f"{name}: {node.value[:60]!r}")
            found += [f"{name}: {h}" for h in HOSTS.findall(node.value) if h not in NO_HOSTS]
    return found


def product() -> list[Path]:
    return [p for p in PACKAGE.rglob("*.py") if "testing" not in p.relative_to(PACKAGE).parts]


def test_the_product_fetches_nothing() -> None:
    sources = product()
    assert len(sources) > 200
    assert [line for p in sources for line in fetching(p.name, p.read_text())] == []


@pytest.mark.parametrize(
    "text", ["import requests", "from requests import get", "import urllib.request"]
)
def test_who_bounds_a_client_may_not_fetch(text: str) -> None:
    assert fetching("rest_catalog.py", text)
    assert fetching("other.py", text)


def test_its_pages_fetch_nothing() -> None:
    """What a browser gets comes from the server itself."""
    pages = [p for p in PACKAGE.rglob("*") if p.suffix in (".html", ".js", ".css", ".svg")]
    assert pages
    named = {h for p in pages for h in HOSTS.findall(p.read_text())}
    assert named <= NO_HOSTS


@pytest.mark.parametrize(
    "text",
    [
        "import urllib.request",
        "from urllib import request",
        "def f():\n    import pip",
        "run('curl -O x')",
        "conf.set('spark.jars.packages', 'x')",
        "get('https://example.com/x')",
    ],
)
def test_what_would_fetch_is_found(text: str) -> None:
    assert fetching("x.py", text)


def test_the_lock_and_the_licences_hold() -> None:
    """What is installed here is what is locked, under licences that fit ours."""
    module = audit()
    installed = {module.normal(d.metadata["Name"]): d for d in module.distributions()}
    assert module.faults((ROOT / "requirements.lock").read_text(), installed) == []


class Installed:
    """A library as it tells of itself."""

    def __init__(self, version: str, **fields: str) -> None:
        self.version, self.metadata = version, Message()
        self.files: tuple[Path, ...] = ()
        for key, value in fields.items():
            self.metadata[key.replace("_", "-")] = value


LINE = "a==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"


@pytest.mark.parametrize(
    ("lock", "name", "dist", "words"),
    [
        (LINE, "b", Installed("1", License="MIT"), "b 1 is installed and not locked"),
        (LINE, "a", Installed("2", License="MIT"), "a 2 is installed, 1.0 is locked"),
        (LINE, "a", Installed("1.0"), "licence 'not told' is not allowed"),
        (LINE, "a", Installed("1.0", License_Expression="GPL-3.0-only"), "GPL-3.0-only"),
        (LINE, "a", Installed("1.0", License_Expression="MIT AND AGPL-3.0-only"), "AGPL"),
        ("a==1.0\n", "a", Installed("1.0", License="MIT"), "a==1.0 is not pinned with hashes"),
        ("a>=1.0\n" + LINE, "a", Installed("1.0", License="MIT"), "a>=1.0 is not pinned"),
    ],
)
def test_what_is_wrong_is_found(lock: str, name: str, dist: Any, words: str) -> None:
    found = audit().faults(lock, {name: dist})
    assert any(words in line for line in found), found


@pytest.mark.parametrize("licence", ["MIT", "GPL-2.0-only OR MIT", "(MIT AND PSF-2.0) OR X"])
def test_one_of_several_licences_is_enough(licence: str) -> None:
    assert audit().faults(LINE, {"a": Installed("1.0", License_Expression=licence)}) == []


def test_a_licence_that_stands_in_a_file_alone(tmp_path: Path) -> None:
    dist: Any = Installed("1.0")
    file = tmp_path / "LICENSE"
    dist.files = (tmp_path / "README", file)
    file.write_text("\n   Apache License\n   Version 2.0, January 2004\n\nTERMS")
    assert audit().faults(LINE, {"a": dist}) == []
    file.write_text("Apache License\nVersion 1.1\n")
    assert "'not told'" in audit().faults(LINE, {"a": dist})[0]


def test_the_bill_of_materials(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "deploy" / "audit.py"),
        "--bill",
        str(tmp_path / "b" / "x.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = json.loads((tmp_path / "b" / "x.json").read_text())
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    parts = {c["name"]: c for c in found["components"]}
    assert {"pyspark", "pymysql", "pyarrow"} <= set(parts)
    for part in parts.values():
        assert part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}"
        (where,) = part["externalReferences"]
        assert all(len(h["content"]) == 64 for h in where["hashes"]) and where["hashes"]
    assert parts["pymysql"]["licenses"] == [{"expression": "MIT"}]
