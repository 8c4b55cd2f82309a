"""Stores for tests: the reference or a real server's, and one to stand in the way of."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

from tests.servers import ServerProcess
from warmer.clock import SystemClock
from warmer.model.entry import Entry
from warmer.model.key import Key
from warmer.model.lease import Lease
from warmer.model.outcome import (
    ClaimReply,
    InvalidateReply,
    PublishReply,
    ReleaseReply,
    RenewReply,
)
from warmer.signals import Counters
from warmer.store.connections import Endpoint, connect
from warmer.store.keyspace import Keyspace
from warmer.store.port import (
    CacheStore,
    Claim,
    Family,
    Invalidation,
    Publication,
    Waiter,
)
from warmer.store.read_lane import ReadLane
from warmer.store.redis_store import RedisStore
from warmer.store.reference import ReferenceStore
from warmer.store.wakeups import Wakeups

T = TypeVar("T")

TIMEOUT_MS = 2_000
"""Generous: a busy machine must not decide what a test says."""


@asynccontextmanager
async def store_on(server: ServerProcess | None) -> AsyncIterator[CacheStore]:
    """A process's store on this server, or the reference in memory; real time in both."""
    clock = SystemClock()
    if server is None:
        yield ReferenceStore(clock.now_ms)
        return
    redis = connect(Endpoint(server.url, timeout_ms=TIMEOUT_MS))
    lane = ReadLane(redis, timeout_ms=TIMEOUT_MS)
    wakeups = Wakeups(redis, clock=clock)
    store = RedisStore(
        redis,
        keyspace=Keyspace(),
        lane=lane,
        wakeups=wakeups,
        clock=clock,
        signals=Counters(),
        timeout_ms=TIMEOUT_MS,
    )
    try:
        await store.start()
        yield store
    finally:
        await store.aclose()
        await wakeups.aclose()
        await lane.aclose()
        await redis.aclose()


Visit = Callable[[str], Awaitable[None]]
"""Awaited at `claim:before` (not sent), `claim:after` (carried out, reply not seen), …"""


async def _pass(_point: str) -> None:
    return


class WatchedStore:
    """Any store, with `visit` awaited before and after each call; what it raises is raised."""

    def __init__(self, store: CacheStore, visit: Visit = _pass) -> None:
        self.inner = store
        self.visit = visit
        self.calls: Counter[str] = Counter()

    def now_ms(self) -> int:
        return self.inner.now_ms()

    async def read(self, key: Key) -> Entry | None:
        return await self._call("read", self.inner.read(key))

    async def claim(self, claim: Claim) -> ClaimReply:
        return await self._call("claim", self.inner.claim(claim))

    async def renew(self, lease: Lease, lease_ms: int) -> RenewReply:
        return await self._call("renew", self.inner.renew(lease, lease_ms))

    async def publish(self, lease: Lease, publication: Publication) -> PublishReply:
        return await self._call("publish", self.inner.publish(lease, publication))

    async def release(
        self, lease: Lease, *, retry_ms: int | None = None
    ) -> ReleaseReply:
        return await self._call("release", self.inner.release(lease, retry_ms=retry_ms))

    async def invalidate(self, invalidation: Invalidation) -> InvalidateReply:
        return await self._call("invalidate", self.inner.invalidate(invalidation))

    async def invalidate_many(
        self, invalidations: Sequence[Invalidation]
    ) -> list[InvalidateReply]:
        """Each is a call of its own, as if its pipeline could break anywhere."""
        replies = await asyncio.gather(
            *map(self.invalidate, invalidations), return_exceptions=True
        )
        return [_raised(reply) for reply in replies]

    async def inspect(self, key: Key) -> Family:
        return await self.inner.inspect(key)

    def waiting(self, key: Key) -> AbstractAsyncContextManager[Waiter]:
        return self.inner.waiting(key)

    async def _call(self, name: str, call: Coroutine[object, object, T]) -> T:
        self.calls[name] += 1
        try:
            await self.visit(f"{name}:before")
        except BaseException:
            call.close()
            raise
        reply = await call
        await self.visit(f"{name}:after")
        return reply


def _raised(reply: T | BaseException) -> T:
    if isinstance(reply, BaseException):
        raise reply
    return reply


LANES = ("CallLane.", "ReadLane.", "Wakeups.")


def tasks_left() -> list[str]:
    """What runs besides the caller and the lanes, which belong to the process."""
    return [
        repr(task)
        for task in asyncio.all_tasks() - {asyncio.current_task()}
        if not getattr(task.get_coro(), "__qualname__", "").startswith(LANES)
    ]
