"""A refresh from a real HTTP origin into a real cache server."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from tests.datasets import product
from tests.origin_client import OriginClient, origin_client
from tests.origin_server import Reply, json_answer
from tests.stores import tasks_left
from warmer.clock import SystemClock
from warmer.errors import OriginRefused, OriginTimeout
from warmer.model.dataset import Dataset, LoaderVersion, VersionMeans
from warmer.model.event import PurgeMode
from warmer.model.outcome import (
    Cooling,
    Held,
    LoadFailed,
    Outdated,
    Published,
)
from warmer.model.version import SourceVersion
from warmer.origin.loader import Origin
from warmer.refresh import RETRY_BASE_MS, Refresher, RefreshRequest
from warmer.signals import Counters
from warmer.store.port import CacheStore, Invalidation

PRODUCT = product(
    version=LoaderVersion(
        VersionMeans.ENTITY, "shop-db", "product:{id}", header="X-Version"
    )
)
KEY = PRODUCT.key({"id": 42})
REQUEST = RefreshRequest(KEY)
PATH = "/products/42"


@pytest.fixture
async def client() -> AsyncIterator[OriginClient]:
    async with origin_client() as running:
        yield running


def refresher(
    store: CacheStore, origin: Origin, *, dataset: Dataset = PRODUCT
) -> Refresher:
    return Refresher(
        store=store,
        datasets={"product": dataset},
        load_of=origin.load_of,
        random=random.Random(7),
        signals=Counters(),
    )


async def test_twelve_processes_ask_the_origin_once(
    a_store: CacheStore, client: OriginClient
) -> None:
    """R-LSE-5, R-OBS-2: as the origin counts it."""
    client.server.on(PATH, json_answer({"price": 1990}, version=42))
    client.server.hold()
    workers = [refresher(a_store, client.origin()) for _ in range(12)]
    runs = [asyncio.create_task(worker.run(REQUEST)) for worker in workers]
    await client.server.sees(running=1)
    # The owner is the only one who is still at it.
    done, owner = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 11:
        more, owner = await asyncio.wait(owner, return_when=asyncio.FIRST_COMPLETED)
        done |= more
    client.server.let_go()
    outcome = await owner.pop()

    assert all(isinstance(run.result(), Held) for run in done)
    assert isinstance(outcome, Published)
    assert client.server.loads(PATH) == client.server.max_running == 1


async def test_an_event_is_reached_by_what_the_origin_reports(
    a_store: CacheStore, client: OriginClient
) -> None:
    """R-WRM-4, LOST-INVAL-4: a lagging replica's row is not published, the next one is."""
    client.server.on(
        PATH,
        json_answer({"price": 1990}, version=41),
        json_answer({"price": 1490}, version=42),
    )
    version = SourceVersion.of("shop-db", 42)
    await a_store.invalidate(
        Invalidation(
            KEY, "shop-db/product:42", version, PurgeMode.SOFT, 30_000, 0, 600_000
        )
    )
    worker = refresher(a_store, client.origin())
    wanted = RefreshRequest(KEY, wanted={"shop-db/product:42": version})
    lagging = await worker.run(wanted)
    cooling = await worker.run(wanted)
    assert isinstance(cooling, Cooling)
    await SystemClock().sleep(cooling.retry_in_ms / 1000 + 0.002)
    reached = await worker.run(wanted)

    assert isinstance(lagging, Outdated)
    assert isinstance(reached, Published)
    assert reached.loaded.content.value() == {"price": 1490}


async def test_the_fleet_stays_away_until_the_origins_date(
    a_store: CacheStore, client: OriginClient
) -> None:
    """RETRY-2: a 503 with a date, by the origin's clock; one request is sent."""
    headers = {
        "Date": "Fri, 15 Jan 2027 08:00:00 GMT",
        "Retry-After": "Fri, 15 Jan 2027 08:00:30 GMT",
    }
    client.server.on(PATH, Reply(503, headers=headers))
    failed = await refresher(a_store, client.origin()).run(REQUEST)
    others = await refresher(a_store, client.origin()).run(REQUEST)

    assert isinstance(failed, LoadFailed)
    assert isinstance(failed.error, OriginRefused)
    assert 30_000 < failed.retry_in_ms <= 30_000 + RETRY_BASE_MS
    assert isinstance(others, Cooling)
    assert client.server.loads(PATH) == 1


async def test_a_trickle_that_never_ends_is_cut_at_the_load_timeout(
    a_store: CacheStore, client: OriginClient
) -> None:
    """R-ADM-2: no phase was too slow, and the origin can stop working."""
    client.server.on(PATH, Reply(body=b"x" * 100_000, trickle_s=0.01))
    short = product(load_timeout_ms=150, version=PRODUCT.version)
    failed = await refresher(a_store, client.origin(), dataset=short).run(REQUEST)
    await client.server.sees(running=0)

    assert isinstance(failed, LoadFailed)
    assert isinstance(failed.error, OriginTimeout)
    assert failed.error.phase == "total"
    assert (await a_store.inspect(KEY)).lease_token is None
    assert tasks_left() == []


async def test_a_cancelled_refresh_leaves_no_request_no_lease_and_no_turn(
    a_store: CacheStore, client: OriginClient
) -> None:
    """R-LSE-2, HTTPPOOL-1: whether its request runs or waits for its turn."""
    origin = client.origin(local_limit=1)
    client.server.on(PATH, json_answer({"price": 1990}, version=42))
    client.server.hold()
    waits = PRODUCT.key({"id": 43})
    worker = refresher(a_store, origin)
    runs = [
        asyncio.create_task(worker.run(RefreshRequest(key))) for key in (KEY, waits)
    ]
    await client.server.until(lambda: origin.limit.running == origin.limit.waiting == 1)
    for run in runs:
        run.cancel()
    await asyncio.wait(runs)
    await client.server.sees(running=0)
    client.server.let_go()

    assert all(run.cancelled() for run in runs)
    for key in (KEY, waits):
        assert (await a_store.inspect(key)).lease_token is None
    assert (origin.limit.running, origin.limit.waiting) == (0, 0)
    assert isinstance(await worker.run(REQUEST), Published)
