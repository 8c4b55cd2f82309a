"""Cache warm-up and invalidation under the leases that request paths use."""

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
]
