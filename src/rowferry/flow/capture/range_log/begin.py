"""Where a range feed without a snapshot begins: everything as it was at a commit-ts."""

from __future__ import annotations

from collections.abc import Iterable

from rowferry.change.position import RangeProgress, Stage
from rowferry.change.table import TableSchema
from rowferry.errors import BadOption, LogLost
from rowferry.flow.capture.range_log.catalog_reader import CatalogReader
from rowferry.flow.capture.range_log.client import KnownRange, RangeClient, Rerouted
from rowferry.flow.capture.range_log.reroute import require_cover
from rowferry.flow.capture.range_log.state import RangeState, RangeTable
from rowferry.flow.decide.contract import Decision


def state_at(
    client: RangeClient, decision: Decision, routes: Iterable[KnownRange], start_ts: int, rules: str
) -> RangeState:
    """Return the state behind a commit-ts: the tables of then, and the place in each range's log.

    Raises:
        BadOption: it lies ahead of the source's clock.
        LogLost: the logs do not reach back to it any more.
        Rerouted: not everything up to there is closed yet, or not all ranges are known now.
    """
    if start_ts >= client.timestamp():
        raise BadOption(f"start-ts {start_ts} lies ahead of the source's clock")
    try:
        catalog = CatalogReader(client)
        then = catalog.at(start_ts)
        tables = {
            t.table_id: RangeTable(t, True) for t in then.tables.values() if decision.captures(t)
        }
        owners = {p: t for t in tables.values() for p in t.schema.physical_ids}
        mine = [r for r in routes if r.physical_id in owners]
        require_cover(mine, owners)  # one that is told of later would be read from its beginning
        heads = client.heads([(r, 0) for r in mine], at_ts=start_ts) if mine else []
    except LogLost as lost:
        raise LogLost(
            f"start-ts {start_ts} cannot be reached: {lost.words}; begin with a snapshot"
        ) from None
    if any(head.closed_ts < start_ts for head in heads):
        raise Rerouted(f"commit-ts {start_ts} is not closed yet")
    return RangeState(
        cluster_id=client.cluster_id,
        resolved_ts=start_ts,
        catalog_index=then.index,
        tables=tables,
        ranges={
            r.range_id: new_range(r, owners[r.physical_id].schema, Stage.LOG).with_(
                last_log_index=head.index_at_ts
            )
            for r, head in zip(mine, heads, strict=True)
        },
        without_old_value=then.without_old_value,
        rules=rules,
    )


def new_range(route: KnownRange, schema: TableSchema, stage: Stage) -> RangeProgress:
    """Return the progress of a range at its beginning."""
    return RangeProgress(
        database=schema.id.database,
        table=schema.id.table,
        table_id=schema.table_id,
        physical_id=route.physical_id,
        range_id=route.range_id,
        start_key=route.start_key.hex(),
        end_key=route.end_key.hex(),
        stage=stage,
    )
