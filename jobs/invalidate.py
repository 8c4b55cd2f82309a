"""The job `invalidate`: what a producer queued by arq goes into the event log."""

from typing import Any

from arq import Retry

from jobs.parts import Context, of
from warmer.dispatch import read_invalidate
from warmer.errors import EventError, StoreError
from warmer.ingest.dead_letters import event_letter
from warmer.ingest.event_log import encode, event_of

RETRY_IN_S = 1.0


async def invalidate(ctx: Context, payload: object) -> str:
    """Append the payload's events to the event log; what is no event is set aside.

    Run again after an error: an event appended twice changes nothing.
    """
    parts = of(ctx)
    good, bad = _sorted(payload)
    try:
        if bad:
            await parts.control.park(
                [
                    event_letter(
                        repr(wire).encode(),
                        reason=reason,
                        source="arq",
                        at_ms=parts.clock.now_ms(),
                    )
                    for wire, reason in bad
                ]
            )
        if good:
            await parts.control.events.append(good)
    except StoreError as exc:
        raise Retry(defer=RETRY_IN_S) from exc
    if bad:
        parts.signals.count("events_refused", "unreadable", by=len(bad))
        parts.report("event_refused", "arq")
    return f"appended {len(good)}"


def _sorted(payload: object) -> tuple[list[bytes], list[tuple[Any, str]]]:
    good: list[bytes] = []
    bad: list[tuple[Any, str]] = []
    try:
        wires: list[Any] = list(read_invalidate(payload).events)
    except EventError as exc:
        return [], [(payload, str(exc))]
    for wire in wires:
        try:
            good.append(encode(event_of(wire)))
        except EventError as exc:
            bad.append((wire, str(exc)))
    return good, bad
