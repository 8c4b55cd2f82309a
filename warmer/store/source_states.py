"""What is known of each source: its epoch, its newest position, its counts; and pauses.

Holds: an event that was kept back is in the log or still kept back, whenever its mover
dies. Events of a source enter the log in the order in which they were accepted, whether
it was paused in between or not.
Does not hold: a pause without an end. When it is over, what was kept back goes into the
log, a second later at most while a worker runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from warmer.store.control_link import ControlLink
from warmer.store.keyspace import (
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

MOVED_AT_ONCE = 100
"""Events moved by one call: the server answers nobody else meanwhile."""
BATCHES_AT_ONCE = 20
"""Batches of one source between two of another."""

_MOVE = Script("source_move")
_PART = 16


@dataclass(frozen=True, slots=True)
class SourceState:
    """One source as the control server knows it; instants are Unix ms, None for never.

    `newest`: the parts of the newest position in commit order; `newest_at`: when that was
    by the producer's clock. `accepted` and the other counts are since the state began.
    `went_back`: entities whose versions did in this epoch, up to the number told of.
    """

    name: str
    epoch: int
    opened_at: int | None
    opened_why: str
    lineage: str
    lineages: int
    newest: tuple[int, ...]
    newest_at: int | None
    heard_at: int | None
    accepted: int
    duplicate: int
    unversioned: int
    regressed: int
    went_back: int
    entities: int
    identities: int
    held: int
    paused_until: int | None
    paused_why: str


class SourceStates:
    """The sources of one control server."""

    def __init__(self, link: ControlLink) -> None:
        self._link = link
        self._redis = link.redis

    async def names(self) -> list[str]:
        """Return the names of the sources that have been heard of or paused, sorted."""
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.smembers(SOURCES)
            (names,) = await self._link.ask(pipe.execute())
        return sorted(name.decode() for name in names)

    async def show(self, name: str) -> SourceState:
        """Return what is known of a source; of one never heard of, nothing."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hgetall(source_state(name))
            pipe.scard(source_lineages(name))
            pipe.scard(source_regressed(name))
            pipe.hlen(source_recent(name))
            pipe.zcard(source_seen(name))
            pipe.xlen(held(name))
            pipe.time()
            (
                fields,
                lineages,
                went_back,
                entities,
                identities,
                kept_back,
                time,
            ) = await self._link.ask(pipe.execute())
        known = {key.decode(): value.decode() for key, value in fields.items()}
        paused_until = _instant(known, "paused_until")
        over = paused_until is None or paused_until <= _ms(time)
        return SourceState(
            name=name,
            epoch=_number(known, "epoch"),
            opened_at=_instant(known, "opened_at"),
            opened_why=known.get("opened_why", ""),
            lineage=known.get("lineage", ""),
            lineages=lineages,
            newest=_parts(known.get("newest", "")),
            newest_at=_instant(known, "newest_at"),
            heard_at=_instant(known, "heard_at"),
            accepted=_number(known, "accepted"),
            duplicate=_number(known, "duplicate"),
            unversioned=_number(known, "unversioned"),
            regressed=_number(known, "regressed"),
            went_back=went_back,
            entities=entities,
            identities=identities,
            held=kept_back,
            paused_until=None if over else paused_until,
            paused_why="" if over else known.get("paused_why", ""),
        )

    async def pause(self, name: str, *, for_ms: int, why: str) -> int:
        """Keep a source's events back for so long; return until when (Unix ms).

        Longer or shorter than before, whichever pause there is.
        """
        until = _ms(await self._link.ask(self._redis.time())) + for_ms
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.sadd(SOURCES, name)
            pipe.hset(
                source_state(name),
                mapping={"paused_until": until, "paused_why": why},
            )
            await self._link.ask(pipe.execute())
        return until

    async def resume(self, name: str) -> int:
        """End a pause; return how many events went into the log."""
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.hdel(source_state(name), "paused_until")
            await self._link.ask(pipe.execute())
        moved = 0
        while True:
            some, left = await self.move(name)
            moved += some
            if not some or not left:
                return moved

    async def move_ended(self) -> int:
        """Move what pauses that are over kept back, some of each; return how many went."""
        moved = 0
        for name in await self.names():
            for _ in range(BATCHES_AT_ONCE):
                some, left = await self.move(name)
                moved += some
                if not some or not left:
                    break
        return moved

    async def move(self, name: str) -> tuple[int, int]:
        """Move some events that were kept back, if the pause is over; return moved, left."""
        call = _MOVE.call(
            log=EVENT_LOG,
            held=held(name),
            state=source_state(name),
            limit=MOVED_AT_ONCE,
        )
        _word, moved, left = await self._link.run(call)
        return moved, left


def _ms(time: tuple[int, int]) -> int:
    seconds, micros = time
    return seconds * 1000 + micros // 1000


def _number(known: Mapping[str, str], name: str) -> int:
    text = known.get(name, "")
    return int(text) if text.isdigit() else 0


def _instant(known: Mapping[str, str], name: str) -> int | None:
    return _number(known, name) or None


def _parts(digits: str) -> tuple[int, ...]:
    return tuple(
        int(digits[at : at + _PART], 16) for at in range(0, len(digits), _PART)
    )
