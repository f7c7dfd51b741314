"""Requests to Amazon's services: bounded answers, and no way to another address."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import urllib3

from rowferry.answers import UnfitAnswer, read_answer
from rowferry.flow.sink.web_calls import words_of
from rowferry.moment import moment

# All answers to one question: a list of tables may come in many pages.
_MOST_BYTES: Final = 64 << 20
_WITHIN_S: Final = 600.0


class NoAnswer(OSError):
    """A service gave no answer that can be used; whether it did what was asked is not known."""


class AmazonHttp:
    """Connections to one service; one question at a time."""

    def __init__(self, ca: str = "", connect_s: float = 10.0, read_s: float = 60.0) -> None:
        self._http = urllib3.PoolManager(
            retries=False,
            timeout=urllib3.Timeout(connect=connect_s, read=read_s),
            ca_certs=ca or None,
        )
        self.begin()

    def begin(self) -> None:
        """Let the answers to the next question have all room and time."""
        self._left, self._until = _MOST_BYTES, time.monotonic() + _WITHIN_S

    def ask(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, bytes]:
        """Return the status and the whole body of an answer.

        Raises:
            NoAnswer: there is none, it is too long, takes too long, is compressed, or leads
                elsewhere.
        """
        moment("ask amazon service")
        try:
            answer = self._http.request(
                method,
                url,
                body=body or None,
                headers={**headers, "Accept-Encoding": "identity"},
                preload_content=False,
                redirect=False,
            )
            left_s = max(self._until - time.monotonic(), 0.0)
            content = read_answer(answer, self._left, left_s)
        except UnfitAnswer as err:
            raise NoAnswer(str(err)) from None
        except (urllib3.exceptions.HTTPError, OSError) as err:
            raise NoAnswer(words_of(err)) from None
        self._left -= len(content)
        if 300 <= answer.status < 400:
            raise NoAnswer(f"it answers {answer.status} and leads to another address")
        return answer.status, content

    def close(self) -> None:
        """Let connections go."""
        self._http.clear()
