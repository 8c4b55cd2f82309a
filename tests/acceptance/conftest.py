"""Stores that promises are shown on."""

from collections.abc import AsyncIterator

import pytest

from tests.stores import store_on
from warmer.store.port import CacheStore


@pytest.fixture(params=["reference", "valkey9", "redis7"])
async def a_store(request: pytest.FixtureRequest) -> AsyncIterator[CacheStore]:
    """The store of one process: on either server, empty, and on the reference."""
    process = None
    if request.param != "reference":
        fixture = {"valkey9": "valkey", "redis7": "redis7"}[request.param]
        process = request.getfixturevalue(fixture)
        process.renew()
    async with store_on(process) as store:
        yield store
