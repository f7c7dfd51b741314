"""`rowferry run`: one changefeed in one process, no server."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from rowferry.control.feed.service import RunListener, RunSettings, prepare, run, stored_spec
from rowferry.control.feed.supervise import Until
from rowferry.errors import BadOption
from rowferry.face.cli.given_address import given_address
from rowferry.face.cli.output import RunView, consoles, counted
from rowferry.face.cli.signals import stop_on_signal
from rowferry.face.cli.spark_options import SparkConf, SparkMaster, read_settings
from rowferry.face.cli.warm import compile_kernels
from rowferry.face.json_log import PlainFormatter

WORK_DIR = Path(".rowferry")


def run_command(
    source: Annotated[
        str,
        typer.Option(
            callback=given_address,
            help="Where to read: mysql://…, mariadb://… or range://HOST:PORT; or @FILE, env:NAME",
        ),
    ],
    sink_uri: Annotated[
        str,
        typer.Option(
            callback=given_address,
            help="Where to write: file:///dir?protocol=csv; or @FILE, env:NAME",
        ),
    ],
    config: Annotated[
        Path | None, typer.Option(help="Settings with TiCDC's key names: .toml, .yaml or .json")
    ] = None,
    changefeed_id: Annotated[
        str | None,
        typer.Option("-c", "--changefeed-id", help="Its name; default: made from source and sink"),
    ] = None,
    meta: Annotated[
        str | None,
        typer.Option(
            envvar="ROWFERRY_META",
            callback=given_address,
            help="Meta database; default: sqlite:///.rowferry/<changefeed id>.db",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="`caught-up`: end when everything present was delivered")
    ] = None,
    until_ts: Annotated[
        int | None, typer.Option(help="End when everything up to this commit-ts was delivered")
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option(help="Of MySQL and MariaDB: `initial`, `never` or `only`")
    ] = None,
    start_ts: Annotated[
        int | None, typer.Option(help="Begin in the log, behind this commit-ts; no snapshot")
    ] = None,
    start_position: Annotated[
        str | None, typer.Option(help="Begin in the log, at FILE:OFFSET; no snapshot")
    ] = None,
    start_gtid: Annotated[
        str | None, typer.Option(help="Begin in the log, behind these GTIDs; no snapshot")
    ] = None,
    schema_registry: Annotated[
        str | None, typer.Option(help="Of avro: the registry's address, http://HOST:PORT")
    ] = None,
    spark_master: SparkMaster = "local[*]",
    spark_conf: SparkConf = None,
) -> None:
    """Run one changefeed until stopped (Ctrl-C), caught up, or at a commit-ts.

    Ctrl-C stops between micro-batches; the next run goes on where this one ended.
    """
    out, err = consoles()
    when, spark_settings = _until(until, until_ts), read_settings(spark_conf or [])
    work_dir = WORK_DIR.absolute()

    def meta_url(name: str) -> str:
        return meta or f"sqlite:///{work_dir / (name + '.db')}"

    beginning = {
        "snapshot": snapshot,
        "start-ts": start_ts,
        "start-position": start_position,
        "start-gtid": start_gtid,
    }
    ready = prepare(
        _with_parameters(source, beginning),
        _with_parameters(sink_uri, {"schema-registry": schema_registry}),
        config,
        changefeed_id,
        stored=lambda name: stored_spec(meta_url(name), name),
    )
    for notice in ready.notices:
        err.print(f"note: {notice}", markup=False, soft_wrap=True)
    name = ready.spec.changefeed_id
    settings = RunSettings(
        meta_url=meta_url(name),
        work_dir=work_dir,
        spark_master=spark_master,
        spark_settings=spark_settings,
    )
    if not meta:
        work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    _log_to(work_dir / "logs", name)
    out.print(
        f"changefeed {name}: {counted(len(ready.tables), 'table')} from {ready.spec.source} "
        f"to {ready.spec.sink}",
        markup=False,
        soft_wrap=True,
    )
    compile_kernels(out)
    with RunView(out, name) as view, stop_on_signal() as stop:
        run(
            ready,
            settings,
            when,
            stop,
            RunListener(on_step=view.step, on_fault=view.fault, on_phase=view.phase),
        )
    done = "stopped" if stop.is_set() else "done"
    out.print(f"{done}: {view.summary()}", markup=False, soft_wrap=True)


def _with_parameters(uri: str, given: dict[str, str | int | None]) -> str:
    """Return a URI with further parameters; one that it has already is refused later."""
    more = "&".join(f"{key}={quote(str(v), safe='')}" for key, v in given.items() if v is not None)
    if not more:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}{more}"


def _until(until: str | None, until_ts: int | None) -> Until:
    if until is not None and until != "caught-up":
        raise BadOption(
            f"--until {until!r}: the only allowed word is caught-up (or use --until-ts)"
        )
    if until is not None and until_ts is not None:
        raise BadOption("--until and --until-ts cannot be used together")
    if until_ts is not None and until_ts <= 0:
        raise BadOption(f"--until-ts {until_ts}: must be a commit-ts, a positive whole number")
    return Until(caught_up=until is not None, commit_ts=until_ts)


def _log_to(folder: Path, name: str) -> None:
    """Send our own log lines to a file; the terminal shows only the progress."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / f"{name}.log"
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
    lines = logging.FileHandler(file)
    lines.setFormatter(PlainFormatter())
    logging.basicConfig(handlers=[lines], level=logging.INFO, force=True)
    for chatty in ("py4j", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
