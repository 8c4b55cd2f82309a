"""Fresh hits: this client beside redis-py's GET and the async peers. `make bench-read`.

One Valkey on loopback, 500 keys with 4 KB of bytes each; everybody hands out those bytes.
Each peer is set up as its documentation shows, reads through its decorator (which is what
protects its loads), and finds its entries fresh.

The last line is JSON, rates as ours/theirs: above 1 is faster than they are.
"""

import asyncio
import json
import logging
import statistics
import time
import timeit
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from aiocache import Cache, cached
from aiocache.serializers import NullSerializer
from cashews import Cache as Cashews
from dogpile_breaker import CacheRegion, RedisStorageBackend
from redis.asyncio import Redis

from tests.bench.rounds import Pace, Read, interleaved, ratio
from tests.clients import request_path
from tests.datasets import product
from tests.servers import HOST, ServerProcess, ValkeyProcess, running
from warmer.model.entry import Entry, decode_entry, encode_entry
from warmer.policy.freshness import freshness

KEYS = 500
BODY = bytes(range(32, 127)) * 42
HOUR_S = 3_600
ROUNDS, FOR_S = 7, 0.25
PEERS = ("cashews", "cashews lock", "aiocache", "dogpile-breaker")


async def load() -> bytes:
    return BODY


@asynccontextmanager
async def redis_py(server: ServerProcess) -> AsyncIterator[Read]:
    """The floor that a user knows: GET on a pooled connection."""
    async with Redis.from_url(server.url) as client:
        for number in range(KEYS):
            await client.set(f"bare:{number}", BODY, ex=HOUR_S)

        async def read(number: int) -> object:
            return await client.get(f"bare:{number}")

        yield read


@asynccontextmanager
async def ours(server: ServerProcess) -> AsyncIterator[Read]:
    dataset = product(fresh_ms=HOUR_S * 1000)
    async with request_path(server.url, dataset, watched=False) as path:
        client = path.client

        async def read(number: int) -> object:
            return (await client.get("product", id=number, load=load)).value

        yield read


@asynccontextmanager
async def cashews(server: ServerProcess, *, lock: bool) -> AsyncIterator[Read]:
    cache = Cashews()
    cache.setup(server.url)

    @cache(ttl=HOUR_S, key=f"cashews:{lock}:{{number}}", lock=lock)
    async def read(number: int) -> object:  # noqa: ARG001 - it names the key
        return BODY

    yield read
    await cache.close()


@asynccontextmanager
async def aiocache(server: ServerProcess) -> AsyncIterator[Read]:
    @cached(  # type: ignore[untyped-decorator]
        ttl=HOUR_S,
        cache=Cache.REDIS,
        endpoint=HOST,
        port=server.port,
        serializer=NullSerializer(encoding=None),
        key_builder=lambda _function, number: f"aiocache:{number}",
    )
    async def read(number: int) -> object:  # noqa: ARG001 - it names the key
        return BODY

    yield read
    await read.cache.close()


@asynccontextmanager
async def dogpile_breaker(server: ServerProcess) -> AsyncIterator[Read]:
    region = CacheRegion(bytes, bytes, "bench", stats_enabled=False)
    await region.configure(RedisStorageBackend, {"host": HOST, "port": server.port})

    async def read(number: int) -> object:
        return await region.get_or_create(
            f"dogpile:{number}", HOUR_S, 5, load, (), {}, jitter_func=None
        )

    yield read
    await region.aclose()


async def compare(server: ServerProcess) -> dict[int, dict[str, list[Pace]]]:
    """Paces per number of tasks and contender."""
    async with AsyncExitStack() as stack:
        contenders = {
            "redis-py GET": await stack.enter_async_context(redis_py(server)),
            "ours": await stack.enter_async_context(ours(server)),
            "cashews": await stack.enter_async_context(cashews(server, lock=False)),
            "cashews lock": await stack.enter_async_context(cashews(server, lock=True)),
            "aiocache": await stack.enter_async_context(aiocache(server)),
            "dogpile-breaker": await stack.enter_async_context(dogpile_breaker(server)),
        }
        for name, read in contenders.items():
            for number in range(KEYS):
                assert await read(number) == BODY, name
        return {
            tasks: await interleaved(
                contenders, tasks=tasks, keys=KEYS, rounds=ROUNDS, for_s=FOR_S
            )
            for tasks in (1, 50, 500)
        }


def parse_us() -> float:
    """Microseconds to parse a header and decide what the entry is good for."""
    key = product().key({"id": 42})
    far = 2**42
    entry = Entry(8, 3, 1, far, far, far, fence=7, load_ms=12, vector=b"", body=BODY)
    stored, digest = encode_entry(entry, key.digest()), key.digest()
    times = timeit.repeat(
        lambda: freshness(decode_entry(stored, digest), 5),
        timer=time.process_time,
        number=20_000,
        repeat=5,
    )
    return min(times) / 20_000 * 1e6


def show(paces: dict[int, dict[str, list[Pace]]]) -> None:
    print(
        "fresh hits of 4 KB, medians: reads/s, ratio to redis-py's GET, µs of CPU each"
    )
    print(f"{'':16}" + "".join(f"{f'{tasks} task(s)':>27}" for tasks in paces))
    for name in paces[1]:
        cells = (_cell(at[name], at["redis-py GET"]) for at in paces.values())
        print(f"{name:16}" + "".join(cells))
    print(f"header parse and decision: {parse_us():.2f} µs")


def _cell(mine: list[Pace], floor: list[Pace]) -> str:
    rate = statistics.median(pace.rate for pace in mine)
    cpu_us = statistics.median(pace.cpu_us for pace in mine)
    return f"{rate:11,.0f} {ratio(mine, floor):6.2f}x {cpu_us:6.1f}µ"


def main() -> None:
    logging.disable()
    with running(ValkeyProcess()) as server:
        paces = asyncio.run(compare(server))
    show(paces)
    fifty = paces[50]
    summary = {
        "one_task_vs_redis_py": ratio(paces[1]["ours"], paces[1]["redis-py GET"]),
        "fifty_tasks_vs_redis_py": ratio(fifty["ours"], fifty["redis-py GET"]),
        "fifty_tasks_vs_best_peer": min(
            ratio(fifty["ours"], fifty[peer]) for peer in PEERS
        ),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
