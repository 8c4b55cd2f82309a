"""One key, 4 processes with 500 callers each: this client beside peers. `make bench-stampede`.

Three plays: a cold key whose load takes 200 ms; a cold key whose load outlives its lease; a
row that changes, and is invalidated, while its old state is being loaded. All callers begin
at one instant. `loads` are counted at the origin, `last` is when the last caller of all
processes had its value, `then` what is read a second after the invalidation.

The last line is JSON, of this client alone.
"""

import argparse
import asyncio
import json
import logging
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from aiocache import Cache, cached_stampede
from aiocache.serializers import JsonSerializer
from cashews import Cache as Cashews
from dogpile_breaker import CacheRegion, RedisStorageBackend
from redis.asyncio import Redis

from tests.clients import request_path
from tests.datasets import product
from tests.processes import ChildProcess
from tests.servers import HOST, ValkeyProcess, running
from warmer.model.event import PurgeMode
from warmer.store.port import Invalidation

PROCESSES, CALLERS = 4, 500
ORIGIN_MS, LEASE_MS, LONG_MS = 200, 1_000, 2_500
CHANGED_MS, CHANGE_AFTER_S = 800, 0.5
"""Long enough that every peer has begun to load before the row changes."""
ROUNDS = 3
HOUR_S = 3_600
PLAYERS = range(PROCESSES)
PATIENT = timedelta(seconds=30)
LEAD_S = 0.15
"""Between the word and the start: every process has heard it by then."""

Load = Callable[[str], Awaitable[int]]
Read = Callable[[str], Awaitable[object]]
Invalidate = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Contender:
    read: Read
    invalidate: Invalidate


@dataclass(frozen=True, slots=True)
class Play:
    """What every process is told to do."""

    contender: str
    key: str
    load_ms: int
    start_at: float
    change_after_s: float | None = None


# --- contenders -----------------------------------------------------------------------


@asynccontextmanager
async def ours(url: str, load: Load) -> AsyncIterator[Contender]:
    dataset = product(fresh_ms=HOUR_S * 1000, lease_ms=LEASE_MS, load_timeout_ms=10_000)
    async with request_path(url, dataset, watched=False) as path:

        async def read(key: str) -> object:
            answer = await path.client.get(
                "product", id=key, load=lambda: load(key), deadline=PATIENT
            )
            return answer.value

        async def invalidate(key: str) -> None:
            await path.store.invalidate(
                Invalidation(
                    path.key(id=key),
                    f"shop-db/product:{key}",
                    None,
                    PurgeMode.SOFT,
                    stale_ms=dataset.stale_ms,
                    error_ms=dataset.error_ms,
                    guard_ms=dataset.guard_ms,
                )
            )

        yield Contender(read, invalidate)


@asynccontextmanager
async def naive(url: str, load: Load) -> AsyncIterator[Contender]:
    """GET, load, SET: what is written without a library."""
    async with Redis.from_url(url) as redis:

        async def read(key: str) -> object:
            stored = await redis.get(f"naive:{key}")
            if stored is not None:
                return json.loads(stored)
            value = await load(key)
            await redis.set(f"naive:{key}", json.dumps(value), ex=HOUR_S)
            return value

        async def invalidate(key: str) -> None:
            await redis.delete(f"naive:{key}")

        yield Contender(read, invalidate)


@asynccontextmanager
async def cashews(url: str, load: Load, *, lock: bool) -> AsyncIterator[Contender]:
    cache = Cashews()
    cache.setup(url)
    template = f"cashews:{lock}:{{key}}"

    @cache(ttl=HOUR_S, key=template, lock=lock)
    async def read(key: str) -> object:
        return await load(key)

    async def invalidate(key: str) -> None:
        await cache.delete(template.format(key=key))

    yield Contender(read, invalidate)
    await cache.close()


@asynccontextmanager
async def aiocache(url: str, load: Load) -> AsyncIterator[Contender]:
    @cached_stampede(  # type: ignore[untyped-decorator]
        lease=LEASE_MS / 1000,
        ttl=HOUR_S,
        cache=Cache.REDIS,
        endpoint=HOST,
        port=port_of(url),
        serializer=JsonSerializer(),
        key_builder=lambda _function, key: f"aiocache:{key}",
    )
    async def read(key: str) -> object:
        return await load(key)

    async def invalidate(key: str) -> None:
        await read.cache.delete(f"aiocache:{key}")

    yield Contender(read, invalidate)
    await read.cache.close()


@asynccontextmanager
async def dogpile_breaker(url: str, load: Load) -> AsyncIterator[Contender]:
    region = CacheRegion(_dumps, json.loads, "bench", stats_enabled=False)
    where = {"host": HOST, "port": port_of(url)}
    await region.configure(RedisStorageBackend, where)

    async def read(key: str) -> object:
        return await region.get_or_create(
            f"dogpile:{key}",
            HOUR_S,
            LEASE_MS // 1000,
            load,
            (key,),
            {},
            jitter_func=None,
        )

    async def invalidate(key: str) -> None:
        await region.backend_storage.delete(f"dogpile:{key}")

    yield Contender(read, invalidate)
    await region.aclose()


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


def _dumps(value: object) -> bytes:
    return json.dumps(value).encode()


NAMES = (
    "ours",
    "naive",
    "cashews",
    "cashews lock",
    "aiocache stampede",
    "dogpile-breaker",
)


async def contenders(
    stack: AsyncExitStack, url: str, load: Load
) -> dict[str, Contender]:
    made = (
        ours(url, load),
        naive(url, load),
        cashews(url, load, lock=False),
        cashews(url, load, lock=True),
        aiocache(url, load),
        dogpile_breaker(url, load),
    )
    return {
        name: await stack.enter_async_context(each)
        for name, each in zip(NAMES, made, strict=True)
    }


