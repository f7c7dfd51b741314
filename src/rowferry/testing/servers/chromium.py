"""Chromium without a screen, for tests of the web page; Debian's packages, as the servers are."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.packages import Packages, locked

PACKAGES: Final = Packages(
    "chromium", "bookworm", ("chromium-headless-shell", "fonts-inter", "fonts-dejavu-core")
)
_FONTS: Final = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
<dir>{root}/usr/share/fonts</dir>
<cachedir>{root}/var/cache/fontconfig</cachedir>
<alias><family>system-ui</family><prefer><family>Inter</family></prefer></alias>
<alias><family>sans-serif</family><prefer><family>Inter</family></prefer></alias>
<alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


class Chromium:
    """The program that a test's browser is."""

    @classmethod
    def ensure(cls) -> Path:
        """Return a program that starts it, with the libraries and fonts that were unpacked with it.

        Raises:
            SourceUnavailable: it cannot be had here.
        """
        root = PACKAGES.ensure()
        program = root.parent / "chromium"
        with locked(PACKAGES.name):
            _write_program(program, root)  # anew each time: the folder may have been moved
        return program


def _write_program(program: Path, root: Path) -> None:
    """Write a script: the browser starts copies of itself, so it must be found without a loader."""
    programs = sorted(root.glob("usr/lib/chromium/*headless*shell"))
    if not programs:
        raise SourceUnavailable(f"{root}: the packages hold no headless Chromium")
    fonts = program.with_name("fonts.conf")
    fonts.write_text(_FONTS.format(root=root))
    # The machine's own libraries come first: its C library must fit the loader that the kernel
    # takes, and one that is as old as Debian's suite or newer serves all the others.
    own = [*root.glob("lib/*-linux-gnu"), *root.glob("usr/lib/*-linux-gnu")]
    names = dict.fromkeys(folder.name for folder in own)
    machine = [f"{top}/{name}" for top in ("/lib", "/usr/lib") for name in names]
    own += root.glob("usr/lib/*-linux-gnu/pulseaudio")
    part = program.with_name("chromium.part")
    part.write_text(
        "#!/bin/sh\n"
        f"export LD_LIBRARY_PATH={shlex.quote(':'.join([*machine, *map(str, own)]))}\n"
        f"export FONTCONFIG_FILE={shlex.quote(str(fonts))}\n"
        f'exec {shlex.quote(str(programs[0]))} "$@"\n'
    )
    part.chmod(0o755)
    os.replace(part, program)
