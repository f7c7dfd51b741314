"""Who runs a changefeed: the holder of its lease, its claim, and the thread that keeps it alive.

The meta database decides who holds a lease; this module says who we are, whether another holder is
certainly dead, and tells the owner when the lease is gone. It knows no database.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rowferry.change.json_form import FormRules, JsonForm
from rowferry.errors import RowferryError, Verdict

_PROC = Path("/proc")
_DEAD_STATES = ("Z", "X")  # killed and not yet reaped: it will never write again


@dataclass(frozen=True, slots=True)
class Holder(JsonForm):
    """One process that may hold leases.

    Attributes:
        host: the machine's name, for people.
        realm: boot and pid namespace; pids can be compared only inside one realm. Empty: unknown.
        started: the process's start time in the kernel's ticks, so that a reused pid is noticed.
        instance: unique to this process, whatever its pid.
        address: where a server answers, which is its name everywhere; empty: no server.
    """

    FORM = FormRules(unstored=("address",))

    host: str
    pid: int
    realm: str
    started: int
    instance: str
    address: str = field(default="", compare=False)

    @classmethod
    def here(cls, address: str = "") -> Holder:
        """Return this process as a holder; each call gives a new instance."""
        pid = os.getpid()
        process = _process(pid)
        return cls(
            host=socket.gethostname(),
            pid=pid,
            realm=_realm(),
            started=process[1] if process else 0,
            instance=uuid.uuid4().hex,
            address=address,
        )

    def is_dead(self, seen_by: Holder) -> bool:
        """Return whether this holder has certainly ended, as seen by this process.

        False where nothing can be known: another machine, another container, no /proc.
        """
        if not self.realm or (self.host, self.realm) != (seen_by.host, seen_by.realm):
            return False
        process = _process(self.pid)
        return process is None or process[0] in _DEAD_STATES or process[1] != self.started

    def __str__(self) -> str:
        return self.address or f"{self.host}:{self.pid}"


def _process(pid: int) -> tuple[str, int] | None:
    """Return the state letter and start time of a process, or None when there is none."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return fields[0], int(fields[19])


def _realm() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run one changefeed, until a higher epoch exists."""

    changefeed: str
    holder: Holder
    epoch: int
    ttl_s: float


class Heartbeat:
    """Renews a claim every third of its time to live, in a thread of its own.

    When the lease is lost, `lost` is set, `error` says why, and `on_lost` is called once, from the
    thread. Lost means: another owner was seen (at once), or nothing could be renewed for a whole
    time to live. A renewal that fails otherwise is simply tried again. Leaving the `with` block (or
    `close`) ends the thread; the lease itself is not released.
    """

    def __init__(
        self,
        renew: Callable[[Claim, float], None],
        claim: Claim,
        on_lost: Callable[[Exception], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.lost = threading.Event()
        self.error: Exception | None = None
        self._renew = renew
        self._claim = claim
        self._on_lost = on_lost
        self._clock = clock
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"lease-{claim.changefeed}", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        renewed = self._clock()
        while not self._closing.wait(self._claim.ttl_s / 3):
            now = self._clock()
            try:
                self._renew(self._claim, now)
                renewed = now
            except Exception as err:  # whatever it was, the owner must hear of it in time
                stop = isinstance(err, RowferryError) and err.verdict is Verdict.STOP
                if stop or self._clock() - renewed >= self._claim.ttl_s:
                    self._lose(err)
                    return

    def _lose(self, error: Exception) -> None:
        self.error = error
        self.lost.set()
        if self._on_lost is not None and not self._closing.is_set():
            self._on_lost(error)

    def close(self) -> None:
        """End the thread; returns when it has ended, or after one time to live."""
        self._closing.set()
        if self._thread is not threading.current_thread():
            self._thread.join(self._claim.ttl_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
