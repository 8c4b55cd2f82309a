"""A source's streams and the group that workers share, on both servers."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from redis.asyncio import Redis

from tests.servers import ServerProcess
from warmer.store.consumer_group import ConsumerGroup, StreamEntry
from warmer.store.control_link import ControlLink

STREAMS = ("shop.public.product", "shop.public.price")
GROUP = "warmer"


@pytest.fixture
async def group(server: ServerProcess) -> AsyncIterator[ConsumerGroup]:
    redis = Redis.from_url(server.url)
    try:
        link = ControlLink(redis, timeout_ms=2_000)
        yield ConsumerGroup(link, streams=STREAMS, name=GROUP)
    finally:
        await redis.aclose()


def add(server: ServerProcess, stream: str, *values: str) -> list[str]:
    return [
        server.command("XADD", stream, "*", "k", value).decode() for value in values
    ]


async def read(group: ConsumerGroup, consumer: str = "a") -> Sequence[StreamEntry]:
    return await group.read(consumer, count=100, block_ms=1_000)


def values(entries: Sequence[StreamEntry]) -> list[bytes | None]:
    return [entry.fields[b"k"] if entry.fields else None for entry in entries]


async def test_a_group_begins_where_each_stream_does(
    group: ConsumerGroup, server: ServerProcess
) -> None:
    """R-INV-1: what was written before the first worker came counts too."""
    add(server, STREAMS[0], "1", "2")
    add(server, STREAMS[1], "3")

    assert sorted(values(await read(group)), key=repr) == [b"1", b"2", b"3"]


async def test_a_stream_that_is_not_there_yet_is_waited_for(
    group: ConsumerGroup, server: ServerProcess
) -> None:
    """R-INV-1: workers may be started before the sink."""
    reading = asyncio.create_task(group.read("a", count=100, block_ms=20_000))
    while not server.command("INFO", "clients")["blocked_clients"]:
        await asyncio.wait((reading,), timeout=0.005)
    add(server, STREAMS[1], "1")

    assert values(await reading) == [b"1"]


@pytest.mark.parametrize("loss", ["FLUSHALL", "XGROUP DESTROY", "DEL"])
async def test_a_lost_group_is_made_anew_for_all_streams(
    group: ConsumerGroup, server: ServerProcess, loss: str
) -> None:
    """STREAM-1: whichever of the streams lost it."""
    add(server, STREAMS[1], "before")
    await group.acknowledge(await read(group))
    arguments = {
        "FLUSHALL": (),
        "XGROUP DESTROY": (STREAMS[0], GROUP),
        "DEL": (STREAMS[0],),
    }[loss]
    server.command(loss, *arguments)
    add(server, STREAMS[0], "after")

    assert values(await read(group))[-1:] == [b"after"]
    assert await group.claim_abandoned("a", min_idle_ms=60_000, count=10) == []


async def test_trimming_leaves_what_another_group_has_not_done_with(
    group: ConsumerGroup, server: ServerProcess
) -> None:
    """STREAM-10: neither what it was given nor what it has yet to be given."""
    ids = add(server, STREAMS[0], *(str(number) for number in range(1_000)))
    server.command("XGROUP", "CREATE", STREAMS[0], "audit", "0")
    given = server.command(
        *("XREADGROUP", "GROUP", "audit", "x", "COUNT", 500, "STREAMS", STREAMS[0], ">")
    )
    while entries := await group.read("a", count=500, block_ms=1):
        await group.acknowledge(entries)
    untouched = await group.trim(whole=True)
    server.command("XACK", STREAMS[0], "audit", *ids[:400])

    removed = await group.trim(whole=True)

    ((oldest, _),) = server.command("XRANGE", STREAMS[0], "-", "+", "COUNT", 1)
    assert given
    assert untouched == 0
    assert 0 < removed <= 400
    assert ids.index(oldest.decode()) <= 400


async def test_what_all_groups_acknowledged_is_trimmed(
    group: ConsumerGroup, server: ServerProcess
) -> None:
    """STREAM-10: a sink never trims, and halts when its server is full."""
    for stream in STREAMS:
        add(server, stream, *(str(number) for number in range(1_000)))
    while entries := await group.read("a", count=500, block_ms=1):
        await group.acknowledge(entries)

    removed = await group.trim(whole=True)

    assert removed >= 2 * (1_000 - 101)


async def test_deliveries_are_counted_and_can_be_corrected(
    group: ConsumerGroup, server: ServerProcess
) -> None:
    """STREAM-6: what ends its readers is told from what was only given again."""
    add(server, STREAMS[0], "1", "2")
    await read(group, "crashed")
    taken = await group.claim_abandoned("b", min_idle_ms=0, count=10)
    await group.keep("b", taken)
    counted = await group.deliveries("b", taken)

    await group.count_as("b", taken[:1], 7)

    assert set(counted.values()) == {2}
    assert list((await group.deliveries("b", taken)).values()) == [7, 2]
