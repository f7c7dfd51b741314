"""`rowferry doctor`: what a changefeed needs, checked before there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rowferry.face.cli.options.address import given_address
from rowferry.face.cli.options.settings import given_config, table_rules
from rowferry.face.cli.output import Printer
from rowferry.face.cli.run import WORK_DIR


def doctor_command(
    source: Annotated[
        str, typer.Argument(callback=given_address, help="Where to read, as for run --source")
    ],
    sink_uri: Annotated[
        str, typer.Argument(callback=given_address, help="Where to write, as for run --sink-uri")
    ],
    config: Annotated[Path | None, typer.Option(help="Settings: .toml, .yaml or .json")] = None,
    table: Annotated[
        list[str] | None, typer.Option(help="Capture this table; may be repeated")
    ] = None,
    settings_given: Annotated[
        list[str] | None, typer.Option("--set", help="Any option: key=value; may be repeated")
    ] = None,
    output: Annotated[str, typer.Option(help="table or json")] = "table",
) -> None:
    """Check what a changefeed from SOURCE to SINK needs, and say what helps; writes nothing.

    Exit code: 0 all is well, or there are only warnings; 1 something is missing.
    """
    # Imported here: it knows every stage.
    from rowferry.control.operator.checks.health import FAILED, OK, examine_all
    from rowferry.secrets.environment import sources_of_environment

    out = Printer(output)
    settings = given_config(
        str(config) if config else None, None, settings_given or (), table_rules(table or (), ())
    )
    checks = []
    with out.err.status("checking") as status:
        secrets = sources_of_environment()
        for health in examine_all(source, sink_uri, settings, WORK_DIR.absolute(), secrets):
            checks.append(health)
            status.update(f"checked: {health.check}")
    names = ("check", "result", "words", "cure")
    value = [{name: getattr(health, name) for name in names} for health in checks]
    rows = [(h.check, h.result, h.words, h.cure or None) for h in checks]
    out.answer(value, ("check", "result", "what was found", "what helps"), rows)
    failed = sum(h.result == FAILED for h in checks)
    warned = sum(h.result not in (OK, FAILED) for h in checks)
    out.err.print(
        f"{len(checks)} checks: {failed} failed, {warned} warnings", markup=False, soft_wrap=True
    )
    raise typer.Exit(1 if failed else 0)
