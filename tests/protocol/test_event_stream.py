"""The event log and its consumer group, on both servers."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.control import control_of
from tests.servers import ServerProcess
from warmer.store.control import ControlServer
from warmer.store.event_stream import EventStream, Logged


@pytest.fixture
async def control(server: ServerProcess) -> AsyncIterator[ControlServer]:
    async with control_of(server) as connected:
        yield connected


@pytest.fixture
def events(control: ControlServer) -> EventStream:
    return control.events


async def read(events: EventStream, consumer: str = "a") -> Sequence[Logged]:
    return await events.read(consumer, count=100, block_ms=1_000)


async def claim(
    events: EventStream, consumer: str, *, min_idle_ms: int = 0
) -> Sequence[Logged]:
    return await events.claim_abandoned(consumer, min_idle_ms=min_idle_ms, count=100)


def bodies(entries: Sequence[Logged]) -> list[bytes | None]:
    return [entry.event for entry in entries]


def ids(entries: Sequence[Logged]) -> list[str]:
    return [entry.id for entry in entries]


async def test_events_are_read_in_order_and_once_by_one_consumer(
    events: EventStream,
) -> None:
    """R-CARD-1: the log is durable and shared."""
    appended = await events.append([b"1", b"2", b"3"])

    first = await read(events, "a")
    second = await events.read("b", count=100, block_ms=1)

    assert (ids(first), bodies(first)) == (appended, [b"1", b"2", b"3"])
    assert second == []


async def test_a_reader_is_woken_by_the_next_event(events: EventStream) -> None:
    """R-CARD-1: a purge takes milliseconds, not a poll."""
    reading = asyncio.create_task(events.read("a", count=100, block_ms=20_000))
    await events.append([b"1"])

    assert bodies(await reading) == [b"1"]


@pytest.mark.parametrize("loss", ["FLUSHALL", "XGROUP DESTROY", "DEL"])
async def test_a_lost_group_is_made_anew_and_new_events_are_read(
    events: EventStream, server: ServerProcess, loss: str
) -> None:
    """STREAM-1."""
    await events.append([b"before"])
    await events.acknowledge(ids(await read(events)))
    arguments = {
        "FLUSHALL": (),
        "XGROUP DESTROY": ("warmer:events", "workers"),
        "DEL": ("warmer:events",),
    }[loss]
    server.command(loss, *arguments)
    await events.append([b"after"])

    read_after = bodies(await read(events))

    assert read_after[-1] == b"after"
    assert await claim(events, "a", min_idle_ms=60_000) == []


@pytest.mark.parametrize("loss", ["FLUSHALL", "XGROUP DESTROY"])
async def test_a_group_lost_under_a_waiting_reader_is_made_anew(
    events: EventStream, server: ServerProcess, loss: str
) -> None:
    """STREAM-1: the reader that blocks is told, and goes on."""
    await events.make_group()
    reading = asyncio.create_task(events.read("a", count=100, block_ms=20_000))
    while not server.command("INFO", "clients")["blocked_clients"]:
        await asyncio.wait((reading,), timeout=0.005)
    server.command(loss, *(() if loss == "FLUSHALL" else ("warmer:events", "workers")))
    await events.append([b"after"])

    assert bodies(await reading) == [b"after"]


async def test_claiming_and_acknowledging_survive_a_lost_group(
    events: EventStream, server: ServerProcess
) -> None:
    """STREAM-1: every call, not only the read."""
    await events.append([b"1"])
    held = ids(await read(events))
    server.command("FLUSHALL")

    await events.keep("a", held)
    await events.acknowledge(held)

    assert await claim(events, "b") == []
    assert await events.own_pending("a", count=10) == []
    assert (await events.state()).pending == 0


async def test_a_crashed_consumers_batch_is_taken_over_and_a_live_ones_is_not(
    events: EventStream,
) -> None:
    """STREAM-6: the live one says that it still works."""
    await events.append([b"1", b"2"])
    (held,) = await events.read("live", count=1, block_ms=1_000)
    await events.read("crashed", count=1, block_ms=1_000)
    min_idle_ms = 200

    taken: list[Logged] = []
    while not taken:
        await events.keep("live", [held.id])
        taken.extend(await claim(events, "other", min_idle_ms=min_idle_ms))

    assert bodies(taken) == [b"2"]
    assert bodies(await events.own_pending("live", count=10)) == [b"1"]


async def test_deleted_entries_do_not_break_a_claim_and_leave_the_pending_list(
    events: EventStream, server: ServerProcess
) -> None:
    """STREAM-4."""
    appended = await events.append([b"1", b"2", b"3"])
    await read(events, "crashed")
    server.command("XDEL", "warmer:events", *appended[:2])

    taken = await claim(events, "other")

    assert bodies(taken) == [b"3"]
    assert (await events.state()).pending == 1


async def test_a_deleted_entry_of_ones_own_can_be_acknowledged(
    events: EventStream, server: ServerProcess
) -> None:
    """STREAM-4: read again after an error, it is an entry without an event."""
    appended = await events.append([b"1", b"2"])
    await read(events)
    server.command("XDEL", "warmer:events", appended[0])

    again = await events.own_pending("a", count=10)
    await events.acknowledge(ids(again))

    assert bodies(again) == [None, b"2"]
    assert await events.own_pending("a", count=10) == []


async def test_trimming_never_removes_what_is_not_acknowledged(
    events: EventStream, server: ServerProcess
) -> None:
    """STREAM-10: a consumer that holds an old entry keeps it, and all after it."""
    numbers = [str(number).encode() for number in range(1_000)]
    appended = await events.append(numbers)
    first = await events.read("slow", count=500, block_ms=1_000)
    await events.acknowledge(ids(first)[:300])

    removed = await events.trim(older_than_ms=0)

    ((oldest, _),) = server.command("XRANGE", "warmer:events", "-", "+", "COUNT", 1)
    kept_from = appended.index(oldest.decode())
    assert 0 < removed <= 300
    assert kept_from <= 300
    assert bodies(await events.own_pending("slow", count=1_000)) == numbers[300:500]


async def test_acknowledged_entries_are_really_trimmed_once_they_are_old(
    events: EventStream,
) -> None:
    """STREAM-10: the length stays bounded; it is measured."""
    for _ in range(10):
        await events.append([b"event"] * 1_000)
    while entries := await events.read("a", count=2_000, block_ms=1):
        await events.acknowledge(ids(entries))
    young = await events.trim(older_than_ms=60_000)

    removed = await events.trim(older_than_ms=0)

    state = await events.state()
    assert young == 0
    assert removed >= 9_800
    assert state.length == 10_000 - removed
    assert (state.pending, state.lag) == (0, 0)


async def test_what_was_never_delivered_is_not_trimmed(events: EventStream) -> None:
    """R-INV-3: no event is dropped because the workers were down for a week."""
    await events.append([b"event"] * 1_000)
    await events.make_group()

    assert await events.trim(older_than_ms=0) == 0
    assert (await events.state()).lag == 1_000


async def test_a_consumer_that_leaves_is_forgotten_unless_it_holds_entries(
    events: EventStream,
) -> None:
    """STREAM-6: names do not pile up over restarts."""
    await events.append([b"1"])
    held = await read(events, "leaving")
    await events.forget("leaving")
    still_there = (await events.state()).consumers
    await events.acknowledge(ids(held))
    await events.forget("leaving")

    assert (still_there, (await events.state()).consumers) == (1, 0)


async def test_the_state_of_a_log_that_is_not_there_is_empty(
    events: EventStream,
) -> None:
    """STREAM-10: a reading never fails for want of data."""
    state = await events.state()

    assert (state.length, state.pending, state.consumers) == (0, 0, 0)
    assert await events.trim(older_than_ms=0) == 0


async def test_names_of_dead_consumers_go_and_no_event_with_them(
    events: EventStream,
) -> None:
    """STREAM-6: names do not pile up over crashes."""
    await events.append([b"1"])
    await read(events, "holds")
    await events.append([b"2"])
    await events.acknowledge(ids(await read(events, "done")))

    young = await events.forget_dead()
    forgotten = await events.forget_dead(idle_ms=0)

    state = await events.state()
    assert (young, forgotten) == (0, 1)
    assert (state.consumers, state.pending) == (1, 1)


async def test_nobody_is_forgotten_where_there_is_no_log(events: EventStream) -> None:
    """STREAM-1: nor is that an error."""
    assert await events.forget_dead(idle_ms=0) == 0
