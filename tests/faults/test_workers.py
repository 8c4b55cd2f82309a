"""Real worker processes, killed, stopped and set against each other."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from redis.asyncio import Redis

from tests.control import due_key
from tests.fleet import CLOCK, Shop, shop_on, until
from tests.origin_server import Reply
from tests.processes import Children
from tests.servers import ServerProcess
from warmer.dispatch import Jobs, arq_pool, enqueue_invalidate
from warmer.model.due import Lane

MANY = range(300)


@pytest.fixture
async def shop(valkey: ServerProcess, tmp_path: Path) -> AsyncIterator[Shop]:
    valkey.renew()
    async with shop_on(valkey.url, tmp_path) as opened:
        yield opened


async def test_a_changed_row_is_refreshed_before_anyone_asks(
    shop: Shop, children: Children
) -> None:
    """R-CARD-1, R-CARD-3, R-INV-1."""
    await shop.worker(children)

    await shop.change(42)

    await shop.fresh(42)
    await shop.settled()
    assert shop.loads([42]) == {42: 1}


async def test_a_worker_killed_in_mid_batch_loses_no_event_and_no_due_key(
    shop: Shop, children: Children
) -> None:
    """R-FT-4, STREAM-6: another takes over what it held, in the log and in the due set."""
    shop.origin.hold()
    doomed = await shop.worker(children, concurrency="16")
    await shop.change(*MANY)
    await shop.origin.sees(running=16)

    doomed.kill()
    shop.origin.let_go()
    await shop.worker(children)

    await shop.fresh(*MANY)
    await shop.settled()


async def test_three_workers_share_the_work_and_load_each_key_once(
    shop: Shop, children: Children
) -> None:
    """R-LSE-5, R-WRM-3: however many look at one lane."""
    shop.delay_s = 0.05
    await asyncio.gather(*(shop.worker(children, concurrency="8") for _ in range(3)))

    await shop.change(*MANY)

    await shop.fresh(*MANY)
    await shop.settled()
    assert set(shop.loads(MANY).values()) == {1}
    assert 8 < shop.origin.max_running <= 24


async def test_sigterm_lets_running_loads_finish_and_leaves_the_rest_due(
    shop: Shop, children: Children
) -> None:
    """ARQ-4: no key is loaded for nothing, and none is lost."""
    shop.origin.hold()
    worker = await shop.worker(children, concurrency="4")
    await shop.change(*range(20))
    await shop.origin.sees(running=4)

    worker.terminate()
    await worker.line("worker_draining")
    shop.origin.let_go()
    status = await worker.exited(within_s=15)

    depth = await shop.control.due.depth(Lane.NOW)
    state = await shop.control.events.state()
    fresh = [id_ for id_ in range(20) if await shop.is_fresh(id_)]
    assert status == 0
    assert len(fresh) == 4 == sum(shop.loads(range(20)).values())
    assert (depth.due, depth.doing) == (16, 0)
    assert (state.pending, state.consumers) == (0, 0)


async def test_a_load_longer_than_the_drain_is_handed_back_and_its_lease_released(
    shop: Shop, children: Children
) -> None:
    """ARQ-4: six restarts during one long load use up nothing."""
    shop.write(1)
    shop.origin.on("/products/1", Reply(hang=True))
    await shop.control.events.append([shop.event(1, 1)])
    for _ in range(3):
        before = shop.origin.loads("/products/1")
        worker = await shop.worker(
            children, drain="1s", load_timeout="30s", lease="40s"
        )
        await shop.origin.until(lambda: shop.origin.loads("/products/1") > before)  # noqa: B023
        worker.terminate()
        assert await worker.exited(within_s=15) == 0
        assert not await shop.redis.exists("lock:{product:v3:1}")

    assert await shop.control.parked_count() == 0
    shop.write(1)
    await shop.worker(children)
    await shop.control.events.append([shop.event(1, 2)])
    await shop.fresh(1)


async def test_events_out_of_order_and_repeated_never_bring_an_older_row_back(
    shop: Shop, children: Children
) -> None:
    """R-FT-7, R-INV-2, CDC-ORDER-6: through the log, by two workers."""
    for _ in range(3):
        shop.write(7)
    await asyncio.gather(shop.worker(children), shop.worker(children))
    await shop.control.events.append([shop.event(7, 3)])
    await shop.fresh(7)
    await shop.settled()
    loads = shop.origin.loads("/products/7")

    await shop.control.events.append([shop.event(7, 2), shop.event(7, 1)])
    await shop.settled()

    assert await shop.is_fresh(7)
    assert shop.origin.loads("/products/7") == loads == 1


async def test_replayed_events_rebuild_each_key_once_at_most(
    shop: Shop, children: Children
) -> None:
    """CDC-GAP-1: the last 200 events again after a restart; versions unchanged."""
    ids = range(50)
    events = [shop.event(id_, shop.write(id_)) for _ in range(4) for id_ in ids]
    await shop.worker(children)
    await shop.control.events.append(events)
    await shop.fresh(*ids)
    await shop.settled()
    before = shop.loads(ids)

    await shop.control.events.append(events)
    await shop.settled()

    await shop.fresh(*ids)
    after = shop.loads(ids)
    assert all(after[id_] - before[id_] <= 1 for id_ in ids)


async def test_an_event_during_the_load_of_its_key_is_not_lost(
    shop: Shop, children: Children
) -> None:
    """R-INV-3, ARQ-1: the run has already read the row when the event comes."""
    await shop.worker(children)
    shop.origin.hold()
    await shop.change(5)
    await shop.origin.sees(running=1)

    await shop.change(5)
    await shop.origin.until(lambda: shop.origin.running == 1)
    shop.origin.let_go()

    await shop.fresh(5)


async def test_an_event_again_right_after_its_refresh_refreshes_again(
    shop: Shop, children: Children
) -> None:
    """ARQ-1: no job id and no kept result stands in the way."""
    await shop.worker(children)
    for _ in range(5):
        await shop.change(42)
        await shop.fresh(42)

    assert shop.loads([42]) == {42: 5}


async def test_lost_job_keys_of_arq_lose_no_refresh(
    shop: Shop, children: Children
) -> None:
    """MEMORY-5: queue and job keys evicted while a hundred keys wait."""
    keys = [due_key(id_, version=1) for id_ in range(100)]
    for id_ in range(100):
        shop.write(id_)
    await shop.control.due.add(Lane.NOW, keys)
    for name in await shop.redis.keys("arq:*"):
        await shop.redis.delete(name)
    await shop.redis.delete("warmer:queue")

    await shop.worker(children)

    await shop.fresh(*range(100))
    await shop.settled()


async def test_a_key_that_fails_for_good_becomes_a_dead_letter_and_not_a_loop(
    shop: Shop, children: Children
) -> None:
    """R-ADM-4, ARQ-6: bounded in number, with its reason, and an event revives it."""
    await shop.worker(children, max_tries="3")
    shop.write(1)
    shop.origin.on("/products/1", Reply(status=500))
    await shop.control.events.append([shop.event(1, 1)])

    async def parked() -> bool:
        return await shop.control.parked_count() == 1

    await until(parked, within_s=20, what=lambda: "no dead letter")
    await shop.settled()
    (letter,) = await shop.control.parked()
    loads = shop.origin.loads("/products/1")
    await shop.change(1)
    await shop.fresh(1)

    assert (letter.fields["kind"], letter.fields["reason"]) == ("key", "unavailable")
    assert "product" in letter.fields["member"]
    assert 3 <= loads <= 6


@pytest.mark.timeout(120)  # four leases of dead workers run out
async def test_a_key_whose_load_kills_every_worker_is_given_up_and_the_others_live(
    shop: Shop, children: Children
) -> None:
    """R-ADM-4, R-FT-4: no crash loop; its neighbours in each crash are not given up."""
    ids = range(12)
    shop.delay_s = 0.05
    await shop.change(*ids)
    shop.origin.on("/products/3", Reply(hang=True))
    deaths = 0
    worker = await shop.worker(children, max_tries="3")

    async def given_up() -> bool:
        nonlocal deaths, worker
        if shop.origin.loads("/products/3") > deaths:
            deaths += 1
            worker.kill()
            for member in await shop.redis.zrange("warmer:doing:now", 0, -1):
                await shop.redis.zadd("warmer:doing:now", {member: 1}, xx=True)
            worker = await shop.worker(children, max_tries="3")
        return await shop.control.parked_count() > 0

    await until(given_up, within_s=90, what=lambda: f"{deaths} workers killed")
    healthy = [id_ for id_ in ids if id_ != 3]
    await shop.fresh(*healthy)
    await shop.settled()

    (letter,) = await shop.control.parked()
    assert letter.fields["reason"] == "abandoned"
    assert '"id":"3"' in letter.fields["member"]
    assert deaths == shop.origin.loads("/products/3") == 5
    await worker.line("refresh_given_up product abandoned")


async def test_an_unreadable_event_is_set_aside_and_the_next_is_applied(
    shop: Shop, children: Children
) -> None:
    """CDC-SHAPE-1: a poison message holds up nobody."""
    await shop.worker(children)
    await shop.control.events.append([b"{", b'{"source":"shop-db"}'])
    await shop.change(1)

    await shop.fresh(1)
    await shop.settled()

    letters = await shop.control.parked()
    assert [letter.fields["payload"] for letter in letters] == [
        "{",
        '{"source":"shop-db"}',
    ]
    assert "entities" in letters[1].fields["reason"]


@pytest.mark.parametrize("how", ["script", "arq"])
async def test_a_producer_may_queue_events_as_a_job(
    shop: Shop, children: Children, how: str
) -> None:
    """R-CARD-5: with our script, or with plain arq on the same queue."""
    await shop.worker(children)
    wire = orjson.loads(shop.event(1, shop.write(1)))

    if how == "script":
        await enqueue_invalidate(shop.redis, [wire, {"source": 1}], jobs=Jobs(CLOCK))
    else:
        pool = arq_pool(Redis.from_url(shop.url))
        await pool.enqueue_job("invalidate", {"events": [wire, {"source": 1}]})
        await pool.aclose(close_connection_pool=True)

    await shop.fresh(1)
    (letter,) = await shop.control.parked()
    assert "source" in letter.fields["reason"]


async def test_a_worker_of_one_lane_leaves_the_other_to_those_that_serve_it(
    shop: Shop, children: Children
) -> None:
    """R-WRM-2: lanes can have workers of their own."""
    await shop.worker(children, lanes='["warm"]')
    await shop.change(1)
    shop.write(2)
    await shop.control.due.add(Lane.WARM, [due_key(2, version=1)])
    await shop.fresh(2)
    waiting = await shop.control.due.depth(Lane.NOW)

    await shop.worker(children, lanes='["now"]')

    await shop.fresh(1)
    assert (waiting.due, waiting.doing) == (1, 0)
