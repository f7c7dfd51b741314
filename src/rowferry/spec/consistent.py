"""The options of the redo log: changes are durable elsewhere before the downstream has them."""

from __future__ import annotations

from typing import Final

from rowferry.errors import BadOption, OptionsConflict
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import Section, flag, one_of, option, text, whole
from rowferry.spec.quarantine import QuarantineOptions
from rowferry.spec.sink_traits import SinkTraits
from rowferry.spec.ticdc_keys import SPARK

_LEAST_MS: Final = 50
_BY_MICRO_BATCH: Final = "a micro-batch is durable in the redo log before it is written downstream"


class ConsistentOptions(Section, section="consistent"):
    """TiCDC's words for the redo log."""

    level = option(
        one_of("none", "eventual"),
        "none",
        "`eventual`: every micro-batch is durable in the redo log before the downstream gets any "
        "of it, so that `rowferry redo apply` brings the downstream to one consistent point after "
        "the source is lost.",
    )
    storage = option(
        text(),
        "",
        "Where the redo log is: `file:///directory` that survives the source, or a prefix of a "
        "bucket with the parameters of its login, as the storage sink has them.",
        secret=True,
        names="storage",
    )
    compression = option(
        one_of("none", "lz4", ""), "none", "How the redo log is compressed; empty: not at all."
    )
    max_log_size = option(
        whole(0), 64, "The size of a file, in MiB.", no_effect="a file holds one segment of the log"
    )
    flush_interval = option(
        whole(0), 2000, "How often, in milliseconds.", no_effect=_BY_MICRO_BATCH
    )
    meta_flush_interval = option(
        whole(0),
        200,
        "How often its metadata are written, in milliseconds.",
        no_effect=_BY_MICRO_BATCH,
    )
    encoding_worker_num = option(whole(0), 16, "How many encode.", no_effect=SPARK)
    flush_worker_num = option(whole(0), 8, "How many write.", no_effect=SPARK)
    flush_concurrency = option(whole(0), 1, "How many write one file.", no_effect=SPARK)
    event_collector_batch_count = option(whole(0), 0, "How many are read.", no_effect=SPARK)
    use_file_backend = option(
        flag(), False, "Write by way of a local disk.", no_effect="there is no local disk between"
    )

    @property
    def keeps(self) -> bool:
        """Whether there is a redo log."""
        return self.level == "eventual"


class ConsistentMemory(Section, section="consistent.memory-usage"):
    """TiCDC's words for the memory of its redo log."""

    memory_quota_percentage = option(whole(0, 100), 50, "A share of memory.", no_effect=SPARK)


def check_consistent(spec: ChangefeedSpec, sink: SinkTraits) -> None:
    """Check whether the redo log that a changefeed asks for can be kept with its sink.

    Raises:
        OptionsConflict: the sink has no use for one, or another option is in its way.
        BadOption: its place is missing.
    """
    options = spec.options(ConsistentOptions)
    if not options.keeps:
        return
    lead = f"{options.path(ConsistentOptions.level)} = {options.level}"
    if not sink.keeps_redo:
        raise OptionsConflict(
            f"{lead}: a redo log completes the tables of a database, and a {spec.sink.scheme} sink "
            "writes none; set it to none, or use a sink that does"
        )
    if not options.storage:
        place = options.path(ConsistentOptions.storage)
        raise BadOption(f"{lead} needs {place}, for example file:///redo or s3://bucket/redo")
    for span in (ConsistentOptions.flush_interval, ConsistentOptions.meta_flush_interval):
        if 0 < options[span] < _LEAST_MS:  # TiCDC's own bound; 0 stands for its default
            raise BadOption(
                f"{options.path(span)} = {options[span]}: it must be {_LEAST_MS} ms or more"
            )
    if spec.options(QuarantineOptions).parks:
        raise OptionsConflict(
            f"{lead} cannot be used with on-bad-row = quarantine: parked rows are in no consistent "
            "point; leave one out"
        )
