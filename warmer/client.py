"""READ: fresh is served; stale is served and refreshed behind; the rest is loaded once.

    answer = await client.get("product", locale="de", id=42)

Holds: no entry is served past its windows, whatever fails. One load per key in the whole
fleet at a time: callers of this process share a flight, processes meet at the lease. No
caller waits past its deadline, by more than one read. Callers that go away leave nothing
behind but a load that is finished and published. Without a cache server, a value is loaded
within a local limit, and the answer's state says so; after a failure the server is left
alone for a moment, so that most requests do not pay for its silence.
Does not hold: that there is an answer. NothingToServe says why, and when to ask again.
Stale copies live in the cache server, so none is served while it is down.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import lru_cache, partial, wraps
from inspect import Parameter, Signature, signature
from random import Random
from typing import ParamSpec, Protocol, TypeVar, assert_never, cast, overload

from warmer.clock import Clock
from warmer.contend import (
    Ask,
    Contender,
    Empty,
    Found,
    Got,
    Landing,
    Nothing,
    PastCache,
    TimeUp,
)
from warmer.errors import BadKey, NothingToServe, StoreError, WrongLoop
from warmer.model.answer import Answer, Decode, State, given
from warmer.model.dataset import ColdStart, Dataset, Datasets
from warmer.model.entry import Entry, encode_value
from warmer.model.key import Key, Part
from warmer.model.outcome import Loaded
from warmer.model.permit import Errand, Purpose
from warmer.model.version import encode_vector
from warmer.origin.callables import Loader, load_with
from warmer.policy.early_refresh import due_early
from warmer.policy.freshness import Freshness, freshness
from warmer.policy.outage import Outage
from warmer.refresh import Load, LoadOf, Refresher
from warmer.signals import Signals
from warmer.single_flight import Flight, SingleFlight, TooMany
from warmer.store.port import CacheStore

KEPT_KEYS = 8_192
"""Keys kept by their parts: building one takes 2 µs, a tenth of what a read may cost."""
KEPT_PART_CHARS = 512
"""A key whose parts are longer is not kept: they are a request's, and cost memory."""

P = ParamSpec("P")
T = TypeVar("T")


class _TooLong(Exception):
    """A key that is not to be kept; an error, because `lru_cache` keeps none of them."""


class Cached(Protocol):
    """A decorator for a function that loads, async or not; what it returns is async."""

    @overload
    def __call__(
        self, function: Callable[P, Awaitable[T]], /
    ) -> Callable[P, Awaitable[T]]: ...

    @overload
    def __call__(self, function: Callable[P, T], /) -> Callable[P, Awaitable[T]]: ...


