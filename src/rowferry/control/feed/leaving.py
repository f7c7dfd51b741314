"""A changefeed that is removed takes its leave of the sink, where others may wait for it."""

from __future__ import annotations

import logging

from rowferry.errors import RowferryError
from rowferry.flow.assemble import assemble
from rowferry.flow.sink.contract import Leaving
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.changefeed import ChangefeedSpec

LOG = logging.getLogger(__name__)


def leave_sink(spec: ChangefeedSpec, secrets: SecretSources = NO_STORE) -> None:
    """Take away what others wait by; never raises, since a sink that is gone must not hold it."""
    try:
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
