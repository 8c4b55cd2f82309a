"""Jobs on the wire: their names and payloads, how they are queued, and arq's pool.

Holds: queueing is one script, so a job is there whole or not at all, and may be queued
again under its id without harm. A payload is JSON: whoever may write to the control
server can ask for work, but not run code.
Does not hold: that a queued job runs. arq deletes jobs by design; the due set and the
event log hold what must not be lost, and jobs only say "look".

A producer in another process may also queue by arq itself, on a pool of `arq_pool`:
`await pool.enqueue_job("invalidate", {"events": [{...}]})`. A `None` from it proves
nothing: arq gives it for a dropped connection too.
"""

import re
import secrets
from collections.abc import Collection, Sequence
from typing import Any, Literal

import orjson
from arq.connections import ArqRedis
from arq.constants import in_progress_key_prefix, job_key_prefix, retry_key_prefix
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import ExponentialBackoff
from redis.exceptions import BusyLoadingError, ReadOnlyError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from warmer.clock import Clock
from warmer.errors import BadEvent
from warmer.model.due import Lane
from warmer.model.job import QueuedJob

QUEUE = "warmer:queue"
INVALIDATE = "invalidate"
REFRESH_DUE = "refresh_due"
SWEEP = "sweep"
REFUSE = "refuse"
"""The job that an unreadable one becomes; never queued."""

JOB_EXPIRES_MS = 3_600_000
"""A drain nobody ran for an hour is not missed: the sweep queues another."""
EVENTS_EXPIRE_MS = 7 * 24 * 3_600_000
"""A producer's events wait as long as this for a worker."""
MAX_EVENTS_PER_JOB = 1_000

_ENQUEUE = """
local job, queue = unpack(KEYS)
local job_id, payload, job_ms = unpack(ARGV)

-- Store a job and queue it. Atomic, because arq deletes an id that has no payload.
-- The score is the server's time: one ahead of the worker's clock would delay the job.

local time = redis.call("TIME")
if redis.call("SET", job, payload, "NX", "PX", job_ms) then
    redis.call("ZADD", queue, "NX", time[1] * 1000 + math.floor(time[2] / 1000), job_id)
    return "QUEUED"
end
return "ALREADY"
"""


class InvalidatePayload(BaseModel):
    """The argument of an `invalidate` job: events as JSON objects, not yet understood."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    events: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_EVENTS_PER_JOB)


def read_invalidate(payload: object) -> InvalidatePayload:
    """Return the validated argument of an `invalidate` job; one bare event is allowed.

    Raises BadEvent that names the field.
    """
    if isinstance(payload, dict) and "events" not in payload:
        payload = {"events": [payload]}
    try:
        return InvalidatePayload.model_validate(payload)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"]) or "payload"
        raise BadEvent(f"{where}: {first['msg']}") from None


def read_lane(lane: object) -> Lane:
    """Return the validated argument of a `refresh_due` job; raises BadEvent."""
    try:
        return Lane(str(lane))
    except ValueError:
        raise BadEvent(f"lane: {str(lane)[:80]!r} is not one of {list(Lane)}") from None


def serialize(job: dict[str, Any]) -> bytes:
    """Return a job, or its result, as arq stores it."""
    # Only a result can hold what JSON cannot (an exception), and none is kept.
    return orjson.dumps(job, default=repr)


def deserialize(stored: bytes) -> dict[str, Any]:
    """Return what `serialize` was given."""
    job: dict[str, Any] = orjson.loads(stored)
    return job


class _StoredJob(BaseModel):
    """A job as arq writes it. Fields of its own that a later arq adds are not read."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    f: Literal["invalidate", "refresh_due", "sweep"]
    a: list[Any] = Field(max_length=1)
    k: dict[str, Any] = Field(max_length=1)
    et: int = Field(ge=0, lt=2**46)


_ARGUMENTS = {INVALIDATE: "payload", REFRESH_DUE: "lane"}
"""The one argument of each job that has one, which may be given by its name."""


def runnable(stored: bytes) -> dict[str, Any]:
    """Return a queued job, as arq's worker may run it; an unreadable one is a `refuse`.

    Whatever else arq is given it drops in silence, or dies of it: and meets it again.
    """
    try:
        job = _StoredJob.model_validate(orjson.loads(stored))
    except orjson.JSONDecodeError as exc:
        return _refused(stored, f"not JSON: {exc}")
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        return _refused(stored, f"{where}: {first['msg']}")
    name = _ARGUMENTS.get(job.f)
    arguments = [*job.a, *(job.k[key] for key in job.k if key == name)]
    if len(arguments) != (name is not None) or len(job.a) + len(job.k) > 1:
        return _refused(stored, f"{job.f}: takes {name or 'no argument'}")
    return {"t": None, "f": job.f, "a": arguments, "k": {}, "et": job.et}


def _refused(stored: bytes, reason: str) -> dict[str, Any]:
    return {"t": None, "f": REFUSE, "a": [stored, reason], "k": {}, "et": 0}


