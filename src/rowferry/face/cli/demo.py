"""`rowferry demo`: the whole line on this machine, from a store to files that are proved right."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.table import Table
from rich.tree import Tree

from rowferry.change.position import physical_ms
from rowferry.change.table import TableId
from rowferry.control.feed.loop import StepResult
from rowferry.control.feed.service import PreparedFeed, RunListener, RunSettings, prepare, run
from rowferry.control.feed.supervise import Until
from rowferry.downstream.rebuild.stored_feed import reopen
from rowferry.downstream.verify.lake import LakeSide
from rowferry.errors import RowferryError
from rowferry.face.cli.output import consoles, size
from rowferry.face.cli.warm import compile_kernels
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.refstore.workload import Bank, Mixed, WorkloadPace
from rowferry.refstore.workload import run as run_workload
from rowferry.testing.rebuild import TableDifferences
from rowferry.testing.verify import verify_stored

DEMO_DIR = Path(".rowferry/demo")
_PATIENCE_S = 180.0  # kernels are compiled before it begins


@dataclass
class _Meter:
    """What the changefeed reported."""

    rows: int = 0
    bytes: int = 0
    busy_s: float = 0.0
    watermark: int = 0
    lags_ms: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    phase: str = ""
    error: RowferryError | None = None

    def on_step(self, step: StepResult) -> None:
        if step.rows:
            self.busy_s += step.seconds
        self.rows += step.rows
        self.bytes += step.bytes
        if step.watermark > self.watermark:
            self.watermark = step.watermark
            self.lags_ms.append(int(time.time() * 1000) - physical_ms(step.watermark))

    def on_fault(self, error: RowferryError, wait_s: float) -> None:
        self.faults.append(str(error))

    def on_phase(self, words: str) -> None:
        self.phase = words


@dataclass(frozen=True)
class DemoLake:
    """A table of the lake, and what was read from it."""

    place: Path
    rows: pa.Table


def demo_command(
    folder: Annotated[
        Path, typer.Option(help="Where everything goes; emptied first if it was a demo's")
    ] = DEMO_DIR,
    accounts: Annotated[int, typer.Option(help="Rows of the bank table at the start")] = 100_000,
    seconds: Annotated[float, typer.Option(help="How long the workload writes")] = 12.0,
    protocol: Annotated[str, typer.Option(help="csv or canal-json")] = "csv",
) -> None:
    """Start a store, feed its changes to files while it changes, and prove the files right."""
    out, _ = consoles()
    _empty(folder)
    compile_kernels(out)  # first of all: the store's processes need them, too
    files = folder.absolute() / "files"
    with LocalCluster(folder / "store", data_servers=2) as cluster:
        bank, mixed = Bank("bank", accounts), Mixed("shop")
        with cluster.store() as store:
            _say(out, f"reference store: master at {cluster.master_address}, 2 data servers")
            bank.create(store, ranges=2)
            mixed.create(store, ranges=2)
            _say(out, f"{bank.table}: {accounts:,} rows in 2 ranges; {mixed.table}: all types")
            ready = prepare(
                f"range://{cluster.master_address}",
                f"file://{files}?protocol={protocol}&flush-interval=1s",
                config=_config(folder),
                changefeed_id="demo",
            )
            meter = _run_feed(out, ready, folder, store, bank, mixed, seconds)
            comparison = _verify(out, ready, store, [bank.table, mixed.table])
            lake = _lake(out, cluster.master_address, folder, bank)
            total = bank.total(store)
    _show_files(out, files)
    _show_figures(out, meter, comparison.equal)
    _show_lake(out, lake, bank.table, total)
    if not comparison.same:
        for line in str(comparison).splitlines():
            out.print(line, style="red", markup=False, soft_wrap=True)
        out.print("not verified", style="bold red")
        raise typer.Exit(1)
    out.print(f"verified: {comparison.equal:,} rows equal", style="bold green")


def _config(folder: Path) -> Path:
    """Write the changefeed's settings: commit-ts in csv rows, as a reader would want them."""
    path = folder / "changefeed.toml"
    path.write_text('[filter]\nrules = ["*.*"]\n\n[sink.csv]\ninclude-commit-ts = true\n')
    return path


