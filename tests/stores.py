"""A store that lets a test stand at every call: see it, hold it, or make it fail."""

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

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
from warmer.store.port import (
    CacheStore,
    Claim,
    Family,
    Invalidation,
    Publication,
    Waiter,
)

T = TypeVar("T")

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
