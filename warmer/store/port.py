"""The port before the cache server: what use cases may ask of it.

Two adapters keep one contract, proven by one suite: `redis_store.RedisStore` (the
scripts) and `reference.ReferenceStore` (the same contract in plain Python).

Durations are integer milliseconds; instants are Unix ms by the cache server's clock.
Every method may raise StoreTimeout, StoreUnavailable or StoreRefused, and is safe to
repeat after any of them.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from warmer.model.entry import Content, Entry
from warmer.model.event import PurgeMode
from warmer.model.key import Key
from warmer.model.lease import Lease
from warmer.model.outcome import (
    ClaimReply,
    InvalidateReply,
    PublishReply,
    ReleaseReply,
    RenewReply,
)
from warmer.model.version import Scope, SourceVersion, Versions

MAX_GUARD_FIELDS = 140
"""Bound of a guard: about 64 floors. An entity beyond it counts as a change without a version."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claimant wants.

    `seen_fence`: fence of the entry the caller has and does not want back; 0 = saw none.
    `wanted`, `wanted_fence`: what a refresh that was asked for must reach: these versions
    where they compare, otherwise a load with a fence above `wanted_fence`.
    `guard_ms`: how long the guard must outlive this claim.
    """

    key: Key
    token: str
    lease_ms: int
    guard_ms: int
    seen_fence: int = 0
    wanted: Versions = field(default_factory=dict)
    wanted_fence: int = 0


@dataclass(frozen=True, slots=True)
class Publication:
    """A loaded body and the windows it may be served in.

    `fresh_ms` is already jittered; `stale_ms` and `error_ms` count from its end.
    `settle_ms`: a load without versions this soon after an invalidation is not trusted longer.
    `lag_retry_ms`: back-off of the key when the load reports a version below a floor.
    """

    key: Key
    content: Content
    versions: Versions
    load_ms: int
    fresh_ms: int
    stale_ms: int
    error_ms: int
    settle_ms: int
    lag_retry_ms: int
    guard_ms: int


@dataclass(frozen=True, slots=True)
class Invalidation:
    """One changed scope of one key. `version` is None if the producer has none."""

    key: Key
    scope: Scope
    version: SourceVersion | None
    mode: PurgeMode
    stale_ms: int
    error_ms: int
    guard_ms: int


@dataclass(frozen=True, slots=True)
class Family:
    """All that is stored for one key, for people: entry, lease and guard as they are."""

    entry: Entry | None
    entry_refused: str | None
    lease_token: str | None
    lease_ms: int | None
    guard: dict[str, str]
    guard_ms: int | None


class Waiter(Protocol):
    """A place to wait for something to happen to one key."""

    async def wait(self, timeout_ms: int) -> None:
        """Return when the key was published or released, or when the time is up.

        It may return early; the caller reads again either way.
        """
        ...


class CacheStore(Protocol):
    """The cache server."""

    def now_ms(self) -> int:
        """Unix ms by the cache server's clock, as far as this process knows it."""
        ...

    async def read(self, key: Key) -> Entry | None:
        """Return the entry, None if there is none that can be trusted."""
        ...

    async def claim(self, claim: Claim) -> ClaimReply:
        """Ask for the lease of one key."""
        ...

    async def renew(self, lease: Lease, lease_ms: int) -> RenewReply:
        """Let the lease run `lease_ms` from now, if it is still mine."""
        ...

    async def publish(self, lease: Lease, publication: Publication) -> PublishReply:
        """Store a loaded body if this lease may, and end the lease."""
        ...

    async def release(
        self, lease: Lease, *, retry_ms: int | None = None
    ) -> ReleaseReply:
        """End the lease without a body; `retry_ms` given = the load failed, back off."""
        ...

    async def invalidate(self, invalidation: Invalidation) -> InvalidateReply:
        """Apply one change to one key."""
        ...

    async def invalidate_many(
        self, invalidations: Sequence[Invalidation]
    ) -> list[InvalidateReply]:
        """Apply each, in no order; return the replies in theirs.

        An error is that of some: others may have been applied.
        """
        ...

    async def inspect(self, key: Key) -> Family:
        """Return all that is stored for one key."""
        ...

    def waiting(self, key: Key) -> AbstractAsyncContextManager[Waiter]:
        """Register as a waiter of one key; what happens from then on wakes it."""
        ...
