"""TiCDC's `replica_config`: our configuration with snake_case keys and durations in nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from rowferry.errors import BadOption
from rowferry.spec.legacy import MYSQL_KEYS
from rowferry.spec.option import go_text, parse_duration

# Keys whose value is a number of nanoseconds there, and a duration with its unit here.
NANOSECONDS: Final = frozenset(
    {
        "changefeed-error-stuck-duration",
        "sync-point-interval",
        "sync-point-retention",
        "active-active-progress-interval",
        "active-active-sync-stats-interval",
        "scheduler.region-count-refresh-interval",
    }
)
_OTHER_NAMES: Final = {
    "sink.file-index-width": "file-index-digit",
    "sink.advance-timeout": "advance-timeout-in-sec",  # until v8.5
    "sink.pulsar-config.tls-certificate-path": "tls-key-file-path",
    "sink.pulsar-config.tls-private-key-path": "tls-certificate-file",
}
_OTHER_NAMES_BACK: Final = {
    "sink.file-index-digit": "file_index_width",
    "sink.pulsar-config.tls-key-file-path": "tls-certificate-path",
    "sink.pulsar-config.tls-certificate-file": "tls-private-key-path",
} | {f"sink.mysql-config.{ours}": theirs.replace("-", "_") for theirs, ours in MYSQL_KEYS.items()}
# Sections that its clients know only as a whole: to them a key that is absent is empty, and so they
# would send it back.
_WHOLE: Final[dict[str, dict[str, Any]]] = {
    "sink.csv": {
        "delimiter": ",",
        "quote": '"',
        "null": "\\N",
        "include-commit-ts": False,
        "binary-encoding-method": "base64",
        "output-old-value": False,
        "output-handle-key": False,
        "output-field-header": False,
    },
    "sink.kafka-config.large-message-handle": {
        "large-message-handle-option": "none",
        "large-message-handle-compression": "none",
        "claim-check-storage-uri": "",
        "claim-check-raw-value": False,
    },
}
# Keys, and sections of keys, that TiCDC writes with hyphens in JSON, too.
_HYPHENED: Final = ("target-schema", "target-table")
_HYPHENED_SECTIONS: Final = ("sink.pulsar-config", "sink.pulsar-config.oauth2")


def to_config(replica: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration that a request asks for; keys may also be written with hyphens.

    Raises:
        BadOption: a key is given twice, a duration is none, or a text is not Unicode.
    """
    return _section_in(replica, "")


def to_replica(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as TiCDC's clients read it. Secrets must be hidden already."""
    return _section_out(config, "")


def _section_in(section: Mapping[str, Any], path: str) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for written, value in section.items():
        _check_text(written, path)
        key = written.replace("_", "-")
        key = _OTHER_NAMES.get(_join(path, key), key)
        if key in known:
            raise BadOption(f"{_join(path, key)} is given twice, with _ and with -")
        if value is not None:
            known[key] = _value_in(value, _join(path, key))
    return known


def _value_in(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return _section_in(value, path)
    if isinstance(value, list):
        return [_value_in(one, path) for one in value]
    if isinstance(value, str):
        _check_text(value, path)
    if path in NANOSECONDS and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return go_text(timedelta(microseconds=int(value) // 1000))
        except (OverflowError, ValueError):
            raise BadOption(f"{path}: too long a duration") from None
    return value


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadOption(f"{path or 'replica_config'}: holds text that is not Unicode") from None


def _section_out(section: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {
        _name_out(key, path): _value_out(value, _join(path, key))
        for key, value in {**_WHOLE.get(path, {}), **section}.items()
    }


def _name_out(key: str, path: str) -> str:
    hyphened = key in _HYPHENED or path in _HYPHENED_SECTIONS
    return _OTHER_NAMES_BACK.get(_join(path, key), key if hyphened else key.replace("-", "_"))


def _value_out(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return _section_out(value, path)
    if isinstance(value, list | tuple):
        return [_value_out(one, path) for one in value]
    if path == "sink.dispatchers.partition":
        return str(value)  # the number of a partition: expressions are text there
    if path in NANOSECONDS and isinstance(value, str):
        try:
            return parse_duration(value) // timedelta(microseconds=1) * 1000
        except ValueError:
            return value  # "***", or one that this version would refuse
    return value


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
