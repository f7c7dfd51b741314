"""Guessing is slow: who fails to log in again and again waits longer each time."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_MOST_ORIGINS: Final = 4096


@dataclass(slots=True)
class Delays:
    """Counts failures by the address that they come from. Safe for use from several threads.

    Addresses of IPv6 count by their networks; see `network_of`.

    Attributes:
        free: so many failures cost nothing: people mistype.
        first_s: the next one costs this, each further one twice as much.
        most_s: and never more than that; after as long without a failure all is forgotten.
    """

    free: int = 5
    first_s: float = 1.0
    most_s: float = 60.0
    clock: Callable[[], float] = time.monotonic
    _failed: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait_s(self, origin: str) -> float:
        """Return how long somebody from there must wait before he may try again; 0: not at all."""
        with self._lock:
            count, last = self._failed.get(network_of(origin), (0, 0.0))
            if count <= self.free:
                return 0.0
            pause = min(self.most_s, self.first_s * 2.0 ** min(count - self.free - 1, 30))
            return max(0.0, last + pause - self.clock())

    def failed(self, origin: str) -> None:
        """Count a failure."""
        network = network_of(origin)
        with self._lock:
            count, last = self._failed.pop(network, (0, 0.0))
            now = self.clock()
            forgotten = count > 0 and now - last > 2 * self.most_s
            self._failed[network] = (1 if forgotten else count + 1, now)
            while len(self._failed) > _MOST_ORIGINS:
                self._failed.popitem(last=False)


def network_of(origin: str) -> str:
    """Return what an address counts by: of IPv6 its network of 64 bits, else the address itself.

    One client may have all addresses of such a network. One of IPv4 in IPv6's form is of IPv4.
    """
    try:
        address = ipaddress.ip_address(origin.partition("%")[0])
    except ValueError:
        return origin
    if address.version == 4:
        return origin
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), 64), strict=False))