# --- a process ------------------------------------------------------------------------


async def act(url: str) -> None:
    """Play what is called out on `go`, and push what came of it."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(Redis.from_url(url))
        load_ms = ORIGIN_MS

        async def load(key: str) -> int:
            ends_at = time.monotonic() + load_ms / 1000  # counting is part of its time
            await redis.incr(f"loads:{key}")
            row = int(await redis.get(f"row:{key}") or 1)
            await asyncio.sleep(ends_at - time.monotonic())
            return row

        by_name = await contenders(stack, url, load)
        go = await stack.enter_async_context(redis.pubsub())
        await go.subscribe("go")
        await redis.lpush("ready", "1")
        async for message in go.listen():
            if message["type"] != "message":
                continue
            play = Play(**json.loads(message["data"]))
            load_ms = play.load_ms
            read = by_name[play.contender].read
            last = await rush(read, play)
            await redis.lpush(f"last:{play.key}", last)


async def rush(read: Read, play: Play) -> float:
    """Every caller at once; seconds until the last of them had its value."""
    await asyncio.sleep(play.start_at - time.time())
    await asyncio.gather(*(read(play.key) for _ in range(CALLERS)))
    return time.time() - play.start_at


# --- the plays ------------------------------------------------------------------------


class Stage:
    """The processes, and the one who calls the plays."""

    def __init__(self, redis: Redis, by_name: dict[str, Contender]) -> None:
        self._redis = redis
        self._by_name = by_name
        self._number = 0

    async def play(
        self, contender: str, *, load_ms: int, change_after_s: float | None = None
    ) -> tuple[int, float, object]:
        """Loads, seconds of the last caller, and what is read afterwards."""
        self._number += 1
        key = f"{self._number}"
        play = Play(contender, key, load_ms, time.time() + LEAD_S)
        await self._redis.publish("go", json.dumps(asdict(play)))
        if change_after_s is not None:
            await asyncio.sleep(LEAD_S + change_after_s)
            await self._redis.set(f"row:{key}", 2)
            await self._by_name[contender].invalidate(key)
        lasts = [float(await popped(self._redis, f"last:{key}")) for _ in PLAYERS]
        loads = int(await self._redis.get(f"loads:{key}") or 0)
        then: object = None
        if change_after_s is not None:
            await self._by_name[contender].read(key)
            await asyncio.sleep(1.0)
            then = await self._by_name[contender].read(key)
        return loads, max(lasts), then


async def popped(redis: Redis, name: str) -> bytes:
    popping: Any = redis.brpop([name], timeout=30)
    reply: list[bytes] = await popping
    return reply[1]


@dataclass(slots=True)
class Result:
    loads: int
    last_s: float
    long_loads: int
    long_last_s: float
    newest: bool


async def perform(url: str) -> dict[str, Result]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(Redis.from_url(url))

        async def load(key: str) -> int:
            return int(await redis.get(f"row:{key}") or 1)

        stage = Stage(redis, await contenders(stack, url, load))
        for _ in PLAYERS:
            await popped(redis, "ready")
        for name in NAMES:  # connections and imports are made before anything counts
            await stage.play(name, load_ms=1)
        cold: dict[str, list[tuple[int, float, object]]] = {name: [] for name in NAMES}
        for turn in range(ROUNDS):
            for name in NAMES if turn % 2 == 0 else reversed(NAMES):
                cold[name].append(await stage.play(name, load_ms=ORIGIN_MS))
        results = {}
        for name in NAMES:
            long_loads, long_last_s, _ = await stage.play(name, load_ms=LONG_MS)
            changed = await stage.play(
                name, load_ms=CHANGED_MS, change_after_s=CHANGE_AFTER_S
            )
            results[name] = Result(
                loads=max(loads for loads, _, _ in cold[name]),
                last_s=statistics.median(last for _, last, _ in cold[name]),
                long_loads=long_loads,
                long_last_s=long_last_s,
                newest=changed[2] == 2,
            )
        return results


def show(results: dict[str, Result]) -> None:
    print(f"{PROCESSES} processes x {CALLERS} callers, one key, everybody at once")
    long = f"load {LONG_MS} ms, lease {LEASE_MS}"
    print(f"{'':18}{f'load {ORIGIN_MS} ms':>22}{long:>26}{'invalidated':>16}")
    print(f"{'':18}{'loads':>8}{'last':>14}{'loads':>12}{'last':>14}{'then':>16}")
    for name, result in results.items():
        then = "newest" if result.newest else "old for its TTL"
        print(
            f"{name:18}{result.loads:8}{result.last_s:12.3f} s"
            f"{result.long_loads:12}{result.long_last_s:12.2f} s{then:>16}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--act", metavar="URL", help=argparse.SUPPRESS)
    url: Any = parser.parse_args().act
    logging.disable()
    if url:
        asyncio.run(act(url))
        return
    with running(ValkeyProcess()) as server:
        actors = [
            ChildProcess.python("tests.bench.stampede", "--act", server.url)
            for _ in PLAYERS
        ]
        try:
            results = asyncio.run(perform(server.url))
        finally:
            for actor in actors:
                actor.kill()
    show(results)
    mine = results["ours"]
    summary = {
        "origin_loads": mine.loads,
        "last_caller_vs_origin": round(mine.last_s / (ORIGIN_MS / 1000), 2),
        "origin_loads_long_load": mine.long_loads,
        "final_value_newest": mine.newest,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
