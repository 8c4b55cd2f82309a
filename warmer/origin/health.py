"""What the end of one load says about its origin."""

from warmer.errors import (
    NoPermit,
    OriginError,
    OriginTimeout,
    OriginTruncated,
    OriginUnavailable,
)
from warmer.model.permit import Seen

NOTHING = Seen()


def seen_of(error: BaseException | None, *, load_ms: int, timed_out: bool) -> Seen:
    """Return what a load that ended so adds to a report.

    An answer is an answer: 404, 401 and one that must not be stored say nothing against
    the origin, and neither does a load that was cancelled before its time was up.
    """
    match error:
        case NoPermit():
            return NOTHING
        case OriginError(busy=True, retry_in_ms=retry_in_ms):
            return Seen(
                failed=1, pushed_back=1, retry_after_ms=max(0, retry_in_ms or 0)
            )
        case OriginTimeout():
            return Seen(failed=1, pushed_back=1)
        case OriginUnavailable() | OriginTruncated():
            return Seen(failed=1)
        case None | OriginError():
            return Seen(ok=1, load_ms=load_ms)
        case _:
            return Seen(failed=1, pushed_back=1) if timed_out else NOTHING


def together(one: Seen, other: Seen) -> Seen:
    """Return both, as of the era of the second."""
    return Seen(
        ok=one.ok + other.ok,
        failed=one.failed + other.failed,
        pushed_back=one.pushed_back + other.pushed_back,
        load_ms=one.load_ms + other.load_ms,
        retry_after_ms=max(one.retry_after_ms, other.retry_after_ms),
        era=other.era,
    )
