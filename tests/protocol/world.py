"""Two cache servers under one clock that only a test moves: the contract, and the scripts.

The scripts take the time as an argument and keep absolute instants, so that a real server
and the reference agree on every one of them. The clock stands far ahead of the real one:
the server's own expiry never fires, and the world removes what ran out on its clock.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis.asyncio import Redis

from tests.servers import ServerProcess
from warmer.clock import SystemClock
from warmer.model.entry import encode_value
from warmer.model.event import PurgeMode
from warmer.model.key import Key, KeyTemplate
from warmer.model.lease import Lease
from warmer.model.outcome import Claimed
from warmer.model.version import SourceVersion, Versions
from warmer.signals import Counters
from warmer.store.connections import Endpoint, connect
from warmer.store.keyspace import Keyspace
from warmer.store.port import CacheStore, Claim, Invalidation, Publication
from warmer.store.read_lane import ReadLane
from warmer.store.redis_store import RedisStore
from warmer.store.reference import NEVER, ReferenceStore, Stored
from warmer.store.wakeups import Wakeups

START_MS = 4_000_000_000_000
TIMEOUT_MS = 5_000
"""Generous: a busy machine must not decide what a conformance test says."""

KEY = KeyTemplate("product:v{schema}:{id}").key("product", 3, {"id": 42})
SCOPE = "shop-db/product:42"
POSITION = "shop-db"


def version(*parts: int, epoch: int = 0) -> SourceVersion:
    return SourceVersion.of("shop-db", *parts, epoch=epoch)


def rows(number: int, *, epoch: int = 0) -> Versions:
    """What a loader reports that read the product's row at this version."""
    return {SCOPE: version(number, epoch=epoch)}


@dataclass(slots=True)
class Now:
    """The clock of a world, in Unix ms."""

    ms: int = START_MS

    def __call__(self) -> int:
        return self.ms


@dataclass(frozen=True, slots=True)
class Kept:
    """All that a server keeps for one key, byte for byte, with its instants of expiry."""

    entry: bytes | None = None
    entry_until: int | None = None
    lease: str | None = None
    lease_until: int | None = None
    guard: dict[str, str] = field(default_factory=dict)
    guard_until: int | None = None


class World(Protocol):
    """A server, its clock, and what can befall it."""

    now: Now

    @property
    def store(self) -> CacheStore:
        """The port."""
        ...

    async def advance(self, ms: int) -> None:
        """Let time pass."""
        ...

    async def kept(self, key: Key = KEY) -> Kept: ...

    async def put_entry(
        self, stored: bytes, *, for_ms: int = 60_000, key: Key = KEY
    ) -> None:
        """Store bytes as they are: another program's, or damaged ones."""
        ...

    async def lose_entry(self, key: Key = KEY) -> None: ...

    async def lose_lease(self, key: Key = KEY) -> None: ...

    async def lose_guard(self, key: Key = KEY) -> None: ...

    async def plain_lock(self, token: str, *, ms: int | None, key: Key = KEY) -> bool:
        """SET NX PX, by a client that knows nothing else; no `ms` = no PX either."""
        ...

    async def plain_unlock(self, token: str, *, key: Key = KEY) -> bool:
        """Compare and delete, by the same client."""
        ...


class ReferenceWorld:
    """The contract in plain Python."""

    def __init__(self) -> None:
        self.now = Now()
        self.store = ReferenceStore(self.now)

    async def advance(self, ms: int) -> None:
        self.now.ms += ms

    async def kept(self, key: Key = KEY) -> Kept:
        store = self.store
        entry = self._alive(store.entries.get(key.text))
        lease = self._alive(store.leases.get(key.text))
        guard = self._alive(store.guards.get(key.text))
        return Kept(
            entry.value if entry else None,
            entry.expires_at if entry else None,
            lease.value if lease else None,
            lease.expires_at if lease and lease.expires_at != NEVER else None,
            in_order(guard.value) if guard else {},
            guard.expires_at if guard else None,
        )

    async def put_entry(
        self, stored: bytes, *, for_ms: int = 60_000, key: Key = KEY
    ) -> None:
        self.store.entries[key.text] = Stored(stored, self.now() + for_ms)

    async def lose_entry(self, key: Key = KEY) -> None:
        self.store.entries.pop(key.text, None)

    async def lose_lease(self, key: Key = KEY) -> None:
        self.store.leases.pop(key.text, None)

    async def lose_guard(self, key: Key = KEY) -> None:
        self.store.guards.pop(key.text, None)

    async def plain_lock(self, token: str, *, ms: int | None, key: Key = KEY) -> bool:
        if self._alive(self.store.leases.get(key.text)):
            return False
        until = NEVER if ms is None else self.now() + ms
        self.store.leases[key.text] = Stored(token, until)
        return True

    async def plain_unlock(self, token: str, *, key: Key = KEY) -> bool:
        lease = self._alive(self.store.leases.get(key.text))
        if lease is None or lease.value != token:
            return False
        del self.store.leases[key.text]
        return True

    def _alive(self, stored: Stored[Any] | None) -> Stored[Any] | None:
        return stored if stored and stored.expires_at > self.now() else None


COMPARE_AND_DELETE = """
if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end
return 0
"""


