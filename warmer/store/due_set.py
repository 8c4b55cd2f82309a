"""The due set: every key to refresh that nobody waits for, in lanes.

Holds: a key that was asked for is due, or worked on, until it is done; it survives its
worker, arq's jobs and a restart of the server. Asking a thousand times is one refresh
that reaches the newest of all the versions asked for.
Does not hold: order within a lane beyond the instant a key is due.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import orjson

from warmer.errors import BadEvent
from warmer.model.due import DueKey, Lane, Taken, TakenKey, Unfinished, member_of
from warmer.model.job import QueuedJob
from warmer.model.key import Key
from warmer.model.version import Versions, decode_vector, encode_vector
from warmer.store.control_link import ControlLink
from warmer.store.keyspace import WANTED, doing, due, wake
from warmer.store.script import Argument, Script

log = logging.getLogger("warmer.due_set")

BATCH = 200
"""Keys in one script: the server answers nobody else meanwhile."""
WAKE_MS = 60_000
"""How long a wake flag may outlive a job that vanished unnoticed."""
APART_MS = 250
"""Between keys that were abandoned together more than once, times how often before."""

_ADD = Script("due_add")
_TAKE = Script("due_take")
_KEEP = Script("due_keep")
_DONE = Script("due_done")
_RETRY = Script("due_retry")
_SWEEP = Script("due_sweep")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep of one lane found."""

    abandoned: int
    woken: bool


