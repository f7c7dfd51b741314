"""`rowferry table`: tables as they were, from the change files of a storage sink."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.table import TableId
from rowferry.downstream.rebuild.stored_feed import open_storage
from rowferry.downstream.rebuild.table import TablePlan, plan_tables
from rowferry.errors import BadOption
from rowferry.face.cli.options.address import given_address
from rowferry.face.cli.options.spark import SparkMaster
from rowferry.face.cli.output import consoles
from rowferry.flow.sink.storage.paths import escape
from rowferry.secrets.environment import sources_of_environment
from rowferry.spark.rebuild_table import Rebuilt, TableJob, opened_job


def table_command(
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            callback=given_address,
            help="Where a changefeed wrote, e.g. file:///data/changes",
        ),
    ],
    table: Annotated[
        str, typer.Option(help="database.table, as the files name it; default: all")
    ] = "",
    as_of: Annotated[
        str, typer.Option(help="A commit-ts, or a time such as 2026-01-31T12:00:00.123Z")
    ] = "",
    to: Annotated[
        Path | None, typer.Option(help="Write Parquet to <folder>/<database>/<table>")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The changefeed's settings")] = None,
    protocol: Annotated[
        str, typer.Option(help="csv or canal-json; default: as the files are named")
    ] = "",
    key: Annotated[
        str, typer.Option(help="Columns that name a row, where schema files tell no primary key")
    ] = "",
    native_times: Annotated[
        bool, typer.Option("--native-times", help="Dates and times as Spark's types, not as text")
    ] = False,
    show: Annotated[int, typer.Option(help="How many rows are printed without --to")] = 20,
    spark_master: SparkMaster = "local[*]",
) -> None:
    """Rebuild a table, or all, and print its first rows and count, or write it as Parquet."""
    out, err = consoles()
    names = [_table_name(table)] if table else []
    feed = open_storage(from_, config, protocol, sources_of_environment())
    columns = [c.strip() for c in key.split(",") if c.strip()]
    plans = plan_tables(feed, names, commit_ts(as_of) if as_of else None, columns)
    if to is not None:
        _refuse_full(to, plans)
    if not plans:
        err.print("the storage holds no table", style="yellow")
        return
    with tempfile.TemporaryDirectory("-rowferry-table") as logs:
        with opened_job(Path(logs), spark_master) as job, _progress(err, job) as progress:
            rebuilt = _rebuilt(job, plans, to, show, native_times)
            for done in progress.track(rebuilt, len(plans)):
                _tell(out, done, to)


def commit_ts(text: str, name: str = "--as-of") -> int:
    """Read a commit-ts, or a time: then the last commit-ts of its millisecond.

    Raises:
        BadOption: it is neither.
    """
    if text.isdecimal() and 0 < int(text) < 1 << 63:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"{name} {text!r}: allowed: a commit-ts, or a time such as 2026-01-31T12:00:00.123Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000
    return (round(milliseconds) + 1 << PHYSICAL_SHIFT) - 1


def _table_name(text: str) -> TableId:
    database, dot, name = text.partition(".")
    if not (database and dot and name):
        raise BadOption(f"--table {text!r}: write it as database.table")
    return TableId(database, name)


def _folder(to: Path, table: TableId) -> Path:
    return to.absolute() / escape(table.database) / escape(table.table)


def _refuse_full(to: Path, plans: list[TablePlan]) -> None:
    for plan in plans:
        folder = _folder(to, plan.lineage.table)
        if folder.exists():
            raise BadOption(f"--to {to}: {folder} is there already; name another folder")


def _rebuilt(
    job: TableJob, plans: list[TablePlan], to: Path | None, show: int, native_times: bool
) -> Iterator[Rebuilt]:
    if to is None:
        return job.show(plans, show, native_times)
    folders = [_folder(to, plan.lineage.table) for plan in plans]
    return job.write(plans, folders, native_times)


class _TasksColumn(ProgressColumn):
    """How far the tables under way are, in Spark's tasks."""

    max_refresh = 0.5

    def __init__(self, job: TableJob) -> None:
        super().__init__()
        self._job = job

    def render(self, task: Task) -> Text:
        done, total = self._job.tasks()
        return Text(f"{done}/{total} tasks" if total else "", "dim")


def _progress(console: Console, job: TableJob) -> Progress:
    """Return a bar on a terminal, and nothing when piped."""
    return Progress(
        TextColumn("rebuilding"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tables"),
        TimeElapsedColumn(),
        _TasksColumn(job),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _tell(out: Console, done: Rebuilt, to: Path | None) -> None:
    plan, name = done.plan, str(done.plan.lineage.table)
    words = f"{done.count:,} rows"
    if to is None:
        _print(out, done, name)
    else:
        words += f" in {_folder(to, plan.lineage.table)}"
    at = f"as of {plan.as_of}" if plan.as_of is not None else "all that is visible"
    out.print(Text.assemble((name, "bold"), f": {words}, {at}"), soft_wrap=True)


def _print(out: Console, done: Rebuilt, name: str) -> None:
    columns = [c.name for c in done.plan.schema.visible]
    if out.is_terminal:
        shown = Table(title=name, title_justify="left")
        for column in columns:
            shown.add_column(column)
        for row in done.rows:
            shown.add_row(*(_cell(value) for value in row))
        out.print(shown)
    else:
        out.file.write("\t".join(columns) + "\n")
        for row in done.rows:
            out.file.write("\t".join(_cell(value).plain for value in row) + "\n")


def _cell(value: object) -> Text:
    if value is None:
        return Text("NULL", "dim")
    if isinstance(value, bytes | bytearray):
        return Text(f"0x{bytes(value).hex()}")
    return Text(str(value))
