"""One bound for one exchange with a server, in a process whose event loop may stall.

Holds: a server that does not answer is given up after `timeout_s`. A loop that something
else held up for longer than that has read no reply either, so the server is asked once more
before it is thought to be away: otherwise a slow callback of the service's own would send
its requests past the cache. What is asked may be asked twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

STALLED_S = 0.005
"""A timer this late was held up: an idle loop runs it within a millisecond."""

T = TypeVar("T")


async def within(timeout_s: float, ask: Callable[[], Awaitable[T]]) -> T:
    """Return what `ask` returns; raises TimeoutError."""
    now = asyncio.get_running_loop().time
    until = now() + timeout_s
    try:
        async with asyncio.timeout_at(until):
            return await ask()
    except TimeoutError:
        if now() < until + STALLED_S:
            raise
    async with asyncio.timeout(timeout_s):
        return await ask()
