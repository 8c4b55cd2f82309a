"""The event log: a stream, read by one consumer group.

Holds: an appended event is delivered until it is acknowledged, whatever consumer dies; a
batch that a live consumer works on is not given to another, as long as the consumer says
so (`keep`) more often than the others' `min_idle_ms`. What is not acknowledged, or not
yet delivered, is never trimmed.
Does not hold: delivery once. When the group is lost (FLUSHALL, XGROUP DESTROY, a failover
without data) it is made anew from the start of the stream.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from warmer.errors import Backlogged
from warmer.model.arrival import Accepted, Record
from warmer.model.source import OnRegression, Source
from warmer.store.consumer_group import (
    DEAD_AFTER_MS,
    ConsumerGroup,
    StreamEntry,
    text,
)
from warmer.store.control_link import ControlLink
from warmer.store.keyspace import (
    EVENT_GROUP,
    EVENT_LOG,
    SOURCES,
    held,
    source_lineages,
    source_recent,
    source_regressed,
    source_seen,
    source_state,
)
from warmer.store.script import Script

FIELD, _EPOCH, _UNVERSIONED = b"event", b"epoch", b"unversioned"
READERS_EACH = 2
"""Readers of one worker process: a batch is decoded while the servers work on another."""
MAX_BACKLOG = 1_000_000
MAX_HELD = 1_000_000
"""Events of one paused source that are kept back; more are refused."""
MAX_SEEN = 100_000
"""Identities of one source that are known again; of more, the oldest are forgotten."""
MAX_RECENT = 10_000
"""Entities of one source whose newest version is remembered; of more, some are forgotten."""
MAX_LINEAGES = 16
"""Lineages of one source that are told apart; versions of more count as none."""
ACCEPT_AT_ONCE, ACCEPT_BYTES = 500, 2**20
"""One call's records: the server answers nobody else meanwhile."""

_LINEAGE_CHARS = 512
_EPOCH_DIGITS = 9
_ACCEPT = Script("log_accept")


@dataclass(frozen=True, slots=True)
class Logged:
    """One entry of the event log. `event` is None where the entry was deleted under us.

    `epoch` is its source's when it entered. Not `ordered`: its version counts as none.
    """

    id: str
    event: bytes | None
    epoch: int = 0
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class LogState:
    """The event log, counted. `lag` is None where the server cannot tell it."""

    length: int
    pending: int
    lag: int | None
    oldest_pending: str | None
    consumers: int


