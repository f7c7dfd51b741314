"""What a debugger, a traceback or a careless log line shows of a changefeed's settings."""

from __future__ import annotations

from pathlib import Path

from rowferry.control.store.sql_store import open_store
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

WORD = "a-word-that-nobody-shows"


def test_settings_and_stored_changefeeds_show_no_secret(tmp_path: Path) -> None:
    spec = ChangefeedSpec(
        "feed",
        Uri.parse(f"mysql://ferry:{WORD}@h:1/", "source"),
        Uri.parse(f"kafka://h:1/t?protocol=canal-json&sasl-password={WORD}", "sink"),
        {"sink": {"kafka-config": {"sasl-password": WORD}}},
    )
    store = open_store(f"sqlite:///{tmp_path}/meta.db")
    try:
        store.create_changefeed(spec, 0)
        shown = repr(spec) + str(spec) + repr(store.feed("feed")) + repr(store.feeds())
    finally:
        store.close()
    assert "kafka://h:1/t" in shown
    assert WORD not in shown
