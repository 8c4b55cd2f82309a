"""The event log as a server writes it: requests that meet share one call.

Holds: a caller returns when its own records are in the log, and not before. While one call
is under way the next are gathered, so that their number does not grow with the requests.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from warmer.model.arrival import Accepted, Record
from warmer.model.source import Source

MAX_GATHERED = 500
"""Records of one call; a larger request goes alone."""


class EventLog(Protocol):
    """The event log itself."""

    async def accept(self, records: Sequence[Record], source: Source) -> Accepted:
        """Append events of one source, unless they are known already."""
        ...


@dataclass(slots=True)
class _Waiting:
    records: Sequence[Record]
    done: asyncio.Future[Accepted]


@dataclass(slots=True)
class _Lane:
    source: Source
    waiting: list[_Waiting] = field(default_factory=list)
    writing: asyncio.Task[None] | None = None


class GroupedLog:
    """Writes for many callers at once; in front of the event log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._lanes: dict[str, _Lane] = {}

    async def accept(self, records: Sequence[Record], source: Source) -> Accepted:
        """Append these records, together with those of others that wait."""
        lane = self._lanes.setdefault(source.name, _Lane(source))
        done: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        lane.waiting.append(_Waiting(records, done))
        if lane.writing is None:
            lane.writing = asyncio.create_task(self._write(lane))
        return await done

    async def _write(self, lane: _Lane) -> None:
        try:
            while lane.waiting:
                await self._write_one(_next(lane.waiting), lane.source)
        finally:
            lane.writing = None

    async def _write_one(self, group: Sequence[_Waiting], source: Source) -> None:
        records = [record for each in group for record in each.records]
        try:
            accepted = await self._log.accept(records, source)
        except Exception as exc:  # noqa: BLE001 - it is every caller's
            for each in group:
                if not each.done.done():
                    each.done.set_exception(exc)
            return
        _tell(group, accepted)


def _next(waiting: list[_Waiting]) -> list[_Waiting]:
    """Take out of `waiting` those that fit into one call, at least one."""
    size, taken = len(waiting[0].records), 1
    while taken < len(waiting) and size + len(waiting[taken].records) <= MAX_GATHERED:
        size += len(waiting[taken].records)
        taken += 1
    group = waiting[:taken]
    del waiting[:taken]
    return group


def _tell(group: Sequence[_Waiting], accepted: Accepted) -> None:
    """Give each caller its own; what was told of the source, the first."""
    at = 0
    for index, each in enumerate(group):
        new = accepted.new[at : at + len(each.records)]
        at += len(each.records)
        if each.done.done():
            continue
        each.done.set_result(
            Accepted(
                new,
                accepted.regressed if index == 0 else 0,
                regression=accepted.regression and index == 0,
                epoch=accepted.epoch if index == 0 else None,
            )
        )
