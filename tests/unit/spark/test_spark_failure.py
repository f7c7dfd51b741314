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


# As Spark gave them for jobs that failed so; only the places were shortened.
FRAMES = """\
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/srv/fail.py", line 15, in run
    failing.WAYS[name]()
"""
SOURCE_LINE = (
    FRAMES
    + """\
  File "/srv/failing.py", line 4, in source_line
    raise ValueError("no room") if not os.environ.get("KeyError: x") else KeyError("Error")  # Error
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: no room
"""
)
NO_WORDS = (
    FRAMES
    + """\
  File "/srv/failing.py", line 20, in nowords
    raise NotOurs(Error)
failing.NotOurs
"""
)
LINES = (
    FRAMES
    + """\
  File "/srv/failing.py", line 16, in multi
    raise ValueError("first line of it\\nTypeError: looks like another\\n  indented Error here")
ValueError: first line of it
TypeError: looks like another
  indented Error here
"""
)
CHAINED = """\
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/srv/failing.py", line 7, in chained
    {}["Error: a"]
    ~~^^^^^^^^^^^^
KeyError: 'Error: a'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/fail.py", line 15, in run
    failing.WAYS[name]()
  File "/srv/failing.py", line 9, in chained
    raise RuntimeError("the lookup failed") from err  # Error
RuntimeError: the lookup failed
"""
DURING = """\
Traceback (most recent call last):
  File "/srv/failing.py", line 12, in during
    raise OSError(28, "No space left on device")
OSError: [Errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/srv/failing.py", line 14, in during
    raise NotOurs("while cleaning up")
failing.NotOurs: while cleaning up
"""
GROUP = """\
An exception was thrown from the Python worker:
+ Exception Group Traceback (most recent call last):
  |   File "/srv/fail.py", line 15, in run
  |     failing.WAYS[name]()
  |   File "/srv/failing.py", line 18, in group
  |     raise ExceptionGroup("two things", errors)  # Error
  | ExceptionGroup: two things (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/srv/failing.py", line 30, in part
    |     raise ValueError("a")  # Error
    | ValueError: a
    +---------------- 2 ----------------
    | ExceptionGroup: inner (1 sub-exception)
    +-+---------------- 1 ----------------
      | KeyError: 'b'
      +------------------------------------
"""
IN_JAVA = """\
An error occurred while calling o369.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 12.0 failed
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/srv/failing.py", line 26, in assertion
    assert 1 == 2, "Error"
           ^^^^^^
AssertionError: two lines
of it

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:581)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:4560)
"""
CRASHED = """\
An error occurred while calling o369.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 12.0 failed
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$1.applyOrElse(PythonRunner.scala:1)
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$1.applyOrElse(PythonRunner.scala:1)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
\t... 21 more
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SOURCE_LINE, "ValueError: no room"),
        (NO_WORDS, "failing.NotOurs"),
        (
            LINES,
            "ValueError: first line of it TypeError: looks like another indented Error here",
        ),
        (CHAINED, "RuntimeError: the lookup failed"),
        (DURING, "failing.NotOurs: while cleaning up"),
        (
            GROUP,
            "ExceptionGroup: two things (2 sub-exceptions); ValueError: a; "
            "ExceptionGroup: inner (1 sub-exception); KeyError: 'b'",
        ),
        (IN_JAVA, "AssertionError: two lines of it"),
        (CRASHED, "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)."),
    ],
)
def test_the_exception_is_told_and_no_line_of_source_code(text: str, words: str) -> None:
    assert str(as_error(RuntimeError(text))) == f"[RF-7001] a Spark task failed: {words}"
