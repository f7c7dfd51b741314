"""Options of tables in a lake."""

from __future__ import annotations

from rowferry.flow.sink.storage.options import StorageOptions
from rowferry.spec.option import Section, one_of, option, size, whole
from rowferry.spec.rules.layout import LAYOUTS, LEAST_FILE, MOST_FILE


class LakeOptions(Section, section="sink.lake"):
    """What the tables of a lake hold, and how they are kept."""

    mode = option(
        one_of("upsert", "changelog"),
        "upsert",
        "`upsert`: the lake's table equals the source's. `changelog`: each change is a row of its "
        "own.",
        uri=True,
        alterable=False,
    )
    zero_date = option(
        one_of("null", "string", "error"),
        "null",
        "What a day that no calendar has (0000-00-00) becomes: NULL, a text (then all DATE, "
        "DATETIME and TIMESTAMP columns are texts), or an error that stops the changefeed.",
        uri=True,
        alterable=False,
    )
    on_drop = option(
        one_of("keep", "drop"),
        "keep",
        "What DROP TABLE does: the lake's table stays as it was, or it is deleted.",
        uri=True,
    )
    checkpoint_interval = option(
        whole(1, 10000),
        20,
        "After how many commits the state of a Delta table is summed up in a checkpoint.",
        uri=True,
    )
    optimize_after = option(
        whole(0, 100000),
        48,
        "How many small files a table may have before they are merged; 0: never by itself.",
        uri=True,
    )
    target_file_size = option(
        size(LEAST_FILE, MOST_FILE),
        0,
        "About how many bytes a data file should have when small ones were merged; without it, "
        "`file-size`.",
        uri=True,
    )
    layouts = option(
        LAYOUTS,
        (),
        "How files of tables are laid out: the first rule whose `matcher` fits a table counts. "
        "`partition-by` has columns or, for Iceberg, transforms of them (`day(created_at)`, "
        "`bucket(16, id)`); `target-file-size` is for these tables only.",
    )


class LakeFileOptions(Section, section="sink.cloud-storage-config"):
    """What tables of a lake share with other files in a storage."""

    worker_count = StorageOptions.worker_count
    flush_interval = StorageOptions.flush_interval
    file_size = StorageOptions.file_size
    fsync = StorageOptions.fsync
