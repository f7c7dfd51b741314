"""A changefeed that is removed takes its leave of the sink, where others may wait for it."""

from __future__ import annotations

import logging

from rowferry.errors import RowferryError
from rowferry.flow.assemble import assemble, check_reach
from rowferry.flow.sink.contract import Leaving
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.reach import ANYWHERE, Reach

LOG = logging.getLogger(__name__)


def leave_sink(
    spec: ChangefeedSpec, secrets: SecretSources = NO_STORE, reach: Reach = ANYWHERE
) -> None:
    """Take away what others wait by; never raises, since a sink that is gone must not hold it.

    A sink that names more than `reach` allows is let be.
    """
    try:
        check_reach(reach, spec)
        sink = assemble(secrets.resolved(spec)).sink
        if isinstance(sink, Leaving):
            try:
                sink.leave()
            finally:
                sink.close()
    except RowferryError as err:
        LOG.warning(
            "changefeed %s is removed, and stays in its sink's progress tables (%s); run "
            "`rowferry active-active forget` there",
            spec.changefeed_id,
            err,
        )
