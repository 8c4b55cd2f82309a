"""A consumer group on one or several streams: the event log's, and those of sources.

Holds: an entry is delivered until it is acknowledged, whatever consumer dies; what a live
consumer works on is not given to another, as long as it says so (`keep`) more often than
the others' `min_idle_ms`. What is not acknowledged, or not yet delivered, is never trimmed.
Does not hold: delivery once. When the group is lost (FLUSHALL, XGROUP DESTROY, a failover
without data) it is made anew from the start of each stream.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from warmer.errors import StoreRefused
from warmer.store.control_link import ControlLink
from warmer.store.script import Script

TRIM_BATCH = 10_000
"""Entries removed by one trim at most: the server answers nobody else meanwhile."""
DEAD_AFTER_MS = 600_000
"""A live consumer asks twice a second; one that wakes up later makes its name anew."""

_FORGET_IDLE = Script("forget_idle")
_GROUP_LOST = ("NOGROUP", "UNBLOCKED")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One entry of a stream. `fields` is None where the entry was deleted under us."""

    stream: str
    id: str
    fields: Mapping[bytes, bytes] | None


class ConsumerGroup:
    """One group's reading of its streams; each call names the consumer it is for."""

    def __init__(self, link: ControlLink, *, streams: Sequence[str], name: str) -> None:
        self._link = link
        self._redis = link.redis
        self._streams = tuple(streams)
        self._name = name

    async def read(
        self, consumer: str, *, count: int, block_ms: int
    ) -> list[StreamEntry]:
        """Return entries nobody was given yet, up to `count` of each stream.

        Waits up to `block_ms` for the first.
        """
        return await self._grouped(
            lambda: self._read(consumer, ">", count=count, block_ms=block_ms)
        )

    async def own_pending(self, consumer: str, *, count: int) -> list[StreamEntry]:
        """Return what `consumer` was given and has not acknowledged, oldest first."""
        return await self._grouped(
            lambda: self._read(consumer, "0", count=count, block_ms=None)
        )

    async def claim_abandoned(
        self, consumer: str, *, min_idle_ms: int, count: int
    ) -> list[StreamEntry]:
        """Take over what other consumers were given and let lie for `min_idle_ms`."""
        return await self._grouped(
            lambda: self._claim(consumer, min_idle_ms=min_idle_ms, count=count)
        )

    async def keep(self, consumer: str, entries: Sequence[StreamEntry]) -> None:
        """Say that `consumer` still works on these entries."""
        for stream, ids in _by_stream(entries).items():
            await self._reclaim(consumer, stream, ids, deliveries=None)

    async def count_as(
        self, consumer: str, entries: Sequence[StreamEntry], deliveries: int
    ) -> None:
        """Say that `consumer` works on these, and how often they count as delivered.

        The server counts each reading, also those that something else cut short.
        """
        for stream, ids in _by_stream(entries).items():
            await self._reclaim(consumer, stream, ids, deliveries=deliveries)

    async def deliveries(
        self, consumer: str, entries: Sequence[StreamEntry]
    ) -> dict[tuple[str, str], int]:
        """Return how often each of these was given to anybody, by stream and id."""
        found: dict[tuple[str, str], int] = {}
        for stream, ids in _by_stream(entries).items():
            ordered = sorted(ids, key=position)
            pending = await self._link.ask(
                self._redis.xpending_range(
                    stream, self._name, ordered[0], ordered[-1], len(ids), consumer
                )
            )
            for each in pending:
                found[stream, text(each["message_id"])] = each["times_delivered"]
        return found

    async def acknowledge(self, entries: Sequence[StreamEntry]) -> None:
        """Say that these entries are done with."""
        for stream, ids in _by_stream(entries).items():
            await self._link.ask(self._redis.xack(stream, self._name, *ids))

    async def forget(self, consumer: str) -> None:
        """Remove a consumer that leaves, unless it holds entries another must take over."""
        for stream in self._streams:
            held = await self._link.ask(
                self._redis.xpending_range(stream, self._name, "-", "+", 1, consumer)
            )
            if not held:
                await self._link.ask(
                    self._redis.xgroup_delconsumer(stream, self._name, consumer)
                )

    async def forget_dead(self, *, idle_ms: int = DEAD_AFTER_MS) -> int:
        """Remove consumers that hold nothing and have not asked for so long; count them."""
        forgotten = 0
        for stream in self._streams:
            call = _FORGET_IDLE.call(events=stream, group=self._name, idle_ms=idle_ms)
            forgotten += (await self._link.run(call))[1]
        return forgotten

    async def trim(
        self, *, older_than_ms: int = 0, at_most: int | None = None, whole: bool = False
    ) -> int:
        """Remove entries of that age that were acknowledged; return how many went.

        Of more than `at_most` entries, also younger ones.

        By every group of the stream if `whole`, else by this one. The server keeps up to
        one node (about 100 entries) more.
        """
        removed = 0
        for stream in self._streams:
            groups = await self.groups(stream)
            if not whole:
                groups = [each for each in groups if text(each["name"]) == self._name]
            if groups:
                removed += await self._trim(stream, groups, older_than_ms)
                if at_most is not None:
                    removed += await self._trim_length(stream, groups, at_most)
        return removed

    async def groups(self, stream: str) -> list[dict[str, Any]]:
        """Return what the server tells of the groups of a stream; none if it is not there."""
        try:
            groups = await self._link.ask(self._redis.xinfo_groups(stream))
        except StoreRefused as exc:
            if "no such key" in str(exc):
                return []
            raise
        return list(groups)

    async def make(self) -> None:
        """Make the group, from the start of each stream, where it is not there."""
        for stream in self._streams:
            try:
                await self._link.ask(
                    self._redis.xgroup_create(stream, self._name, "0", mkstream=True)
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
        await self.make()
        return await call()

    async def _read(
        self, consumer: str, after: str, *, count: int, block_ms: int | None
    ) -> list[StreamEntry]:
        reply = await self._link.ask(
            self._redis.xreadgroup(
                self._name,
                consumer,
                dict.fromkeys(self._streams, after),
                count=count,
                block=block_ms,
            ),
            wait_ms=block_ms or 0,
        )
        return [
            entry
            for stream, found in reply or ()
            for entry in _entries(text(stream), found)
        ]

    async def _claim(
        self, consumer: str, *, min_idle_ms: int, count: int
    ) -> list[StreamEntry]:
        claimed: list[StreamEntry] = []
        for stream in self._streams:
            # Entries deleted meanwhile leave the pending list by themselves (Redis >= 7.0).
            reply = await self._link.ask(
                self._redis.xautoclaim(
                    stream,
                    self._name,
                    consumer,
                    min_idle_time=min_idle_ms,
                    count=count,
                )
            )
            claimed += _entries(stream, reply[1])
        return claimed

    async def _reclaim(
        self, consumer: str, stream: str, ids: Sequence[str], *, deliveries: int | None
    ) -> None:
        await self._grouped(
            lambda: self._link.ask(
                self._redis.xclaim(
                    stream,
                    self._name,
                    consumer,
                    0,
                    list(ids),
                    retrycount=deliveries,
                    justid=True,
                )
            )
        )

    async def _trim(
        self, stream: str, groups: Sequence[Mapping[str, Any]], older_than_ms: int
    ) -> int:
        seconds, micros = await self._link.ask(self._redis.time())
        aged = (seconds * 1000 + micros // 1000 - older_than_ms, 0)
        bound = min(aged, await self._kept_from(stream, groups))
        return await self._cut(stream, bound, TRIM_BATCH)

    async def _trim_length(
        self, stream: str, groups: Sequence[Mapping[str, Any]], at_most: int
    ) -> int:
        excess = await self._link.ask(self._redis.xlen(stream)) - at_most
        if excess <= 0:
            return 0
        bound = await self._kept_from(stream, groups)
        return await self._cut(stream, bound, min(excess, TRIM_BATCH))

    async def _kept_from(
        self, stream: str, groups: Sequence[Mapping[str, Any]]
    ) -> tuple[int, int]:
        """Return before which entry all are acknowledged by each of these groups."""
        bounds = []
        for group in groups:
            pending = await self._link.ask(
                self._redis.xpending(stream, text(group["name"]))
            )
            kept_from = pending["min"] or group["last-delivered-id"]
            bounds.append(position(text(kept_from)))
        return min(bounds)

    async def _cut(self, stream: str, bound: tuple[int, int], limit: int) -> int:
        """Remove whole nodes of entries before `bound`, the oldest first."""
        return await self._link.ask(
            self._redis.xtrim(
                stream, minid="{}-{}".format(*bound), approximate=True, limit=limit
            )
        )


def position(id_: str) -> tuple[int, int]:
    """Return an id as numbers that compare as the server compares it."""
    ms, _, number = id_.partition("-")
    return int(ms), int(number or 0)


def text(value: bytes | str) -> str:
    """Return a name or id of the server's as text."""
    return value.decode() if isinstance(value, bytes) else value


def _by_stream(entries: Iterable[StreamEntry]) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {}
    for entry in entries:
        ids.setdefault(entry.stream, []).append(entry.id)
    return ids


def _entries(
    stream: str, found: Sequence[tuple[bytes | None, dict[bytes, bytes]]]
) -> list[StreamEntry]:
    return [
        StreamEntry(stream, text(id_), fields or None)
        for id_, fields in found
        if id_ is not None
    ]
