"""The job `refresh_due`: somebody put keys into a lane; have it drained here."""

from arq import Retry

from jobs.parts import Context, of
from warmer.dispatch import read_lane
from warmer.errors import StoreError

PASS_ON_S, RETRY_IN_S = 0.1, 1.0


async def refresh_due(ctx: Context, lane: object) -> None:
    """Have this process drain `lane`, or leave the job to one that can.

    It does not wait for the drain: a job that ran as long as there is work would keep its
    place in arq from the jobs that bring events.
    """
    parts = of(ctx)
    drain = parts.drains.get(read_lane(lane))
    if drain is None or drain.full:
        # The wake flag stays, so that no second job is queued meanwhile.
        raise Retry(defer=PASS_ON_S)
    try:
        # First: what becomes due from here on queues a job of its own.
        await parts.control.due.begin_drain(drain.lane)
    except StoreError as exc:
        raise Retry(defer=RETRY_IN_S) from exc
    drain.ask()
