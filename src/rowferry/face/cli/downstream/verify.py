"""`rowferry verify`: whether two places hold the same tables."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rowferry.downstream.verify.masks import RowMasks
from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.repair import RepairFile
from rowferry.downstream.verify.run import ComparisonRunner, TableResult, VerifyRequest, verify
from rowferry.downstream.verify.side import DatabaseSide, Side, open_side
from rowferry.errors import BadInput, BadOption, OptionsConflict, RowferryError, SideChanges
from rowferry.face.cli.downstream.table import commit_ts
from rowferry.face.cli.downstream.verify_sync import SyncPoint, at_sync_point, beside_lake
from rowferry.face.cli.options.address import given_address
from rowferry.face.cli.options.spark import SparkMaster
from rowferry.face.cli.output import Printer, consoles, show_error
from rowferry.face.cli.remote.client import Access, with_access
from rowferry.secrets.environment import sources_of_environment
from rowferry.spark.verify_job import opened_verify

_MOST_SHOWN = 60  # characters of a cell


def _verify(
    access: Access,
    a: Annotated[
        str,
        typer.Argument(
            callback=given_address,
            help="What is right: mysql://…, mariadb://…, tidb://…, or "
            "where a changefeed wrote, e.g. file:///data/changes or delta+file:///data/lake",
        ),
    ],
    b: Annotated[str, typer.Argument(callback=given_address, help="What is compared with it")],
    tables: Annotated[
        list[str] | None, typer.Option(help="Filter rule of A's tables; may be given again")
    ] = None,
    route: Annotated[
        list[str] | None, typer.Option(help="'a.* -> b.*': where B has them; may be given again")
    ] = None,
    ignore_columns: Annotated[
        str, typer.Option(help="Columns that are not compared, with wildcards, by commas")
    ] = "",
    as_of: Annotated[
        str,
        typer.Option(help="Not of databases: a commit-ts, or a time, 2026-01-31T12:00:00Z"),
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option(help="Settings of the changefeed between A and B: its masks, its storage"),
    ] = None,
    chunk_rows: Annotated[int, typer.Option(help="Rows that are compared together")] = 100_000,
    online: Annotated[
        bool, typer.Option("--online", help="While a changefeed runs: read again what differs")
    ] = False,
    tries: Annotated[int, typer.Option(help="How often, with --online")] = 5,
    wait: Annotated[float, typer.Option(help="Seconds between tries, with --online")] = 2.0,
    sync_point: Annotated[
        bool, typer.Option("--sync-point", help="While a changefeed runs: compare at one moment")
    ] = False,
    changefeed: Annotated[
        str, typer.Option(help="The one that runs from A to B on a server, with --sync-point")
    ] = "",
    connections: Annotated[
        int, typer.Option(help="To a server that is read as of one moment, at most")
    ] = 4,
    hold_seconds: Annotated[
        int, typer.Option(help="How long it may stand still, with --sync-point")
    ] = 60,
    repair: Annotated[
        Path | None, typer.Option(help="Write statements that make B equal to A")
    ] = None,
    show: Annotated[int, typer.Option(help="Rows of each kind that are printed per table")] = 10,
    output: Annotated[str, typer.Option(help="table or json")] = "table",
    spark_master: SparkMaster = "local[*]",
) -> None:
    """Compare the tables of A and B. Exit code: 0 equal, 1 different, 2 it cannot be said."""
    try:
        printer = Printer(output)
        _check_numbers(chunk_rows, tries, wait, show, connections)
        request = VerifyRequest(
            Names.of(tables or (), route or ()),
            tuple(name.strip() for name in ignore_columns.split(",") if name.strip()),
            chunk_rows,
            tries if online else 1,
            wait,
            show,
            repair is not None,
        )
        moment = commit_ts(as_of) if as_of else None
        secrets = sources_of_environment()
        sides = [open_side(uri, chunk_rows, moment, config, secrets) for uri in (a, b)]
        if isinstance(sides[0], DatabaseSide):
            sides[0].masks = RowMasks.of_file(config, secrets)
        _check_sides(sides, moment, repair)
        runner: AbstractContextManager[ComparisonRunner] = _opened_spark(spark_master)
        if sync_point:
            if moment is not None or online:
                raise OptionsConflict("--sync-point takes neither --as-of nor --online")
            at = SyncPoint(access, changefeed, connections, hold_seconds)
            runner = at_sync_point(sides, at, runner, printer)
        elif not online:
            runner = beside_lake(sides, connections, runner, printer)
        equal = _compared(printer, sides, request, repair, runner)
    except RowferryError as err:
        show_error(consoles()[1], err)
        raise typer.Exit(2) from None
    if not equal:
        raise typer.Exit(1)


verify_command = with_access(_verify)


@contextmanager
def _opened_spark(spark_master: str) -> Iterator[ComparisonRunner]:
    """Start Spark for a comparison."""
    with tempfile.TemporaryDirectory("-rowferry-verify") as logs:
        with opened_verify(Path(logs), spark_master) as runner:
            yield runner


def _compared(
    printer: Printer,
    sides: list[Side],
    request: VerifyRequest,
    repair: Path | None,
    opened: AbstractContextManager[ComparisonRunner],
) -> bool:
    results: list[TableResult] = []
    with _repair_file(repair) as file:
        with opened as runner:
            for result in verify(sides[0], sides[1], request, runner):
                if file is not None and result.repair is not None:
                    file.add(result.repair)
                results.append(replace(result, repair=None))
                if not printer.as_json:
                    _tell(printer.out, result)
        if not results:
            raise BadInput(f"{sides[0]} holds no table that could be compared; check --tables")
    equal = all(result.is_equal for result in results)
    unknown = [r.name for r in results if r.is_changing and not r.online]
    if printer.as_json:
        printer.value({"equal": equal, "tables": [r.to_json() for r in results]})
    else:
        _summary(printer.out, results)
    if unknown and all(r.is_equal or r.is_changing for r in results):
        names = ", ".join(map(str, unknown))
        raise SideChanges(f"{names}: written to while it was compared; use --online")
    return equal


def _check_numbers(chunk_rows: int, tries: int, wait: float, show: int, connections: int) -> None:
    for name, value, least in (
        ("chunk-rows", chunk_rows, 1),
        ("tries", tries, 1),
        ("wait", wait, 0),
        ("show", show, 0),
        ("connections", connections, 1),
    ):
        if value < least:
            raise BadOption(f"--{name} {value}: allowed: {least} or more")


def _check_sides(sides: list[Side], as_of: int | None, repair: Path | None) -> None:
    if as_of is not None and all(side.is_database for side in sides):
        raise OptionsConflict("--as-of is for storages and lakes; a database is read as it is now")
    if repair is not None and not sides[1].is_database:
        raise OptionsConflict(f"--repair writes SQL, and {sides[1]} is no database")


@contextmanager
def _repair_file(path: Path | None) -> Iterator[RepairFile | None]:
    if path is None:
        yield None
        return
    with closing(RepairFile(path)) as file:
        try:
            yield file
        except RowferryError:
            path.unlink(missing_ok=True)  # half of a repair helps nobody
            raise


# --- what people see -----------------------------------------------------------------------------


def _tell(out: Console, result: TableResult) -> None:
    name = str(result.name)
    if result.target != result.name:
        name += f" → {result.target}"
    word, style = _verdict(result)
    out.print(Text.assemble((name, "bold"), ": ", (word, style), _details(result)), soft_wrap=True)
    if result.samples:
        _samples(out, result.samples)


def _verdict(result: TableResult) -> tuple[str, str]:
    """Return the word for a table and its colour; what was not counted alike is never equal."""
    if result.is_changing:
        return ("in step", "green") if result.online else ("changing", "bold yellow")
    return ("equal", "green") if result.is_equal else ("different", "bold red")


def _details(result: TableResult) -> str:
    if result.missing:
        return f", {result.missing.upper()} has no such table"
    a, b = (f"{count:,}" if count is not None else "?" for count in result.rows)
    words = [f"{a} rows" if a == b else f"{a} rows in A, {b} in B"]
    for count, what in zip(
        (*result.only, result.changed), ("only in A", "only in B", "changed"), strict=True
    ):
        words += [f"{count:,} {what}"] if count else []
    if result.columns:
        columns = sorted(result.columns.items(), key=lambda item: (-item[1], item[0]))
        words.append("columns " + ", ".join(f"{name} ({count:,})" for name, count in columns))
    for names, what in zip(result.lone, "AB", strict=True):
        words += [f"columns only in {what}: {', '.join(names)}"] if names else []
    words += [f"after {result.tries} tries"] if result.tries > 1 else []
    if result.is_changing:
        words.append("a side was written to meanwhile, and no row differs")
        words += [] if result.online else ["stop the writers, or use --online"]
    return ", " + "; ".join(words)


def _samples(out: Console, samples: list[dict[str, Any]]) -> None:
    rows = [
        (s["kind"].replace("_", " "), _pairs(s["key"]), _pairs(s.get("a")), _pairs(s.get("b")))
        for s in samples
    ]
    if not out.is_terminal:
        for row in rows:
            out.file.write("  " + "\t".join(row).rstrip() + "\n")
        return
    table = Table(padding=(0, 1))
    for column in ("row", "key", "A", "B"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)


def _pairs(values: dict[str, Any] | None) -> str:
    if not values:
        return ""
    return ", ".join(f"{name}={_cell(value)}" for name, value in values.items())


def _cell(value: Any) -> str:
    text = "NULL" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


def _summary(out: Console, results: list[TableResult]) -> None:
    different = sum(not result.is_equal and not result.is_changing for result in results)
    changing = sum(result.is_changing for result in results)
    words = f"{len(results)} tables compared, " if len(results) != 1 else "1 table compared, "
    kinds = [f"{different} different"] if different else []
    kinds += [f"{changing} written to meanwhile"] if changing else []
    out.print(words + (", ".join(kinds) or "all equal"), soft_wrap=True)
