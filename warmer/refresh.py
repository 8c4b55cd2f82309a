"""Refresh one key: claim its lease, load, publish, and say what happened.

Holds: whatever ends a refresh (a value, an error, a timeout, cancellation at any await),
its lease is given back and no task of it is left. A load never runs longer than the
dataset allows, and is stopped when its lease is known to be lost. A loaded value reaches
the caller even where the cache server does not take it.
Does not hold: that a loaded value is stored. A newer lease or a newer version refuses it,
and the outcome says so. While the cache server does not answer, a lease ends by expiry.
A load that swallows its cancellation is waited for.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import TypeVar, assert_never

from warmer.errors import (
    BadEvent,
    BadValue,
    NoPermit,
    OriginError,
    OriginInvalid,
    OriginTimeout,
    OriginUnavailable,
    StoreError,
    StoreTimeout,
)
from warmer.model.dataset import Dataset, Datasets
from warmer.model.entry import Entry
from warmer.model.key import Key
from warmer.model.lease import Lease, new_token
from warmer.model.outcome import (
    Claimed,
    ClaimReply,
    Cooling,
    Fenced,
    Fresh,
    Held,
    KeptStale,
    LeaseLost,
    Loaded,
    LoadFailed,
    LoadOutcome,
    Outdated,
    Published,
    PublishReply,
    RefreshOutcome,
    RenewReply,
    Unstored,
)
from warmer.model.permit import Errand, Purpose
from warmer.model.version import (
    Versions,
    encode_vector,
    in_current_epoch,
    readable_vector,
)
from warmer.policy.backoff import retry_ms
from warmer.policy.jitter import windows
from warmer.signals import Signals
from warmer.store.port import CacheStore, Claim, Publication

log = logging.getLogger("warmer.refresh")

RETRY_BASE_MS = 250
"""Bound of the first wait after a failed load; doubles with each failure in a row."""
RETRY_CAP_MS = 60_000
"""Bound of a wait: how long an origin may be well again before it is asked."""
RETRY_AFTER_CAP_MS = 600_000
"""Bound of what an origin may ask for: a mistaken date must not silence a key for days."""

Load = Callable[[Key, Versions], Awaitable[Loaded]]
"""Loads one key. The versions are the floors its claim saw: older ones will be refused."""

LoadOf = Callable[[Dataset, Errand], Load]
"""Gives the load of a dataset from its origin, and says to that what it is for."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RefreshRequest:
    """A key to refresh, and what the refresh must reach: see `store.port.Claim`."""

    key: Key
    wanted: Versions = field(default_factory=dict)
    wanted_fence: int = 0
    purpose: Purpose = Purpose.NOW