class CacheClient:
    """Reads datasets for request paths; one per process and event loop."""

    def __init__(
        self,
        *,
        store: CacheStore,
        datasets: Datasets,
        refresher: Refresher,
        load_of: LoadOf | None,
        clock: Clock,
        random: Random,
        signals: Signals,
        max_local_loads: int = 16,
        default_deadline: timedelta = timedelta(seconds=1),
    ) -> None:
        """Read from `store`; `load_of` gives the loads of datasets with an origin."""
        self._store = store
        self._datasets = datasets
        self._load_of = load_of
        self._clock = clock
        self._random = random
        self._signals = signals
        self._key = lru_cache(KEPT_KEYS, typed=True)(self._build_key)
        self._default_s = default_deadline.total_seconds()
        self._outage = Outage(random)
        self._contender = Contender(
            store=store,
            refresher=refresher,
            clock=clock,
            signals=signals,
            outage=self._outage,
            max_local_loads=max_local_loads,
        )
        self._flights = SingleFlight[Landing](clock=clock)
        self._past_cache = SingleFlight[PastCache](clock=clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def get(
        self,
        /,
        dataset: str,
        *,
        deadline: timedelta | None = None,
        load: Loader | None = None,
        decode: Decode = True,
        **parts: Part,
    ) -> Answer:
        """Return the value of the key of `dataset` that `parts` name.

        `load` is called instead of the dataset's origin. Raises NothingToServe, and BadKey
        for parts that make no key; WrongLoop outside the event loop of the first call.
        """
        asked_at = self._clock.monotonic()
        spec = self._dataset(dataset)
        if asyncio.get_running_loop() is not self._loop:
            self._settle_in(asyncio.get_running_loop(), spec, parts)
        try:
            key = self._key(dataset, **parts)
        except (TypeError, _TooLong):
            # A part that cannot be hashed is of no allowed type: this says which.
            key = spec.key(parts)
        entry: Entry | None = None
        error: StoreError | None = None
        outage = self._outage
        if not outage.failures or outage.may_ask(asked_at):
            try:
                entry = await self._store.read(key)
                if outage.failures:
                    outage.answered()
            except StoreError as exc:
                self._contender.note(exc, asked_at)
                error = exc
        if entry is not None and entry.fresh_until > (now_ms := self._store.now_ms()):
            answer = self._hit(
                spec, key, entry, now_ms=now_ms, state=State.FRESH, decode=decode
            )
            if answer is not None:
                if spec.early_refresh_beta:
                    self._refresh_early(spec, key, entry, load)
                return answer
        seconds = self._default_s if deadline is None else deadline.total_seconds()
        until = asked_at + seconds
        errand = Errand(self._purpose(entry), int(seconds * 1000))
        ask = Ask(spec, key, self._load(spec, load, errand), until, decode, entry)
        if error is not None or outage.failures:
            return await self._without_store(ask, error)
        return await self._not_fresh(ask)

    def cached(
        self,
        dataset: str,
        *,
        deadline: timedelta | None = None,
        decode: Decode = True,
    ) -> "Cached":
        """Return a decorator: the function loads, and its arguments are the key's parts.

        A call gives the value, None where the function gave NOT_FOUND. Raises BadKey at
        decoration unless the arguments are exactly the parts of the dataset's key. Of a
        method, the bound one is decorated: `cache.cached("product")(shop.load_product)`.
        """
        spec = self._dataset(dataset)

        def decorate(function: Callable[P, object]) -> Callable[P, Awaitable[object]]:
            taken = signature(function)
            _check_arguments(taken, spec)

            @wraps(function)
            async def cached_function(*args: P.args, **kwargs: P.kwargs) -> object:
                bound = taken.bind(*args, **kwargs)
                bound.apply_defaults()
                answer = await self.get(
                    dataset,
                    deadline=deadline,
                    load=partial(function, *args, **kwargs),
                    decode=decode,
                    **bound.arguments,
                )
                return answer.value

            return cached_function

        return cast("Cached", decorate)

    async def aclose(self) -> None:
        """End what runs in the background, and wait until it has ended."""
        self._closed = True
        self._loop = None
        await asyncio.gather(self._flights.aclose(), self._past_cache.aclose())

    def _dataset(self, name: str) -> Dataset:
        try:
            return self._datasets[name]
        except KeyError:
            raise BadKey(f"there is no dataset {name!r}") from None

    def _build_key(self, dataset: str, /, **parts: Part) -> Key:
        key = self._datasets[dataset].key(parts)
        if sum(len(text) for _, text in key.parts) > KEPT_PART_CHARS:
            raise _TooLong
        return key

    def _settle_in(
        self, loop: asyncio.AbstractEventLoop, spec: Dataset, parts: Mapping[str, Part]
    ) -> None:
        """Take this loop for the client's own; refuse if it has one, or had."""
        if self._closed:
            raise NothingToServe(spec.key(parts).text, "closed")
        if self._loop is not None:
            # Its connections would be read by two loops, or by two processes.
            raise WrongLoop(
                "this client belongs to another event loop: open one in each process, "
                "after it was forked, and in each loop"
            )
        self._loop = loop

    def _purpose(self, entry: Entry | None) -> Purpose:
        """Return what a load is for: nobody waits for it where a stale value is served."""
        if entry is not None and self._store.now_ms() < entry.stale_until:
            return Purpose.NOW
        return Purpose.REQUEST

    def _load(
        self, spec: Dataset, loader: Loader | None, errand: Errand
    ) -> Load | None:
        if loader is not None:
            return load_with(loader, spec, self._clock)
        if self._load_of is not None and spec.origin is not None:
            return self._load_of(spec, errand)
        return None

    # --- answers ----------------------------------------------------------------------

    def _hit(
        self,
        spec: Dataset,
        key: Key,
        entry: Entry,
        *,
        now_ms: int,
        state: State,
        decode: Decode,
    ) -> Answer | None:
        """Return the entry as an answer; None if its body is damaged, which is a miss."""
        try:
            value, encoding = given(entry.flags, entry.body, decode)
        except Exception:  # noqa: BLE001 - whatever a damaged body makes a decoder raise
            self._signals.count("entries_refused", "body")
            return None
        if entry.negative:
            state = State.NEGATIVE
        self._signals.count("reads", spec.name, state)
        age_ms = max(0, now_ms - entry.created_at)
        return Answer(value, state, age_ms, key.text, encoding, entry.vector)

    def _loaded(self, ask: Ask, loaded: Loaded, state: State) -> Answer:
        # Each caller decodes for itself: a list handed to two of them would be shared.
        value, encoding = given(loaded.content.flags, loaded.content.body, ask.decode)
        if loaded.content.negative:
            state = State.NEGATIVE
        self._signals.count("reads", ask.dataset.name, state)
        vector = encode_vector(loaded.versions).encode()
        return Answer(value, state, 0, ask.key.text, encoding, vector)

    def _empty(self, ask: Ask) -> Answer:
        content = encode_value(ask.dataset.empty, compress_above=None)
        value, _ = given(content.flags, content.body, ask.decode)
        self._signals.count("reads", ask.dataset.name, State.EMPTY)
        return Answer(value, State.EMPTY, None, ask.key.text)

    # --- not fresh --------------------------------------------------------------------

    async def _not_fresh(self, ask: Ask) -> Answer:
        if ask.seen is not None and (
            # A fresh one comes here only because its body is damaged.
            stale := self._usable(ask, ask.seen, fresh=None)
        ):
            self._refresh_behind(ask)
            return stale
        if ask.load is None:
            return await self._otherwise(ask, Nothing("no_loader"))
        answer: Answer | None = None
        while answer is None:
            landing, led = await self._flight(ask)
            answer = await self._landed(ask, landing, led=led)
        return answer

    async def _landed(self, ask: Ask, landing: Landing, *, led: bool) -> Answer | None:
        """Return what a flight means for one of its callers; None: take another one."""
        nothing = Nothing("expired")
        match landing:
            case Found(entry, waited):
                fresh = State.FRESH if led and not waited else State.WAITED
                if answer := self._usable(ask, entry, fresh=fresh):
                    return answer
            case Got(loaded, state):
                joined = state is State.LOADED and not led
                return self._loaded(ask, loaded, State.WAITED if joined else state)
            case Empty():
                return self._empty(ask)
            case Nothing():
                nothing = landing
            case TimeUp(remaining_ms):
                # A flight that ended as this caller joined it ended by others' time.
                if self._clock.monotonic() < ask.until:
                    return None
                nothing = Nothing("deadline", remaining_ms)
            case _:
                assert_never(landing)
        return await self._otherwise(ask, nothing)

    async def _flight(self, ask: Ask) -> tuple[Landing, bool]:
        """Return how the key's flight ends for this caller, and whether it began it."""
        flight = self._flights.of(ask.key.text)
        led = flight is None
        empty_if_cold = ask.dataset.cold_start is ColdStart.EMPTY
        if flight is not None and ask.seen is None and empty_if_cold:
            return Empty(), led
        try:
            if flight is None:
                flight = self._start(ask)
            if ask.seen is not None:
                # It goes on without this caller, so that the next one finds a value.
                expected_at = flight.started + ask.seen.load_ms / 1000
                if expected_at > ask.until:
                    return Nothing("deadline", self._ms_until(expected_at)), led
            landing = await self._flights.wait(
                flight, until=ask.until, max_waiters=ask.dataset.max_waiters
            )
        except TimeoutError:
            return Nothing("deadline"), led
        except TooMany as exc:
            return self._too_many(exc), led
        return landing, led

    async def _without_store(self, ask: Ask, error: StoreError | None) -> Answer:
        landing: PastCache
        try:
            flight = self._past_cache.of(ask.key.text) or self._past_cache.start(
                ask.key.text,
                lambda flight: self._contender.fly_past_cache(flight, ask, error),
            )
            landing = await self._past_cache.wait(
                flight, until=ask.until, max_waiters=ask.dataset.max_waiters
            )
        except TimeoutError:
            landing = Nothing("deadline")
        except TooMany as exc:
            landing = self._too_many(exc)
        if isinstance(landing, Got):
            return self._loaded(ask, landing.loaded, landing.state)
        return await self._otherwise(ask, landing)

    def _too_many(self, refused: TooMany) -> Nothing:
        return Nothing("closed" if self._closed else f"too_many_{refused.what}")

    async def _otherwise(self, ask: Ask, nothing: Nothing) -> Answer:
        """Return what may be served although no load gave a value; else raise.

        Read again: what was removed meanwhile is not served from memory.
        """
        entry = await self._read_again(ask) if not self._outage.failures else None
        if entry is not None:
            answer = self._usable(
                ask, entry, fresh=State.WAITED, error_only=State.STALE_ON_ERROR
            )
            if answer is not None:
                return answer
        self._signals.count("reads", ask.dataset.name, f"nothing_{nothing.reason}")
        raise NothingToServe(
            ask.key.text, nothing.reason, retry_in_ms=nothing.retry_in_ms
        ) from nothing.error

    async def _read_again(self, ask: Ask) -> Entry | None:
        asked_at = self._clock.monotonic()
        try:
            return await self._store.read(ask.key)
        except StoreError as exc:
            self._contender.note(exc, asked_at)
            return None

    def _usable(
        self,
        ask: Ask,
        entry: Entry,
        *,
        fresh: State | None,
        error_only: State | None = None,
    ) -> Answer | None:
        """Return the entry as an answer if its windows allow it now."""
        states = {
            Freshness.FRESH: fresh,
            Freshness.STALE: State.STALE,
            Freshness.ERROR_ONLY: error_only,
            Freshness.EXPIRED: None,
        }
        now_ms = self._store.now_ms()
        state = states[freshness(entry, now_ms)]
        if state is None:
            return None
        return self._hit(
            ask.dataset, ask.key, entry, now_ms=now_ms, state=state, decode=ask.decode
        )

    def _ms_until(self, instant: float) -> int:
        return max(0, int((instant - self._clock.monotonic()) * 1000))

    # --- refreshing behind an answer --------------------------------------------------

    def _refresh_early(
        self, spec: Dataset, key: Key, entry: Entry, loader: Loader | None
    ) -> None:
        now_ms, beta = self._store.now_ms(), spec.early_refresh_beta
        if due_early(entry, now_ms, beta=beta, random=self._random):
            load = self._load(spec, loader, Errand(Purpose.AHEAD))
            self._refresh_behind(Ask(spec, key, load, 0.0, decode=True, seen=entry))

    def _refresh_behind(self, ask: Ask) -> None:
        """Refresh once in the background, unless that is known to be in vain just now."""
        if (
            ask.load is None
            or self._flights.of(ask.key.text) is not None
            or self._contender.resting(ask.key)
        ):
            return
        try:
            self._start(ask)
        except TooMany:
            self._signals.count("refreshes_behind_refused", ask.dataset.name)

    def _start(self, ask: Ask) -> Flight[Landing]:
        return self._flights.start(
            ask.key.text, lambda flight: self._contender.fly(flight, ask)
        )


def _check_arguments(taken: Signature, spec: Dataset) -> None:
    """Refuse a function that could answer one key with different values."""
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    names = {parameter.name for parameter in taken.parameters.values()}
    for parameter in taken.parameters.values():
        if parameter.kind not in by_name:
            raise BadKey(
                f"dataset {spec.name!r}: argument {parameter} cannot be a part of a key"
            )
    if unknown := sorted(names - set(spec.template.names)):
        if unknown[0] == "self":
            raise BadKey(
                f"dataset {spec.name!r}: 'self' is no part of its key; of a method, "
                "decorate the bound one, where its object is made"
            )
        raise BadKey(
            f"dataset {spec.name!r}: argument {unknown[0]!r} is no part of its key "
            f"{spec.template.text!r}, so it must not change the value"
        )
    if missing := sorted(set(spec.template.names) - names):
        raise BadKey(
            f"dataset {spec.name!r}: the function has no argument {missing[0]!r}, "
            f"a part of the key {spec.template.text!r}"
        )
