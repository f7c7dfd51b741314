"""Stored changefeeds with new settings: checked as at creation, before anything is stored."""

from __future__ import annotations

from dataclasses import replace

from rowferry.control import lifecycle
from rowferry.control.lifecycle import Verb
from rowferry.control.operator.checks.prepare import PreparedFeed, check_added_rules, examine
from rowferry.control.operator.operation_forms import ChangedSettings
from rowferry.control.operator.settings import start_place as beginning
from rowferry.control.operator.settings.redaction import (
    refuse_moved_secrets,
    restored,
    restored_uri,
)
from rowferry.control.operator.settings.table_rules import refuse_rule_files
from rowferry.control.store.contract import FeedRecord
from rowferry.errors import IllegalMove
from rowferry.flow.assemble import check_reach, option_tables, sink_traits
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.build import build_spec, check_target_ts
from rowferry.spec.reach import Reach


def altered(
    feed: FeedRecord, changed: ChangedSettings, reach: Reach, secrets: SecretSources = NO_STORE
) -> PreparedFeed:
    """Return a changefeed with new settings; its sink is open, and nothing was written.

    `reach` is what it may name, `secrets` where the values of references come from.

    Raises:
        NotAllowed: it names something else.
        SecretsNeeded: a stored secret would go to another address.
        IllegalMove: it is neither stopped nor failed.
        SpecChanged: something that can never be changed.
        RowferryError: one line that says what else is wrong.
    """
    if Verb.UPDATE not in lifecycle.possible(feed.state):
        raise IllegalMove(
            "can only update changefeed config when it is stopped or failed; "
            f"{feed.id} is {feed.state}: pause it first"
        )
    old = feed.spec
    if changed.config is not None:
        refuse_rule_files(changed.config)
    target = old.target_ts if changed.target_ts is None else changed.target_ts
    if target != old.target_ts:
        check_target_ts(target, feed.watermark)
    config = old.config if changed.config is None else restored(changed.config, old.config)
    spec, notices = build_spec(
        beginning.with_old_start(restored_uri(changed.source_uri, old.source), old),
        restored_uri(changed.sink_uri, old.sink),
        config,
        feed.id,
        tables=option_tables,
        target_ts=target,
        sinks=sink_traits,
    )
    owner = old.managed_by if changed.managed_by is None else changed.managed_by
    spec = replace(spec, managed_by=owner)
    check_reach(reach, spec)
    refuse_moved_secrets(old, spec, changed)
    prepared = examine(spec, old, notices, secrets=secrets)
    try:
        check_added_rules(old, prepared)
    except BaseException:
        prepared.flow.sink.close()
        raise
    return prepared
