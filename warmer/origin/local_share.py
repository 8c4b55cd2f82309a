"""What a process may ask of an origin while it cannot reach the fleet's control server.

Holds: as many at once as configured, a part of it for requests only; fewer, or none for a
while, if the origin is not well. If the local shares of all processes sum to no more than
the fleet's limit, it is kept.
"""

from dataclasses import dataclass, replace

from warmer.model.permit import Counts, OriginLimits, Phase, Seen
from warmer.policy.adaptive import Bearing, borne
from warmer.policy.breaker import PROBES, Breaker, looked_at, told
from warmer.policy.shares import reserve_of

BURST_S = 0.2
"""Of a rate: so much of a second may begin at once."""


@dataclass(slots=True)
class Starts:
    """Loads that may begin, at so many a second: a bucket that fills with time."""

    rate: float
    left: float = 0.0
    at: float = 0.0

    def there(self, now: float) -> bool:
        """Return whether one may begin."""
        burst = max(1.0, self.rate * BURST_S)
        self.left = min(burst, self.left + self.rate * (now - self.at))
        self.at = now
        return self.left >= 1

    def took(self) -> None:
        """Note that one began."""
        self.left -= 1


class LocalShare:
    """The share of one process, and what it sees of the origin by itself."""

    def __init__(self, limit: int, fleet: OriginLimits) -> None:
        self._limit = limit
        self._fleet = fleet
        self._breaker = Breaker()
        self._bearing = Bearing(limit)
        self.starts = Starts(fleet.rate * limit / fleet.limit)

    @property
    def era(self) -> int:
        """What loads that begin now are seen by."""
        return self._breaker.era

    def told(self, seen: Seen, now_ms: int) -> None:
        """Note how a load went."""
        breaker = told(looked_at(self._breaker, now_ms), seen, now_ms)
        if seen.era == self._breaker.era:
            self._bearing = borne(
                self._bearing,
                seen,
                now_ms,
                floor=1,
                ceiling=self._limit,
                adaptive=self._fleet.adaptive,
            )
        if breaker.phase is Phase.OPEN and breaker.era != self._breaker.era:
            self._bearing = replace(Bearing(1.0), usual_ms=self._bearing.usual_ms)
        self._breaker = breaker

    def rests_ms(self, now_ms: int) -> int:
        """Return for how long the origin is left alone."""
        self._breaker = looked_at(self._breaker, now_ms)
        if self._breaker.phase is Phase.OPEN:
            return self._breaker.until_ms - now_ms
        return 0

    def of(self, pool: str) -> Counts:
        """Return this process's share of a pool; the lent part goes to who asks for it."""
        if pool:
            whole = self._fleet.pool_of(pool).limit
            return Counts(ahead=max(1, whole * self._limit // self._fleet.limit))
        limit = int(self._bearing.limit)
        if self._breaker.phase is Phase.PROBING:
            limit = min(limit, PROBES)
        reserve = reserve_of(limit, self._fleet.reserve_ratio)
        return Counts(request=reserve, ahead=limit - reserve)
