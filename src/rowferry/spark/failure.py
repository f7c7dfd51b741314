"""A worker's traceback text becomes one of our errors again: only text reaches the driver."""

from __future__ import annotations

from rowferry.errors import RowferryError, TaskFailed, from_text


def as_error(err: BaseException) -> RowferryError:
    """Return the error that ended a job: ours where its text names one, else TaskFailed."""
    if isinstance(err, RowferryError):
        return err
    text = str(err)
    ours = from_text(text)
    if ours is not None:
        return ours
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Exception" in line]
    words = (telling or lines or [type(err).__name__])[-1]
    return TaskFailed(f"a Spark task failed: {words[:300]}")
