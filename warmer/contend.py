"""CONTEND: one key, for the callers of one flight: claim and load, or wait for who does.

Holds: whoever finds the lease free loads, one in the fleet; the others wait until they are
woken, the lease ends, or nobody of them has time left, and then claim again: what was
published and is gone again cannot make them wait on. A load that was refused (outdated,
fenced, lease lost) is not served; the next one is. If the cache server fails on the way,
the value is loaded past it, within the local limit.
Does not hold: that a flight gives a value; see `Landing`.
"""

import asyncio
from dataclasses import dataclass
from typing import assert_never

from warmer.clock import Clock
from warmer.errors import (
    NoPermit,
    OriginError,
    OriginTimeout,
    StoreError,
    StoreRefused,
)
from warmer.model.answer import Decode, State
from warmer.model.dataset import ColdStart, Dataset
from warmer.model.entry import Entry
from warmer.model.key import Key
from warmer.model.lease import new_token
from warmer.model.outcome import (
    Claimed,
    Cooling,
    Fenced,
    Fresh,
    Held,
    KeptStale,
    LeaseLost,
    Loaded,
    LoadFailed,
    Outdated,
    Published,
    Unstored,
)
from warmer.origin.limit import LoadLimit
from warmer.policy.freshness import Freshness, freshness
from warmer.policy.outage import Outage
from warmer.refresh import Load, Refresher
from warmer.signals import Signals
from warmer.single_flight import Flight
from warmer.store.port import CacheStore, Claim

MAX_WAITING_LOADS = 1_000
"""Loads past the cache that wait for the local limit; the next one is refused."""
MAX_RESTING = 10_000
"""Keys remembered as not to be claimed yet; the oldest is forgotten first."""
MAX_REST_MS = 1_000
"""A lease may end early, so its holder is believed no longer than this."""


@dataclass(slots=True)
class Ask:
    """What a flight is for. `seen`: the entry that was read and is not good enough."""

    dataset: Dataset
    key: Key
    load: Load | None
    until: float
    decode: Decode
    seen: Entry | None


# --- how a flight ends ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """Somebody else's value, from the store; `waited` for, or there already."""

    entry: Entry
    waited: bool = False


@dataclass(frozen=True, slots=True)
class Got:
    """A value that this process loaded."""

    loaded: Loaded
    state: State


@dataclass(frozen=True, slots=True)
class Empty:
    """Nothing is cached, somebody else loads, and the dataset has an empty value."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """No value; `reason` as in NothingToServe."""

    reason: str
    retry_in_ms: int | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class TimeUp:
    """Nobody waits any longer; the lease is another's for `remaining_ms`, 0 if it ended."""

    remaining_ms: int


PastCache = Got | Nothing
Landing = PastCache | Found | Empty | TimeUp


