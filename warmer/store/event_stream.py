"""The event log: a stream, read by one consumer group.

Holds: an appended event is delivered until it is acknowledged, whatever consumer dies; a
batch that a live consumer works on is not given to another, as long as the consumer says
so (`keep`) more often than the others' `min_idle_ms`. What is not acknowledged, or not
yet delivered, is never trimmed.
Does not hold: delivery once. When the group is lost (FLUSHALL, XGROUP DESTROY, a failover
without data) it is made anew from the start of the stream.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from warmer.errors import StoreRefused
from warmer.model.arrival import Record
from warmer.model.source import Source
from warmer.store.control_link import ControlLink
from warmer.store.keyspace import EVENT_GROUP, EVENT_LOG
from warmer.store.script import Script

FIELD = b"event"
TRIM_BATCH = 10_000
"""Entries removed by one trim at most: the server answers nobody else meanwhile."""

DEAD_AFTER_MS = 600_000
"""A live consumer asks twice a second; one that wakes up later makes its name anew."""

_FORGET_IDLE = Script("forget_idle")
_GROUP_LOST = ("NOGROUP", "UNBLOCKED")

T = TypeVar("T")


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

    async def append(self, events: Sequence[bytes]) -> list[str]:
        """Append events in this order; return their ids in the log."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for event in events:
                pipe.xadd(EVENT_LOG, {FIELD: event})
            ids = await self._link.ask(pipe.execute())
        return [_text(id_) for id_ in ids]

    async def accept(self, records: Sequence[Record], source: Source) -> int:
        """Append events of one source in this order; return how many were no repetitions."""
        _ = source
        return len(await self.append([record.event for record in records]))

    async def read(
        self, consumer: str, *, count: int, block_ms: int
    ) -> Sequence[Logged]:
        """Return the next events nobody was given yet, waiting up to `block_ms` for one."""
        return await self._grouped(
            lambda: self._read(consumer, ">", count=count, block_ms=block_ms)
        )

    async def own_pending(self, consumer: str, *, count: int) -> Sequence[Logged]:
        """Return what `consumer` was given and has not acknowledged, oldest first."""
        return await self._grouped(
            lambda: self._read(consumer, "0", count=count, block_ms=None)
        )

    async def claim_abandoned(
        self, consumer: str, *, min_idle_ms: int, count: int
    ) -> Sequence[Logged]:
        """Take over what other consumers were given and let lie for `min_idle_ms`."""
        return await self._grouped(
            lambda: self._claim(consumer, min_idle_ms=min_idle_ms, count=count)
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
        if ids:
            await self._grouped(
                lambda: self._link.ask(
                    self._redis.xclaim(
                        EVENT_LOG, EVENT_GROUP, consumer, 0, list(ids), justid=True
                    )
                )
            )

    async def acknowledge(self, ids: Sequence[str]) -> None:
        """Say that these entries are applied."""
        if ids:
            await self._link.ask(self._redis.xack(EVENT_LOG, EVENT_GROUP, *ids))

    async def forget(self, consumer: str) -> None:
        """Remove a consumer that leaves, unless it holds entries another must take over."""
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.xpending_range(EVENT_LOG, EVENT_GROUP, "-", "+", 1, consumer)
            (held,) = await self._link.ask(pipe.execute())
        if not held:
            await self._link.ask(
                self._redis.xgroup_delconsumer(EVENT_LOG, EVENT_GROUP, consumer)
            )

    async def forget_dead(self, *, idle_ms: int = DEAD_AFTER_MS) -> int:
        """Remove consumers that hold nothing and have not asked for so long; count them."""
        call = _FORGET_IDLE.call(events=EVENT_LOG, group=EVENT_GROUP, idle_ms=idle_ms)
        forgotten: int = (await self._link.run(call))[1]
        return forgotten

    async def trim(self, *, older_than_ms: int) -> int:
        """Remove entries of that age, but never one that is not acknowledged.

        Returns how many went. The server keeps up to one node (about 100 entries) more.
        """
        bound = await self._trim_bound(older_than_ms)
        if bound is None:
            return 0
        return await self._link.ask(
            self._redis.xtrim(
                EVENT_LOG, minid=bound, approximate=True, limit=TRIM_BATCH
            )
        )

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
            oldest_pending=_text(oldest) if oldest else None,
            consumers=group["consumers"],
        )

    async def make_group(self) -> None:
        """Make the consumer group, from the start of the stream, if it is not there."""
        try:
            await self._link.ask(
                self._redis.xgroup_create(EVENT_LOG, EVENT_GROUP, "0", mkstream=True)
            )
        except StoreRefused as exc:
            if exc.code != "BUSYGROUP":
                raise

    async def _grouped(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the reply of `call`; make a lost group anew, once per call.

        Once, so that a server that forgets at once is met by the caller's back-off.
        """
        try:
            return await call()
        except StoreRefused as exc:
            if exc.code not in _GROUP_LOST:
                raise
        await self.make_group()
        return await call()

    async def _read(
        self, consumer: str, after: str, *, count: int, block_ms: int | None
    ) -> Sequence[Logged]:
        reply = await self._link.ask(
            self._redis.xreadgroup(
                EVENT_GROUP, consumer, {EVENT_LOG: after}, count=count, block=block_ms
            ),
            wait_ms=block_ms or 0,
        )
        return _logged(reply[0][1]) if reply else ()

    async def _claim(
        self, consumer: str, *, min_idle_ms: int, count: int
    ) -> Sequence[Logged]:
        # Entries deleted meanwhile leave the pending list by themselves (Redis >= 7.0).
        reply = await self._link.ask(
            self._redis.xautoclaim(
                EVENT_LOG,
                EVENT_GROUP,
                consumer,
                min_idle_time=min_idle_ms,
                count=count,
            )
        )
        return _logged(reply[1])

    async def _trim_bound(self, older_than_ms: int) -> str | None:
        group = await self._group()
        if group is None:
            return None
        pending = await self._link.ask(self._redis.xpending(EVENT_LOG, EVENT_GROUP))
        kept_from = pending["min"] or group["last-delivered-id"]
        seconds, micros = await self._link.ask(self._redis.time())
        aged = (seconds * 1000 + micros // 1000 - older_than_ms, 0)
        return "{}-{}".format(*min(aged, _position(_text(kept_from))))

    async def _group(self) -> dict[str, Any] | None:
        try:
            groups = await self._link.ask(self._redis.xinfo_groups(EVENT_LOG))
        except StoreRefused as exc:
            if "no such key" in str(exc):
                return None
            raise
        for group in groups:
            if _text(group["name"]) == EVENT_GROUP:
                return dict(group)
        return None


def _logged(entries: Sequence[tuple[bytes | None, dict[bytes, bytes]]]) -> list[Logged]:
    return [
        Logged(_text(id_), fields.get(FIELD) if fields else None)
        for id_, fields in entries
        if id_ is not None
    ]


def _position(id_: str) -> tuple[int, int]:
    ms, _, number = id_.partition("-")
    return int(ms), int(number or 0)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
