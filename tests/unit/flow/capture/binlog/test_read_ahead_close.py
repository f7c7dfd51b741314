"""What was read ahead is let go with its reader, also after an error."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from rowferry.errors import SourceUnavailable
from rowferry.flow.capture.binlog.frame.read_ahead import ReadAhead


class GoneStream:
    """A stream whose server has gone away, with the bytes that had come."""

    def wait(self, _seconds: float) -> bool:
        raise SourceUnavailable("the server has gone away")

    def close(self) -> None:
        pass


def test_buffers_of_a_failed_stream_do_not_wait_for_the_collector() -> None:
    stream: Any = GoneStream()
    kept = weakref.ref(stream)
    scanner: Any = IdleScanner()
    ahead = ReadAhead(stream, scanner, 1)
    gc.disable()
    try:
        with pytest.raises(SourceUnavailable) as raised, ahead.changed:
            while True:
                ahead.wait(1, 60)
        ahead.close()
        del stream, ahead, raised
        assert kept() is None
    finally:
        gc.enable()


class IdleScanner:
    """A scanner that has nothing framed."""

    blocked = False
    at_border = False

    def backlog(self) -> tuple[int, int]:
        return 0, 0
