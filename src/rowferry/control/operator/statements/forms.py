"""The statements as people see them: how each is written, and one that could be carried out.

Pages complete statements by `form`: words, and names in angle brackets for what differs. `<tables>`
and `<settings>` may have several members with commas between them, all others are one word or text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class StatementForm:
    """A statement: what it does, its form, and an example of it."""

    title: str
    form: str
    example: str


_CREATE: Final = "CREATE CHANGEFEED <name> FOR TABLE <tables> FROM <source> INTO <sink>"
_SHOP: Final = (
    "CREATE CHANGEFEED shop FOR TABLE shop.orders, shop.items\n"
    "  FROM 'mysql://cdc:env:SHOP_PASSWORD@db.example:3306/'\n"
    "  INTO 'kafka://broker-1:9092/shop?protocol=canal-json'"
)
_FILE: Final = (
    "owner: shop-team\n"
    "changefeeds:\n"
    "  shop:\n"
    "    source: mysql://cdc:env:SHOP_PASSWORD@db.example:3306/\n"
    "    sink: kafka://broker-1:9092/shop?protocol=canal-json\n"
)

STATEMENTS: Final = (
    StatementForm("List changefeeds", "SHOW CHANGEFEEDS", "SHOW CHANGEFEEDS"),
    StatementForm(
        "List them, the finished ones too", "SHOW ALL CHANGEFEEDS", "SHOW ALL CHANGEFEEDS"
    ),
    StatementForm("Settings of one", "SHOW CHANGEFEED <changefeed>", "SHOW CHANGEFEED shop"),
    StatementForm(
        "How far one is", "SHOW CHANGEFEED <changefeed> PROGRESS", "SHOW CHANGEFEED shop PROGRESS"
    ),
    StatementForm(
        "Tables of one", "SHOW CHANGEFEED <changefeed> TABLES", "SHOW CHANGEFEED shop TABLES"
    ),
    StatementForm(
        "Schema changes of one",
        "SHOW CHANGEFEED <changefeed> SCHEMA CHANGES",
        "SHOW CHANGEFEED shop SCHEMA CHANGES",
    ),
    StatementForm("Log of one", "SHOW CHANGEFEED <changefeed> LOG", "SHOW CHANGEFEED shop LOG"),
    StatementForm(
        "Last changes of one",
        "SHOW CHANGEFEED <changefeed> SAMPLE",
        "SHOW CHANGEFEED shop SAMPLE",
    ),
    StatementForm(
        "Tables that are read again",
        "SHOW CHANGEFEED <changefeed> RESNAPSHOTS",
        "SHOW CHANGEFEED shop RESNAPSHOTS",
    ),
    StatementForm(
        "Trace a row",
        "TRACE CHANGEFEED <changefeed> TABLE <tables> KEY ( <key> )",
        "TRACE CHANGEFEED shop TABLE shop.orders KEY (id = 5) LIMIT 20 WITH LOG",
    ),
    StatementForm(
        "Rows that the sink refused",
        "SHOW CHANGEFEED <changefeed> QUARANTINE",
        "SHOW CHANGEFEED shop QUARANTINE",
    ),
    StatementForm("What creating one would do", f"EXPLAIN {_CREATE}", f"EXPLAIN {_SHOP}"),
    StatementForm("Create one", _CREATE, _SHOP),
    StatementForm(
        "Create one with options",
        f"{_CREATE} WITH ( <settings> )",
        f"{_SHOP}\n  WITH (sink.kafka-config.compression = lz4, force-replicate = TRUE)",
    ),
    StatementForm(
        "Create one for all tables",
        "CREATE CHANGEFEED <name> FROM <source> INTO <sink> WITH ( <settings> )",
        "CREATE CHANGEFEED everything FROM 'range://127.0.0.1:7001' INTO 'blackhole://'",
    ),
    StatementForm("Pause one", "PAUSE CHANGEFEED <changefeed>", "PAUSE CHANGEFEED shop"),
    StatementForm("Resume one", "RESUME CHANGEFEED <changefeed>", "RESUME CHANGEFEED shop"),
    StatementForm(
        "Resume one behind a commit-ts",
        "RESUME CHANGEFEED <changefeed> FROM TS <ts>",
        "RESUME CHANGEFEED shop FROM TS 465500000000000000",
    ),
    StatementForm(
        "Change options",
        "ALTER CHANGEFEED <changefeed> SET ( <settings> )",
        "ALTER CHANGEFEED shop SET (sink.kafka-config.compression = zstd)",
    ),
    StatementForm(
        "Capture further tables",
        "ALTER CHANGEFEED <changefeed> ADD TABLE <tables>",
        "ALTER CHANGEFEED shop ADD TABLE shop.customers",
    ),
    StatementForm(
        "Capture tables no more",
        "ALTER CHANGEFEED <changefeed> DROP TABLE <tables>",
        "ALTER CHANGEFEED shop DROP TABLE shop.items",
    ),
    StatementForm(
        "Read a table again",
        "ALTER CHANGEFEED <changefeed> RESNAPSHOT TABLE <tables>",
        "ALTER CHANGEFEED shop RESNAPSHOT TABLE shop.items KEYS '100..200'",
    ),
    StatementForm(
        "End reading a table again",
        "ALTER CHANGEFEED <changefeed> CANCEL RESNAPSHOT <id>",
        "ALTER CHANGEFEED shop CANCEL RESNAPSHOT '6f1c0a2b9d3e'",
    ),
    StatementForm(
        "Send refused rows again",
        "ALTER CHANGEFEED <changefeed> RETRY QUARANTINE",
        "ALTER CHANGEFEED shop RETRY QUARANTINE TABLE shop.items KEY '7'",
    ),
    StatementForm(
        "Drop refused rows",
        "ALTER CHANGEFEED <changefeed> DROP QUARANTINE TABLE <tables>",
        "ALTER CHANGEFEED shop DROP QUARANTINE TABLE shop.items",
    ),
    StatementForm(
        "Begin anew with a snapshot",
        "ALTER CHANGEFEED <changefeed> RESET TO SNAPSHOT",
        "ALTER CHANGEFEED shop RESET TO SNAPSHOT",
    ),
    StatementForm(
        "Begin anew behind a commit-ts",
        "ALTER CHANGEFEED <changefeed> RESET TO TS <ts>",
        "ALTER CHANGEFEED shop RESET TO TS 465500000000000000",
    ),
    StatementForm(
        "Begin anew at a position of the log",
        "ALTER CHANGEFEED <changefeed> RESET TO POSITION <position>",
        "ALTER CHANGEFEED shop RESET TO POSITION 'binlog.000042:1197'",
    ),
    StatementForm(
        "One as a file declares it",
        "EXPORT CHANGEFEED <changefeed> AS <owner>",
        "EXPORT CHANGEFEED shop AS 'shop-team'",
    ),
    StatementForm(
        "All as a file declares them",
        "EXPORT CHANGEFEEDS AS <owner>",
        "EXPORT CHANGEFEEDS AS 'shop-team'",
    ),
    StatementForm(
        "What a file's changefeeds would change",
        "EXPLAIN APPLY <declaration>",
        f"EXPLAIN APPLY '{_FILE}'",
    ),
    StatementForm(
        "Bring changefeeds to what a file declares",
        "APPLY <declaration>",
        f"APPLY '{_FILE}'",
    ),
    StatementForm("Remove one", "DROP CHANGEFEED <changefeed>", "DROP CHANGEFEED shop"),
    StatementForm(
        "Remove one, if it is there",
        "DROP CHANGEFEED IF EXISTS <changefeed>",
        "DROP CHANGEFEED IF EXISTS shop",
    ),
)
