"""In what two versions of a changefeed's settings differ, as it may be shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rowferry.control.operator.settings.redaction import redacted_config
from rowferry.spec.changefeed import ChangefeedSpec

ABSENT: Final = None  # in the place of a value: the key is not given
_OTHER_SECRET: Final = "(a secret in it changes)"


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """One setting; its values are without secrets. ABSENT: it is not given, its default holds."""

    key: str
    before: Any
    after: Any


def differences(old: ChangefeedSpec, new: ChangefeedSpec) -> Iterator[ChangedSetting]:
    """Yield every setting that differs; one whose secret differs is told without it."""
    for key, was, now in (("source", old.source, new.source), ("sink", old.sink, new.sink)):
        if was != now:
            yield _shown(key, str(was), str(now))
    if old.target_ts != new.target_ts:
        yield ChangedSetting("target-ts", old.target_ts or ABSENT, new.target_ts or ABSENT)
    if old.managed_by != new.managed_by:
        yield ChangedSetting("owner", old.managed_by or ABSENT, new.managed_by or ABSENT)
    was_whole, now_whole = flat(old.config), flat(new.config)
    was_shown, now_shown = flat(redacted_config(old)), flat(redacted_config(new))
    for key in sorted({*was_whole, *now_whole}):
        if was_whole.get(key) != now_whole.get(key):
            yield _shown(f"config.{key}", was_shown.get(key), now_shown.get(key))


def as_declared(spec: ChangefeedSpec, paused: bool = False) -> Iterator[ChangedSetting]:
    """Yield every setting of a changefeed that does not exist yet."""
    yield ChangedSetting("source", ABSENT, str(spec.source))
    yield ChangedSetting("sink", ABSENT, str(spec.sink))
    if spec.target_ts:
        yield ChangedSetting("target-ts", ABSENT, spec.target_ts)
    if paused:
        yield ChangedSetting("paused", ABSENT, True)
    for key, value in sorted(flat(redacted_config(spec)).items()):
        yield ChangedSetting(f"config.{key}", ABSENT, value)


def flat(config: Mapping[str, Any], lead: str = "") -> dict[str, Any]:
    """Return a configuration's values by their whole keys: `sink.csv.delimiter`."""
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            settings |= flat(value, f"{lead}{key}.")
        else:
            settings[f"{lead}{key}"] = list(value) if isinstance(value, tuple) else value
    return settings


def _shown(key: str, before: Any, after: Any) -> ChangedSetting:
    if before == after:
        return ChangedSetting(key, before, _OTHER_SECRET)
    return ChangedSetting(key, before, after)
