"""Truncated tables and purges of all: the cache server is scanned, whatever happens to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, cast

import pytest

from jobs import prefix_scan
from jobs.prefix_scan import PrefixScan
from jobs.pulse import Pulse
from tests.control import control_of
from tests.datasets import product
from tests.fleet import Shop, shop_on, until
from tests.processes import Children
from tests.protocol.world import claim, publication
from tests.servers import ServerProcess, Servers
from tests.stores import store_on
from warmer.clock import SystemClock
from warmer.ingest.event_log import encode
from warmer.invalidate import Invalidator
from warmer.model.dataset import Datasets, EntityPattern
from warmer.model.due import Lane
from warmer.model.event import Event
from warmer.model.key import Key, KeyTemplate
from warmer.model.lease import Lease
from warmer.model.outcome import Claimed, PublishReply
from warmer.model.version import SourceVersion, Versions
from warmer.signals import Counters
from warmer.store.control import ControlServer
from warmer.store.keyspace import Keyspace

if TYPE_CHECKING:
    from warmer.store.redis_store import Names, RedisStore

CLOCK = SystemClock()
PRODUCT = product()
LISTED = product(
    name="list",
    template=KeyTemplate("list:v{schema}:{locale}"),
    vary={"locale": ("de", "en")},
    entities=(EntityPattern("shop-db/product:{any_id}"),),
)
OTHER = product(
    name="price",
    template=KeyTemplate("price:v{schema}:{id}"),
    entities=(EntityPattern("shop-db/price:{id}"),),
)
DATASETS: Datasets = {each.name: each for each in (PRODUCT, LISTED, OTHER)}


@dataclass(slots=True)
class Bench:
    """A cache and control server, and what one worker does about prefixes."""

    server: ServerProcess
    control: ControlServer
    store: "RedisStore"
    signals: Counters = field(default_factory=Counters)
    errors: list[BaseException | None] = field(default_factory=list)

    @property
    def invalidator(self) -> Invalidator:
        return Invalidator(
            store=self.store,
            datasets=DATASETS,
            due=self.control.due,
            scans=self.control.scans,
            signals=self.signals,
        )

    async def truncate(self, prefix: str = "product:", *, version: int = 7) -> None:
        """Apply the event of an emptied table, as the log's reader does."""
        of = SourceVersion.of("shop-db", version)
        event = Event(f"e{version}", "shop-db", (), version=of, prefixes=(prefix,))
        await self.invalidator.apply([event])

    @asynccontextmanager
    async def scanning(
        self, store: "RedisStore | None" = None
    ) -> AsyncIterator[PrefixScan]:
        scan = PrefixScan(
            scans=self.control.scans,
            store=store or self.store,
            invalidator=self.invalidator,
            datasets=DATASETS,
            clock=CLOCK,
            random=Random(1),
            signals=self.signals,
            report=self._report,
            pulse=Pulse(CLOCK, within_s=20),
        )
        serving = asyncio.create_task(scan.serve())
        try:
            yield scan
        finally:
            scan.stop()
            await serving

    def _report(
        self, name: str, *labels: str, error: BaseException | None = None
    ) -> None:
        del name, labels
        self.errors.append(error)

    async def scanned(self) -> None:
        """Return when nothing is asked for any more."""

        async def none_left() -> bool:
            return not await self.control.scans.asked()

        await until(none_left, within_s=25, what=lambda: f"scans: {self.errors}")

    async def claim(self, key: Key, token: str = "mine") -> Lease:  # noqa: S107 - of a lease
        reply = await self.store.claim(claim(token, key=key))
        assert isinstance(reply, Claimed), reply
        return reply.lease

    async def put(self, key: Key, versions: Versions | None = None) -> None:
        """An entry as a load stores it."""
        lease = await self.claim(key, key.text)
        published = await self.store.publish(lease, publication(versions, key=key))
        assert published is PublishReply.PUBLISHED

    async def is_fresh(self, key: Key) -> bool:
        entry = await self.store.read(key)
        return entry is not None and entry.fresh_until > self.store.now_ms()


