"""Each conformance test runs on the reference, on Valkey and on Redis."""

from collections.abc import AsyncIterator

import pytest

from tests.protocol.world import RedisWorld, ReferenceWorld, World, on
from tests.servers import ServerProcess


@pytest.fixture(params=["reference", "valkey9", "redis7"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A cache server, whichever, and its clock."""
    if request.param == "reference":
        yield ReferenceWorld()
        return
    process: ServerProcess = request.getfixturevalue(
        {"valkey9": "valkey", "redis7": "redis7"}[request.param]
    )
    process.renew()
    async with on(process) as redis_world:
        yield redis_world


@pytest.fixture
async def redis_world(server: ServerProcess) -> AsyncIterator[RedisWorld]:
    """A real server, for what only a real one can show."""
    async with on(server) as redis_world:
        yield redis_world
