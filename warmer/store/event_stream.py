"""The event log: a stream, read by one consumer group.

Holds: an appended event is delivered until it is acknowledged, whatever consumer dies; a
batch that a live consumer works on is not given to another, as long as the consumer says
so (`keep`) more often than the others' `min_idle_ms`. What is not acknowledged, or not
yet delivered, is never trimmed.
Does not hold: delivery once. When the group is lost (FLUSHALL, XGROUP DESTROY, a failover
without data) it is made anew from the start of the stream.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warmer.model.arrival import Record
from warmer.model.source import Source
from warmer.store.consumer_group import (
    DEAD_AFTER_MS,
    ConsumerGroup,
    StreamEntry,
    text,
)
from warmer.store.control_link import ControlLink
from warmer.store.keyspace import EVENT_GROUP, EVENT_LOG

FIELD = b"event"


@dataclass(frozen=True, slots=True)
class Logged:
    """One entry of the event log. `event` is None where the entry was deleted under us."""

    id: str
    event: bytes | None


@dataclass(frozen=True, slots=True)
class LogState:
    """The event log, counted. `lag` is None where the server cannot tell it."""

    length: int
    pending: int
    lag: int | None
    oldest_pending: str | None
    consumers: int


class EventStream:
    """The event log of one control server."""

    def __init__(self, link: ControlLink) -> None:
        self._link = link
        self._redis = link.redis
        self._consumers = ConsumerGroup(link, streams=[EVENT_LOG], name=EVENT_GROUP)

    async def append(self, events: Sequence[bytes]) -> list[str]:
        """Append events in this order; return their ids in the log."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for event in events:
                pipe.xadd(EVENT_LOG, {FIELD: event})
            ids = await self._link.ask(pipe.execute())
        return [text(id_) for id_ in ids]

    async def accept(self, records: Sequence[Record], source: Source) -> int:
        """Append events of one source in this order; return how many were no repetitions."""
        _ = source
        return len(await self.append([record.event for record in records]))

    async def read(
        self, consumer: str, *, count: int, block_ms: int
    ) -> Sequence[Logged]:
        """Return the next events nobody was given yet, waiting up to `block_ms` for one."""
        return _given(
            await self._consumers.read(consumer, count=count, block_ms=block_ms)
        )

    async def own_pending(self, consumer: str, *, count: int) -> Sequence[Logged]:
        """Return what `consumer` was given and has not acknowledged, oldest first."""
        return _given(await self._consumers.own_pending(consumer, count=count))

    async def claim_abandoned(
        self, consumer: str, *, min_idle_ms: int, count: int
    ) -> Sequence[Logged]:
        """Take over what other consumers were given and let lie for `min_idle_ms`."""
        return _given(
            await self._consumers.claim_abandoned(
                consumer, min_idle_ms=min_idle_ms, count=count
            )
        )

    async def newest(self, *, count: int, before: str = "+") -> Sequence[Logged]:
        """Return up to `count` entries, newest first, that are older than `before`."""
        end = before if before == "+" else f"({before}"
        entries = await self._link.ask(
            self._redis.xrevrange(EVENT_LOG, end, "-", count=count)
        )
        return _logged(entries)

    async def keep(self, consumer: str, ids: Sequence[str]) -> None:
        """Say that `consumer` still works on these entries."""
        await self._consumers.keep(consumer, _named(ids))

    async def acknowledge(self, ids: Sequence[str]) -> None:
        """Say that these entries are applied."""
        await self._consumers.acknowledge(_named(ids))

    async def forget(self, consumer: str) -> None:
        """Remove a consumer that leaves, unless it holds entries another must take over."""
        await self._consumers.forget(consumer)

    async def forget_dead(self, *, idle_ms: int = DEAD_AFTER_MS) -> int:
        """Remove consumers that hold nothing and have not asked for so long; count them."""
        return await self._consumers.forget_dead(idle_ms=idle_ms)

    async def trim(self, *, older_than_ms: int) -> int:
        """Remove entries of that age, but never one that is not acknowledged.

        Returns how many went. The server keeps up to one node (about 100 entries) more.
        """
        return await self._consumers.trim(older_than_ms=older_than_ms)

    async def state(self) -> LogState:
        """Count the log."""
        length = await self._link.ask(self._redis.xlen(EVENT_LOG))
        group = await self._group()
        if group is None:
            return LogState(length, 0, length, None, 0)
        pending = await self._link.ask(self._redis.xpending(EVENT_LOG, EVENT_GROUP))
        oldest = pending["min"]
        return LogState(
            length=length,
            pending=pending["pending"],
            lag=group.get("lag"),
            oldest_pending=text(oldest) if oldest else None,
            consumers=group["consumers"],
        )

    async def make_group(self) -> None:
        """Make the consumer group, from the start of the stream, if it is not there."""
        await self._consumers.make()

    async def _group(self) -> Mapping[str, Any] | None:
        groups = await self._consumers.groups(EVENT_LOG)
        return next(
            (each for each in groups if text(each["name"]) == EVENT_GROUP), None
        )


def _given(entries: Sequence[StreamEntry]) -> list[Logged]:
    return [
        Logged(entry.id, entry.fields.get(FIELD) if entry.fields else None)
        for entry in entries
    ]


def _named(ids: Sequence[str]) -> list[StreamEntry]:
    return [StreamEntry(EVENT_LOG, id_, None) for id_ in ids]


def _logged(entries: Sequence[tuple[bytes | None, dict[bytes, bytes]]]) -> list[Logged]:
    return [
        Logged(text(id_), fields.get(FIELD) if fields else None)
        for id_, fields in entries
        if id_ is not None
    ]
