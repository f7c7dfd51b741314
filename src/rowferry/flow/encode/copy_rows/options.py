"""How values become texts of COPY, where that can be chosen."""

from __future__ import annotations

from rowferry.spec.option import Section, one_of, option


class CopyOptions(Section, section="sink.postgresql-config"):
    """What lines of COPY hold."""

    zero_dates = option(
        one_of("refuse", "null"),
        "refuse",
        "What becomes of a day that PostgreSQL does not have: `0000-00-00`, a month or day of "
        "zero, the year 0, February 31. `refuse`: the changefeed stops and names the row. `null`: "
        "the value is NULL, and such columns are made without NOT NULL.",
        uri=True,
    )
