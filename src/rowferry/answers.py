"""Answers of HTTP servers: none is trusted to be small, to end, or to be as small as it seems."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

_PIECE: Final = 65536


class HttpAnswer(Protocol):
    """An answer whose body was not read yet."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers."""

    def read(self, amt: int, decode_content: bool) -> bytes:
        """Return the next bytes, at most so many; none: this is the end."""

    def release_conn(self) -> Any:
        """Give the connection back."""

    def close(self) -> Any:
        """Close the connection."""


class UnfitAnswer(Exception):
    """An answer that is not read to its end; the text says why, as the end of a sentence."""


def read_answer(answer: HttpAnswer, most: int, within_s: float) -> bytes:
    """Return the whole body of an answer that was asked for with `preload_content=False`.

    Raises:
        UnfitAnswer: it is longer than `most` bytes, takes longer, or is compressed: nobody asked
            for that, and what it grows to cannot be known.
    """
    try:
        encoding = answer.headers.get("Content-Encoding", "identity")
        if encoding.strip().lower() not in ("", "identity"):
            raise UnfitAnswer(f"its answer is compressed ({encoding[:20]!r}), unasked")
        until = time.monotonic() + within_s
        pieces, size = [], 0
        while piece := answer.read(_PIECE, decode_content=False):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise UnfitAnswer(f"its answer has more than {most} bytes")
            if time.monotonic() > until:
                raise UnfitAnswer(f"its answer takes longer than {within_s:g} s")
    except BaseException:
        answer.close()
        raise
    answer.release_conn()
    return b"".join(pieces)
