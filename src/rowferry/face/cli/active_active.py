"""`rowferry active-active`: what the active-active mode needs beside changefeeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from rowferry.change.table import TableId
from rowferry.errors import BadFilterRule, BadUri, NoSuchChangefeed
from rowferry.face.cli.options.address import given_address
from rowferry.face.cli.output import consoles
from rowferry.flow.assemble import sink_traits
from rowferry.flow.decide.table_filter import named_by
from rowferry.flow.sink.mysql.emulation import triggers
from rowferry.flow.sink.mysql.options import read_settings
from rowferry.flow.sink.mysql.progress_table import forget, waited_for
from rowferry.flow.sink.mysql.session import Session, StatementRefused, connect
from rowferry.registry import SINKS
from rowferry.secrets.environment import sources_of_environment
from rowferry.spec.changefeed import NO_PLACE, ChangefeedSpec
from rowferry.spec.uri import Uri

app = typer.Typer(help="The active-active mode: triggers, and who is waited for by a purge.")

SinkUri = Annotated[
    str,
    typer.Option(callback=given_address, help="The database that changefeeds write to: mysql://…"),
]


@app.command("prepare")
def prepare_command(
    tables: Annotated[list[str], typer.Argument(help="Tables as DATABASE.TABLE")],
    key: Annotated[
        list[str], typer.Option(help="A column of their primary key; repeat it for several")
    ],
    cluster_index: Annotated[
        int, typer.Option(min=0, max=15, help="The number of the cluster where they will run")
    ],
) -> None:
    """Print the triggers that stamp local writes; run them on the cluster, e.g. by its client."""
    out, _ = consoles()
    lines = ["DELIMITER $$"]
    for written in tables:
        database, table = named_by(written, case_sensitive=True)
        if database is None or table is None:
            raise BadFilterRule(f"{written!r} is not one table; write DATABASE.TABLE")
        made = triggers(TableId(database, table), key, cluster_index)
        lines += [f"{statement} $$" for statement in made]
    lines.append("DELIMITER ;")
    out.file.write("\n".join(lines) + "\n")


@app.command("progress")
def progress_command(sink_uri: SinkUri) -> None:
    """Print the changefeeds that whoever purges a database waits for, and how far they are."""
    out, _ = consoles()
    with _connected(sink_uri) as session:
        for one in waited_for(session):
            words = f"{one.changefeed}\t{one.cluster}\t{one.tables} tables\tup to {one.lowest}"
            out.file.write(words + "\n")


@app.command("forget")
def forget_command(
    changefeed: Annotated[str, typer.Argument(help="As `progress` shows it: default/NAME")],
    cluster: Annotated[str, typer.Argument(help="The cluster that `progress` shows beside it")],
    sink_uri: SinkUri,
) -> None:
    """Let nobody wait for a changefeed that is lost; one that runs writes its progress anew."""
    with _connected(sink_uri) as session:
        if not any((w.changefeed, w.cluster) == (changefeed, cluster) for w in waited_for(session)):
            raise NoSuchChangefeed(
                f"{session.place} waits for no changefeed {changefeed} of cluster {cluster}; "
                "`rowferry active-active progress` lists those it waits for"
            )
        forget(session, changefeed, cluster)
    consoles()[0].file.write(f"{changefeed} of cluster {cluster} is waited for no more\n")


@contextmanager
def _connected(sink_uri: str) -> Iterator[Session]:
    """Connect to the database of a sink URI; its refusals are told as errors of ours."""
    uri = Uri.parse(sink_uri, "sink")
    if not sink_traits(uri.scheme).keeps_newest:
        raise BadUri(f"{uri}: only MySQL, MariaDB and TiDB have progress tables; name one of them")
    known = SINKS.load(uri.scheme).TABLES
    uri = sources_of_environment().resolved_uri(uri, "--sink-uri", known)
    spec = ChangefeedSpec("none", Uri.parse(NO_PLACE, "source"), uri)
    session = connect(read_settings(spec).login)
    try:
        yield session
    except StatementRefused as err:
        raise err.as_error("the progress tables") from err
    finally:
        session.close()
