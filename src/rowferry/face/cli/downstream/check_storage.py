"""`rowferry check-storage`: whether a storage directory is as the layout says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from rowferry.downstream.rebuild.stored_feed import open_storage
from rowferry.downstream.storage_check.check import check_storage
from rowferry.downstream.storage_check.expected import expected_of
from rowferry.downstream.storage_check.listing import Listing
from rowferry.downstream.storage_check.rules import Rule, StorageFindings
from rowferry.face.cli.options.address import given_address
from rowferry.face.cli.output import consoles, counted, size
from rowferry.secrets.environment import sources_of_environment


def check_storage_command(
    uri: Annotated[
        str,
        typer.Argument(
            callback=given_address, help="Where a changefeed wrote, e.g. file:///data/changes"
        ),
    ],
    protocol: Annotated[
        str, typer.Option(help="csv, canal-json or parquet; default: as files are named")
    ] = "",
    config: Annotated[
        Path | None, typer.Option(help="The changefeed's settings, e.g. of csv and dates")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON")] = False,
) -> None:
    """Check every path, index, metadata, schema and data file; exit code 1 if a rule is broken."""
    out, err = consoles()
    feed = open_storage(uri, config, protocol, sources_of_environment())
    with Progress(
        TextColumn("checking"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("data files"),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    ) as progress:
        task = progress.add_task("", total=None)
        findings = check_storage(
            Listing(feed.files),
            expected_of(feed.spec),
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    if as_json:
        out.file.write(json.dumps(_json(findings), ensure_ascii=False) + "\n")
    else:
        _show(out, findings)
    if findings.failed:
        raise typer.Exit(1)


def _show(out: Console, findings: StorageFindings) -> None:
    if findings.counts and out.is_terminal:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for head in ("rule", "times", "what must hold"):
            table.add_column(head, style="bold" if head == "rule" else "", no_wrap=head == "rule")
        for rule, count in _by_rule(findings):
            colour = "red" if rule.fails else "yellow"
            table.add_row(Text(rule.code, f"bold {colour}"), f"{count:,}", rule.promise)
        out.print(table)
    for rule, count in _by_rule(findings):
        mine = [v for v in findings.violations if v.rule is rule]
        for one in mine:
            mark = Text(one.rule.code, "red" if rule.fails else "yellow")
            out.print(
                Text.assemble(mark, "  ", (one.path, "bold"), f"  {one.words}"), soft_wrap=True
            )
        if count > len(mine):
            out.print(f"{rule.code}  … and {count - len(mine):,} more", markup=False)
    for words in findings.unchecked:
        out.print(Text(f"not checked: {words}", "dim"), soft_wrap=True)
    out.print(_summary(findings), soft_wrap=True)


def _summary(findings: StorageFindings) -> Text:
    files, rows = counted(findings.files, "data file"), counted(findings.rows, "row")
    words = f"{files}, {rows}, {size(findings.bytes)}: "
    if not findings.failed:
        return Text.assemble(words, ("no violation", "bold green"))
    rules = sum(1 for rule in findings.counts if rule.fails)
    verdict = f"{counted(findings.failed, 'violation')} of {counted(rules, 'rule')}"
    return Text.assemble(words, (verdict, "bold red"))


def _by_rule(findings: StorageFindings) -> list[tuple[Rule, int]]:
    return [(rule, findings.counts[rule]) for rule in Rule if findings.counts[rule]]


def _json(findings: StorageFindings) -> dict[str, object]:
    return {
        "files": findings.files,
        "rows": findings.rows,
        "bytes": findings.bytes,
        "violations": findings.failed,
        "rules": [
            {"rule": rule.code, "count": count, "fails": rule.fails, "promise": rule.promise}
            for rule, count in _by_rule(findings)
        ],
        "samples": [
            {"rule": v.rule.code, "path": v.path, "words": v.words} for v in findings.violations
        ],
        "unchecked": findings.unchecked,
    }
