"""Loads of one origin in this process: at most so many at once, the rest in line.

Holds: turns are given in order of arrival; a load that is refused never reached the
origin; a turn ends however its load ends, cancellation included. A full line, and a line
longer than the load may wait, refuse at once instead of timing out later.
Does not hold: any limit of the fleet. That is admission's.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warmer.clock import Clock
from warmer.errors import OriginRefused
from warmer.signals import Signals

_WEIGHT = 0.1
"""Of the last load in the running mean: ten loads back, it has a third of its say."""


class LoadLimit:
    """`async with limit.turn(within_ms=...)` around a load."""

    def __init__(
        self,
        limit: int,
        *,
        max_waiting: int,
        origin: str,
        clock: Clock,
        signals: Signals,
    ) -> None:
        self._limit = limit
        self._max_waiting = max_waiting
        self._origin = origin
        self._clock = clock
        self._signals = signals
        self._turns = asyncio.Semaphore(limit)
        self._mean_ms = 0.0
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def turn(self, *, within_ms: int) -> AsyncIterator[None]:
        """Wait for a turn; raises OriginRefused if it cannot come `within_ms`."""
        if self._turns.locked():
            self._refuse_what_cannot_be_in_time(within_ms)
        self.waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self.running -= 1
            self._turns.release()
            self._learn((self._clock.monotonic() - began) * 1000)

    def _refuse_what_cannot_be_in_time(self, within_ms: int) -> None:
        expected_ms = int((self.waiting + 1) / self._limit * self._mean_ms)
        if self.waiting >= self._max_waiting:
            self._signals.count("loads_refused", self._origin, "line_full")
            raise OriginRefused(
                f"{self.waiting} loads wait for their turn already",
                retry_in_ms=expected_ms,
            )
        if expected_ms > within_ms:
            self._signals.count("loads_refused", self._origin, "too_late")
            raise OriginRefused(
                f"its turn would come in {expected_ms} ms, it has {within_ms}",
                retry_in_ms=expected_ms,
            )

    def _learn(self, load_ms: float) -> None:
        if self._mean_ms == 0:
            self._mean_ms = load_ms
        else:
            self._mean_ms += _WEIGHT * (load_ms - self._mean_ms)