class Refresher:
    """Refreshes keys, one load per key and lease in the whole fleet."""

    def __init__(
        self,
        *,
        store: CacheStore,
        datasets: Datasets,
        load_of: LoadOf,
        random: random.Random,
        signals: Signals,
    ) -> None:
        self._store = store
        self._datasets = datasets
        self._load_of = load_of
        self._random = random
        self._signals = signals

    async def run(self, request: RefreshRequest) -> RefreshOutcome:
        """Return what became of the refresh; raises StoreError if nothing could be claimed."""
        dataset = self._datasets[request.key.dataset]
        load = self._load_of(dataset, Errand(request.purpose))
        reply = await self.claim(
            Claim(
                key=request.key,
                token=new_token(),
                lease_ms=dataset.lease_ms,
                guard_ms=dataset.guard_ms,
                wanted=request.wanted,
                wanted_fence=request.wanted_fence,
            )
        )
        match reply:
            case Claimed():
                return await self.hold(dataset, request.key, reply, load)
            case Fresh() | Held() | Cooling():
                self._signals.count("refreshes", dataset.name, word(reply))
                return reply
            case _:
                assert_never(reply)

    async def claim(self, claim: Claim) -> ClaimReply:
        """Return the store's reply; a caller that never sees it leaves no lease behind."""
        claiming = asyncio.create_task(self._store.claim(claim))
        try:
            # Shielded: a release that overtook its claim on another connection would
            # leave the lease it was sent to end.
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await uninterrupted(self._unclaim(claim, claiming))
            raise
        except StoreTimeout:
            # It may have been carried out.
            await uninterrupted(self._unclaim(claim, claiming))
            raise

    async def hold(
        self,
        dataset: Dataset,
        key: Key,
        claimed: Claimed,
        load: Load,
        *,
        seen: Entry | None = None,
    ) -> LoadOutcome:
        """Return what became of the load this lease was claimed for; the lease is over.

        `seen` is the entry that the claim did not give because the caller had read it.
        """
        lease = claimed.lease
        outcome: LoadOutcome
        try:
            loaded = await self._load(dataset, key, lease, load)
            if isinstance(loaded, Loaded):
                loaded = _in_epoch(loaded, lease, claimed.entry or seen)
        except asyncio.CancelledError:
            await uninterrupted(self._release(dataset, lease))
            raise
        except Exception as exc:  # noqa: BLE001 - a load is the user's code
            outcome = await uninterrupted(self._fail(dataset, lease, exc))
        else:
            # A publish that was cut off may be carried out or not; only its reply tells.
            outcome = await uninterrupted(self._settle(dataset, key, lease, loaded))
        name = word(outcome)
        self._signals.count("refreshes", dataset.name, name)
        log.debug("refresh_%s key=%s token=%s", name, key.text, lease.token)
        return outcome

    # --- loading ----------------------------------------------------------------------

    async def _load(
        self, dataset: Dataset, key: Key, lease: Lease, load: Load
    ) -> Loaded | LeaseLost:
        renew_every_s = dataset.lease_ms / 3 / 1000
        loading = asyncio.create_task(
            _bounded(load, key, lease.floors, dataset.load_timeout_ms)
        )
        try:
            while True:
                await asyncio.wait((loading,), timeout=renew_every_s)
                if loading.done():
                    break
                if await self._lost(dataset, lease) and not loading.done():
                    return LeaseLost()
        finally:
            if not loading.done():
                await uninterrupted(_stop(loading))
            _take_note(loading)
        if loading.cancelled():
            raise OriginUnavailable("the load cancelled itself")
        loaded = loading.result()
        _check(dataset, loaded)
        return loaded

    async def _lost(self, dataset: Dataset, lease: Lease) -> bool:
        try:
            reply = await self._store.renew(lease, dataset.lease_ms)
        except StoreError:
            # Not lost yet: while nobody else claims, the load may still be published.
            self._signals.count("renewals_failed", dataset.name)
            return False
        if reply is RenewReply.LOST:
            self._signals.count("leases_lost", dataset.name)
        return reply is RenewReply.LOST

    # --- ending -----------------------------------------------------------------------

    async def _settle(
        self, dataset: Dataset, key: Key, lease: Lease, loaded: Loaded | LeaseLost
    ) -> LoadOutcome:
        if isinstance(loaded, LeaseLost):
            # Should nobody have claimed since, its waiters need not wait any longer.
            await self._release(dataset, lease)
            return loaded
        try:
            reply = await self._store.publish(
                lease, self._publication(dataset, key, lease, loaded)
            )
        except StoreError as exc:
            await self._release(dataset, lease)
            return Unstored(loaded, exc)
        except Exception:
            await self._release(dataset, lease)
            raise
        match reply:
            case PublishReply.PUBLISHED | PublishReply.ALREADY:
                return Published(loaded)
            case PublishReply.KEPT_STALE | PublishReply.ALREADY_KEPT:
                return KeptStale(loaded)
            case PublishReply.OUTDATED:
                return Outdated(loaded)
            case PublishReply.FENCED:
                return Fenced(loaded)
            case _:
                assert_never(reply)

    def _publication(
        self, dataset: Dataset, key: Key, lease: Lease, loaded: Loaded
    ) -> Publication:
        # A negative entry that may not be kept is published all the same, with no window
        # at all: it ends the entry that says otherwise.
        fresh_ms, stale_ms, error_ms = windows(
            dataset, negative=loaded.content.negative, random=self._random
        )
        return Publication(
            key=key,
            content=loaded.content,
            versions=loaded.versions,
            load_ms=loaded.load_ms,
            fresh_ms=fresh_ms,
            stale_ms=stale_ms,
            error_ms=error_ms,
            settle_ms=dataset.settle_ms,
            lag_retry_ms=self._back_off_ms(lease),
            guard_ms=dataset.guard_ms,
        )

    async def _fail(
        self, dataset: Dataset, lease: Lease, error: Exception
    ) -> LoadFailed:
        retry_in_ms = self._back_off_ms(lease)
        if isinstance(error, OriginError) and error.retry_in_ms is not None:
            # Added, not the larger of both: the keys of one origin were all told the
            # same instant, and must not come back at it together.
            retry_in_ms += min(max(error.retry_in_ms, 0), RETRY_AFTER_CAP_MS)
        self._signals.count("load_failures", dataset.name, reason_of(error))
        if isinstance(error, NoPermit):
            # The origin was not asked, so nothing is known against the key: whoever has a
            # permit may load it at once.
            await self._release(dataset, lease)
            return LoadFailed(error, error.retry_in_ms or 0)
        await self._release(dataset, lease, retry_in_ms)
        return LoadFailed(error, retry_in_ms)

    def _back_off_ms(self, lease: Lease) -> int:
        return retry_ms(
            lease.failures, self._random, base_ms=RETRY_BASE_MS, cap_ms=RETRY_CAP_MS
        )

    async def _unclaim(
        self, claim: Claim, claiming: "asyncio.Task[ClaimReply]"
    ) -> None:
        await asyncio.wait((claiming,))
        unknown = claiming.cancelled() or claiming.exception() is not None
        if unknown or isinstance(claiming.result(), Claimed):
            # A token alone ends a lease; the fence may never have reached us.
            lease = Lease(claim.key.text, claim.token, fence=0)
            await self._release(self._datasets[claim.key.dataset], lease)

    async def _release(
        self, dataset: Dataset, lease: Lease, retry_in_ms: int | None = None
    ) -> None:
        try:
            reply = await self._store.release(lease, retry_ms=retry_in_ms)
        except StoreError:
            # The lease ends by its expiry; there is nothing else to do about it.
            self._signals.count("releases_failed", dataset.name)
            return
        self._signals.count("releases", dataset.name, reply.value.lower())


