"""What stands in arq's queue and is no job of ours: set aside, so that it holds up nobody.

Holds: a payload that cannot be read becomes a dead letter instead of a line in arq's log.
An entry that arq itself would stumble over, at every look, is taken out of its way.
"""

from collections.abc import Sequence

from arq import Retry

from jobs.parts import Context, of
from warmer.errors import StoreError
from warmer.ingest.dead_letters import event_letter
from warmer.ops.telemetry import Report
from warmer.signals import Signals
from warmer.store.control import ControlServer

RETRY_IN_S = 1.0


async def refuse(ctx: Context, stored: bytes, reason: str) -> None:
    """Set a queued job aside that `dispatch.runnable` could not read."""
    parts = of(ctx)
    letter = event_letter(
        stored, reason=f"job: {reason}", source="arq", at_ms=parts.clock.now_ms()
    )
    try:
        await parts.control.park([letter])
    except StoreError as exc:
        raise Retry(defer=RETRY_IN_S) from exc
    parts.signals.count("jobs_refused", "unreadable")
    parts.report("job_refused", "unreadable")


async def set_aside(
    job_ids: Sequence[bytes],
    *,
    control: ControlServer,
    at_ms: int,
    signals: Signals,
    report: Report,
) -> None:
    """Make dead letters of ids that were taken out of the queue."""
    reason = "job: its id is no text, or its payload no string"
    await control.park(
        [
            event_letter(job_id, reason=reason, source="arq", at_ms=at_ms)
            for job_id in job_ids
        ]
    )
    signals.count("jobs_refused", "unrunnable", by=len(job_ids))
    report("job_refused", "unrunnable")
