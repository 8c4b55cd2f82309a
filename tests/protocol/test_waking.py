"""Reads and wake-ups on real servers: cut off, restarted, asked by many at once."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
from redis.asyncio import Redis

from tests.servers import ServerProcess
from warmer.clock import SystemClock
from warmer.store.read_lane import ReadLane
from warmer.store.wakeups import BACKSTOP_MS, Wakeups

CLOCK = SystemClock()
CHANNEL = "wake:{product:v3:42}"
LONG_MS = 10_000


@pytest.fixture
async def redis(server: ServerProcess) -> AsyncIterator[Redis]:
    async with Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
async def wakeups(redis: Redis) -> AsyncIterator[Wakeups]:
    wakeups = Wakeups(redis, clock=CLOCK, random=Random(1), max_channels=50)
    yield wakeups
    await wakeups.aclose()


async def until_subscribed(redis: Redis, *channels: str) -> None:
    async with asyncio.timeout(10):
        while any(not n for _, n in await redis.pubsub_numsub(*channels)):
            await CLOCK.sleep(0.005)


async def until_unsubscribed(redis: Redis) -> None:
    async with asyncio.timeout(10):
        while await redis.pubsub_channels():
            await CLOCK.sleep(0.005)


async def test_a_message_wakes_every_waiter_of_its_channel_and_no_other(
    redis: Redis, wakeups: Wakeups
) -> None:
    """R-OBS-1 R-FLT-3: in milliseconds, over one connection for all of them."""
    woken: list[str] = []

    async def wait(channel: str, name: str) -> None:
        async with wakeups.waiting(channel) as waiter:
            began = CLOCK.monotonic()
            await waiter.wait(LONG_MS)
            if CLOCK.monotonic() - began < BACKSTOP_MS / 1000 * 0.8:
                woken.append(name)

    waiters = [asyncio.create_task(wait(CHANNEL, "mine")) for _ in range(50)]
    waiters.append(asyncio.create_task(wait("wake:{other}", "other")))
    await until_subscribed(redis, CHANNEL, "wake:{other}")
    await redis.publish(CHANNEL, "published")
    await asyncio.gather(*waiters)

    assert woken == ["mine"] * 50
    subscribers = await redis.pubsub_numsub(CHANNEL)
    assert subscribers[0][1] <= 1
    await until_unsubscribed(redis)


async def test_what_happens_after_registering_is_not_missed(
    redis: Redis, wakeups: Wakeups
) -> None:
    """STAMPEDE-4: a message between registering and waiting wakes the waiter all the same."""
    for _ in range(50):
        async with wakeups.waiting(CHANNEL) as waiter:
            await redis.publish(CHANNEL, "published")
            began = CLOCK.monotonic()
            await waiter.wait(LONG_MS)

            assert CLOCK.monotonic() - began < BACKSTOP_MS / 1000 * 0.8


async def test_a_waiter_of_a_silent_key_looks_again_by_itself(
    wakeups: Wakeups,
) -> None:
    """R-LSE-1: a plain client gives its lease back without a word."""
    async with wakeups.waiting(CHANNEL) as waiter:
        async with asyncio.timeout(5):
            await waiter.wait(LONG_MS)


async def test_waiters_poll_while_the_server_is_gone_and_are_woken_when_it_is_back(
    server: ServerProcess, redis: Redis, wakeups: Wakeups
) -> None:
    """R-FT-3: a lost connection wakes at once; a new one is subscribed without a restart."""
    async with wakeups.waiting(CHANNEL) as waiter:
        await until_subscribed(redis, CHANNEL)
        waiting = asyncio.create_task(waiter.wait(LONG_MS))
        await asyncio.to_thread(server.kill)
        await asyncio.wait_for(waiting, 5)
        polls = 0
        began = CLOCK.monotonic()
        while CLOCK.monotonic() - began < 0.2:
            await waiter.wait(LONG_MS)
            polls += 1

        assert polls >= 3
        await asyncio.to_thread(server.restart)
        await until_subscribed(redis, CHANNEL)


async def test_waiters_past_the_bound_poll(redis: Redis, wakeups: Wakeups) -> None:
    """R-FLT-3: 60 keys, 50 channels; the others look every 25 to 50 ms."""

    async def wait(number: int) -> float:
        async with wakeups.waiting(f"wake:{{{number}}}") as waiter:
            # Everybody has come before anybody leaves.
            await until_subscribed(redis, "wake:{0}")
            began = CLOCK.monotonic()
            await waiter.wait(LONG_MS)
            return CLOCK.monotonic() - began

    waited = await asyncio.gather(*(wait(number) for number in range(60)))

    assert max(waited[50:]) < BACKSTOP_MS / 1000 * 0.9
    await until_unsubscribed(redis)


async def test_channels_left_and_joined_in_a_hurry_end_up_right(
    redis: Redis, wakeups: Wakeups
) -> None:
    """STAMPEDE-4: whoever holds a place at the end is subscribed, nobody else is."""
    random = Random(5)

    async def come_and_go() -> None:
        for _ in range(30):
            async with wakeups.waiting(f"wake:{{{random.randrange(5)}}}"):
                for _ in range(random.randrange(4)):
                    await CLOCK.sleep(0)

    await asyncio.gather(*(come_and_go() for _ in range(20)))

    await until_unsubscribed(redis)
    async with wakeups.waiting(CHANNEL):
        await until_subscribed(redis, CHANNEL)


async def test_cancelled_readers_never_shift_replies(redis: Redis) -> None:
    """RPOOL-1: 400 readers, a third of them cut off anywhere; the rest get their own."""
    keys = [f"key-{number}" for number in range(100)]
    await redis.mset({key: f"body of {key}" for key in keys})
    lane = ReadLane(redis, timeout_ms=5_000)
    random = Random(11)
    done = 0

    async def reader() -> None:
        nonlocal done
        for _ in range(30):
            key = random.choice(keys)
            reading = asyncio.create_task(lane.get(key))
            if random.random() < 0.3:
                for _ in range(random.randrange(6)):
                    await CLOCK.sleep(0)
                reading.cancel()
            try:
                assert await reading == f"body of {key}".encode()
                done += 1
            except asyncio.CancelledError:
                continue

    await asyncio.gather(*(reader() for _ in range(400)))

    assert done > 8_000
    info = await redis.info("clients")
    assert info["connected_clients"] <= 8
    await lane.aclose()


async def test_reads_go_on_after_a_restart(server: ServerProcess, redis: Redis) -> None:
    """R-POL-2: a connection that the restart broke is made again within the read."""
    lane = ReadLane(redis, timeout_ms=5_000)
    await asyncio.gather(*(lane.get(f"k{number}") for number in range(100)))

    await asyncio.to_thread(server.restart)

    assert await lane.get("k1") is None
    assert set(await asyncio.gather(*(lane.get(f"k{at}") for at in range(100)))) == {
        None
    }
    await lane.aclose()
