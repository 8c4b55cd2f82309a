"""The job `sweep`, every second in one process of the fleet: what got lost is found here."""

from jobs.parts import Context, JobParts, of
from warmer.errors import StoreError
from warmer.model.due import Lane

TIDY_EVERY_S = 30.0


async def sweep(ctx: Context) -> None:
    """Return abandoned keys to their lanes, wake drains, end pauses; now and then, tidy up."""
    parts = of(ctx)
    try:
        for lane in Lane:
            await _sweep(parts, lane)
        moved = await parts.control.sources.move_ended()
        parts.signals.count("events_moved", by=moved)
        await _tidy(parts)
    except StoreError as exc:
        # The next one is a second away.
        parts.report("sweep_failed", error=exc)


async def _sweep(parts: JobParts, lane: Lane) -> None:
    swept = await parts.control.due.sweep(lane)
    if swept.abandoned:
        parts.signals.count("due_abandoned", lane.value, by=swept.abandoned)
    if swept.woken:
        parts.signals.count("drains_woken", lane.value)


async def _tidy(parts: JobParts) -> None:
    now = parts.clock.monotonic()
    if now - parts.marks.get("tidied", -TIDY_EVERY_S) < TIDY_EVERY_S:
        return
    parts.marks["tidied"] = now
    trimmed = await parts.control.events.trim(
        older_than_ms=parts.event_log_ms, at_most=parts.event_log_max
    )
    parts.signals.count("events_trimmed", by=trimmed)
    forgotten = await parts.control.events.forget_dead()
    parts.signals.count("consumers_forgotten", by=forgotten)
    await parts.clear_queue()