@pytest.fixture
async def bench(server: ServerProcess) -> AsyncIterator[Bench]:
    async with control_of(server) as control, store_on(server) as store:
        yield Bench(server, control, cast("RedisStore", store))


def row(id_: int, version: int) -> Versions:
    return {f"shop-db/product:{id_}": SourceVersion.of("shop-db", version)}


async def test_every_key_of_a_truncated_table_is_stale_and_lists_of_it_too(
    bench: Bench,
) -> None:
    """R-INV-4: and nothing else is touched."""
    reached = [PRODUCT.key({"id": id_}) for id_ in range(40)]
    lists = [LISTED.key({"locale": locale}) for locale in ("de", "en")]
    other = OTHER.key({"id": 1})
    for key in (*reached, *lists, other):
        await bench.put(key)

    await bench.truncate()
    async with bench.scanning():
        await bench.scanned()

    assert [key for key in (*reached, *lists) if await bench.is_fresh(key)] == []
    assert await bench.is_fresh(other)
    assert (await bench.control.due.depth(Lane.WARM)).due == len(reached) + len(lists)
    assert (await bench.control.due.depth(Lane.NOW)).due == 0


async def test_what_was_loaded_after_the_truncation_is_left_as_it_is(
    bench: Bench,
) -> None:
    """R-INV-2: its version proves it."""
    old, new = PRODUCT.key({"id": 1}), PRODUCT.key({"id": 2})
    await bench.put(old, row(1, 6))
    await bench.put(new, row(2, 8))

    await bench.truncate(version=7)
    async with bench.scanning():
        await bench.scanned()

    assert not await bench.is_fresh(old)
    assert await bench.is_fresh(new)


@pytest.mark.parametrize("versions", [None, row(1, 6)], ids=["unproven", "older"])
async def test_a_load_under_way_without_an_entry_is_not_stored_as_current(
    bench: Bench, versions: Versions | None
) -> None:
    """R-INV-3: its guard tells its key."""
    key = PRODUCT.key({"id": 1})
    lease = await bench.claim(key)
    await bench.truncate(version=7)
    async with bench.scanning():
        await bench.scanned()

    await bench.store.publish(lease, publication(versions, key=key))

    assert not await bench.is_fresh(key)


async def test_an_entry_whose_guard_was_evicted_is_reached(bench: Bench) -> None:
    """R-INV-4: either name is enough."""
    key = PRODUCT.key({"id": 1})
    await bench.put(key)
    bench.server.command("DEL", Keyspace().guard(key.text))

    await bench.truncate("")
    async with bench.scanning():
        await bench.scanned()

    assert not await bench.is_fresh(key)


async def test_a_key_with_a_digest_in_its_name_is_reached(bench: Bench) -> None:
    """R-INV-4: nobody can refresh it, so nobody is asked to."""
    key = PRODUCT.key({"id": "x" * 600})
    await bench.put(key)

    await bench.truncate()
    async with bench.scanning():
        await bench.scanned()

    assert not await bench.is_fresh(key)
    assert (await bench.control.due.depth(Lane.WARM)).due == 0


async def test_a_thousand_truncations_are_a_few_scans(bench: Bench) -> None:
    """R-INV-4: the newest of them counts."""
    key = PRODUCT.key({"id": 1})
    await bench.put(key, row(1, 998))
    bench.server.command("DEBUG", "POPULATE", 5_000, "other", 10)

    async with bench.scanning():
        for version in range(1_000):
            await bench.truncate(version=version)
        await bench.scanned()

    assert not await bench.is_fresh(key)
    assert bench.signals.total("scans_asked") == 1_000
    assert bench.signals.total("scans_done") <= 100


async def test_other_keys_of_the_server_cost_it_short_looks_only(bench: Bench) -> None:
    """BULK-1, BULK-3: 200,000 names that are not ours, and others wait for none of it."""
    bench.server.command("DEBUG", "POPULATE", 200_000, "other", 10)
    bench.server.command("CONFIG", "RESETSTAT")
    key = PRODUCT.key({"id": 1})
    await bench.put(key)

    await bench.truncate()
    async with bench.scanning():
        await bench.scanned()

    commands = bench.server.command("INFO", "commandstats")
    scan = commands["cmdstat_scan"]
    assert not await bench.is_fresh(key)
    assert scan["calls"] >= 200_000 / prefix_scan.COUNT * 0.9
    # Usually 0.1 ms.
    assert scan["usec_per_call"] < 5_000
    assert "cmdstat_keys" not in commands


