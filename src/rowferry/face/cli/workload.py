"""`rowferry workload`: write to a reference store, to have something to capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from rowferry.errors import RowferryError

if TYPE_CHECKING:
    from rowferry.refstore.workload import Summary, Workload, WorkloadPace

app = typer.Typer(
    name="workload",
    help="Write to a reference store: money transfers, or every column type.",
    no_args_is_help=True,
)

Master = Annotated[str, typer.Option(help="The store's master, HOST:PORT.")]
Transactions = Annotated[int, typer.Option(min=0, help="Stop after so many; 0: no limit.")]
Seconds = Annotated[float, typer.Option(min=0, help="Stop after so long; 0: no limit.")]
Rate = Annotated[float, typer.Option(min=0, help="Transactions per second; 0: as many as go.")]
Threads = Annotated[int, typer.Option(min=1, max=64, help="Writers side by side.")]
Randomness = Annotated[int, typer.Option("--seed", help="Start of the random numbers.")]
Ranges = Annotated[int, typer.Option(min=1, help="Ranges of the table, if it is made.")]


@app.command()
def bank(
    master: Master,
    accounts: Annotated[int, typer.Option(min=2, help="How many, if the table is made.")] = 1000,
    transactions: Transactions = 0,
    seconds: Seconds = 0,
    rate: Rate = 0,
    threads: Threads = 2,
    randomness: Randomness = 0,
    ranges: Ranges = 4,
    database: Annotated[str, typer.Option(help="The database to use.")] = "bank",
) -> None:
    """Transfer money between random accounts; the total never changes."""
    from rowferry.refstore.workload import Bank

    _run(
        master,
        lambda: Bank(database, accounts),
        lambda: _pace(transactions, seconds, rate, threads, randomness),
        ranges,
    )


@app.command()
def mixed(
    master: Master,
    transactions: Transactions = 0,
    seconds: Seconds = 0,
    rate: Rate = 0,
    threads: Threads = 2,
    randomness: Randomness = 0,
    ranges: Ranges = 4,
    database: Annotated[str, typer.Option(help="The database to use.")] = "mixed",
) -> None:
    """Insert, update, delete and re-key rows of a table with every column type."""
    from rowferry.refstore.workload import Mixed

    _run(
        master,
        lambda: Mixed(database),
        lambda: _pace(transactions, seconds, rate, threads, randomness),
        ranges,
    )


def _pace(
    transactions: int, seconds: float, rate: float, threads: int, randomness: int
) -> WorkloadPace:
    from rowferry.refstore.workload import WorkloadPace

    return WorkloadPace(transactions, seconds, rate, threads, randomness)


def _run(
    master: str, workload: Callable[[], Workload], pace: Callable[[], WorkloadPace], ranges: int
) -> None:
    from rowferry.refstore.client import Store
    from rowferry.refstore.workload import run

    try:
        asked, work = pace(), workload()
        with Store(master) as store:
            work.create(store, ranges)
            with _progress(asked) as tick:
                done = run(store, work, asked, tick)
    except RowferryError as err:
        typer.echo(str(err), err=True)
        raise typer.Exit(1) from None
    per_second = done.committed / done.seconds if done.seconds else 0.0
    typer.echo(
        f"{work.table}: {done.committed} transactions, {done.rows} rows changed, "
        f"{done.aborted} tries aborted, {done.seconds:.1f} s, {per_second:.0f} transactions/s, "
        f"last commit-ts {done.last_commit_ts}"
    )
    if done.failures:
        typer.echo(done.failures[0], err=True)
        raise typer.Exit(1)


@contextmanager
def _progress(asked: WorkloadPace) -> Iterator[Callable[[Summary], None]]:
    """Give a function that shows how far a run is, on a terminal only."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        total = asked.transactions or asked.seconds
        bar = progress.add_task("writing", total=total)

        def tick(done: Summary) -> None:
            reached = done.committed if asked.transactions else done.seconds
            words = f"{done.committed} transactions, {done.aborted} tries aborted"
            progress.update(bar, completed=reached, description=words)

        yield tick
