"""What the jobs of one process share; arq carries it in its context."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from jobs.drain import Drain
from warmer.clock import Clock
from warmer.model.due import Lane
from warmer.model.source import Sources
from warmer.ops.telemetry import Report
from warmer.signals import Signals
from warmer.store.control import ControlServer

Context = Mapping[str, Any]
"""arq's context: ours, and the job's id and try."""
PARTS = "warmer"


@dataclass(frozen=True, slots=True)
class JobParts:
    """What a job works with. `marks`: when this process last did what is not done always.

    `sources` are those that are known by name: declared, or depended on. `clear_queue`
    takes what nobody can run out of arq's queue.
    """

    control: ControlServer
    drains: Mapping[Lane, Drain]
    clear_queue: Callable[[], Awaitable[None]]
    event_log_ms: int
    event_log_max: int
    sources: Sources
    clock: Clock
    signals: Signals
    report: Report
    marks: MutableMapping[str, float] = field(default_factory=dict)


def of(ctx: Context) -> JobParts:
    """Return the parts in arq's context."""
    parts = ctx[PARTS]
    if not isinstance(parts, JobParts):
        raise TypeError("arq's context is not the one that jobs.worker makes")
    return parts
