"""The one way of reading entries: reads that meet in one loop turn leave together.

Idle, a read goes out at once. Busy, reads are gathered and leave as one MGET of at most
BATCH keys (SMALL_BATCH of small entries), at most IN_FLIGHT of them at a time; equal keys of
one batch share a reply.

Holds: a caller that goes away neither cancels what others wait for nor shifts replies,
because a connection whose exchange ended early is closed before anyone else gets it. A
read shares only with reads not yet sent, so it sees all that was published before it was
asked. No read outlives two timeouts, or three when the loop stalls: when the server hangs,
what queued behind the hanging batch fails with it.
Does not hold: that a first connection may take longer than the timeout.

Errors are redis-py's own; `redis_store` translates them.

Rejected: a read on a pooled connection each (redis-py's GET): 5 times the CPU at 50 tasks.
Uncapped batches: slower than the pool at 180 KB. `socket_timeout`: 30 to 50 % more CPU than
one `asyncio.timeout` per batch.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from hiredis import pack_command
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from warmer.store.patience import within

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.connection import AbstractConnection

BATCH = 16
"""Keys in one MGET: at 180 KB each, four replies take 94 ms of a gigabit."""
SMALL_BATCH, SMALL_BYTES = 32, 8 * 1024
"""Keys in one MGET while entries are small, going by the last reply: 1.5 times the reads
of 16 at 4 KB and 50 tasks; 64 are slower again."""
IN_FLIGHT = 4
"""MGETs under way, each on a connection that the lane keeps."""
PARTLY_IN_FLIGHT = 3
"""With so many under way only a full one follows: at 50 tasks, batches of 16 instead of
16, 16, 16 and 2 that never meet. A read waits for one reply at most."""
MAX_WAITING = 10_000
"""Reads not yet sent; the next one fails at once (`read_lane_full`)."""

Body = bytes | None
_Read = asyncio.Future[Body]


class ReadLane:
    """Reads of one process from one cache server."""

    __slots__ = (
        "_batch",
        "_batches",
        "_closed",
        "_idle",
        "_in_flight",
        "_max_waiting",
        "_pool",
        "_scheduled",
        "_timeout_s",
        "_waiting",
    )

    def __init__(
        self, redis: "Redis", *, timeout_ms: int, max_waiting: int = MAX_WAITING
    ) -> None:
        """Read through connections of `redis`, each exchange within `timeout_ms`."""
        self._pool = redis.connection_pool
        self._timeout_s = timeout_ms / 1000
        self._max_waiting = max_waiting
        self._idle: list[AbstractConnection] = []
        self._waiting: deque[tuple[str, _Read]] = deque()
        self._batches: set[asyncio.Task[None]] = set()
        self._in_flight = 0
        self._batch = BATCH
        self._scheduled = False
        self._closed = False

    async def get(self, key: str) -> Body:
        """Return what is stored under `key`, None if nothing is."""
        if self._in_flight or self._waiting or self._closed:
            return await self._enqueue(key)
        self._in_flight = 1
        try:
            return (await self._exchange((key,)))[0]
        finally:
            self._left()

    async def aclose(self) -> None:
        """End what is under way, and give the connections back."""
        self._closed = True
        self._fail_waiting(RedisConnectionError("the read lane is closed"))
        batches = list(self._batches)
        for batch in batches:
            batch.cancel()
        await asyncio.gather(*batches, return_exceptions=True)
        while self._idle:
            await self._give_back(self._idle.pop())

    async def _give_back(self, connection: "AbstractConnection") -> None:
        await connection.disconnect()
        await self._pool.release(connection)

    def _enqueue(self, key: str) -> _Read:
        if self._closed:
            raise RedisConnectionError("the read lane is closed")
        if len(self._waiting) >= self._max_waiting:
            raise RedisConnectionError(
                f"read_lane_full: {self._max_waiting} reads wait already"
            )
        loop = asyncio.get_running_loop()
        read: _Read = loop.create_future()
        self._waiting.append((key, read))
        if not self._scheduled:
            # At the end of this loop turn, so that its other reads come along.
            self._scheduled = True
            loop.call_soon(self._send)
        return read

    def _send(self) -> None:
        self._scheduled = False
        while self._may_send() and (batch := self._next_batch()):
            self._in_flight += 1
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)

    def _may_send(self) -> bool:
        full = len(self._waiting) >= self._batch
        return self._in_flight < (IN_FLIGHT if full else PARTLY_IN_FLIGHT)

    def _next_batch(self) -> dict[str, list[_Read]]:
        batch: dict[str, list[_Read]] = {}
        waiting = self._waiting
        while waiting and len(batch) < self._batch:
            key, read = waiting.popleft()
            if not read.done():
                batch.setdefault(key, []).append(read)
        return batch

    async def _run(self, batch: dict[str, list[_Read]]) -> None:
        try:
            bodies = await self._exchange(tuple(batch))
        except BaseException as exc:
            ended = isinstance(exc, asyncio.CancelledError)
            error = RedisConnectionError("the read lane is closed") if ended else exc
            _fail((read for reads in batch.values() for read in reads), error)
            if ended:
                raise
        else:
            size = sum(len(body) for body in bodies if body is not None)
            small = size <= SMALL_BYTES * len(bodies)
            self._batch = SMALL_BATCH if small else BATCH
            for reads, body in zip(batch.values(), bodies, strict=True):
                for read in reads:
                    if not read.done():
                        read.set_result(body)
        finally:
            self._left()

    def _left(self) -> None:
        self._in_flight -= 1
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    async def _exchange(self, keys: Sequence[str]) -> list[Body]:
        try:
            return await within(self._timeout_s, partial(self._ask, _mget(keys)))
        except TimeoutError as exc:
            error = RedisTimeoutError(f"no reply within {self._timeout_s} s")
            self._fail_waiting(error)
            raise error from exc
        except RedisConnectionError as exc:
            self._fail_waiting(exc)
            raise

    async def _ask(self, command: bytes) -> list[Body]:
        if self._idle:
            connection = self._idle.pop()
        else:
            connection = await self._pool.get_connection()
        reused = connection.is_connected
        try:
            try:
                await connection.send_packed_command(command)
                reply = await connection.read_response()
            except RedisConnectionError:
                if self._closed or not reused:
                    raise
                # Servers close idle connections; that is no failure, and a read may
                # be repeated.
                await connection.disconnect(nowait=True)
                await connection.send_packed_command(command)
                reply = await connection.read_response()
        except ResponseError:
            raise
        except BaseException:
            # Its reply is still to come, and nobody else may read it.
            await connection.disconnect(nowait=True)
            raise
        finally:
            if self._closed:
                await self._give_back(connection)
            else:
                self._idle.append(connection)
        return cast("list[Body]", reply)

    def _fail_waiting(self, error: Exception) -> None:
        """Fail what queued behind a failure: its own attempt would take as long again."""
        _fail((read for _, read in self._waiting), error)
        self._waiting.clear()


def _mget(keys: Sequence[str]) -> bytes:
    # hiredis types its argument as a tuple of one, and its result not at all.
    return cast("bytes", pack_command(cast("tuple[str]", ("MGET", *keys))))


def _fail(reads: Iterable[_Read], error: BaseException) -> None:
    for read in reads:
        if not read.done():
            read.set_exception(error)
