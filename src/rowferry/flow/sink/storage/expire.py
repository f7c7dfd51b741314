"""Removing data files whose day is long past."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rowferry.change.position import physical_ms
from rowferry.flow.sink.storage.files import Files, each_fenced, walk
from rowferry.flow.sink.storage.options import StorageSettings
from rowferry.flow.sink.storage.ownership import Ownership
from rowferry.flow.sink.storage.paths import META, DataFile, IndexFile, index_path
from rowferry.moment import moment


def expire(
    files: Files, ownership: Ownership, settings: StorageSettings, checkpoint_ts: int
) -> frozenset[str]:
    """Delete the date directories older than `file-expiration-days` before the checkpoint.

    Returns the directories. The index goes first, so that no reader looks for files that are gone;
    schema files and metadata stay. Repeated after a crash, it deletes the rest.
    """
    moment("expire files")
    checkpoint = datetime.fromtimestamp(
        physical_ms(checkpoint_ts) / 1000, settings.layout.time_zone
    )
    first_kept = _first_kept(settings, checkpoint)
    old: dict[str, list[str]] = {}
    for path, kind in walk(files, settings.layout.date_separator):
        if isinstance(kind, DataFile | IndexFile) and "" < kind.directory.date < first_kept:
            old.setdefault(kind.directory.path, []).append(path)

    def remove(directory: str) -> None:
        with ownership.fenced():
            files.delete(index_path(directory))
            for path in old[directory]:
                files.delete(path)
            files.prune(f"{directory}/{META}")
            files.prune(directory)

    each_fenced(files, remove, old)
    return frozenset(old)


def may_be_removed(directory: str, settings: StorageSettings, now: datetime) -> bool:
    """Return whether a directory's day is so long past that `expire` may have removed it."""
    if not settings.storage.file_expiration_days:
        return False
    return directory.rpartition("/")[2] < _first_kept(settings, now)


def _first_kept(settings: StorageSettings, now: datetime) -> str:
    """Return the first day that stays; empty where all do."""
    try:
        age = timedelta(days=settings.storage.file_expiration_days)
        moment = (now.astimezone(UTC) - age).astimezone(settings.layout.time_zone)
    except OverflowError:
        return ""  # before the first year of the calendar
    return moment.date().isoformat()
