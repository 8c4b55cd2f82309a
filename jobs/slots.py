"""The refreshes one process may run at once, shared by its lanes.

Holds: never more than `total` are in use; a quarter is left to the lane `now`, so that a
campaign does not stand in the way of an event.
Does not hold: fairness between two waiters of one lane.
"""

import asyncio

from warmer.model.due import Lane


class Slots:
    """Slots to reserve before keys are taken: nothing is taken that cannot begin."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._for_now_only = total // 4
        self._used = 0
        self._freed = asyncio.Event()

    @property
    def used(self) -> int:
        """How many are in use."""
        return self._used

    def free(self, lane: Lane) -> int:
        """Return how many could be had now."""
        kept_back = self._for_now_only if lane is Lane.WARM else 0
        return max(0, self._total - self._used - kept_back)

    def reserve(self, lane: Lane, most: int) -> int:
        """Return how many of up to `most` slots are yours now; give each back."""
        granted = min(most, self.free(lane))
        self._used += granted
        return granted

    def give_back(self, count: int = 1) -> None:
        """Return slots."""
        if not count:
            return
        self._used -= count
        freed, self._freed = self._freed, asyncio.Event()
        freed.set()

    async def freed(self, within_s: float) -> None:
        """Return when a slot was given back, or the time is up."""
        try:
            async with asyncio.timeout(within_s):
                await self._freed.wait()
        except TimeoutError:
            return
