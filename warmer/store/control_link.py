"""One client of a control server or a source's, which all that is asked there shares.

Holds: no call waits longer than its timeout, and what a caller meets is a StoreError.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from warmer.store.connections import translated
from warmer.store.script import Call, pipelined, run

T = TypeVar("T")


class ControlLink:
    """A client, and how long one call may take."""

    def __init__(self, redis: Redis, *, timeout_ms: int) -> None:
        self.redis = redis
        self._timeout_s = timeout_ms / 1000

    async def ask(self, command: Awaitable[T], *, wait_ms: int = 0) -> T:
        """Return the reply; `wait_ms` is how long the command itself may block."""
        try:
            async with asyncio.timeout(self._timeout_s + wait_ms / 1000):
                return await command
        except (RedisError, OSError) as exc:  # TimeoutError is an OSError
            raise translated(exc) from exc

    async def run(self, call: Call) -> list[Any]:
        """Return the reply of a script: a word, and what belongs to it."""
        reply = await self.ask(run(self.redis, call))
        if not isinstance(reply, list):
            raise TypeError(f"a script replies with a list, not {reply!r}")
        return reply

    async def run_all(self, calls: Sequence[Call]) -> list[list[Any]]:
        """Return the replies of scripts that are sent together; the first error is raised."""
        replies = await self.ask(pipelined(self.redis, calls))
        for reply in replies:
            if isinstance(reply, RedisError):
                raise translated(reply) from reply
        return cast("list[list[Any]]", replies)
