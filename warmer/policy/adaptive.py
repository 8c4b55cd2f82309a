"""How much an origin bears just now: between a floor and the configured limit.

Holds: it grows by steps of a tenth (of one, at least), each after a window in which loads
went well, so that calls after an outage ramp and do not jump. Being pushed back, and loads
that take twice as long as usual, bring it down.

The script `permit_share` decides the same; `tests/protocol/test_permits.py` holds both to
each other.
"""

from dataclasses import dataclass, replace

from warmer.model.permit import Seen

WINDOW_MS = 500
LEAST = 5
"""Good loads without which a mean says nothing."""
SLOW, SLOW_MS = 2.0, 25
"""Times the usual, and so much more than it: below that a fast origin's noise rules."""
DOWN, MOST_DOWN = 0.7, 0.5
GROWTH = 0.1
USUAL_GROWTH = 1.02
"""Of the usual time, per window: an origin that is slower for good is so after 20 s."""


@dataclass(frozen=True, slots=True)
class Bearing:
    """The limit as it is, the usual time of a load, and the window that is being filled."""

    limit: float
    usual_ms: float = 0.0
    since_ms: int = 0
    ok: int = 0
    failed: int = 0
    pushed_back: int = 0
    load_ms: int = 0


def borne(
    bearing: Bearing,
    seen: Seen,
    now_ms: int,
    *,
    floor: int,
    ceiling: int,
    adaptive: bool,
) -> Bearing:
    """Return what the origin bears after a report."""
    bearing = replace(
        bearing,
        ok=bearing.ok + seen.ok,
        failed=bearing.failed + seen.failed,
        pushed_back=bearing.pushed_back + seen.pushed_back,
        load_ms=bearing.load_ms + seen.load_ms,
    )
    limit, usual_ms = bearing.limit, bearing.usual_ms
    if now_ms - bearing.since_ms < WINDOW_MS or bearing.ok + bearing.failed == 0:
        return replace(bearing, limit=_clamped(limit, floor, ceiling))
    mean_ms = bearing.load_ms / max(1, bearing.ok)
    slow = bearing.ok >= LEAST and mean_ms > max(SLOW * usual_ms, usual_ms + SLOW_MS)
    slow = slow and usual_ms > 0
    if adaptive and bearing.pushed_back * 10 > bearing.ok + bearing.failed:
        limit *= DOWN
    elif adaptive and slow:
        limit *= max(MOST_DOWN, SLOW * usual_ms / mean_ms)
    elif bearing.ok > 0:
        limit += max(1.0, limit * GROWTH)
    if bearing.ok >= LEAST:
        grown = max(1.0, usual_ms * USUAL_GROWTH)
        usual_ms = min(mean_ms, grown) if usual_ms > 0 else mean_ms
    return Bearing(_clamped(limit, floor, ceiling), usual_ms, now_ms)


def _clamped(limit: float, floor: int, ceiling: int) -> float:
    return min(float(ceiling), max(float(floor), limit))
