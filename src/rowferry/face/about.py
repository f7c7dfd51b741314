"""What a server tells about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    """One server of the fleet.

    Attributes:
        address: where the others and clients reach it.
        started_at: seconds since 1970.
        instance: unique to this process; the `id` of a capture.
    """

    address: str
    version: str
    started_at: float
    instance: str
