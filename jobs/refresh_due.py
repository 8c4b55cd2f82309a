"""The job `refresh_due`: somebody put keys into a lane; drain it."""

from arq import Retry

from jobs.parts import Context, of
from warmer.dispatch import read_lane
from warmer.errors import StoreError

BUDGET_S = 10.0
"""A job is this long at most; then another one is queued, for whoever is free."""
PASS_ON_S, RETRY_IN_S = 0.1, 1.0


async def refresh_due(ctx: Context, lane: object) -> str:
    """Have this process drain `lane`, and return when nothing in it is ready."""
    parts = of(ctx)
    drain = parts.drains.get(read_lane(lane))
    if drain is None:
        # One queue for all lanes: a process that does not serve this one passes it on.
        raise Retry(defer=PASS_ON_S)
    try:
        # First: what becomes due from here on queues a job of its own.
        await parts.control.due.begin_drain(drain.lane)
        drain.ask()
        if await drain.quiet(BUDGET_S):
            return "drained"
        await parts.control.due.sweep(drain.lane)
    except StoreError as exc:
        raise Retry(defer=RETRY_IN_S) from exc
    return "goes on"
