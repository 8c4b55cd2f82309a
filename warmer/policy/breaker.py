"""Whether an origin is worth asking: not while half of its loads fail, or it asked for rest.

Holds: while open nobody asks; then a few do, in the whole fleet, and one failure of theirs
opens it again, for longer. What loads that began before an opening report says nothing.

The script `permit_share` decides the same; `tests/protocol/test_permits.py` holds both to
each other.
"""

from dataclasses import dataclass, replace

from warmer.model.permit import Phase, Seen

LEAST = 10
"""Loads without which a share of failures says nothing."""
WINDOW_MS = 1_000
FADES = 0.75
"""Of a window's counts, what the next still knows: a load is forgotten in about 4 s."""
OPEN_BASE_MS, OPEN_CAP_MS = 1_000, 10_000
RETRY_AFTER_CAP_MS = 120_000
"""Bound of what an origin may ask for: a mistaken date must not silence it for days."""
PROBES = 2
"""Loads at once of the whole fleet, to see whether the origin works."""
PROVEN = 3
"""Good probes after which it does."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """What is known. `era` grows with each change; `opened`: times in a row.

    `in_a_row`: failures since anything went well. An origin that was well until now is known
    to be down by them, long before its failures are half of what is remembered.
    """

    phase: Phase = Phase.CLOSED
    until_ms: int = 0
    opened: int = 0
    era: int = 0
    ok: float = 0.0
    failed: float = 0.0
    in_a_row: int = 0
    window_at_ms: int = 0


def looked_at(breaker: Breaker, now_ms: int) -> Breaker:
    """Return it as it is at `now_ms`: rested enough, it is probed."""
    if breaker.phase is Phase.OPEN and now_ms >= breaker.until_ms:
        return _changed(breaker, Phase.PROBING)
    elapsed = now_ms - breaker.window_at_ms
    if breaker.phase is Phase.CLOSED and elapsed >= WINDOW_MS:
        fades = FADES ** min(elapsed // WINDOW_MS, 100)
        return replace(
            breaker,
            ok=breaker.ok * fades,
            failed=breaker.failed * fades,
            window_at_ms=now_ms,
        )
    return breaker


def told(breaker: Breaker, seen: Seen, now_ms: int) -> Breaker:
    """Return what is known after a report."""
    if seen.era != breaker.era:
        return breaker
    breaker = replace(
        breaker,
        ok=breaker.ok + seen.ok,
        failed=breaker.failed + seen.failed,
        in_a_row=0 if seen.ok else breaker.in_a_row + seen.failed,
    )
    if seen.retry_after_ms > 0:
        rest_ms = min(seen.retry_after_ms, RETRY_AFTER_CAP_MS)
        return _changed(breaker, Phase.OPEN, until_ms=now_ms + rest_ms)
    match breaker.phase:
        case Phase.CLOSED if _down(breaker):
            return _opened(breaker, now_ms)
        case Phase.PROBING if breaker.failed >= 1:
            return _opened(breaker, now_ms)
        case Phase.PROBING if breaker.ok >= PROVEN:
            return replace(_changed(breaker, Phase.CLOSED), opened=0)
        case _:
            return breaker


def _down(breaker: Breaker) -> bool:
    total = breaker.ok + breaker.failed
    half = total >= LEAST and breaker.failed >= total / 2
    return half or breaker.in_a_row >= LEAST


def _opened(breaker: Breaker, now_ms: int) -> Breaker:
    rest_ms = min(OPEN_CAP_MS, OPEN_BASE_MS << min(breaker.opened, 20))
    opened = _changed(breaker, Phase.OPEN, until_ms=now_ms + rest_ms)
    return replace(opened, opened=breaker.opened + 1)


def _changed(breaker: Breaker, phase: Phase, *, until_ms: int = 0) -> Breaker:
    return Breaker(
        phase=phase,
        until_ms=until_ms,
        opened=breaker.opened,
        era=breaker.era + 1,
        window_at_ms=breaker.window_at_ms,
    )
