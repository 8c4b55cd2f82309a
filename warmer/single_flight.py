"""One call per key in this process: callers of one key share one flight.

Holds: a flight runs in a task of its own, so a caller that goes away takes nothing from the
others; its entry goes away however it ends (value, error, cancellation), so a failure never
becomes a lasting one; every task is held until it ends, and awaited at close.
Does not hold: that a flight ends when its last caller leaves. What was begun is finished and
published, or callers with short deadlines would start a slow load again and again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

from warmer.clock import Clock

MAX_FLIGHTS = 10_000
"""Keys under way at once in this process; past it, `TooMany`."""

T = TypeVar("T")


class TooMany(Exception):
    """A bound is reached; `what` is flights or waiters."""

    def __init__(self, what: str) -> None:
        super().__init__(f"too many {what}")
        self.what = what


class Flight(Generic[T]):
    """One call under way. `until`: the last instant anybody waits for (monotonic)."""

    __slots__ = ("started", "task", "until", "waiters")

    def __init__(self, started: float) -> None:
        self.started = started
        self.until = started
        self.waiters: set[asyncio.Future[None]] = set()
        self.task: asyncio.Task[T]


Work = Callable[[Flight[T]], Coroutine[object, object, T]]


class SingleFlight(Generic[T]):
    """The flights of one process, by key."""

    def __init__(self, *, clock: Clock, max_flights: int = MAX_FLIGHTS) -> None:
        self._clock = clock
        self._max_flights = max_flights
        self._flights: dict[str, Flight[T]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._flights)

    def of(self, key: str) -> Flight[T] | None:
        """Return the flight of `key` that is under way."""
        return self._flights.get(key)

    def start(self, key: str, work: Work[T]) -> Flight[T]:
        """Start a flight nobody waits for yet; there must be none for `key`."""
        if self._closed or len(self._flights) >= self._max_flights:
            raise TooMany("flights")
        flight = Flight[T](self._clock.monotonic())
        flight.task = asyncio.get_running_loop().create_task(work(flight))
        self._flights[key] = flight

        def landed(_: object) -> None:
            del self._flights[key]
            for waiter in flight.waiters:
                _wake(waiter)

        flight.task.add_done_callback(landed)
        return flight

    async def wait(self, flight: Flight[T], *, until: float, max_waiters: int) -> T:
        """Return what the flight gives; raises its error, TimeoutError, or TooMany."""
        if len(flight.waiters) >= max_waiters:
            raise TooMany("waiters")
        flight.until = max(flight.until, until)
        if not flight.task.done():
            await self._landing(flight, until - self._clock.monotonic())
        if not flight.task.done():
            raise TimeoutError
        if flight.task.cancelled():
            # Not this caller's own cancellation: the registry was closed under it.
            raise TooMany("flights")
        return flight.task.result()

    async def _landing(self, flight: Flight[T], within_s: float) -> None:
        """Return when the flight has landed, or the time is up.

        `asyncio.wait` would do, at 30 µs more for each of hundreds of callers.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        flight.waiters.add(waiter)
        timer = loop.call_later(max(0.0, within_s), _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            flight.waiters.discard(waiter)

    async def aclose(self) -> None:
        """Cancel what is under way and wait until it has ended."""
        self._closed = True
        while self._flights:
            tasks = [flight.task for flight in self._flights.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
