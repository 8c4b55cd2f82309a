"""The cache server killed, stopped and restarted under readers: values, in time, and back."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tests.clients import CLOCK, CountedOrigin, RequestPath, request_path
from tests.datasets import product
from tests.servers import ServerProcess
from warmer import NothingToServe, State
from warmer.errors import OriginUnavailable

TIMEOUT_MS = 150
"""What a hanging server may cost a request, on a machine that is busy with other tests."""
DEADLINE = timedelta(seconds=5)


@pytest.fixture
async def path(server: ServerProcess) -> AsyncIterator[RequestPath]:
    async with request_path(server.url, product(), timeout_ms=TIMEOUT_MS) as path:
        yield path
        await asyncio.to_thread(server.resume)


@pytest.fixture
def origin() -> CountedOrigin:
    return CountedOrigin({"price": 1})


async def read(path: RequestPath, number: int, load: Any) -> tuple[Any, float]:
    """The answer or the error, and after how many seconds."""
    began = CLOCK.monotonic()
    reading = path.get(id=number, load=load, deadline=DEADLINE)
    outcome = (await asyncio.gather(reading, return_exceptions=True))[0]
    return outcome, CLOCK.monotonic() - began


def block_the_loop(seconds: float) -> None:
    until = CLOCK.monotonic() + seconds
    while CLOCK.monotonic() < until:
        pass


async def until_fresh_again(path: RequestPath, load: Any) -> None:
    """No restart of the client: it finds its server again by itself."""
    async with asyncio.timeout(20):
        while True:
            answer = await path.get(id=1, load=load, deadline=DEADLINE)
            if answer.state is State.FRESH:
                return
            await CLOCK.sleep(0.02)


async def test_with_the_server_killed_every_request_gets_its_value(
    server: ServerProcess, path: RequestPath, origin: CountedOrigin
) -> None:
    """R-POL-2 R-FT-2: the state says degraded; after the restart it is fresh again."""
    await path.get(id=1, load=origin)
    await asyncio.to_thread(server.kill)
    outcomes = [await read(path, 1, origin) for _ in range(50)]

    assert {answer.state for answer, _ in outcomes} == {State.DEGRADED}
    assert all(answer.value == {"price": 1} for answer, _ in outcomes)
    assert max(seconds for _, seconds in outcomes) < 2

    await asyncio.to_thread(server.restart)
    await until_fresh_again(path, origin)


async def test_a_hanging_server_costs_a_request_one_timeout_and_most_nothing(
    server: ServerProcess, path: RequestPath, origin: CountedOrigin
) -> None:
    """R-FT-2 R-FLT-3: of 2,000 requests during a hang, few wait for it, none for long."""
    await path.get(id=1, load=origin)
    await asyncio.to_thread(server.pause)
    first = await asyncio.gather(*(read(path, number, origin) for number in range(200)))
    later = [await read(path, number % 50, origin) for number in range(1_800)]
    await asyncio.to_thread(server.resume)

    outcomes = first + later
    assert {answer.state for answer, _ in outcomes} == {State.DEGRADED}
    waited = [seconds for _, seconds in later if seconds > TIMEOUT_MS / 1000 * 0.9]
    assert len(waited) < 20
    assert max(seconds for _, seconds in outcomes) < 2 * TIMEOUT_MS / 1000 + 1
    await until_fresh_again(path, origin)


async def test_a_stall_of_the_process_itself_is_not_taken_for_an_outage(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """R-ADM-3: a handler that blocks the loop for longer than the timeout, beside reads."""
    await path.get(id=1, load=origin)

    for _ in range(5):
        reading = asyncio.create_task(path.get(id=1, load=origin))
        await CLOCK.sleep(0)  # its request is on the way
        block_the_loop(1.5 * TIMEOUT_MS / 1000)
        assert (await reading).state is State.FRESH
    assert origin.loads == 1


async def test_a_server_that_hangs_during_a_load_does_not_hold_its_value_back(
    server: ServerProcess, path: RequestPath, origin: CountedOrigin
) -> None:
    """R-FT-2: loaded, not published, given to every caller as degraded."""
    origin.hold()
    readers = [asyncio.create_task(read(path, 7, origin)) for _ in range(20)]
    await origin.asked.wait()
    await asyncio.to_thread(server.pause)
    origin.open.set()
    outcomes = await asyncio.gather(*readers)
    await asyncio.to_thread(server.resume)

    assert {answer.state for answer, _ in outcomes} == {State.DEGRADED}
    assert origin.loads == 1
    assert max(seconds for _, seconds in outcomes) < DEADLINE.total_seconds()
    await until_fresh_again(path, origin)


async def test_loads_past_the_cache_keep_within_the_local_limit(
    server: ServerProcess,
) -> None:
    """R-ADM-3 R-FLT-3: 100 keys at once, 4 loads at once, all within the deadline."""
    running = most = 0

    async def load() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await CLOCK.sleep(0.005)
        running -= 1
        return "value"

    async with request_path(
        server.url, product(), timeout_ms=TIMEOUT_MS, max_local_loads=4
    ) as path:
        await asyncio.to_thread(server.kill)
        outcomes = await asyncio.gather(
            *(read(path, number % 100, load) for number in range(300))
        )

    assert {answer.state for answer, _ in outcomes} == {State.DEGRADED}
    assert most == 4


async def test_without_server_and_loader_a_request_is_told_so(
    server: ServerProcess, origin: CountedOrigin
) -> None:
    """R-FT-8: no stale copy is at hand, and none is made up."""
    async with request_path(
        server.url, product(origin=None), timeout_ms=TIMEOUT_MS
    ) as path:
        await path.get(id=1, load=origin)
        await asyncio.to_thread(server.kill)
        outcomes = [(await read(path, 1, None))[0] for _ in range(5)]

    assert all(isinstance(error, NothingToServe) for error in outcomes)
    assert {error.reason for error in outcomes} == {"store_unavailable"}


async def test_without_server_and_origin_the_origins_error_is_told(
    server: ServerProcess, path: RequestPath, origin: CountedOrigin
) -> None:
    """R-FT-8 R-POL-3: a stale copy cannot be read, so none is served."""
    await path.get(id=1, load=origin)
    await asyncio.to_thread(server.kill)
    origin.error = OriginUnavailable("503")

    error, _ = await read(path, 1, origin)

    assert isinstance(error, NothingToServe)
    assert error.reason == "load_failed"
    assert error.__cause__ is origin.error


async def test_a_server_that_takes_no_writes_is_read_all_the_same(
    server: ServerProcess, path: RequestPath, origin: CountedOrigin
) -> None:
    """MEMORY-1: full of memory, fresh entries are served and misses are loaded, degraded."""
    await path.get(id=1, load=origin)
    server.command("CONFIG SET", "maxmemory", "1")
    try:
        fresh = await path.get(id=1, load=origin, deadline=DEADLINE)
        missed = [
            await path.get(id=2, load=origin, deadline=DEADLINE) for _ in range(3)
        ]
    finally:
        server.command("CONFIG SET", "maxmemory", "0")

    assert fresh.state is State.FRESH
    assert {answer.state for answer in missed} == {State.DEGRADED}
    assert path.signals.total("store_errors", "OOM") >= 1
    assert (await path.get(id=2, load=origin)).state is State.LOADED


async def test_readers_go_through_restarts_without_an_error(
    server: ServerProcess, path: RequestPath
) -> None:
    """R-POL-2 R-FT-3: 20 readers, three restarts; every read has a value of its key."""
    states = Counter[State]()
    stop = asyncio.Event()

    async def reader(number: int) -> None:
        at = number
        while not stop.is_set():
            at = (at + 7) % 30
            answer = await path.get(id=at, load=lambda at=at: at, deadline=DEADLINE)
            assert answer.value == at
            states[answer.state] += 1
            await CLOCK.sleep(0.001)

    async def until(state: State, *, more: int) -> None:
        enough = states[state] + more
        while states[state] < enough:
            ended = next((each for each in readers if each.done()), None)
            assert ended is None, ended
            await CLOCK.sleep(0.005)

    readers = [asyncio.create_task(reader(number)) for number in range(20)]
    async with asyncio.timeout(25):
        for _ in range(3):
            await until(State.FRESH, more=50)
            await asyncio.to_thread(server.kill)
            await until(State.DEGRADED, more=20)
            await asyncio.to_thread(server.restart)
        await until(State.FRESH, more=50)
    stop.set()
    await asyncio.gather(*readers)
