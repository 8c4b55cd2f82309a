"""Schedules on the scripts, alone or compared with the reference after every call.

The scripts take the time as an argument and keep absolute instants, far ahead of the real
ones: what runs out on the schedule's clock is removed here.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from tests.interleaving.invariants import Peek, Stored, require
from tests.interleaving.on_reference import ReferenceServer
from tests.interleaving.scenarios import Play, Server, search
from tests.interleaving.world import KEY
from tests.protocol.world import COMPARE_AND_DELETE, START_MS, RedisWorld, in_order
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
from warmer.store.keyspace import Keyspace
from warmer.store.port import (
    CacheStore,
    Claim,
    Family,
    Invalidation,
    Publication,
    Waiter,
)
from warmer.store.script import Script

if TYPE_CHECKING:
    import redis

T = TypeVar("T")

NAMES = {
    "entry": KEY.text,
    "lease": Keyspace().lease(KEY.text),
    "guard": Keyspace().guard(KEY.text),
}


class RealServer:
    """The scripts on a server whose time is `now`. Empty at first."""

    def __init__(self, world: RedisWorld, link: "redis.Redis") -> None:
        self.store: CacheStore = world.store
        self._now = world.now
        self._now.ms = self._expired_at = START_MS
        self._link = link
        link.delete(*NAMES.values())
        self._replica = self._state()

    async def peek(self) -> Peek:
        """Return what it holds for the key, without what has run out."""
        if self._expired_at != self._now.ms:
            self._expire()
        entry, token, guard = self._pipelined(
            ("GET", NAMES["entry"]),
            ("GET", NAMES["lease"]),
            ("HGETALL", NAMES["guard"]),
        )
        return Peek(
            Stored.of(entry) if entry is not None else None,
            token.decode() if token is not None else None,
            {name.decode(): value.decode() for name, value in guard.items()},
        )

    async def lose(self, what: str) -> None:
        """Lose the entry, the lease or the guard."""
        self._link.delete(NAMES[what])

    async def take_plain_lease(self, token: str, lease_ms: int | None) -> bool:
        """SET NX PX, as a client does that knows nothing else; None = without PX."""
        until = None if lease_ms is None else self._now.ms + lease_ms
        return bool(self._link.set(NAMES["lease"], token, nx=True, pxat=until))

    async def drop_plain_lease(self, token: str) -> None:
        """Compare and delete."""
        self._link.eval(COMPARE_AND_DELETE, 1, NAMES["lease"], token)

    async def replicate(self) -> None:
        """Let its replica know all that it knows."""
        self._replica = self._state()

    async def fail_over(self) -> None:
        """Go back to what its replica knows."""
        self._link.delete(*NAMES.values())
        for name, dumped, until in self._replica:
            if dumped is not None:
                self._link.restore(name, max(until, 0), dumped, absttl=until > 0)
        self._expired_at = 0

    def _expire(self) -> None:
        instants = self._pipelined(*(("PEXPIRETIME", name) for name in NAMES.values()))
        for name, until in zip(NAMES.values(), instants, strict=True):
            if 0 <= until <= self._now.ms:
                self._link.delete(name)
        self._expired_at = self._now.ms

    def _state(self) -> list[tuple[str, bytes | None, int]]:
        names = list(NAMES.values())
        dumps = self._pipelined(*(("DUMP", name) for name in names))
        instants = self._pipelined(*(("PEXPIRETIME", name) for name in names))
        return list(zip(names, dumps, instants, strict=True))

    def _pipelined(self, *commands: tuple[str, str]) -> list[Any]:
        pipeline = self._link.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)  # type: ignore[no-untyped-call]
        return pipeline.execute()


class Twins:
    """Both at once, compared after every call: replies, and every stored byte."""

    def __init__(self, one: Server, other: Server) -> None:
        self._servers = one, other
        self.store: CacheStore = TwinStore(one.store, other.store)

    async def peek(self) -> Peek:
        """Return what both hold for the key."""
        one, other = await self._both(lambda server: server.peek())
        raw = (one.entry and one.entry.raw) == (other.entry and other.entry.raw)
        require("same", raw, f"entry {one.entry} and {other.entry}")
        require("same", one.lease == other.lease, f"{one.lease} and {other.lease}")
        guards = in_order(one.guard) == in_order(other.guard)
        require("same", guards, f"guard {one.guard} and {other.guard}")
        return other

    async def lose(self, what: str) -> None:
        """Lose the entry, the lease or the guard."""
        await self._both(lambda server: server.lose(what))

    async def take_plain_lease(self, token: str, lease_ms: int | None) -> bool:
        """SET NX PX."""
        one, other = await self._both(
            lambda server: server.take_plain_lease(token, lease_ms)
        )
        require("same", one == other, "SET NX")
        return other

    async def drop_plain_lease(self, token: str) -> None:
        """Compare and delete."""
        await self._both(lambda server: server.drop_plain_lease(token))

    async def replicate(self) -> None:
        """Let the replicas know all."""
        await self._both(lambda server: server.replicate())

    async def fail_over(self) -> None:
        """Go back to what the replicas know."""
        await self._both(lambda server: server.fail_over())

    async def _both(self, call: Callable[[Server], Awaitable[T]]) -> tuple[T, T]:
        one, other = self._servers
        return await call(one), await call(other)


class TwinStore(CacheStore):
    """Two stores that must answer the same."""

    def __init__(self, one: CacheStore, other: CacheStore) -> None:
        self._one, self._other = one, other

    @override
    def now_ms(self) -> int:
        return self._other.now_ms()

    @override
    async def read(self, key: Key) -> Entry | None:
        return await self._same(lambda store: store.read(key))

    @override
    async def claim(self, claim: Claim) -> ClaimReply:
        return await self._same(lambda store: store.claim(claim))

    @override
    async def renew(self, lease: Lease, lease_ms: int) -> RenewReply:
        return await self._same(lambda store: store.renew(lease, lease_ms))

    @override
    async def publish(self, lease: Lease, publication: Publication) -> PublishReply:
        return await self._same(lambda store: store.publish(lease, publication))

    @override
    async def release(
        self, lease: Lease, *, retry_ms: int | None = None
    ) -> ReleaseReply:
        return await self._same(lambda store: store.release(lease, retry_ms=retry_ms))

    @override
    async def invalidate_many(
        self, invalidations: Sequence[Invalidation]
    ) -> list[InvalidateReply]:
        return [await self.invalidate(each) for each in invalidations]

    @override
    async def invalidate(self, invalidation: Invalidation) -> InvalidateReply:
        return await self._same(lambda store: store.invalidate(invalidation))

    @override
    async def inspect(self, key: Key) -> Family:
        return await self._other.inspect(key)

    @override
    def waiting(self, key: Key) -> AbstractAsyncContextManager[Waiter]:
        return self._other.waiting(key)

    async def _same(self, call: Callable[[CacheStore], Awaitable[T]]) -> T:
        expected, reply = await call(self._one), await call(self._other)
        require("same", expected == reply, f"{expected} and {reply}")
        return reply


class RealPlays:
    """One real server, for one schedule after another."""

    def __init__(self, world: RedisWorld, link: "redis.Redis") -> None:
        self.world = world
        self._link = link

    def use(self, name: str, script: Script) -> None:
        """Use a script without one of its clauses."""
        setattr(self.world.store, f"_{name}", script)

    async def play(self, seed: int) -> Play:
        """Play one schedule on the scripts alone."""
        server = RealServer(self.world, self._link)
        return await search(seed, server, self.world.now)

    async def play_twins(self, seed: int) -> Play:
        """Play one schedule on the scripts and the reference at once."""
        real = RealServer(self.world, self._link)
        twins = Twins(ReferenceServer(self.world.now), real)
        return await search(seed, twins, self.world.now)
