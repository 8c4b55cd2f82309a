"""Cache warm-up and invalidation under the leases that request paths use.

async with warmer.connect("warmer.toml") as client:
    answer = await client.get("product", locale="de", id=42)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from warmer.client import CacheClient
    from warmer.errors import (
        BadKey,
        BadValue,
        ConfigError,
        NothingToServe,
        OriginError,
        StoreError,
        WarmerError,
    )
    from warmer.model.answer import Answer, State
    from warmer.model.entry import NOT_FOUND
    from warmer.origin.callables import Value
    from warmer.wiring import Configured

__all__ = [
    "NOT_FOUND",
    "Answer",
    "BadKey",
    "BadValue",
    "CacheClient",
    "ConfigError",
    "NothingToServe",
    "OriginError",
    "State",
    "StoreError",
    "Value",
    "WarmerError",
    "connect",
]

# Imported by first use: the command line and its completion start in half the time.
_HOMES = {
    "NOT_FOUND": "warmer.model.entry",
    "Answer": "warmer.model.answer",
    "CacheClient": "warmer.client",
    "State": "warmer.model.answer",
    "Value": "warmer.origin.callables",
}


def connect(source: "Configured" = None) -> "AbstractAsyncContextManager[CacheClient]":
    """Give a client for the block, made from a file, or settings that were read before.

    Without either: the file `$WARMER_CONFIG` names, else `warmer.toml`,
    `config/warmer.toml` or `/etc/warmer/warmer.toml`. Raises ConfigError with every
    problem on entering; no server needs to be there yet.
    """
    from warmer.wiring import open_client  # noqa: PLC0415 - see _HOMES

    return open_client(source)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "warmer.errors")), name)
