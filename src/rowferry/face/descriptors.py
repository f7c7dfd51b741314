"""The process's descriptors: as many as the system gives, and a share for those who connect."""

from __future__ import annotations

import resource
from typing import Final

_ENOUGH: Final = 65536  # more only costs time where programs close all that they might have
_SHARE: Final = 4  # of so many descriptors one may be a client's connection


def raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as its hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def share_of_descriptors() -> int:
    """Return how many connections one door may keep: never so many that others find none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, (_ENOUGH if soft == resource.RLIM_INFINITY else soft) // _SHARE)