class RedisWorld:
    """The scripts on a real server."""

    def __init__(self, redis: Redis) -> None:
        self.now = Now()
        self.redis = redis
        self.signals = Counters()
        self.keyspace = Keyspace()
        clock = SystemClock()
        self.lane = ReadLane(redis, timeout_ms=TIMEOUT_MS)
        self.wakeups = Wakeups(redis, clock=clock)
        self.store = RedisStore(
            redis,
            keyspace=self.keyspace,
            lane=self.lane,
            wakeups=self.wakeups,
            clock=clock,
            signals=self.signals,
            timeout_ms=TIMEOUT_MS,
            now_ms=self.now,
        )

    async def aclose(self) -> None:
        await self.store.aclose()
        await self.wakeups.aclose()
        await self.lane.aclose()
        await self.redis.aclose()

    async def advance(self, ms: int) -> None:
        self.now.ms += ms
        names = await self.redis.keys("*")
        pipeline = self.redis.pipeline(transaction=False)
        for name in names:
            pipeline.execute_command("PEXPIRETIME", name)
        instants = await pipeline.execute()
        gone = [
            name
            for name, until in zip(names, instants, strict=True)
            if 0 <= until <= self.now()
        ]
        if gone:
            await self.redis.delete(*gone)

    async def kept(self, key: Key = KEY) -> Kept:
        lease, guard = self.keyspace.lease(key.text), self.keyspace.guard(key.text)
        pipeline = self.redis.pipeline(transaction=False)
        for words in (
            ("GET", key.text),
            ("GET", lease),
            ("HGETALL", guard),
            ("PEXPIRETIME", key.text),
            ("PEXPIRETIME", lease),
            ("PEXPIRETIME", guard),
        ):
            pipeline.execute_command(*words)
        entry, token, fields, *instants = await pipeline.execute()
        untils = [instant if instant >= 0 else None for instant in instants]
        return Kept(
            entry,
            untils[0],
            token.decode() if token is not None else None,
            untils[1],
            in_order({name.decode(): value.decode() for name, value in fields.items()}),
            untils[2],
        )

    async def put_entry(
        self, stored: bytes, *, for_ms: int = 60_000, key: Key = KEY
    ) -> None:
        await self.redis.set(key.text, stored, pxat=self.now() + for_ms)

    async def lose_entry(self, key: Key = KEY) -> None:
        await self.redis.delete(key.text)

    async def lose_lease(self, key: Key = KEY) -> None:
        await self.redis.delete(self.keyspace.lease(key.text))

    async def lose_guard(self, key: Key = KEY) -> None:
        await self.redis.delete(self.keyspace.guard(key.text))

    async def plain_lock(self, token: str, *, ms: int | None, key: Key = KEY) -> bool:
        until = None if ms is None else self.now() + ms
        name = self.keyspace.lease(key.text)
        return bool(await self.redis.set(name, token, nx=True, pxat=until))

    async def plain_unlock(self, token: str, *, key: Key = KEY) -> bool:
        name = self.keyspace.lease(key.text)
        script: Any = self.redis.eval(COMPARE_AND_DELETE, 1, name, token)
        return bool(await script)


@asynccontextmanager
async def on(server: ServerProcess) -> AsyncIterator[RedisWorld]:
    """A world on this server, for the loop that runs."""
    world = RedisWorld(connect(Endpoint(url=server.url, timeout_ms=TIMEOUT_MS)))
    try:
        yield world
    finally:
        await world.aclose()


def in_order(guard: dict[str, str]) -> dict[str, str]:
    """Return the guard with its one vector sorted: a hash gives its fields in any order."""
    floors = guard.get("claim_floors")
    if not floors:
        return dict(guard)
    return {**guard, "claim_floors": ";".join(sorted(floors.split(";")))}


# --- calls, ordinary but for what a test is about --------------------------------------


def claim(token: str = "mine", **changes: Any) -> Claim:  # noqa: S107 - of a lease
    fields: dict[str, Any] = {"lease_ms": 5_000, "guard_ms": 600_000, **changes}
    return Claim(**{"key": KEY, "token": token, **fields})


def publication(versions: Versions | None = None, **changes: Any) -> Publication:
    fields: dict[str, Any] = {
        "key": KEY,
        "content": encode_value({"name": "tea"}, compress_above=None),
        "versions": versions or {},
        "load_ms": 12,
        "fresh_ms": 60_000,
        "stale_ms": 30_000,
        "error_ms": 300_000,
        "settle_ms": 0,
        "lag_retry_ms": 50,
        "guard_ms": 600_000,
    }
    return Publication(**{**fields, **changes})


def change(number: int | None = None, **changes: Any) -> Invalidation:
    """An event about the product, of this version of its row; None = it has none."""
    fields: dict[str, Any] = {
        "key": KEY,
        "scope": SCOPE,
        "version": None if number is None else version(number),
        "mode": PurgeMode.SOFT,
        "stale_ms": 30_000,
        "error_ms": 300_000,
        "guard_ms": 600_000,
    }
    return Invalidation(**{**fields, **changes})


async def claimed(world: World, token: str = "mine", **changes: Any) -> Lease:  # noqa: S107
    """The lease, which must be free."""
    reply = await world.store.claim(claim(token, **changes))
    assert isinstance(reply, Claimed), reply
    return reply.lease
