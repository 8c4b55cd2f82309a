"""A process's request path for tests: client, store and connections on a real server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from redis.asyncio import Redis

from warmer.client import CacheClient
from warmer.clock import SystemClock
from warmer.model.dataset import Dataset
from warmer.model.key import Key
from warmer.refresh import Load, Refresher
from warmer.signals import Counters
from warmer.store.connections import Endpoint, connect
from warmer.store.keyspace import Keyspace
from warmer.store.read_lane import ReadLane
from warmer.store.redis_store import RedisStore
from warmer.store.wakeups import Wakeups

CLOCK = SystemClock()
TIMEOUT_MS = 2_000
"""Generous: a busy machine must not decide what a test says."""


@dataclass(slots=True)
class RequestPath:
    """One process's view: `client`, and what a test looks at beside it."""

    client: CacheClient
    store: RedisStore
    redis: Redis
    datasets: dict[str, Dataset]
    signals: Counters

    async def get(self, dataset: str = "product", **arguments: Any) -> Any:
        return await self.client.get(dataset, **arguments)

    def key(self, dataset: str = "product", **parts: Any) -> Key:
        return self.datasets[dataset].key(parts)


def no_origin(dataset: Dataset) -> Load:
    raise AssertionError(f"no test of this file loads {dataset.name} from its origin")


@asynccontextmanager
async def request_path(
    url: str, *datasets: Dataset, timeout_ms: int = TIMEOUT_MS, **settings: Any
) -> AsyncIterator[RequestPath]:
    """A request path that lives as long as the block, and leaves no task behind it."""
    by_name = {dataset.name: dataset for dataset in datasets}
    signals, random = Counters(), Random(1)
    redis = connect(Endpoint(url, timeout_ms=timeout_ms))
    lane = ReadLane(redis, timeout_ms=timeout_ms)
    wakeups = Wakeups(redis, clock=CLOCK, random=random)
    store = RedisStore(
        redis,
        keyspace=Keyspace(),
        lane=lane,
        wakeups=wakeups,
        clock=CLOCK,
        signals=signals,
        timeout_ms=timeout_ms,
    )
    settings = {"load_of": no_origin} | settings
    shared: dict[str, Any] = {
        "store": store,
        "datasets": by_name,
        "clock": CLOCK,
        "random": random,
    }
    refresher = Refresher(load_of=settings["load_of"], signals=signals, **shared)
    client = CacheClient(refresher=refresher, signals=signals, **shared, **settings)
    try:
        yield RequestPath(client, store, redis, by_name, signals)
    finally:
        await client.aclose()
        await store.aclose()
        await wakeups.aclose()
        await lane.aclose()
        await redis.aclose()