@dataclass(frozen=True, slots=True)
class Depth:
    """A lane, counted. `oldest_ms`: for how long the first ready key has been waiting."""

    due: int
    ready: int
    doing: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where one key stands. `working`: taken by a worker, and due again `due_in_ms` from now.

    `due_in_ms` is negative for a key that has been waiting. `attempts`: failed so far.
    """

    lane: Lane
    working: bool
    due_in_ms: int
    attempts: int


class DueSet:
    """The due set of one control server. `drain_job` makes a job that drains a lane."""

    def __init__(
        self, link: ControlLink, *, drain_job: Callable[[Lane], QueuedJob]
    ) -> None:
        self._link = link
        self._drain_job = drain_job

    async def add(
        self, lane: Lane, keys: Sequence[DueKey], *, due_in_ms: int = 0
    ) -> int:
        """Ask for keys to be refreshed; return how many were not due before."""
        added = 0
        for batch in _batches(keys):
            asked = orjson.dumps([_asked(key) for key in batch])
            call = _ADD.call(
                lane=lane.value,
                due_in_ms=due_in_ms,
                asked=asked,
                due_now=due(Lane.NOW),
                due_warm=due(Lane.WARM),
                wanted=WANTED,
                **self._drain(lane),
            )
            added += (await self._link.run(call))[1]
        return added

    async def begin_drain(self, lane: Lane) -> None:
        """Let the next key that becomes due queue a drain job.

        Before the first `take`: a flag cleared after it would swallow the wake of a key
        that became due in between.
        """
        await self._link.ask(self._link.redis.delete(wake(lane)))

    async def take(self, lane: Lane, limit: int, *, visible_ms: int) -> Taken:
        """Take up to `limit` ready keys; they come back by themselves after `visible_ms`."""
        elsewhere = Lane.WARM if lane is Lane.NOW else Lane.NOW
        call = _TAKE.call(
            due=due(lane),
            doing=doing(lane),
            doing_elsewhere=doing(elsewhere),
            wanted=WANTED,
            limit=min(limit, BATCH),
            visible_ms=visible_ms,
            receipt=secrets.token_hex(8),
        )
        _word, next_in_ms, *pairs = await self._link.run(call)
        keys: list[TakenKey] = []
        for member, stored in zip(pairs[::2], pairs[1::2], strict=True):
            if _is_text(member):
                keys.append(_taken(member, stored))
            else:
                await self._forget(lane, member)
        return Taken(tuple(keys), None if next_in_ms < 0 else next_in_ms)

    async def keep(
        self, lane: Lane, keys: Sequence[TakenKey], *, visible_ms: int
    ) -> None:
        """Say that these keys are still worked on."""
        for batch in _batches(keys):
            call = _KEEP.call(
                doing=doing(lane),
                wanted=WANTED,
                working=orjson.dumps([[key.member, key.receipt] for key in batch]),
                visible_ms=visible_ms,
            )
            await self._link.run(call)

    async def _forget(self, lane: Lane, member: bytes) -> None:
        """Remove what no release has written: nobody can say what to refresh."""
        log.warning("due_member_refused lane=%s member=%r", lane.value, member[:80])
        async with self._link.redis.pipeline(transaction=False) as pipe:
            pipe.zrem(doing(lane), member)
            pipe.hdel(WANTED, member)  # type: ignore[arg-type]  # redis-py knows text only
            await self._link.ask(pipe.execute())

    async def done(self, lane: Lane, keys: Sequence[TakenKey]) -> None:
        """Forget finished keys, but those asked for again meanwhile."""
        for batch in _batches(keys):
            finished = orjson.dumps([[key.member, key.receipt] for key in batch])
            call = _DONE.call(
                due_now=due(Lane.NOW),
                due_warm=due(Lane.WARM),
                doing=doing(lane),
                wanted=WANTED,
                finished=finished,
            )
            await self._link.run(call)

    async def retry(self, lane: Lane, keys: Sequence[Unfinished]) -> None:
        """Put unfinished keys back."""
        for batch in _batches(keys):
            unfinished = orjson.dumps([_unfinished(key) for key in batch])
            call = _RETRY.call(
                due_now=due(Lane.NOW),
                due_warm=due(Lane.WARM),
                doing=doing(lane),
                wanted=WANTED,
                lane=lane.value,
                unfinished=unfinished,
            )
            await self._link.run(call)

    async def sweep(self, lane: Lane) -> Swept:
        """Return abandoned keys to the lane, and wake a drain if keys wait and none is queued."""
        call = _SWEEP.call(
            due=due(lane),
            doing=doing(lane),
            wanted=WANTED,
            limit=BATCH,
            apart_ms=APART_MS,
            **self._drain(lane),
        )
        _word, abandoned, woken = await self._link.run(call)
        return Swept(abandoned, woken == b"WOKEN")

    def _drain(self, lane: Lane) -> dict[str, Argument]:
        """Return what a script needs to queue a drain job."""
        job = self._drain_job(lane)
        return {
            "wake": wake(lane),
            "queue": job.queue,
            "job": job.key,
            "job_id": job.id,
            "payload": job.payload,
            "job_ms": job.expires_ms,
            "wake_ms": WAKE_MS,
        }

    async def find(self, key: Key) -> Place | None:
        """Return where the key stands, None if it is not due."""
        member = member_of(key)
        places = [(lane, working) for lane in Lane for working in (True, False)]
        seconds, micros = await self._link.ask(self._link.redis.time())
        async with self._link.redis.pipeline(transaction=False) as pipe:
            for lane, working in places:
                pipe.zscore(doing(lane) if working else due(lane), member)
            pipe.hget(WANTED, member)
            *scores, stored = await self._link.ask(pipe.execute())
        attempts = int(orjson.loads(stored)["attempts"]) if stored else 0
        now = seconds * 1000 + micros // 1000
        for (lane, working), score in zip(places, scores, strict=True):
            if score is not None:
                return Place(lane, working, int(score) - now, attempts)
        return None

    async def depth(self, lane: Lane) -> Depth:
        """Count a lane."""
        seconds, micros = await self._link.ask(self._link.redis.time())
        now = seconds * 1000 + micros // 1000
        async with self._link.redis.pipeline(transaction=False) as pipe:
            pipe.zcard(due(lane))
            pipe.zcount(due(lane), "-inf", now)
            pipe.zcard(doing(lane))
            pipe.zrange(due(lane), 0, 0, withscores=True)
            waiting, ready, working, first = await self._link.ask(pipe.execute())
        oldest_ms = max(0, now - int(first[0][1])) if first else 0
        return Depth(waiting, ready, working, oldest_ms)


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def _asked(key: DueKey) -> list[str]:
    return [
        member_of(key.key),
        encode_vector(key.wanted),
        str(key.wanted_fence),
        key.event_id,
    ]


def _unfinished(key: Unfinished) -> list[str | int]:
    return [key.taken.member, key.taken.receipt, key.delay_ms, int(key.failed)]


def _is_text(member: bytes) -> bool:
    try:
        member.decode()
    except UnicodeDecodeError:
        return False
    return True


def _taken(member: bytes, stored: bytes) -> TakenKey:
    wanted = orjson.loads(stored)
    return TakenKey(
        member=member.decode(),
        receipt=wanted["receipt"],
        wanted=_readable(wanted["versions"]),
        wanted_fence=int(wanted["fence"]),
        attempts=int(wanted["attempts"]),
        event_id=wanted["event"],
    )


def _readable(vector: str) -> Versions:
    """Return the versions, or none: a later release may write what this one cannot read."""
    try:
        return decode_vector(vector)
    except BadEvent:
        return {}
