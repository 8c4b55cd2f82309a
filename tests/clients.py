"""A process's request path for tests: client, store and connections on a real server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from redis.asyncio import Redis

from tests.stores import WatchedStore
from warmer.client import CacheClient
from warmer.clock import SystemClock
from warmer.model.dataset import Dataset
from warmer.model.key import Key
from warmer.model.permit import Errand
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
    store: WatchedStore
    """What the client reads from: a test may stand at every call."""
    redis: Redis
    datasets: dict[str, Dataset]
    signals: Counters

    async def get(self, dataset: str = "product", **arguments: Any) -> Any:
        return await self.client.get(dataset, **arguments)

    def key(self, dataset: str = "product", **parts: Any) -> Key:
        return self.datasets[dataset].key(parts)


class Time:
    """A cache server's clock that only a test moves.

    It stands far ahead of the real one, so that the server's own expiry never fires.
    """

    def __init__(self) -> None:
        self.ms = 4_000_000_000_000

    def __call__(self) -> int:
        return self.ms


class CountedOrigin:
    """An origin as a loader: it counts, it may be held, it may fail."""

    def __init__(self, value: object = "value", *, takes_s: float = 0.0) -> None:
        self.value = value
        self.takes_s = takes_s
        self.error: BaseException | None = None
        self.loads = 0
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()

    async def __call__(self) -> object:
        self.loads += 1
        value = self.value  # the row is read first; what takes time comes after it
        self.asked.set()
        await CLOCK.sleep(self.takes_s)
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return value

    def hold(self) -> None:
        """From now on loads wait for `open`."""
        self.open.clear()
        self.asked.clear()


def no_origin(dataset: Dataset, _errand: Errand) -> Load:
    raise AssertionError(f"no test of this file loads {dataset.name} from its origin")


@asynccontextmanager
async def request_path(
    url: str,
    *datasets: Dataset,
    timeout_ms: int = TIMEOUT_MS,
    now_ms: Callable[[], int] | None = None,
    watched: bool = True,
    **settings: Any,
) -> AsyncIterator[RequestPath]:
    """A request path that lives as long as the block."""
    by_name = {dataset.name: dataset for dataset in datasets}
    signals, random = Counters(), Random(1)
    redis = connect(Endpoint(url, timeout_ms=timeout_ms))
    lane = ReadLane(redis, timeout_ms=timeout_ms)
    wakeups = Wakeups(redis, clock=CLOCK, random=random)
    redis_store = RedisStore(
        redis,
        keyspace=Keyspace(),
        lane=lane,
        wakeups=wakeups,
        clock=CLOCK,
        signals=signals,
        timeout_ms=timeout_ms,
        now_ms=now_ms,
    )
    store = WatchedStore(redis_store)
    settings = {"load_of": no_origin} | settings
    shared: dict[str, Any] = {
        "store": store if watched else redis_store,
        "datasets": by_name,
        "random": random,
        "signals": signals,
    }
    refresher = Refresher(load_of=settings["load_of"], **shared)
    client = CacheClient(refresher=refresher, clock=CLOCK, **shared, **settings)
    try:
        yield RequestPath(client, store, redis, by_name, signals)
    finally:
        await client.aclose()
        await redis_store.aclose()
        await wakeups.aclose()
        await lane.aclose()
        await redis.aclose()
