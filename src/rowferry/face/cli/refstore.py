"""`rowferry refstore`: run the reference store's processes and administer them."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from rowferry.errors import BadInput, RowferryError

# Each command imports what it needs: a server starts without the client's libraries.
if TYPE_CHECKING:
    from rowferry.refstore.client import Store

app = typer.Typer(
    name="refstore",
    help="The reference store: a small range-sharded database for demos and tests.",
    no_args_is_help=True,
)

Listen = Annotated[str, typer.Option(help="HOST:PORT to listen on; port 0: any free one.")]
DataDir = Annotated[
    Path, typer.Option(help="The store's folder, the same for the master and all data servers.")
]
Master = Annotated[str, typer.Option(help="The master's HOST:PORT.")]
Fsync = Annotated[
    bool,
    typer.Option(
        "--fsync",
        help="Wait for the disk at every write. Without it, writes survive the death of a "
        "process, but not that of the machine.",
    ),
]
WithParent = Annotated[
    bool,
    typer.Option("--with-parent", hidden=True, help="End when standard input is closed."),
]
TlsCert = Annotated[Path | None, typer.Option(help="PEM file: our certificate chain.")]
TlsKey = Annotated[Path | None, typer.Option(help="PEM file: its key.")]
TlsCa = Annotated[
    Path | None,
    typer.Option(help="PEM file: whom the servers' certificates must be signed by. With it: TLS."),
]
TlsMutual = Annotated[
    bool,
    typer.Option("--tls-mutual", help="Let in only who has a certificate of that authority, too."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="File with tokens, one in each line; the first is shown, all are known."),
]
RangeId = Annotated[int, typer.Argument(help="The range's id, see `ranges`.")]


class _Stoppable(Protocol):
    address: str

    def stop(self) -> None: ...


def _serve(start: Callable[[], _Stoppable], with_parent: bool) -> None:
    """Run a server until SIGTERM or SIGINT, or until the parent that holds its input is gone."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    if with_parent:
        threading.Thread(target=_wait_for_end_of_input, args=(stopping,), daemon=True).start()
    with _errors():
        server = start()
    print(f"listening on {server.address}", flush=True)
    while not stopping.wait(60):
        pass
    server.stop()


def _wait_for_end_of_input(then: threading.Event) -> None:
    sys.stdin.read()
    then.set()


@contextmanager
def _errors() -> Iterator[None]:
    """Print an error as its one line and end with status 1."""
    try:
        yield
    except RowferryError as err:
        typer.echo(str(err), err=True)
        raise typer.Exit(1) from None


@contextmanager
def _store(
    master: str, ca: Path | None, cert: Path | None, key: Path | None, token_file: Path | None
) -> Iterator[Store]:
    from rowferry.refstore.client import Store
    from rowferry.refstore.guard import read_guard

    with _errors():
        access = read_guard(cert, key, ca, False, token_file).access
        with Store(master, access=access) as store:
            yield store


@app.command()
def master(
    listen: Listen,
    data_dir: DataDir,
    cluster_id: Annotated[
        int | None, typer.Option(min=1, help="Checked by CDC readers; 1 for a new store.")
    ] = None,
    fsync: Fsync = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tls_mutual: TlsMutual = False,
    token_file: TokenFile = None,
    with_parent: WithParent = False,
) -> None:
    """Run the master: timestamps, routes, DDL, assignment of ranges to data servers."""
    from rowferry.refstore.guard import read_guard
    from rowferry.refstore.master.master_server import Master as MasterServer

    def start() -> MasterServer:
        guard = read_guard(tls_cert, tls_key, tls_ca, tls_mutual, token_file)
        return MasterServer(listen, data_dir, cluster_id, fsync, guard)

    _serve(start, with_parent)


