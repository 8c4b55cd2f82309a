"""What this process holds of an origin's pools: what it may use, uses, and wants.

Holds: a load begins only inside the share of every pool it counts in, and a share counts
only until its term ends. Decides and remembers; asks nobody.
"""

from collections.abc import Callable, Iterable, Mapping

from warmer.model.permit import PURPOSES, Counts, Demand, OriginLimits
from warmer.origin.line import Group
from warmer.policy.shares import admits, lowered

NONE = Counts()


class Use:
    """How many loads of one group run and wait, by purpose, and the most of late."""

    __slots__ = ("_peak", "_peak_before", "running", "waiting")

    def __init__(self) -> None:
        self.running = [0] * len(PURPOSES)
        self.waiting = [0] * len(PURPOSES)
        self._peak = [0] * len(PURPOSES)
        self._peak_before = [0] * len(PURPOSES)

    def note(self, rank: int) -> None:
        """Note the peak after a change."""
        self._peak[rank] = max(
            self._peak[rank], self.running[rank] + self.waiting[rank]
        )

    def wants(self) -> Counts:
        """Return the most at once in this interval and the last, and begin another."""
        wants = Counts(*map(max, self._peak, self._peak_before))
        self._peak_before = self._peak
        self._peak = [
            running + waiting
            for running, waiting in zip(self.running, self.waiting, strict=True)
        ]
        return wants


class Holding:
    """The shares of one process in the pools of one origin."""

    def __init__(self, limits: OriginLimits) -> None:
        self._limits = limits
        self._uses: dict[Group, Use] = {}
        self._used: dict[str, list[int]] = {"": [0] * len(PURPOSES)}
        self._shares: dict[str, Counts] = {}
        self._short: set[str] = set()
        self.demands: Mapping[str, Demand] = {}
        """As last reported."""

    # --- loads ------------------------------------------------------------------------

    def came(self, group: Group, rank: int) -> None:
        """Note a load that waits."""
        use = self._uses.setdefault(group, Use())
        use.waiting[rank] += 1
        use.note(rank)

    def went(self, group: Group, rank: int) -> None:
        """Note that it waits no longer."""
        self._uses[group].waiting[rank] -= 1

    def began(self, group: Group, rank: int) -> None:
        """Note a load that runs."""
        use = self._uses.setdefault(group, Use())
        use.running[rank] += 1
        use.note(rank)
        for pool in group.pools:
            self._used.setdefault(pool, [0] * len(PURPOSES))[rank] += 1

    def ended(self, group: Group, rank: int) -> None:
        """Note that it runs no longer."""
        self._uses[group].running[rank] -= 1
        for pool in group.pools:
            self._used[pool][rank] -= 1

    @property
    def running(self) -> int:
        """How many run."""
        return sum(self._used[""])

    # --- shares -----------------------------------------------------------------------

    def used(self, pool: str) -> Counts:
        """Return how many run in a pool, by purpose."""
        return Counts(*self._used[pool]) if pool in self._used else NONE

    def share(self, pool: str) -> Counts:
        """Return what was granted of a pool, if its term has not ended."""
        return self._shares.get(pool, NONE)

    def admits(self, group: Group, rank: int) -> bool:
        """Return whether such a load may begin by what was granted."""
        return all(admits(self.share(p), self.used(p), rank) for p in group.pools)

    def may_gain(self, group: Group, rank: int) -> bool:
        """Return whether asking at once may help a load that may not begin.

        Not where less was granted than asked for: what is missing there is in use.
        """
        return not any(
            pool in self._short
            for pool in group.pools
            if not admits(self.share(pool), self.used(pool), rank)
        )

    def over(self) -> bool:
        """Return whether more runs than a share allows that was made smaller."""
        return any(
            sum(used) > sum(self.share(pool)) for pool, used in self._used.items()
        )

    def granted(self, shares: Mapping[str, Counts]) -> bool:
        """Take what was granted; return whether something became less."""
        less = any(sum(self.share(pool)) > sum(new) for pool, new in shares.items())
        self._shares = dict(shares)
        self._short = {
            pool
            for pool, demand in self.demands.items()
            if sum(shares.get(pool, NONE)) < sum(demand.wants)
        }
        return less

    def lapse(self) -> None:
        """Forget all shares: their term has ended."""
        self._shares, self._short = {}, set()

    # --- reporting --------------------------------------------------------------------

    def report(self, local: Callable[[str], Counts] | None) -> dict[str, Demand]:
        """Return what is wanted of each pool; what is not wanted is given back by it.

        `local`: what the process goes by where that is not what was granted.
        """
        wants = self._wants()
        if local is None:
            self._shares = {
                pool: lowered(self.share(pool), wanted)
                for pool, wanted in wants.items()
            }
        goes_by = self.share if local is None else local
        self.demands = {
            pool: Demand(wanted, self.used(pool), goes_by(pool))
            for pool, wanted in wants.items()
        }
        return dict(self.demands)

    def _wants(self) -> dict[str, Counts]:
        """Return the wants of each pool, no more than its narrower pools can pass on."""
        wants: dict[str, Counts] = {}
        above: dict[str, str] = {}
        for group, use in list(self._uses.items()):
            wanted = use.wants()
            if not any(wanted):
                del self._uses[group]
                self._forget(group.pools)
                continue
            narrowest = group.pools[-1]
            wants[narrowest] = _sum(wants.get(narrowest, NONE), wanted)
            above.update(zip(group.pools[1:], group.pools[:-1], strict=True))
        for pool in _narrow_first(above):
            most = self._limits.pool_of(pool).limit
            passed = Counts(*(min(want, most) for want in wants[pool]))
            wants[above[pool]] = _sum(wants.get(above[pool], NONE), passed)
        return wants

    def _forget(self, pools: Iterable[str]) -> None:
        for pool in pools:
            if pool and not any(self._used.get(pool, ())):
                self._used.pop(pool, None)


def _narrow_first(pools: Iterable[str]) -> list[str]:
    """Return tenants before the datasets they belong to."""
    return sorted(pools, key=lambda pool: not pool.startswith("tenant:"))


def _sum(one: Counts, other: Counts) -> Counts:
    return Counts(*(a + b for a, b in zip(one, other, strict=True)))
