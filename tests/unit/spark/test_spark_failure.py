"""Only text comes back from a worker: the error in it must come out as it went in."""

from __future__ import annotations

import pytest

from rowferry.errors import (
    BY_CODE,
    FileConflict,
    RowferryError,
    SinkUnavailable,
    SnapshotGone,
    TaskFailed,
    Verdict,
)
from rowferry.spark.failure import as_error

TRACE = """\
Job aborted due to stage failure: Task 3 in stage 7.0 failed 1 times, most recent failure:
  File "/spark/worker.py", line 100, in main
    process()
  File "/work/job.py", line 80, in run
    raise error
{error}

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abort(DAGScheduler.scala:2844)
"""


def in_a_trace(error: RowferryError) -> Exception:
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    return RuntimeError(TRACE.format(error=f"{name}: {error}"))


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_error_comes_back_with_its_code_and_verdict(code: str) -> None:
    error = BY_CODE[code]("words: of 'it' [x]")
    found = as_error(in_a_trace(error))
    assert type(found) is type(error)
    assert (str(found), found.verdict) == (str(error), error.verdict)


def test_an_error_of_ours_stays_itself() -> None:
    error = SinkUnavailable("down")
    assert as_error(error) is error


def test_the_last_one_ended_the_task() -> None:
    """One error may have been raised while another was dealt with."""
    text = f"{in_a_trace(SnapshotGone('first'))}\n{in_a_trace(FileConflict('then'))}"
    assert str(as_error(RuntimeError(text))) == "[RF-4006] then"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Job aborted.\nCaused by: java.lang.OutOfMemoryError: Java heap space\n\tat x", "heap"),
        ("Python worker exited unexpectedly (crashed): java.io.EOFException", "EOFException"),
        ("ModuleNotFoundError: No module named 'rowferry'", "No module named"),
        ("something odd", "something odd"),
        ("[RF-9999] not a code of ours", "RF-9999"),
    ],
)
def test_what_is_not_ours_is_tried_again(text: str, words: str) -> None:
    found = as_error(RuntimeError(text))
    assert type(found) is TaskFailed
    assert found.verdict is Verdict.RETRY
    assert words in str(found)
    assert "\n" not in str(found)


def test_an_error_without_words_has_its_name() -> None:
    assert "KeyboardInterrupt" in str(as_error(KeyboardInterrupt()))


def test_words_are_not_endless() -> None:
    assert len(str(as_error(RuntimeError("x" * 100_000)))) < 500
