"""A worker's traceback text becomes one of our errors again: only text reaches the driver."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from rowferry.errors import RowferryError, TaskFailed, from_text

_LONGEST: Final = 300
# Python's own header, at the margin or behind the name of Java's exception that carries it. One
# inside an exception group stands behind a bar, one in a line of source code is indented.
_HEADER: Final = re.compile(
    r"(?:\s*\+ Exception Group |\S.*: )?Traceback \(most recent call last\):\s*"
)
_BAR: Final = re.compile(r" *\| ?")  # before each line of an exception group
_NEXT_OF_GROUP: Final = re.compile(r" *\+-")
# What follows the words of an exception and is not part of them.
_END: Final = re.compile(
    r"\tat |\t\.\.\. \d+ more|Driver stacktrace:|Caused by: |"
    r"The above exception was the direct cause|During handling of the above exception"
)
_JAVA: Final = re.compile(r"(?:Caused by: |: )?((?:[\w$]+\.)+[\w$]*(?:Error|Exception))(: .+)?")


def as_error(err: BaseException) -> RowferryError:
    """Return the error that ended a job: ours where its text names one, else TaskFailed."""
    if isinstance(err, RowferryError):
        return err
    text = str(err)
    ours = from_text(text)
    if ours is not None:
        return ours
    lines = [line for line in text.splitlines() if line.strip()]
    words = _raised(lines) or _thrown(lines) or (lines or [type(err).__name__])[0]
    shown = " ".join(words.split())
    return TaskFailed(f"a Spark task failed: {shown[:_LONGEST]}")


def _raised(lines: Sequence[str]) -> str:
    """Return what the last traceback of Python ends with, type and words; "": there is none.

    Of chained exceptions that is the one that nobody caught. Its words may have several lines.
    """
    headers = [place for place, line in enumerate(lines) if _HEADER.fullmatch(line)]
    if not headers:
        return ""
    rest = lines[headers[-1] + 1 :]
    if "Exception Group" in lines[headers[-1]]:
        return "; ".join(_grouped(rest))
    first = next((place for place, line in enumerate(rest) if not line[0].isspace()), len(rest))
    return " ".join(takewhile(lambda line: not _END.match(line), rest[first:]))


def _grouped(lines: Sequence[str]) -> Iterator[str]:
    """Yield an exception group's own words, then those of the exceptions in it."""
    for line in lines:
        bar = _BAR.match(line)
        if bar is None:
            if _NEXT_OF_GROUP.match(line):
                continue
            return
        words = line[bar.end() :]
        if words and not words[0].isspace() and not _HEADER.fullmatch(words):
            yield words


def _thrown(lines: Sequence[str]) -> str:
    """Return the last cause of Java's exception that has words, or its name; "": there is none."""
    causes = [match for line in lines if (match := _JAVA.fullmatch(line))]
    worded = [match for match in causes if match[2]] or causes
    return f"{worded[-1][1]}{worded[-1][2] or ''}" if worded else ""
