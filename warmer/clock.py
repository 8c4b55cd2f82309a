"""Time, handed in: nothing else in this package reads a clock or sleeps.

Hosts' clocks measure durations and stamp log lines. Which of two things is newer
is never decided by them: see `warmer.model.version` and the cache server's clock in
`warmer.store.port`.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What code with effects may know of time."""

    def now_ms(self) -> int:
        """Unix time of this host in milliseconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow; for durations and deadlines within this process."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The host's clock."""

    def now_ms(self) -> int:
        """Unix time of this host in milliseconds."""
        return time.time_ns() // 1_000_000  # noqa: TID251 - this is the one place

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()  # noqa: TID251 - this is the one place

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)  # noqa: TID251 - this is the one place
