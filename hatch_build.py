"""Generates the gRPC stubs from proto/ when the package is built or installed for development."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


class ProtoStubs(BuildHookInterface):  # type: ignore[type-arg]
    """Runs protoc into src/rowferry/wire before files are collected."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the stubs; a failing protoc ends the build."""
        subprocess.run([sys.executable, str(ROOT / "proto" / "generate.py")], check=True)