@app.command()
def data(
    listen: Listen,
    master: Master,
    data_dir: DataDir,
    without_old_value: Annotated[
        bool,
        typer.Option("--without-old-value", help="Log no value from before a change."),
    ] = False,
    abandoned_after_ms: Annotated[
        int, typer.Option(min=10, help="When an unfinished transaction is resolved.")
    ] = 2000,
    part_bytes: Annotated[
        int, typer.Option(min=1024, help="About this much of a snapshot between split keys.")
    ] = 8 << 20,
    fsync: Fsync = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tls_mutual: TlsMutual = False,
    token_file: TokenFile = None,
    with_parent: WithParent = False,
) -> None:
    """Run a data server: it leads the ranges that the master gives it."""
    from rowferry.refstore.data_server import DataServer
    from rowferry.refstore.guard import read_guard
    from rowferry.refstore.range import RangeOptions
    from rowferry.refstore.storage import kernels

    kernels.warm()
    options = RangeOptions(fsync, without_old_value, abandoned_after_ms / 1000, part_bytes)

    def start() -> DataServer:
        guard = read_guard(tls_cert, tls_key, tls_ca, tls_mutual, token_file)
        return DataServer(listen, master, data_dir, options, guard)

    _serve(start, with_parent)


@app.command()
def ranges(
    master: Master,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
) -> None:
    """List all ranges with their keys and leaders."""
    from rich.console import Console
    from rich.table import Table

    with _store(master, tls_ca, tls_cert, tls_key, token_file) as store:
        all_ranges, failures = store.ranges(), store.failures()
    table = Table("range", "epoch", "table", "start key", "end key", "leader", "note")
    for r in all_ranges:
        note = failures.get(r.range_id, "dropped" if r.dropped else "")
        table.add_row(
            str(r.range_id),
            f"{r.conf_ver}.{r.version}",
            str(r.physical_id or "catalog"),
            r.start.hex(),
            r.end.hex(),
            r.leader or "-",
            note,
        )
    Console().print(table)


@app.command()
def tables(
    master: Master,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
) -> None:
    """List all tables."""
    with _store(master, tls_ca, tls_cert, tls_key, token_file) as store:
        by_name = store.tables()
    for name, table in sorted(by_name.items()):
        typer.echo(f"{name}\tid {table.table_id}\tversion {table.version}")


@app.command()
def ddl(
    sql: Annotated[str, typer.Argument(help="One statement.")],
    master: Master,
    database: Annotated[str, typer.Option(help="For names without a database.")] = "",
    ranges: Annotated[int, typer.Option(min=1, help="Ranges of a new table.")] = 1,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
) -> None:
    """Run one DDL statement."""
    with _store(master, tls_ca, tls_cert, tls_key, token_file) as store:
        commit_ts = store.ddl(sql, database, ranges)
    typer.echo(f"committed at {commit_ts}" if commit_ts else "nothing to do")


@app.command()
def split(
    range_id: RangeId,
    master: Master,
    key: Annotated[str, typer.Option(help="In hex; without it, at the middle.")] = "",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
) -> None:
    """Split a range in two."""
    with _store(master, tls_ca, tls_cert, tls_key, token_file) as store:
        new = store.split(range_id, _key(key))
    typer.echo(f"range {new} holds the right half")


@app.command("move-leader")
def move_leader(
    range_id: RangeId,
    master: Master,
    to: Annotated[str, typer.Option(help="HOST:PORT of a data server; without it, any.")] = "",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
) -> None:
    """Let another data server lead a range."""
    with _store(master, tls_ca, tls_cert, tls_key, token_file) as store:
        address = store.move_leader(range_id, to)
    typer.echo(f"range {range_id} is led by {address}")


@app.command()
def compact(
    range_id: RangeId,
    master: Master,
    through_index: Annotated[int, typer.Option(min=0, help="Last index to drop; 0: all.")] = 0,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
) -> None:
    """Drop the beginning of a range's log; who has not read it cannot any more."""
    with _store(master, tls_ca, tls_cert, tls_key, token_file) as store:
        first = store.compact(range_id, through_index)
    typer.echo(f"the log of range {range_id} now begins at {first}")


def _key(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise BadInput(f"--key {text!r}: expected a key in hex, see `ranges`") from None


if __name__ == "__main__":
    app()