async def remove_unrunnable(redis: Redis, queue: str, *, limit: int) -> list[bytes]:
    """Take out of the queue's head what arq stumbles over; return those ids.

    arq's worker dies of an id that is no text, and of a job or a count of tries that is no
    string. It passes over a score of 0 for ever: that job is given another.
    """
    head = await redis.zrange(queue, 0, limit - 1, withscores=True)
    async with redis.pipeline(transaction=False) as pipe:
        for job_id, _ in head:
            pipe.type(job_key_prefix.encode() + job_id)
            pipe.type(retry_key_prefix.encode() + job_id)
        types = await pipe.execute()
    removed: list[bytes] = []
    async with redis.pipeline(transaction=True) as pipe:
        for at, (job_id, score) in enumerate(head):
            if _readable(job_id) and set(types[2 * at : 2 * at + 2]) <= _RUNNABLE:
                if score == 0:
                    pipe.zadd(queue, {job_id: 1}, xx=True)
                continue
            removed.append(job_id)
            pipe.zrem(queue, job_id)
            for prefix in (job_key_prefix, retry_key_prefix):
                pipe.unlink(prefix.encode() + job_id)
        await pipe.execute()
    return removed


_RUNNABLE = {b"string", b"none"}
_REFUSAL = re.compile(r"(?:^|caused error: \(['\"])([A-Z]{2,20}) ")


def word_of(error: Exception) -> str:
    """Return what a server refused with, such as WRONGTYPE, or else the error's kind."""
    said = _REFUSAL.search(str(error)) if isinstance(error, ResponseError) else None
    return said[1] if said else type(error).__name__


def _readable(job_id: bytes) -> bool:
    try:
        job_id.decode()
    except UnicodeDecodeError:
        return False
    return True


class Jobs:
    """Makes this release's jobs."""

    def __init__(self, clock: Clock, *, queue: str = QUEUE) -> None:
        self._clock = clock
        self.queue = queue

    def refresh_due(self, lane: Lane) -> QueuedJob:
        """Return a job that drains `lane`."""
        return self._job(REFRESH_DUE, lane.value, expires_ms=JOB_EXPIRES_MS)

    def invalidate(self, events: Sequence[dict[str, Any]]) -> QueuedJob:
        """Return a job that appends `events` to the event log."""
        payload = {"events": list(events)}
        return self._job(INVALIDATE, payload, expires_ms=EVENTS_EXPIRE_MS)

    def _job(self, name: str, *arguments: object, expires_ms: int) -> QueuedJob:
        # Never the cache key: arq refuses an id that is queued, running or kept.
        job_id = f"{name}:{secrets.token_hex(8)}"
        payload: dict[str, Any] = {
            "t": None,
            "f": name,
            "a": arguments,
            "k": {},
            "et": self._clock.now_ms(),
        }
        return QueuedJob(
            id=job_id,
            key=job_key_prefix + job_id,
            queue=self.queue,
            payload=serialize(payload),
            expires_ms=expires_ms,
        )


def arq_pool(redis: Redis, *, queue: str = QUEUE) -> ArqRedis:
    """Return arq's client over the connections of `redis`, which it takes over.

    Patient where the request path is not: an arq worker dies of the first connection
    error it sees, so retries happen below it. Redis restarting, hanging, loading or
    demoted to a replica is survived.
    """
    pool = redis.connection_pool
    # Behind Sentinel retries nest three deep: 20 would ask a dead address for minutes.
    retries = 5 if isinstance(pool, SentinelConnectionPool) else 20
    pool.connection_kwargs.update(
        socket_timeout=5,
        socket_connect_timeout=2,
        socket_keepalive=True,
        health_check_interval=15,
        retry=Retry(ExponentialBackoff(cap=1, base=0.05), retries),
        retry_on_error=[
            RedisConnectionError,
            RedisTimeoutError,
            OSError,
            BusyLoadingError,
            ReadOnlyError,
        ],
    )
    return ArqRedis(
        pool_or_conn=pool,
        job_serializer=serialize,
        job_deserializer=deserialize,
        default_queue_name=queue,
        expires_extra_ms=EVENTS_EXPIRE_MS,
    )


async def enqueue(redis: Redis, job: QueuedJob) -> None:
    """Queue `job`; safe to repeat after any error."""
    script = redis.register_script(_ENQUEUE)
    await script(keys=[job.key, job.queue], args=[job.id, job.payload, job.expires_ms])


async def renew_claims(redis: Redis, job_ids: Collection[str], *, ttl_ms: int) -> None:
    """Let arq's claims on these running jobs last `ttl_ms` from now."""
    async with redis.pipeline(transaction=False) as pipe:
        for job_id in job_ids:
            pipe.pexpire(in_progress_key_prefix + job_id, ttl_ms)
        await pipe.execute()


async def enqueue_invalidate(
    redis: Redis, events: Sequence[dict[str, Any]], *, jobs: Jobs
) -> None:
    """Queue events for a worker to append to the event log.

    For producers that hold a connection to the control server; raises BadEvent for a list
    that is empty or too long.
    """
    read_invalidate({"events": list(events)})
    await enqueue(redis, jobs.invalidate(events))
