"""How many requests are carried out at once. Who comes when all turns are taken is told so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rowferry.errors import ServerBusy

RETRY_AFTER_S: Final = 5


@dataclass(slots=True)
class Turns:
    """Turns of requests that only look, and of those that act or ask source and sink.

    The second kind may take minutes, and must leave threads to the first.

    Attributes:
        answer_s: how long an answer may take.
    """

    looking: int = 64
    acting: int = 16
    answer_s: float = 240.0
    _taken: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})

    def enter(self, reads: bool) -> Callable[[], None]:
        """Take a turn; what is returned gives it back.

        Raises:
            ServerBusy: all are taken.
        """
        if self._taken[reads] >= (self.looking if reads else self.acting):
            raise ServerBusy(
                f"{self._taken[reads]} requests of this kind are being carried out, the most that "
                "may be at once; nothing was done"
            )
        self._taken[reads] += 1

        def leave() -> None:
            self._taken[reads] -= 1

        return leave
