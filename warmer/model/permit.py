"""Permits to load: what a process asks of the fleet's limit, and what it is granted.

A *pool* is one limit: the whole origin's (named ""), a dataset's, or a tenant's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

TTL_MS = 2_000
"""The term of a share: how long that of a process which died is kept from others."""


class Purpose(StrEnum):
    """What a load is for, the most urgent first."""

    REQUEST = "request"
    """Somebody waits for it."""
    NOW = "now"
    """A hot key that was invalidated, or whose old value is served meanwhile."""
    WARM = "warm"
    """A campaign."""
    AHEAD = "ahead"
    """A key that is still fresh."""


PURPOSES = tuple(Purpose)
RANK = {purpose: rank for rank, purpose in enumerate(PURPOSES)}


class Counts(NamedTuple):
    """One number for each purpose."""

    request: int = 0
    now: int = 0
    warm: int = 0
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Errand:
    """What a load is for, and how long it may wait for its permit; None: its own time."""

    purpose: Purpose = Purpose.REQUEST
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """One limit, and how much of it only requests may use."""

    limit: int
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """What a process wants of a pool, uses of it, and may use until it hears otherwise."""

    wants: Counts
    used: Counts
    granted: Counts


@dataclass(frozen=True, slots=True)
class Seen:
    """How loads that ended since the last report went.

    `pushed_back`: of the failed, those that say the origin has too much to do (429, 503,
    timeouts). `load_ms`: of those that went well, together. `era`: the one they began in.
    """

    ok: int = 0
    failed: int = 0
    pushed_back: int = 0
    load_ms: int = 0
    retry_after_ms: int = 0
    era: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What a process says. Of two of one process, the higher `number` is the later."""

    process: str
    number: int
    pools: Mapping[str, Demand]
    seen: Seen = field(default_factory=Seen)
    starts: int = 0


@dataclass(frozen=True, slots=True)
class OriginLimits:
    """What the fleet may ask of one origin.

    `rate`: loads begun in a second, 0 for any number. `floor`: the lowest that the limit is
    brought down to; `adaptive`: whether latency and refusals do so.
    """

    limit: int
    floor: int = 1
    reserve_ratio: float = 0.2
    rate: float = 0.0
    adaptive: bool = True
    pools: Mapping[str, Pool] = field(default_factory=dict)

    def pool_of(self, name: str) -> Pool:
        """Return the limit of a pool other than the whole; a dataset's tenants are alike."""
        kind, _, rest = name.partition(":")
        if kind == "tenant":
            name = f"{kind}:{rest.rpartition(':')[0]}"
        return self.pools[name]


class Phase(StrEnum):
    """What an origin is taken for."""

    CLOSED = "closed"
    """It works."""
    OPEN = "open"
    """It does not: nobody asks."""
    PROBING = "probing"
    """A few ask, in the whole fleet, to see."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a process may use, by purpose, and what the fleet knows of the origin.

    `limit`: the whole origin's, as it is now. `retry_in_ms`: while open, how long still.
    `processes`: that want something, with this one.
    """

    shares: Mapping[str, Counts]
    starts: int
    limit: int
    phase: Phase
    retry_in_ms: int
    era: int
    processes: int = 1
