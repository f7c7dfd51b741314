"""A sample configuration for one kind of source, sink and protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowferry.flow.assemble import option_tables
from rowferry.registry import SINKS, SOURCES
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import ProtocolOptions, own_tables
from rowferry.spec.rules.filter import FilterOptions
from rowferry.spec.sample import sample_config
from rowferry.spec.sink_traits import check_protocol
from rowferry.spec.uri import Uri


def sample_settings(source: str, sink: str, protocol: str = "", rules: Sequence[str] = ()) -> str:
    """Return a commented TOML text with every key that such a changefeed knows.

    Raises:
        UnknownName: there is no such source, sink or protocol.
        BadOption: the sink does not take this protocol.
    """
    SOURCES.load(source)
    traits = SINKS.load(sink).TRAITS
    check_protocol(traits, sink, protocol)
    config: dict[str, dict[str, Any]] = {}
    if protocol:
        config[ProtocolOptions.TABLE.section] = {ProtocolOptions.protocol.key: protocol}
    spec = ChangefeedSpec(
        "sample",
        Uri.parse(f"{source}://127.0.0.1", "source"),
        Uri.parse(f"{sink}://sample", "sink"),
        config,
    )
    chosen = FilterOptions.rules
    given = {
        **config,
        FilterOptions.TABLE.section: {chosen.key: list(rules) or list(chosen.default)},
    }
    return sample_config([*own_tables(traits), *option_tables(spec)], given)