class EventStream:
    """The event log of one control server. `group` are those who read it."""

    def __init__(self, link: ControlLink, *, max_backlog: int = MAX_BACKLOG) -> None:
        self._link = link
        self._redis = link.redis
        self._max_backlog = max_backlog
        self.group = ConsumerGroup(link, streams=[EVENT_LOG], name=EVENT_GROUP)

    async def append(self, events: Sequence[bytes]) -> list[str]:
        """Append events in this order; return their ids in the log."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for event in events:
                pipe.xadd(EVENT_LOG, {FIELD: event})
            ids = await self._link.ask(pipe.execute())
        return [text(id_) for id_ in ids]

    async def accept(
        self, records: Sequence[Record], source: Source, *, open_epoch: str = ""
    ) -> Accepted:
        """Append events of one source in this order, unless they are known already.

        `open_epoch`, the reason, opens an epoch of the source before them. Raises
        Backlogged while too many events wait; what came before in `records` is then
        appended, and known again only by its identity.
        """
        accepted: list[Accepted] = []
        for batch in _batches(records):
            accepted.append(await self._accept(batch, source, open_epoch))
            open_epoch = ""
        return Accepted(
            new=tuple(flag for each in accepted for flag in each.new),
            regressed=sum(each.regressed for each in accepted),
            regression=any(each.regression for each in accepted),
            epoch=max((each.epoch for each in accepted if each.epoch), default=None),
            log_id=accepted[-1].log_id,
        )

    async def _accept(
        self, records: Sequence[Record], source: Source, open_epoch: str
    ) -> Accepted:
        name = source.name
        reply = await self._link.run(
            _ACCEPT.call(
                log=EVENT_LOG,
                held=held(name),
                state=source_state(name),
                sources=SOURCES,
                seen=source_seen(name),
                recent=source_recent(name),
                regressed=source_regressed(name),
                lineages=source_lineages(name),
                source=name,
                group=EVENT_GROUP,
                records=orjson.dumps([_words(record) for record in records]),
                open=open_epoch,
                limits=orjson.dumps(self._limits(source)),
            )
        )
        if reply[0] == b"FULL":
            raise Backlogged(reply[1])
        _, new, regressed, epoch, told, log_id = reply
        return Accepted(
            new=tuple(flag == ord("1") for flag in new),
            regressed=regressed,
            regression=told == 1,
            epoch=int(epoch) if epoch else None,
            log_id=text(log_id),
        )

    def _limits(self, source: Source) -> Mapping[str, int | bool]:
        return {
            "max_backlog": self._max_backlog,
            "max_held": MAX_HELD,
            "max_seen": MAX_SEEN,
            "max_recent": MAX_RECENT,
            "max_lineages": MAX_LINEAGES,
            "dedupe_ms": source.dedupe_ms,
            "regression_ms": source.regression_ms,
            "regression_entities": source.regression_entities,
            "opens_epoch": source.on_regression is OnRegression.OPEN_EPOCH,
        }

    async def read(
        self, consumer: str, *, count: int, block_ms: int
    ) -> Sequence[Logged]:
        """Return the next events nobody was given yet, waiting up to `block_ms` for one."""
        return given(await self.group.read(consumer, count=count, block_ms=block_ms))

    async def own_pending(self, consumer: str, *, count: int) -> Sequence[Logged]:
        """Return what `consumer` was given and has not acknowledged, oldest first."""
        return given(await self.group.own_pending(consumer, count=count))

    async def claim_abandoned(
        self, consumer: str, *, min_idle_ms: int, count: int
    ) -> Sequence[Logged]:
        """Take over what other consumers were given and let lie for `min_idle_ms`."""
        return given(
            await self.group.claim_abandoned(
                consumer, min_idle_ms=min_idle_ms, count=count
            )
        )

    async def newest(self, *, count: int, before: str = "+") -> Sequence[Logged]:
        """Return up to `count` entries, newest first, that are older than `before`."""
        end = before if before == "+" else f"({before}"
        entries = await self._link.ask(
            self._redis.xrevrange(EVENT_LOG, end, "-", count=count)
        )
        return [_logged(text(id_), fields) for id_, fields in entries]

    async def keep(self, consumer: str, ids: Sequence[str]) -> None:
        """Say that `consumer` still works on these entries."""
        await self.group.keep(consumer, _named(ids))

    async def acknowledge(self, ids: Sequence[str]) -> None:
        """Say that these entries are applied."""
        await self.group.acknowledge(_named(ids))

    async def forget(self, consumer: str) -> None:
        """Remove a consumer that leaves, unless it holds entries another must take over."""
        await self.group.forget(consumer)

    async def forget_dead(self, *, idle_ms: int = DEAD_AFTER_MS) -> int:
        """Remove consumers that hold nothing and have not asked for so long; count them."""
        return await self.group.forget_dead(idle_ms=idle_ms)

    async def trim(self, *, older_than_ms: int, at_most: int | None = None) -> int:
        """Remove entries of that age, but never one that is not acknowledged.

        Of more than `at_most` entries, also younger ones. Returns how many went. The
        server keeps up to one node (about 100 entries) more.
        """
        return await self.group.trim(older_than_ms=older_than_ms, at_most=at_most)

    async def replay(self, source: str, *, since_ms: int, dry_run: bool = False) -> int:
        """Append a source's events of the last `since_ms` again; return how many.

        As they were, each with its epoch, up to what is the last one now. Cut off, it
        leaves some appended: again is harmless.
        """
        seconds, micros = await self._link.ask(self._redis.time())
        after = f"{max(0, seconds * 1000 + micros // 1000 - since_ms)}-0"
        newest = await self.newest(count=1)
        count = 0
        while newest:
            page = await self._link.ask(
                self._redis.xrange(EVENT_LOG, after, newest[0].id, count=ACCEPT_AT_ONCE)
            )
            if not page:
                break
            after = f"({text(page[-1][0])}"
            again = [fields for _, fields in page if _source_of(fields) == source]
            count += len(again)
            if again and not dry_run:
                async with self._redis.pipeline(transaction=False) as pipe:
                    for fields in again:
                        pipe.xadd(EVENT_LOG, fields)
                    await self._link.ask(pipe.execute())
        return count

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
        await self.group.make()

    async def _group(self) -> Mapping[str, Any] | None:
        groups = await self.group.groups(EVENT_LOG)
        return next(
            (each for each in groups if text(each["name"]) == EVENT_GROUP), None
        )


def _batches(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Yield records in order, so many at a time that one call stays short; one empty."""
    begin = size = 0
    for at, record in enumerate(records):
        size += len(record.event)
        if at > begin and (at - begin == ACCEPT_AT_ONCE or size > ACCEPT_BYTES):
            yield records[begin:at]
            begin, size = at, len(record.event)
    yield records[begin:]


def _words(record: Record) -> tuple[str, ...]:
    """Return a record as the script takes it."""
    identity = record.identity.encode()
    return (
        record.event.decode(),
        record.lineage[:_LINEAGE_CHARS],
        record.entity,
        "1" if record.ordered_by else "",
        record.digits,
        "" if record.occurred_at is None else str(record.occurred_at),
        blake2b(identity, digest_size=16).hexdigest() if identity else "",
    )


def _source_of(fields: Mapping[bytes, bytes]) -> str | None:
    """Return whose event it is, None where it cannot be read."""
    try:
        wire = orjson.loads(fields.get(FIELD, b""))
    except orjson.JSONDecodeError:
        return None
    source = wire.get("source") if isinstance(wire, dict) else None
    return source if isinstance(source, str) else None


def given(entries: Sequence[StreamEntry]) -> list[Logged]:
    """Return entries of the event log's group as entries of the event log."""
    return [_logged(entry.id, entry.fields) for entry in entries]


def _named(ids: Sequence[str]) -> list[StreamEntry]:
    return [StreamEntry(EVENT_LOG, id_, None) for id_ in ids]


def _logged(id_: str, fields: Mapping[bytes, bytes] | None) -> Logged:
    if not fields:
        return Logged(id_, None)
    epoch = fields.get(_EPOCH, b"0")
    return Logged(
        id_,
        fields.get(FIELD),
        epoch=int(epoch) if epoch.isdigit() and len(epoch) <= _EPOCH_DIGITS else 0,
        ordered=_UNVERSIONED not in fields,
    )