async def uninterrupted(step: Coroutine[object, object, T]) -> T:
    """Return what `step` returns; a cancellation takes effect only when it has ended.

    For steps that end by themselves: one call to the store, which its timeout bounds.
    """
    task = asyncio.create_task(step)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        _take_note(task)
        raise cancelled
    return task.result()


def word(outcome: RefreshOutcome) -> str:
    """Return the outcome as a label, such as kept_stale."""
    name = type(outcome).__name__
    return "".join(f"_{ch.lower()}" if ch.isupper() else ch for ch in name)[1:]


def reason_of(error: Exception) -> str:
    """Return why a load failed, as a label."""
    match error:
        case OriginError():
            return error.reason
        case BadValue():
            return OriginInvalid.reason
        case _:
            return OriginError.reason


async def _bounded(load: Load, key: Key, floors: Versions, within_ms: int) -> Loaded:
    """Load, and stop after `within_ms` however steadily the answer trickles in."""
    bound = asyncio.timeout(within_ms / 1000)
    try:
        async with bound:
            return await load(key, floors)
    except TimeoutError as exc:
        if not bound.expired():
            raise
        raise OriginTimeout("total", f"not loaded within {within_ms} ms") from exc


async def _stop(loading: "asyncio.Task[Loaded]") -> None:
    loading.cancel()
    await asyncio.wait((loading,))


def _take_note(ended: "asyncio.Task[T]") -> None:
    """Keep asyncio from reporting an error that nobody is left to be told of."""
    if not ended.cancelled():
        ended.exception()


def _in_epoch(loaded: Loaded, lease: Lease, entry: Entry | None) -> Loaded:
    """Return what was loaded, its versions in the epoch that the key knows of.

    By its entry too: a guard may be evicted, and the entry refuses older versions all the
    same.
    """
    held = readable_vector(entry.vector) if entry is not None else {}
    versions = in_current_epoch(loaded.versions, (lease.floors, held))
    return replace(loaded, versions=versions)


def _check(dataset: Dataset, loaded: Loaded) -> None:
    """Refuse what no reader would take, before it is sent."""
    size = loaded.content.inflated_bytes()
    if size > dataset.max_body_bytes:
        raise OriginInvalid(f"{size} bytes, allowed are {dataset.max_body_bytes}")
    try:
        encode_vector(loaded.versions)
    except BadEvent as exc:
        raise OriginInvalid(str(exc)) from exc
