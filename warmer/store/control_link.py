"""One client of the control server: its errors become ours here, and a script is a call.

Holds: no call waits longer than its timeout, and what a caller meets is a StoreError.
"""

import asyncio
import re
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from warmer.errors import StoreRefused, StoreTimeout, StoreUnavailable

T = TypeVar("T")


class ControlLink:
    """The connection that event log, due set and dead letters share."""

    def __init__(self, redis: Redis, *, timeout_ms: int) -> None:
        self.redis = redis
        self._timeout_s = timeout_ms / 1000

    async def ask(self, command: Awaitable[T], *, wait_ms: int = 0) -> T:
        """Return the reply; `wait_ms` is how long the command itself may block."""
        with translated():
            async with asyncio.timeout(self._timeout_s + wait_ms / 1000):
                return await command


@contextmanager
def translated() -> Iterator[None]:
    """Raise StoreTimeout, StoreUnavailable or StoreRefused for redis-py's errors."""
    try:
        yield
    except (TimeoutError, RedisTimeoutError) as exc:
        raise StoreTimeout("no reply from the control server") from exc
    except AuthenticationError as exc:
        raise StoreRefused("NOAUTH", str(exc)) from exc
    except (RedisConnectionError, BusyLoadingError, OSError) as exc:
        raise StoreUnavailable(f"control server: {exc}") from exc
    except ResponseError as exc:
        code, _, rest = str(exc).partition(" ")
        raise StoreRefused(code, rest) from exc
    except RedisError as exc:
        raise StoreUnavailable(f"control server: {exc}") from exc


class Script:
    """A file of `lua/`, called by the names in its first two statements."""

    def __init__(self, name: str) -> None:
        self.text = (files("warmer.store") / "lua" / f"{name}.lua").read_text()
        keys, arguments = self.text.split("\n", 2)[:2]
        self._keys = _names(keys)
        self._arguments = _names(arguments)

    async def run(
        self, link: ControlLink, keys: Mapping[str, str], **arguments: str | int | bytes
    ) -> Any:
        """Return the script's reply; TypeError for a missing or unknown name."""
        if set(keys) != set(self._keys):
            raise TypeError(f"keys are {self._keys}, not {sorted(keys)}")
        arguments.setdefault("now_ms", "")
        if set(arguments) != set(self._arguments):
            raise TypeError(f"arguments are {self._arguments}, not {sorted(arguments)}")
        registered = link.redis.register_script(self.text)
        return await link.ask(
            registered(
                keys=[keys[name] for name in self._keys],
                args=[arguments[name] for name in self._arguments],
            )
        )


def _names(statement: str) -> list[str]:
    return re.findall(r"\w+", statement.partition("=")[0].removeprefix("local"))
