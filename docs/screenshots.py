"""Takes the pictures of the web page anew: `.venv/bin/python docs/screenshots.py`.

A browser looks at a server whose meta database a test fills; docs/images keeps what the docs show.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
TESTS = ROOT / "tests" / "integration" / "control"
ROLES = "test_each_role_sees_what_it_may_do"
TRACE = "test_the_page_has_a_panel"
# Of these the docs have both widths and both themes; of the others the pictures that web.md names.
PAGES = ("list", "changefeed", "servers", "new", "pick", "change", "reset", "sql")
PAGES += ("quarantine", "trace")


def main() -> int:
    """Take all pictures, keep those that the docs show, and name them."""
    named = (ROOT / "docs" / "web.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        suites = [str(TESTS / "test_web_pictures.py"), f"{TESTS / 'test_web_page.py'}::{ROLES}"]
        suites += [f"{TESTS / 'test_trace_page.py'}::{TRACE}"]
        command = [sys.executable, "-m", "pytest", "-q", *suites]
        code = subprocess.call(
            command, cwd=ROOT, env={**os.environ, "ROWFERRY_SCREENSHOTS": folder}
        )
        if code:
            return code
        for old in IMAGES.glob("web-*.png"):
            old.unlink()
        for picture in sorted(Path(folder).glob("web-*.png")):
            if picture.stem.split("-")[1] in PAGES or f"images/{picture.name}" in named:
                shutil.copy(picture, IMAGES / picture.name)
                print(f"docs/images/{picture.name}: {picture.stat().st_size // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
