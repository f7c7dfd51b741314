"""`rowferry run`: one changefeed in one process, no server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from rowferry import __version__
from rowferry.errors import BadOption, NothingMatches
from rowferry.face.cli.options.address import given_address, given_meta
from rowferry.face.cli.options.secrets import SecretKeyFile, given_keys
from rowferry.face.cli.options.settings import given_config, table_rules
from rowferry.face.cli.options.spark import (
    SparkConf,
    SparkMaster,
    read_settings,
    settings_with_secrets,
)
from rowferry.face.cli.output import consoles, counted
from rowferry.face.cli.signals import stop_on_signal

if TYPE_CHECKING:  # imported when needed: the first line must not wait for them
    from rich.console import Console

    from rowferry.control.feed.supervise import Until
    from rowferry.face.cli.progress.run_view import RunView

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
        str | None,
        typer.Option(
            help="Settings with TiCDC's key names: .toml, .yaml or .json; - is standard input"
        ),
    ] = None,
    config_type: Annotated[
        str | None, typer.Option(help="Of --config -: toml, yaml or json")
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(help="Capture this table, database.table or db.*; may be repeated"),
    ] = None,
    filter_rule: Annotated[
        list[str] | None,
        typer.Option("--filter", help="A filter rule, such as !db.log*; may be repeated"),
    ] = None,
    settings_given: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any option: key=value, with dots as in a file; repeatable"),
    ] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Run, though the filter fits no table yet")
    ] = False,
    changefeed_id: Annotated[
        str | None,
        typer.Option("-c", "--changefeed-id", help="Its name; default: made from source and sink"),
    ] = None,
    meta: Annotated[
        str | None,
        typer.Option(
            envvar="ROWFERRY_META",
            callback=given_meta,
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
    secret_key_file: SecretKeyFile = None,
    spark_master: SparkMaster = "local[*]",
    spark_conf: SparkConf = None,
    spark_only: Annotated[
        bool,
        typer.Option("--spark-only", help="Rows pass Spark's tasks only, never this process"),
    ] = False,
    log_max_mb: Annotated[
        int, typer.Option(help="A log file that is larger is put aside, another one begun", min=1)
    ] = 20,
    log_files: Annotated[
        int, typer.Option(help="How many log files are kept beside the present one", min=0)
    ] = 5,
) -> None:
    """Run one changefeed until stopped (Ctrl-C), caught up, or at a commit-ts.

    Ctrl-C stops between micro-batches; the next run goes on where this one ended.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")  # Spark's Java is started later
    out, err = consoles()
    answer = _Answer(out)
    with stop_on_signal(answer.tell) as stop:
        out.print(f"rowferry {__version__}: asking source and sink", markup=False, soft_wrap=True)
        when, spark_settings = _until(until, until_ts), read_settings(spark_conf or [])
        rules = table_rules(table or (), filter_rule or ())
        settings = given_config(config, config_type, settings_given or (), rules)
        beginning = {
            "snapshot": snapshot,
            "start-ts": start_ts,
            "start-position": start_position,
            "start-gtid": start_gtid,
        }
        # Imported here: a wrong word on the command line should not wait for libraries.
        from rowferry.columnar.lean_arrow import look_for_no_pandas

        look_for_no_pandas()
        from rowferry.control.feed.service import (
            RunListener,
            RunSettings,
            prepare,
            run,
            stored_spec,
        )
        from rowferry.face.cli.progress.run_view import RunView
        from rowferry.face.cli.warm import compile_kernels
        from rowferry.face.log_file import LogLimits, log_to_file
        from rowferry.secrets.environment import sources_of_environment

        work_dir = WORK_DIR.absolute()
        keys, secrets = given_keys(secret_key_file), sources_of_environment()
        spark_settings = settings_with_secrets(spark_settings, secrets)

        def meta_url(name: str) -> str:
            return meta or f"sqlite:///{work_dir / (name + '.db')}"

        ready = prepare(
            _with_parameters(source, beginning),
            _with_parameters(sink_uri, {"schema-registry": schema_registry}),
            settings,
            changefeed_id,
            stored=lambda name: stored_spec(meta_url(name), name, keys),
            secrets=secrets,
        )
        if ready.unmatched and not allow_empty:
            raise NothingMatches(ready.unmatched)
        for notice in ready.notices:
            err.print(f"note: {notice}", markup=False, soft_wrap=True)
        name = ready.spec.changefeed_id
        if not meta:
            work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        log_to_file(work_dir / "logs" / f"{name}.log", LogLimits(log_max_mb, log_files))
        out.print(
            f"changefeed {name}: {counted(len(ready.tables), 'table')} from {ready.spec.source} "
            f"to {ready.spec.sink}",
            markup=False,
            soft_wrap=True,
        )
        if not stop.is_set():
            compile_kernels(out)
        with RunView(out, name) as view:
            answer.view = view
            if not stop.is_set():
                run(
                    ready,
                    RunSettings(
                        meta_url=meta_url(name),
                        work_dir=work_dir,
                        spark_master=spark_master,
                        spark_settings=spark_settings,
                        spark_only=spark_only,
                        keys=keys,
                        secrets=secrets,
                    ),
                    when,
                    stop,
                    RunListener(
                        on_step=view.step,
                        on_fault=view.fault,
                        on_phase=view.phase,
                        on_progress=view.progress,
                    ),
                )
    done = "stopped" if stop.is_set() else "done"
    out.print(f"{done}: {view.summary()}", markup=False, soft_wrap=True)


class _Answer:
    """What is said at the first Ctrl-C, at once: that it was heard, and what will come."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self.view: RunView | None = None

    def tell(self) -> None:
        """Say it."""
        if self.view is None:
            words = "stopping: nothing has begun"
        elif self.view.is_starting:
            words = "stopping before anything is begun"
        else:
            words = "stopping after this micro-batch"
        self._out.print(f"{words}; again to stop now", markup=False, soft_wrap=True)


def _with_parameters(uri: str, given: dict[str, str | int | None]) -> str:
    """Return a URI with further parameters; one that it has already is refused later."""
    more = "&".join(f"{key}={quote(str(v), safe='')}" for key, v in given.items() if v is not None)
    if not more:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}{more}"


def _until(until: str | None, until_ts: int | None) -> Until:
    from rowferry.control.feed.supervise import Until

    if until is not None and until != "caught-up":
        raise BadOption(
            f"--until {until!r}: the only allowed word is caught-up (or use --until-ts)"
        )
    if until is not None and until_ts is not None:
        raise BadOption("--until and --until-ts cannot be used together")
    if until_ts is not None and until_ts <= 0:
        raise BadOption(f"--until-ts {until_ts}: must be a commit-ts, a positive whole number")
    return Until(caught_up=until is not None, commit_ts=until_ts)
