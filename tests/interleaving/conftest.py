"""A real server that schedules are played on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis

from tests.interleaving.real import RealPlays
from tests.protocol.world import on
from tests.servers import HOST, ServerProcess


@pytest.fixture
async def real_plays(server: ServerProcess) -> AsyncIterator[RealPlays]:
    """The scripts on Valkey and on Redis, for one schedule after another."""
    async with _plays_on(server) as plays:
        yield plays


@pytest.fixture
async def valkey_plays(valkey: ServerProcess) -> AsyncIterator[RealPlays]:
    """The scripts on Valkey only, where what is shown does not depend on the server."""
    valkey.renew()
    async with _plays_on(valkey) as plays:
        yield plays


@asynccontextmanager
async def _plays_on(process: ServerProcess) -> AsyncIterator[RealPlays]:
    async with on(process) as world:
        link = redis.Redis(host=HOST, port=process.port, single_connection_client=True)
        with link:
            yield RealPlays(world, link)
