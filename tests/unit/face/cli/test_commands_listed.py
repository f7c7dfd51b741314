"""What the list of commands tells, without importing them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from rowferry.face.cli.main import PLACES, app

COMMANDS = typer.main.get_group(app).commands


@pytest.mark.parametrize("name", PLACES)
def test_a_listed_line_is_the_commands_own(name: str) -> None:
    first = (COMMANDS[name].help or "").split("\n\n")[0]
    assert " ".join(first.split()) == PLACES[name][1]


def test_the_list_imports_no_stage() -> None:
    """It should be there at once: within 0.4 s of a core, most of which is the shell's library."""
    program = (
        "import sys\n"
        "sys.argv = ['rowferry', '--help']\n"
        "from rowferry.face.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "loaded = {m.partition('.')[0] for m in sys.modules}\n"
        "ours = {m for m in sys.modules if m.startswith('rowferry.')}\n"
        "print(sorted(loaded & {'pyspark', 'pyarrow', 'numba', 'sqlalchemy', 'urllib3', 'yaml'}))\n"
        "stages = ('flow', 'control', 'spark', 'spec')\n"
        "print(sorted(m for m in ours if m.split('.')[1] in stages))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == ["[]", "[]"]
    assert "check-storage" in done.stdout
