from __future__ import annotations

from datetime import timedelta

from rowferry.flow.assemble import sink_traits
from rowferry.spec.feed_options import own_tables
from rowferry.spec.option import Option, OptionTable, duration, one_of, text
from rowferry.spec.reference import option_reference

TABLES = [
    OptionTable(
        "sink",
        (
            Option("terminator", text(), "\r\n", "Ends a row.", alterable=False),
            Option("token", text(), "abc", "For the door.", secret=True, uri=True),
        ),
    ),
    OptionTable("sink.csv", (Option("method", one_of("hex", "base64"), "hex", "How."),)),
    OptionTable("sink", (Option("wait", duration(), timedelta(seconds=90), "Pause."),)),
]


def test_page() -> None:
    page = option_reference(TABLES)
    head = "| key | allowed | default | in the URI | meaning |\n|---|---|---|---|---|\n"
    assert page.startswith(
        f"## `[sink]`\n\n{head}"
        "| `terminator` | text | `\\r\\n` | no | Ends a row. "
        "Fixed when the changefeed is created. |\n"
        "| `token` | text | none | yes | For the door. |\n"
        "| `wait` | a duration such as 5s, 100ms or 1h30m | `1m30s` | no | Pause. |\n\n"
        f"## `[sink.csv]`\n\n{head}"
        "| `method` | hex \\| base64 | `hex` | no | How. |\n"
    )
    assert "- `mounter.worker-num`: Spark divides the work\n" in page
    assert "- `integrity.integrity-check-level` (default `'none'`)\n" in page
    assert "- `sink.terminator`" not in page


def test_page_of_our_own_options() -> None:
    page = option_reference(own_tables(sink_traits("file")))
    assert page.startswith("## Top level\n")
    assert '| `rules` | a list of texts | `["*.*"]` | no |' in page
    assert "| `output-raw-change-event` | true or false | `false` | no |" in page
