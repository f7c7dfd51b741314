"""Options of MySQL and MariaDB sources."""

from __future__ import annotations

from datetime import timedelta

from rowferry.mysql.login_options import LoginOptions
from rowferry.spec.option import duration, one_of, option, text, whole


class BinlogOptions(LoginOptions, section="source"):
    """The options of MySQL and MariaDB sources."""

    server_id = option(
        whole(0, 2**32 - 1),
        0,
        "The replica number of the reader of the log; it must differ from that of every other "
        "replica. 0: a random one from 2147483648 on that no replica uses.",
        uri=True,
    )
    snapshot = option(
        one_of("initial", "never", "only"),
        "initial",
        "`initial`: the rows that are there now, then the log. `never`: only the log. `only`: the "
        "rows that are there now, and the log until they are consistent; then the feed is "
        "finished.",
        uri=True,
        alterable=False,
    )
    snapshot_lock = option(
        one_of("none", "table"),
        "none",
        "For tables without a usable key on MySQL: `table` allows a read lock for the moment in "
        "which the snapshot is opened, when no quiet moment was found without it.",
        uri=True,
    )
    partial_row_image = option(
        one_of("refuse", "allow"),
        "refuse",
        "`allow`: row images that lack columns (`binlog_row_image` is not FULL) are delivered with "
        "what the log holds; refused where the protocol or the sink needs whole rows.",
        uri=True,
    )
    start_ts = option(
        whole(0, 2**63 - 1),
        0,
        "Begin with the first transaction whose commit-ts is above this one, by the log's own "
        "times (MariaDB: with its whole second); no snapshot is made.",
        uri=True,
        alterable=False,
    )
    start_position = option(
        text(),
        "",
        "Begin at this place of the log, `FILE:OFFSET`, a border between transactions; no "
        "snapshot.",
        uri=True,
        alterable=False,
    )
    start_gtid = option(
        text(),
        "",
        "Begin after these transactions: a GTID set (MySQL) or position (MariaDB); no snapshot. "
        "With `start-ts` beside it, commit timestamps are above that one.",
        uri=True,
        alterable=False,
    )
    online_schema_change = option(
        one_of("follow", "snapshot"),
        "follow",
        "When gh-ost or pt-online-schema-change swaps a captured table with its copy: `follow` "
        "goes on with the new definition, `snapshot` reads the table's rows again. After a swap by "
        "hand with any other table they are always read.",
        uri=True,
    )
    retention_warning = option(
        duration(),
        timedelta(hours=6),
        "Warn when the server may remove the log that is still needed within this time.",
        uri=True,
    )
