"""Writes the gRPC stubs of proto/*.proto into src/rowferry/wire (git ignores them)."""

import sys
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).parent
OUT = HERE.parent / "src" / "rowferry" / "wire"


def main() -> int:
    """Generate all stubs; returns protoc's exit code."""
    files = sorted(str(p.relative_to(HERE)) for p in HERE.glob("rowferry/wire/*.proto"))
    include = str(resources.files("grpc_tools") / "_proto")
    return int(
        protoc.main(
            [
                "protoc",
                f"-I{HERE}",
                f"-I{include}",
                f"--python_out={OUT.parent.parent}",
                f"--pyi_out={OUT.parent.parent}",
                f"--grpc_python_out={OUT.parent.parent}",
                *files,
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
