"""The three-locale list: a slow query, three keys, and many processes that want them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from tests.processes import CHECKOUT
from tests.servers import ServerProcess, Servers
from warmer.clock import SystemClock
from warmer.model.dataset import Datasets
from warmer.model.dataset_config import configuration_of
from warmer.model.event import PurgeMode
from warmer.model.key import Key
from warmer.model.version import SourceVersion
from warmer.ops.demo.admin import OriginAdmin
from warmer.ops.demo.household import Household
from warmer.ops.demo.reads import Ask, failed, states
from warmer.ops.demo.shop import LOCALES
from warmer.ops.demo.stage import ReaderProcess, demo_config
from warmer.settings import read_settings
from warmer.signals import Counters
from warmer.store.port import CacheStore, Invalidation
from warmer.wiring import open_store

PROCESSES = 20
READS = 50
QUERY_MS = 1_000
LISTS = [Ask("notes", {"locale": locale}) for locale in LOCALES]
EACH_ONCE = {f"/notes?locale={locale}": 1 for locale in LOCALES}


@dataclass(frozen=True)
class Fleet:
    """Twenty processes that read, an origin that counts, and the server between them."""

    readers: ReaderProcess
    origin: OriginAdmin
    server: ServerProcess
    store: CacheStore
    datasets: Datasets

    def clear(self) -> None:
        for ask in LISTS:
            key = self.datasets[ask.dataset].key(ask.parts)
            assert self.server.command("DEL", key.text) == 1

    async def make_stale(self) -> None:
        change = await self.origin.retitle(1, "One")
        dataset = self.datasets["notes"]
        for ask in LISTS:
            invalidation = Invalidation(
                key=dataset.key(ask.parts),
                scope="shop-db/note:1",
                version=SourceVersion.of("shop-db", change.lsn),
                mode=PurgeMode.SOFT,
                stale_ms=dataset.stale_ms,
                error_ms=dataset.error_ms,
                guard_ms=dataset.guard_ms,
            )
            await self.store.invalidate(invalidation)

    async def all_fresh(self) -> None:
        for ask in LISTS:
            key = self.datasets[ask.dataset].key(ask.parts)
            async with asyncio.timeout(10), self.store.waiting(key) as waiter:
                while not await self._fresh(key):
                    await waiter.wait(100)

    async def _fresh(self, key: Key) -> bool:
        entry = await self.store.read(key)
        return entry is not None and entry.fresh_until > self.store.now_ms()

    def evicted(self) -> int:
        return int(self.server.command("INFO", "stats")["evicted_keys"])


@pytest.fixture
async def fleet(start_server: Servers) -> AsyncIterator[Fleet]:
    server = start_server("redis7", maxmemory="64mb", maxmemory_policy="allkeys-lru")
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        house = await stack.enter_async_context(Household.open())
        origin = await house.start_module(
            "origin",
            "warmer.ops.demo.origin",
            *("--database", str(house.directory / "shop.sqlite")),
            *("--query-ms", str(QUERY_MS)),
        )
        origin_url = await origin.line()
        config = house.directory / "demo.toml"
        config.write_text(
            demo_config(
                (CHECKOUT / "config" / "demo.toml").read_text(),
                cache_url=server.url,
                origin_url=origin_url,
            )
        )
        member = await house.start_module(
            "readers",
            "tests.forked_readers",
            *("--config", str(config)),
            *("--processes", str(PROCESSES)),
        )
        assert await member.line() == "ready"
        configuration = configuration_of(read_settings(config, environment={}))
        yield Fleet(
            readers=ReaderProcess(member),
            origin=await stack.enter_async_context(OriginAdmin.of(origin_url)),
            server=server,
            store=await stack.enter_async_context(
                open_store(configuration, clock=clock, signals=Counters())
            ),
            datasets=configuration.datasets,
        )


# Twenty interpreters start inside this, on a machine with two cores.
@pytest.mark.timeout(120)
async def test_a_thousand_readers_of_three_lists_ask_the_origin_three_times(
    fleet: Fleet,
) -> None:
    """R-FT-9, R-LSE-5, R-REC-5: cleared, then stale; three queries each time."""
    evicted = fleet.evicted()
    await fleet.readers.burst(LISTS, callers=1)
    fleet.clear()

    before = await fleet.origin.meter()
    cold = await fleet.readers.burst(LISTS, callers=READS)
    between = await fleet.origin.meter()
    await fleet.make_stale()
    stale = await fleet.readers.burst(LISTS, callers=READS)
    await fleet.all_fresh()
    after = await fleet.origin.meter()

    assert len(cold) == len(stale) == PROCESSES * READS * len(LISTS)
    assert failed([*cold, *stale]) == 0
    assert between.since(before) == EACH_ONCE
    assert after.since(between) == EACH_ONCE
    assert fleet.evicted() == evicted
    # With a stale copy nobody waits for the query. How long a read then takes is for a
    # benchmark to say: here twenty processes share two cores.
    assert set(states(stale)) <= {"stale", "fresh"}
