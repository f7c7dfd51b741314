"""What Rowferry is made of: `make audit` checks the locked libraries, and lists them.

Checked without a network: every library is pinned with hashes, what is installed is what is locked,
nothing else is installed, and every licence is one of those that may be used together with ours.
The list is a bill of materials, CycloneDX 1.6. `make advisories` asks for known weaknesses.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
_PINNED: Final = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(\[[^\]]*\])?==(?P<version>[^\s;\\]+)")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
TOOLS: Final = frozenset({"pip", "uv", "setuptools", "wheel", "rowferry"})
ALLOWED: Final = frozenset(
    {
        "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0",
        "MPL-2.0", "PSF-2.0", "Zlib", "LLVM-exception",
    }
)  # fmt: skip
# Of the extra `postgres`: used as it is, by its name in a URL; nothing of it is in our package.
EXCEPTED: Final = {"psycopg": "LGPL-3.0-only", "psycopg-binary": "LGPL-3.0-only"}
# What packages write instead of SPDX's names.
_WORDS: Final = {
    "MIT License": "MIT",
    "BSD License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Apache 2": "Apache-2.0",
    "Apache License v2.0": "Apache-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
}


@dataclass(frozen=True)
class Locked:
    """One line of the lock file."""

    name: str
    version: str
    hashes: tuple[str, ...]


def normal(name: str) -> str:
    """Return a library's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str) -> Iterator[Locked | str]:
    """Yield what is locked; a text is what is wrong with a line."""
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        found, hashes = _PINNED.match(line), tuple(_HASH.findall(line))
        if not found or not hashes:
            yield f"requirements.lock: {line.split()[0]} is not pinned with hashes"
        else:
            yield Locked(normal(found["name"]), found["version"], hashes)


def licence_of(dist: Distribution) -> str:
    """Return a library's licence as an SPDX expression, as far as it tells; else its own words."""
    meta = dist.metadata
    if told := meta.get("License-Expression"):
        return str(told)
    named = [c.split(" :: ")[-1] for c in meta.get_all("Classifier") or [] if "OSI Approved" in c]
    words = named or [str(meta.get("License") or "").strip().partition("\n")[0] or _of_file(dist)]
    return " AND ".join(sorted({_WORDS.get(word, word) for word in words}))


def _of_file(dist: Distribution) -> str:
    """Return the licence of a library that says it in a file alone; empty: it is another one."""
    for file in dist.files or ():
        if file.name == "LICENSE":
            words = " ".join(file.read_text().split())
            if words.startswith("Apache License Version 2.0, January 2004"):
                return "Apache-2.0"
    return ""


def is_allowed(name: str, licence: str) -> bool:
    """Return whether a library of this licence may be used; of alternatives one is enough."""
    if EXCEPTED.get(name) == licence:
        return True
    either = re.split(r"\bOR\b", licence.replace("(", " ").replace(")", " "))
    return any(
        set(re.sub(r"\b(AND|WITH)\b", " ", one).split()) <= ALLOWED and one.strip()
        for one in either
    )


def faults(lock: str, installed: dict[str, Distribution]) -> list[str]:
    """Return what is wrong, a line each."""
    locked = list(read_lock(lock))
    found = [one for one in locked if isinstance(one, str)]
    versions: dict[str, list[str]] = {}  # some libraries have one for each version of Python
    for one in locked:
        if isinstance(one, Locked):
            versions.setdefault(one.name, []).append(one.version)
    for name, dist in sorted(installed.items()):
        if name in TOOLS:
            continue
        if name not in versions:
            found.append(f"{name} {dist.version} is installed and not locked")
        elif dist.version not in versions[name]:
            wanted = " or ".join(versions[name])
            found.append(f"{name} {dist.version} is installed, {wanted} is locked")
        licence = licence_of(dist)
        if not is_allowed(name, licence):
            found.append(f"{name} {dist.version}: licence {licence or 'not told'!r} is not allowed")
    return found


def bill(lock: str, installed: dict[str, Distribution], version: str) -> dict[str, Any]:
    """Return the bill of materials; the same lock gives the same one."""
    components = []
    for one in read_lock(lock):
        if isinstance(one, str):
            continue
        component: dict[str, Any] = {
            "type": "library",
            "bom-ref": f"pkg:pypi/{one.name}@{one.version}",
            "name": one.name,
            "version": one.version,
            "purl": f"pkg:pypi/{one.name}@{one.version}",
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": f"pkg:pypi/{one.name}@{one.version}",
                    "hashes": [{"alg": "SHA-256", "content": h} for h in one.hashes],
                }
            ],
        }
        if one.name in installed:
            component["licenses"] = [{"expression": licence_of(installed[one.name])}]
        components.append(component)
    own = {"type": "application", "name": "rowferry", "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**own, "licenses": [{"expression": "Apache-2.0"}]}},
        "components": components,
    }


def main() -> int:
    """Check, and write the bill of materials; 1: something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bill", type=Path, default=ROOT / "dist" / "rowferry.cdx.json")
    asked = parser.parse_args()
    lock = (ROOT / "requirements.lock").read_text()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    installed = {normal(d.metadata["Name"]): d for d in distributions()}
    wrong = faults(lock, installed)
    for line in wrong:
        print(line)
    made = bill(lock, installed, version)
    asked.bill.parent.mkdir(parents=True, exist_ok=True)
    asked.bill.write_text(json.dumps(made, indent=1) + "\n")
    print(f"{len(made['components'])} libraries; {len(wrong)} faults; {asked.bill}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