def _empty(folder: Path) -> None:
    """Make the folder new; refuse to touch one that is not a demo's."""
    mark = folder / "demo"
    if folder.exists() and any(folder.iterdir()) and not mark.exists():
        raise typer.BadParameter(f"{folder} is not empty and no demo's folder", param_hint="folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mark.touch()


def _say(out: Console, words: str) -> None:
    out.print(f"[green]✓[/green] {words}")


def _run_feed(
    out: Console,
    ready: PreparedFeed,
    folder: Path,
    store: Store,
    bank: Bank,
    mixed: Mixed,
    seconds: float,
) -> _Meter:
    """Run the changefeed while the workload writes and the store is disturbed."""
    meter, stop = _Meter(), threading.Event()
    settings = RunSettings(f"sqlite:///{folder.absolute() / 'meta.db'}", folder.absolute())

    def feed() -> None:
        try:
            listener = RunListener(meter.on_step, meter.on_fault, meter.on_phase)
            run(ready, settings, Until(), stop, listener)
        except RowferryError as err:
            meter.error = err

    thread = threading.Thread(target=feed, name="changefeed")
    thread.start()
    try:
        _wait(out, meter, "snapshot", lambda: meter.watermark > 0)
        _say(out, f"snapshot: {meter.rows:,} rows, {size(meter.bytes)}")
        _disturb(out, store, bank, mixed, seconds)
        end = store.timestamp()
        _wait(out, meter, "catching up", lambda: meter.watermark >= end)
    finally:
        stop.set()
        thread.join()
    return meter


def _wait(out: Console, meter: _Meter, words: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    ) as progress:
        task = progress.add_task(words)
        while not done():
            if meter.error is not None:
                raise meter.error
            if time.monotonic() > deadline:
                last_fault = f"; last fault: {meter.faults[-1]}" if meter.faults else ""
                raise RowferryError(f"{words}: not done after {_PATIENCE_S:.0f} s{last_fault}")
            progress.update(task, description=f"{words} ({meter.phase}, {meter.rows:,} rows)")
            time.sleep(0.1)


def _disturb(out: Console, store: Store, bank: Bank, mixed: Mixed, seconds: float) -> None:
    """Write for a while; on the way add a column, split a range and move a leader."""
    pace = WorkloadPace(seconds=seconds, threads=2, rate=400)
    hands = [
        threading.Thread(target=run_workload, args=(store, work, pace, lambda summary: None))
        for work in (bank, mixed)
    ]
    for hand in hands:
        hand.start()
    steps: list[tuple[str, Callable[[], object]]] = [
        ("a column was added", lambda: _add_column(store, bank.table)),
        ("a range was split", lambda: store.split(store.ranges(bank.table)[0].range_id)),
        ("a leader was moved", lambda: store.move_leader(store.ranges(bank.table)[-1].range_id)),
    ]
    with Progress(
        TextColumn("writing"),
        BarColumn(),
        TextColumn("{task.description}"),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    ) as progress:
        task = progress.add_task("", total=seconds)
        for words, act in steps:
            _sleep(progress, task, seconds / (len(steps) + 1))
            act()
            _say(out, f"while writing: {words}")
        for hand in hands:
            hand.join()
        progress.update(task, completed=seconds)


def _sleep(progress: Progress, task: object, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        pause = min(left, 0.1)
        time.sleep(pause)
        progress.advance(task, pause)  # type: ignore[arg-type]


def _add_column(store: Store, table: TableId) -> None:
    store.ddl(f"ALTER TABLE `{table.database}`.`{table.table}` ADD COLUMN note varchar(20)")


def _verify(
    out: Console, ready: PreparedFeed, store: Store, tables: list[TableId]
) -> TableDifferences:
    _say(out, "the changefeed has stopped; rebuilding the tables from the files")
    return verify_stored(reopen(ready.spec), store, tables)


def _lake(out: Console, master: str, folder: Path, bank: Bank) -> DemoLake:
    """Deliver the bank's table once more, as a Delta table, and read that."""
    place = folder.absolute() / "lake"
    config = folder / "lake.toml"
    config.write_text(f'[filter]\nrules = ["{bank.table}"]\n')
    ready = prepare(f"range://{master}", f"delta+file://{place}", config, "demo-lake")
    settings = RunSettings(f"sqlite:///{folder.absolute() / 'meta.db'}", folder.absolute())
    run(ready, settings, Until(caught_up=True), threading.Event(), RunListener())
    _say(out, f"{bank.table} is a Delta table, too")
    side = LakeSide(f"delta+file://{place}", None)
    table = side.table(side.schemas(lambda name: name == bank.table)[bank.table])
    rows = pa.concat_tables(table.read(range(table.pieces), ["id", "owner", "balance"]))
    return DemoLake(place / bank.table.database / bank.table.table, rows)


# --- what there is to see ------------------------------------------------------------------------


def _show_files(out: Console, files: Path) -> None:
    tree = Tree(f"[bold]{files.name}/[/bold]")
    _branch(tree, files, depth=0)
    out.print(tree)
    schemas = sorted(files.glob("*/*/meta/schema_*.json"))
    data = sorted(p for p in files.glob("bank/*/*/**/CDC*") if p.suffix != ".index")
    kinds = [
        ("data file", next((p for p in reversed(data) if p.stat().st_size), None)),
        ("index file", next(iter(sorted(files.rglob("CDC.index"))), None)),
        ("schema file", schemas[-1] if schemas else None),
        ("metadata", files / "metadata"),
    ]
    for kind, path in kinds:
        if path is None or not path.exists():
            continue
        lines = path.read_text(errors="replace").splitlines()
        shown = "\n".join(line[:110] for line in lines[:4]) + ("\n…" if len(lines) > 4 else "")
        out.print(f"\n[bold]{kind}[/bold] [dim]{path.relative_to(files)}[/dim]", soft_wrap=True)
        out.print(Syntax(shown, "json" if path.suffix == ".json" else "text"))


def _show_lake(out: Console, lake: DemoLake, table: TableId, total: int) -> None:
    out.print(f"\n[bold]lake table[/bold] [dim]{lake.place}[/dim]", soft_wrap=True)
    first = lake.rows.sort_by("id").slice(0, 3)
    shown = Table(*first.column_names, box=None, padding=(0, 2))
    for row in first.to_pylist():
        shown.add_row(*map(str, row.values()))
    out.print(shown)
    balance = pc.sum(lake.rows.column("balance")).as_py()
    words = f"{lake.rows.num_rows:,} rows; the balances of {table} are {balance:,}"
    if balance != total:
        out.print(f"{words}, and in the store {total:,}", style="bold red")
        raise typer.Exit(1)
    out.print(f"{words}, as in the store. Read it yourself:")
    out.print(f'  deltalake.DeltaTable("{lake.place}")', markup=False, soft_wrap=True)


def _branch(tree: Tree, folder: Path, depth: int, most: int = 3) -> None:
    entries = sorted(p for p in folder.iterdir() if not p.name.startswith("rowferry."))
    shown = [p for p in entries if p.is_dir()] + [p for p in entries if p.is_file()]
    left_out = max(0, len(shown) - most) if depth > 2 else 0
    for path in shown[: len(shown) - left_out] if left_out else shown:
        if path.is_dir():
            _branch(tree.add(f"{path.name}/"), path, depth + 1)
        else:
            tree.add(f"{path.name} [dim]{size(path.stat().st_size)}[/dim]")
    if left_out:
        tree.add(f"[dim]… and {left_out} more[/dim]")


def _show_figures(out: Console, meter: _Meter, equal: int) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2))
    lags = sorted(meter.lags_ms)
    rate = meter.rows / meter.busy_s if meter.busy_s else 0.0
    volume = meter.bytes / meter.busy_s if meter.busy_s else 0.0
    table.add_row("delivered", f"{meter.rows:,} rows, {size(meter.bytes)}")
    table.add_row("throughput", f"{rate:,.0f} rows/s, {size(volume)}/s while there were rows")
    if lags:
        middle = lags[len(lags) // 2]
        table.add_row("lag", f"median {middle} ms, longest {lags[-1]} ms, at each checkpoint")
    if meter.faults:
        table.add_row("retried", f"{len(meter.faults)} times, last: {meter.faults[-1][:90]}")
    out.print()
    out.print(table)
