"""One call per key, whoever leaves and however it ends."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from warmer.clock import SystemClock
from warmer.single_flight import Flight, SingleFlight, TooMany

CLOCK = SystemClock()


class Calls:
    """Work that counts its calls and ends when it is told to."""

    def __init__(self) -> None:
        self.count = 0
        self.end = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, flight: Flight[str]) -> str:
        del flight
        self.count += 1
        await self.end.wait()
        if self.error:
            raise self.error
        return "value"


@pytest.fixture
async def flights() -> AsyncIterator[SingleFlight[str]]:
    flights = SingleFlight[str](clock=CLOCK, max_flights=3)
    yield flights
    await flights.aclose()


@pytest.fixture
def calls() -> Calls:
    return Calls()


async def caller(
    flights: SingleFlight[str],
    calls: Calls,
    *,
    within_s: float = 10,
    max_waiters: int = 1_000,
    key: str = "key",
) -> str:
    flight = flights.of(key) or flights.start(key, calls)
    until = CLOCK.monotonic() + within_s
    return await flights.wait(flight, until=until, max_waiters=max_waiters)


async def settle() -> None:
    for _ in range(10):
        await CLOCK.sleep(0)


async def test_concurrent_callers_share_one_call(
    flights: SingleFlight[str], calls: Calls
) -> None:
    """R-FLT-1 STAMPEDE-1: 300 callers, one call, equal answers."""
    callers = [asyncio.create_task(caller(flights, calls)) for _ in range(300)]
    await settle()
    calls.end.set()

    assert set(await asyncio.gather(*callers)) == {"value"}
    assert calls.count == 1
    assert len(flights) == 0


async def test_a_failure_does_not_stay(
    flights: SingleFlight[str], calls: Calls
) -> None:
    """R-FLT-1 R-FT-3: every caller of the flight gets the error, the next one a new call."""
    calls.error = ValueError("origin")
    callers = [asyncio.create_task(caller(flights, calls)) for _ in range(5)]
    await settle()
    calls.end.set()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    calls.error = None

    assert all(isinstance(outcome, ValueError) for outcome in outcomes)
    assert await caller(flights, calls) == "value"
    assert calls.count == 2


async def test_a_cancelled_caller_does_not_kill_the_flight(
    flights: SingleFlight[str], calls: Calls
) -> None:
    """R-FLT-1: not even the one that began it."""
    first, second = (asyncio.create_task(caller(flights, calls)) for _ in range(2))
    await settle()
    first.cancel()
    await settle()
    calls.end.set()

    assert await second == "value"
    assert first.cancelled()
    assert calls.count == 1


async def test_a_flight_that_everybody_left_ends_and_is_forgotten(
    flights: SingleFlight[str], calls: Calls
) -> None:
    """R-FLT-1 SWR-7: its task is held until then, whatever the collector does."""
    only = asyncio.create_task(caller(flights, calls))
    await settle()
    only.cancel()
    await settle()
    gc.collect()
    assert len(flights) == 1

    calls.end.set()
    await settle()

    assert len(flights) == 0


async def test_a_caller_waits_no_longer_than_its_own_deadline(
    flights: SingleFlight[str], calls: Calls
) -> None:
    """R-FLT-2: the patient one is not hurried by the others, nor they held up by it."""
    patient = asyncio.create_task(caller(flights, calls))
    await settle()

    with pytest.raises(TimeoutError):
        await caller(flights, calls, within_s=0.01)
    async with asyncio.timeout(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await caller(flights, calls)

    calls.end.set()
    assert await patient == "value"
    assert calls.count == 1


async def test_waiters_and_flights_are_bounded(
    flights: SingleFlight[str], calls: Calls
) -> None:
    """R-FLT-3: the next one is told at once, and nothing of it stays."""
    waiting = [
        asyncio.create_task(caller(flights, calls, max_waiters=2)) for _ in range(2)
    ]
    await settle()
    with pytest.raises(TooMany, match="waiters"):
        await caller(flights, calls, max_waiters=2)
    for key in ("b", "c"):
        flights.start(key, calls)
    with pytest.raises(TooMany, match="flights"):
        flights.start("d", calls)

    calls.end.set()
    assert await asyncio.gather(*waiting) == ["value"] * 2
    await settle()
    assert await caller(flights, calls, max_waiters=2) == "value"


async def test_closing_awaits_what_is_under_way(
    flights: SingleFlight[str],
) -> None:
    """SWR-7 R-LSE-2: a flight that cleans up is waited for; its callers are told."""
    cleaned_up = False

    async def work(_: Flight[str]) -> str:
        nonlocal cleaned_up
        try:
            await CLOCK.sleep(60)
        finally:
            await CLOCK.sleep(0.01)
            cleaned_up = True
        return "never"

    flight = flights.start("key", work)
    waiting = asyncio.create_task(
        flights.wait(flight, until=CLOCK.monotonic() + 60, max_waiters=9)
    )
    await settle()

    await flights.aclose()

    assert cleaned_up
    with pytest.raises(TooMany):
        await waiting
    assert len(flights) == 0