async def test_many_keys_are_invalidated_by_calls_that_others_get_between(
    bench: Bench,
) -> None:
    """BULK-3, BULK-8: a purge of 20,000 keys holds up nobody for long."""
    bench.server.command("DEBUG", "POPULATE", 20_000, "product:v3", 10)
    waits: list[float] = []

    await bench.truncate()
    async with bench.scanning():
        while await bench.control.scans.asked():
            began = CLOCK.monotonic()
            await bench.control.ping()
            waits.append(CLOCK.monotonic() - began)
            await CLOCK.sleep(0.002)

    waits.sort()
    left = bench.server.command("EVAL", "return #redis.call('KEYS', 'product:*')", 0)
    assert left == 0
    # Measured with the scan in the same process: its share is in it.
    assert waits[len(waits) // 2] < 0.2


class Restarting:
    """A store whose server is another one after a few looks."""

    def __init__(self, store: "RedisStore", after: int) -> None:
        self.store = store
        self.after = after
        self.cursors: list[int] = []

    async def names(self, cursor: int, *, count: int) -> "Names":
        names = await self.store.names(cursor, count=count)
        self.cursors.append(cursor)
        if len(self.cursors) <= self.after:
            return names
        return replace(names, run_id="another")


async def test_on_another_server_a_scan_begins_anew(bench: Bench) -> None:
    """CLUSTER-9: a cursor of the old primary would skip names on the new one."""
    bench.server.command("DEBUG", "POPULATE", 5_000, "other", 10)
    store = Restarting(bench.store, after=4)

    await bench.truncate()
    async with bench.scanning(cast("RedisStore", store)):
        await bench.scanned()

    assert store.cursors.count(0) == 2
    assert store.cursors[5] == 0
    assert bench.signals.total("scans_restarted") == 1


async def test_a_cache_server_that_is_away_is_waited_for(
    bench: Bench, start_server: Servers
) -> None:
    """R-FT-1: the asking is on the control server."""
    cache = start_server("valkey9", appendonly=True)
    key = PRODUCT.key({"id": 1})
    async with store_on(cache) as store:
        bench.store = cast("RedisStore", store)
        await bench.put(key)
        await asyncio.to_thread(cache.stop)
        await bench.truncate()
        async with bench.scanning():

            async def failed() -> bool:
                return bool(bench.errors)

            await until(failed, within_s=20, what=lambda: "no failure")
            await asyncio.to_thread(cache.start)
            await bench.scanned()

        assert not await bench.is_fresh(key)


@pytest.mark.timeout(90)
async def test_a_scan_whose_worker_was_killed_goes_on_where_it_was(
    server: ServerProcess, tmp_path: Path, children: Children
) -> None:
    """R-FT-4: another takes it over, and no key is left out."""
    server.renew()
    server.command("DEBUG", "POPULATE", 60_000, "product:v3", 10)
    async with shop_on(server.url, tmp_path) as shop:
        await shop.control.events.append([_truncation()])
        doomed = await shop.worker(children, lanes='["now"]')
        await until(lambda: _noted(shop), within_s=30, what=lambda: doomed.output)
        doomed.kill()
        noted = int(server.command("HGET", "warmer:scan", "cursor"))
        await shop.worker(children, lanes='["now"]')

        async def scanned() -> bool:
            return not await shop.control.scans.asked()

        await until(scanned, within_s=50, what=lambda: "not scanned")

    assert noted > 0
    left = server.command("EVAL", "return #redis.call('KEYS', 'product:*')", 0)
    assert left == 0


async def _noted(shop: Shop) -> bool:
    cursor = await shop.redis.hget("warmer:scan", "cursor")  # type: ignore[misc]
    return cursor not in {None, b"0"}


def _truncation() -> bytes:
    of = SourceVersion.of("shop-db", 7)
    return encode(Event("t1", "shop-db", (), version=of, prefixes=("product:",)))
