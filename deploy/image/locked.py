"""Prints the entries of a lock file for the packages that another file names.

python3 locked.py requirements.lock names.txt
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?\s*(?:==|@|;|$)")


def entries(lock: str) -> dict[str, str]:
    """Return a lock file's entries, with their hashes, by the names of packages.

    A package may have several, each for other versions of Python.
    """
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", lock.strip()):
        name = _NAME.match(entry)
        if name:
            same = found.get(_plain(name[1]))
            found[_plain(name[1])] = f"{same}\n{entry}" if same else entry
    return found


def names(text: str) -> list[str]:
    """Return the packages that lines of `name==version` name."""
    lines = [line.strip() for line in text.splitlines()]
    return [_plain(m[1]) for line in lines if line[:1] != "#" and (m := _NAME.match(line))]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Print the entries; a package that the lock file does not have ends it."""
    lock, wanted = (Path(file).read_text() for file in sys.argv[1:3])
    known = entries(lock)
    for name in names(wanted):
        if name not in known:
            sys.exit(f"{sys.argv[1]} does not name {name}: run `make lock`")
        print(known[name])


if __name__ == "__main__":
    main()