class Contender:
    """What the flights of one process do."""

    def __init__(
        self,
        *,
        store: CacheStore,
        refresher: Refresher,
        clock: Clock,
        signals: Signals,
        outage: Outage,
        max_local_loads: int,
    ) -> None:
        self._store = store
        self._refresher = refresher
        self._clock = clock
        self._signals = signals
        self._outage = outage
        self._limit = LoadLimit(
            max_local_loads,
            max_waiting=MAX_WAITING_LOADS,
            origin="past_cache",
            clock=clock,
            signals=signals,
        )
        self._resting: dict[str, float] = {}

    def resting(self, key: Key) -> bool:
        """Return whether a claim of this key is known to be in vain just now."""
        rested_at = self._resting.get(key.text)
        if rested_at is None:
            return False
        if self._clock.monotonic() < rested_at:
            return True
        del self._resting[key.text]
        return False

    def note(self, error: StoreError, asked_at: float) -> None:
        """Count a failure of the cache server; a refusal is an answer, not an outage."""
        if isinstance(error, StoreRefused):
            self._signals.count("store_errors", error.code)
            return
        self._signals.count("store_errors", type(error).__name__)
        self._outage.failed(self._clock.monotonic(), asked_at=asked_at)

    async def fly(self, flight: Flight[Landing], ask: Ask) -> Landing:
        """Return a value for the callers of this flight, or why there is none."""
        asked_at = self._clock.monotonic()
        try:
            landing = await self._contend(flight, ask)
        except StoreError as exc:
            self.note(exc, asked_at)
            if not self._awaited(flight):
                self._rest(ask.key, MAX_REST_MS)
                return Nothing("store_unavailable", error=exc)
            return await self.fly_past_cache(flight, ask, exc)
        match landing:
            case Nothing(retry_in_ms=int(retry_in_ms)):
                self._rest(ask.key, retry_in_ms)
            case TimeUp():
                self._rest(ask.key, min(landing.remaining_ms, MAX_REST_MS))
            case _:
                pass
        return landing

    async def fly_past_cache(
        self,
        flight: Flight[PastCache] | Flight[Landing],
        ask: Ask,
        error: StoreError | None,
    ) -> PastCache:
        """Load without the cache server, which has failed or is being left alone."""
        if ask.load is None:
            return Nothing("store_unavailable", error=error)
        return await self._load_directly(flight, ask, ask.load, State.DEGRADED)

    # --- turns ------------------------------------------------------------------------

    async def _contend(self, flight: Flight[Landing], ask: Ask) -> Landing:
        turn = await self._turn(flight, ask)
        if not isinstance(turn, TimeUp) or not self._awaited(flight):
            return turn
        cold_start = ask.dataset.cold_start if ask.seen is None else ColdStart.WAIT
        if cold_start is ColdStart.EMPTY:
            return Empty()
        # A load of one's own must begin while there is time for it.
        reserve_s = 0.0
        if cold_start is ColdStart.LOAD:
            reserve_s = ask.dataset.load_timeout_ms / 1000
        async with self._store.waiting(ask.key) as waiter:
            while (left_s := self._left_s(flight) - reserve_s) > 0:
                turn = await self._turn(flight, ask)
                if isinstance(turn, Found):
                    return Found(turn.entry, waited=True)
                if not isinstance(turn, TimeUp):
                    return turn
                if turn.remaining_ms:
                    await waiter.wait(min(turn.remaining_ms, int(left_s * 1000) + 1))
        if cold_start is ColdStart.LOAD and ask.load is not None:
            return await self._load_directly(flight, ask, ask.load, State.LOADED)
        return turn

    async def _turn(self, flight: Flight[Landing], ask: Ask) -> Landing:
        """Claim once. TimeUp means: not yet, the caller may wait and try again."""
        if ask.load is None:
            return Nothing("no_loader")
        reply = await self._refresher.claim(
            Claim(
                key=ask.key,
                token=new_token(),
                lease_ms=ask.dataset.lease_ms,
                guard_ms=ask.dataset.guard_ms,
                seen_fence=ask.seen.fence if ask.seen else 0,
            )
        )
        match reply:
            case Fresh(entry):
                return Found(entry)
            case Claimed():
                return await self._load(flight, ask, reply, ask.load)
            case Held(remaining_ms, entry):
                if entry is not None and self._servable(entry):
                    return Found(entry)
                # A lease in its last moments must not look like one that has ended.
                return TimeUp(max(1, remaining_ms))
            case Cooling(retry_in_ms):
                return Nothing("cooling", retry_in_ms)
            case _:
                assert_never(reply)

    async def _load(
        self, flight: Flight[Landing], ask: Ask, claimed: Claimed, load: Load
    ) -> Landing:
        outcome = await self._refresher.hold(
            ask.dataset, ask.key, claimed, load, seen=ask.seen
        )
        match outcome:
            case Published(loaded):
                return Got(loaded, State.LOADED)
            case KeptStale(loaded):
                return Got(loaded, State.STALE)
            case Unstored(loaded, error):
                self.note(error, self._clock.monotonic())
                return Got(loaded, State.DEGRADED)
            case LoadFailed(error, retry_in_ms):
                return _failed(flight, ask, error, retry_in_ms)
            case Outdated() | Fenced() | LeaseLost():
                return TimeUp(0)
            case _:
                assert_never(outcome)

    async def _load_directly(
        self,
        flight: Flight[PastCache] | Flight[Landing],
        ask: Ask,
        load: Load,
        state: State,
    ) -> PastCache:
        """Load without a lease, within the local limit; nothing is published."""
        within_ms = ask.dataset.load_timeout_ms
        try:
            async with (
                asyncio.timeout(within_ms / 1000),
                self._limit.turn(within_ms=int(self._left_s(flight) * 1000)),
            ):
                if not self._awaited(flight):
                    return Nothing("deadline")
                loaded = await load(ask.key, {})
        except TimeoutError:
            timeout = OriginTimeout("total", f"not loaded within {within_ms} ms")
            return Nothing("load_failed", error=timeout)
        except NoPermit as exc:
            return Nothing("no_permit", exc.retry_in_ms, exc)
        except OriginError as exc:
            return Nothing("load_failed", exc.retry_in_ms, exc)
        except Exception as exc:  # noqa: BLE001 - a load is the user's code
            return Nothing("load_failed", error=exc)
        return Got(loaded, state)

    # --- what is known ----------------------------------------------------------------

    def _servable(self, entry: Entry) -> bool:
        quality = freshness(entry, self._store.now_ms())
        return quality in (Freshness.FRESH, Freshness.STALE)

    def _left_s(self, flight: Flight[PastCache] | Flight[Landing]) -> float:
        return flight.until - self._clock.monotonic()

    def _awaited(self, flight: Flight[PastCache] | Flight[Landing]) -> bool:
        return self._left_s(flight) > 0

    def _rest(self, key: Key, rest_ms: int) -> None:
        self._resting.pop(key.text, None)
        if len(self._resting) >= MAX_RESTING:
            del self._resting[next(iter(self._resting))]
        self._resting[key.text] = self._clock.monotonic() + rest_ms / 1000


def _failed(
    flight: Flight[Landing], ask: Ask, error: Exception, retry_in_ms: int
) -> Nothing | TimeUp:
    if not isinstance(error, NoPermit):
        return Nothing("load_failed", retry_in_ms, error)
    if error.why == "no_capacity" and flight.until > ask.until:
        # It waited as long as the caller that began the flight could; others have more time.
        return TimeUp(max(1, retry_in_ms))
    return Nothing("no_permit", retry_in_ms, error)
