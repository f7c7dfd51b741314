"""`rowferry init`: a sample configuration to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rowferry.errors import BadOption
from rowferry.face.cli.output import consoles


def init_command(
    source: Annotated[str, typer.Option(help="The scheme of the source's URI, such as mysql")],
    sink: Annotated[str, typer.Option(help="The scheme of the sink's URI, such as kafka")],
    file: Annotated[
        str, typer.Argument(help="Where to write it; - is standard output")
    ] = "rowferry.toml",
    protocol: Annotated[
        str, typer.Option(help="The format of the output, where the sink needs one")
    ] = "",
    table: Annotated[
        list[str] | None, typer.Option(help="A table to capture, or db.*; may be repeated")
    ] = None,
) -> None:
    """Write a commented sample configuration; every key in it has its default."""
    from rowferry.control.operator.settings.sample import sample_settings

    out, _ = consoles()
    text = sample_settings(source, sink, protocol, table or [])
    if file == "-":
        out.file.write(text)
        return
    path = Path(file)
    if path.suffix != ".toml":
        raise BadOption(f"{file}: the sample is TOML; give the file that ending")
    try:
        with path.open("x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError:
        raise BadOption(f"{file} is there already; name another file") from None
    except OSError as err:
        raise BadOption(f"{file} cannot be written: {err.strerror or err}") from None
    out.print(
        f"wrote {path}: edit it, then rowferry run --source … --sink-uri … --config {path}",
        markup=False,
        soft_wrap=True,
    )
