"""The control server for tests: a client of it, and short spellings of what it holds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from tests.datasets import product
from tests.servers import ServerProcess
from warmer.clock import SystemClock
from warmer.dispatch import Jobs
from warmer.model.due import DueKey
from warmer.model.version import SourceVersion, Versions
from warmer.store.control import ControlServer

PRODUCT = product()


@asynccontextmanager
async def control_of(server: ServerProcess) -> AsyncIterator[ControlServer]:
    """A client of the control server that lives as long as the block."""
    redis = Redis.from_url(server.url)
    try:
        yield ControlServer(redis, drain_job=Jobs(SystemClock()).refresh_due)
    finally:
        await redis.aclose()


def due_key(
    id_: str | int, *, version: int | None = None, fence: int = 0, event: str = "e1"
) -> DueKey:
    """Product `id_`, to be refreshed to `version` of its row."""
    wanted: Versions = {}
    if version is not None:
        wanted = {f"shop-db/product:{id_}": SourceVersion.of("shop-db", version)}
    return DueKey(PRODUCT.key({"id": id_}), wanted, fence, event)
