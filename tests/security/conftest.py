"""A server's front door on a real port of this machine, for those who attack it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from front_kit import Front

from rowferry.control.operator.operations import Operations
from rowferry.control.store.sql_store import open_store


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operations]:
    """Operations on a meta database of the module's own."""
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('front')}/meta.db")
    yield Operations(store)
    store.close()


@pytest.fixture(scope="module")
def opened(operations: Operations) -> Iterator[Callable[..., Front]]:
    """Start servers that differ in their settings; all end with the module."""
    with ExitStack() as held:

        def start(**settings: Any) -> Front:
            return held.enter_context(Front.started(operations, **settings))

        yield start


@pytest.fixture(scope="module")
def front(opened: Callable[..., Front]) -> Front:
    """The module's server, with the usual settings and no login."""
    return opened()
