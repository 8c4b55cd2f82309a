"""The job `invalidate`: what a producer queued by arq goes into the event log."""

from collections.abc import Sequence
from typing import Any

from arq import Retry

from jobs.parts import Context, JobParts, of
from warmer.dispatch import read_invalidate
from warmer.errors import EventError, StoreError
from warmer.ingest.dead_letters import event_letter
from warmer.ingest.event_log import encode, event_of, record_of
from warmer.model.arrival import Arrival, Record
from warmer.model.event import Event

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
        await _append(parts, good)
    except StoreError as exc:
        raise Retry(defer=RETRY_IN_S) from exc
    if bad:
        parts.signals.count("events_refused", "unreadable", by=len(bad))
        parts.report("event_refused", "arq")
    return f"appended {len(good)}"


async def _append(parts: JobParts, events: Sequence[Event]) -> None:
    """Append events, each in its source's order; the job tells no two apart."""
    of_source: dict[str, list[Record]] = {}
    for event in events:
        of_source.setdefault(event.source, []).append(record_of(Arrival(event)))
    for name, records in of_source.items():
        if name not in parts.sources:
            # No dataset depends on it, and names from outside must not make states.
            await parts.control.events.append([record.event for record in records])
            continue
        accepted = await parts.control.events.accept(records, parts.sources[name])
        parts.signals.count("version_regressions", name, by=accepted.regressed)
        if accepted.regression:
            parts.report("version_regression", name)
        if accepted.epoch is not None:
            parts.signals.count("epochs_opened", name)
            parts.report("epoch_opened", name)


def _sorted(payload: object) -> tuple[list[Event], list[tuple[Any, str]]]:
    good: list[Event] = []
    bad: list[tuple[Any, str]] = []
    try:
        wires: list[Any] = list(read_invalidate(payload).events)
    except EventError as exc:
        return [], [(payload, str(exc))]
    for wire in wires:
        try:
            event = event_of(wire)
            encode(event)  # refused here, where it is one of many
            good.append(event)
        except EventError as exc:
            bad.append((wire, str(exc)))
    return good, bad
