"""Whether the meta database answers: asked in a thread of its own, whoever else waits for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rowferry.errors import MetaUnavailable

_PATIENCE_S: Final = 20.0


class Pulse:
    """Asks once for all who want to know at the same time."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="health")
        self._asked: asyncio.Future[object] | None = None

    async def felt(self) -> None:
        """Return when the meta database has answered.

        Raises:
            RowferryError: it did not, or not in time.
        """
        if self._asked is None or self._asked.done():
            loop = asyncio.get_running_loop()
            self._asked = loop.run_in_executor(self._pool, self._ask)
        try:
            await asyncio.wait_for(asyncio.shield(self._asked), _PATIENCE_S)
        except TimeoutError:
            raise MetaUnavailable("the meta database does not answer") from None
