"""Patterns for text that strangers send: found in a time that grows with its length, and no faster.

Python's own patterns try again from every place, so that one long word can take minutes. These
have neither look-around nor back-references, and no text makes them slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import re2


class Found(Protocol):
    """A place where a pattern fits; 0 is the whole of it, the rest are its groups."""

    def __getitem__(self, group: int) -> bytes: ...


class Linear(Protocol):
    """A pattern over bytes."""

    def sub(self, replace: Callable[[Found], bytes], text: bytes) -> bytes:
        """Return the text with every place replaced."""


def linear(pattern: bytes) -> Linear:
    """Return a pattern over bytes, each of which counts as a character by itself."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    compiled: Linear = re2.compile(pattern, options)
    return compiled


def replaced(text: str, pattern: Linear, replace: Callable[[Found], bytes]) -> str:
    """Return a text with every place where the pattern fits replaced. Takes any text."""
    whole = pattern.sub(replace, text.encode("utf-8", "surrogatepass"))
    return whole.decode("utf-8", "surrogatepass")
