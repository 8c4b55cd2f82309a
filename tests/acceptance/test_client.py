"""One key through the client on real servers: what is served when, and what never is."""

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Any

import orjson
import pytest

from tests.clients import CLOCK, CountedOrigin, RequestPath, Time, request_path
from tests.datasets import product
from tests.servers import ServerProcess
from warmer import NOT_FOUND, BadKey, NothingToServe, OriginError, State, Value
from warmer.errors import NoPermit, OriginUnavailable, WrongLoop
from warmer.model.dataset import Dataset
from warmer.model.entry import HEADER_BYTES
from warmer.model.event import PurgeMode
from warmer.model.permit import Errand
from warmer.model.version import SourceVersion
from warmer.store.keyspace import Keyspace
from warmer.store.port import Invalidation

FRESH_MS, STALE_MS, ERROR_MS, NEGATIVE_MS = 60_000, 30_000, 600_000, 5_000
SCOPE = "shop-db/product:42"


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def origin() -> CountedOrigin:
    return CountedOrigin({"price": 1})


@pytest.fixture
def opened(server: ServerProcess, time: Time) -> Any:
    """`opened(dataset)`: a process's request path, on the clock the test moves."""
    return partial(request_path, server.url, now_ms=time)


@pytest.fixture
async def path(opened: Any) -> AsyncIterator[RequestPath]:
    async with opened(product()) as path:
        yield path


async def refreshed(path: RequestPath, *, publishes: int) -> None:
    """Wait until so many loads have been published."""
    async with asyncio.timeout(10):
        while path.store.calls["publish"] < publishes or path.client._flights:
            await CLOCK.sleep(0.002)


async def purge(
    path: RequestPath,
    dataset: Dataset,
    version: int | None = None,
    mode: PurgeMode = PurgeMode.SOFT,
) -> None:
    source_version = None if version is None else SourceVersion.of("shop-db", version)
    await path.store.invalidate(
        Invalidation(
            key=dataset.key({"id": 42}),
            scope=SCOPE,
            version=source_version,
            mode=mode,
            stale_ms=dataset.stale_ms,
            error_ms=dataset.error_ms,
            guard_ms=dataset.guard_ms,
        )
    )


# --- freshness, availability, concurrency: three budgets ------------------------------


async def test_fresh_is_served_stale_is_refreshed_once_expired_is_loaded(
    path: RequestPath, origin: CountedOrigin, time: Time
) -> None:
    """R-POL-1 R-POL-2: each window ends by itself, at its own instant."""
    first = await path.get(id=42, load=origin)
    time.ms += FRESH_MS - 1
    fresh = await path.get(id=42, load=origin)

    assert (first.state, fresh.state) == (State.LOADED, State.FRESH)
    assert (first.age_ms, fresh.age_ms) == (0, FRESH_MS - 1)
    assert origin.loads == 1

    time.ms += STALE_MS
    origin.hold()
    stale = [await path.get(id=42, load=origin) for _ in range(100)]

    assert {answer.state for answer in stale} == {State.STALE}
    await origin.asked.wait()
    assert origin.loads == 2
    origin.open.set()
    await refreshed(path, publishes=2)

    time.ms += FRESH_MS + STALE_MS
    expired = await path.get(id=42, load=origin)

    assert expired.state is State.LOADED
    assert origin.loads == 3


async def test_a_stale_read_is_followed_by_a_fresh_one(
    path: RequestPath, origin: CountedOrigin, time: Time
) -> None:
    """SWR-4: the refresh behind an answer is written, and its version with it."""
    origin.value = Value({"price": 1}, versions={SCOPE: 41})
    await path.get(id=42, load=origin)
    time.ms += FRESH_MS
    origin.value = Value({"price": 2}, versions={SCOPE: 42})
    stale = await path.get(id=42, load=origin)
    await refreshed(path, publishes=2)
    fresh = await path.get(id=42, load=origin)

    assert (stale.state, stale.value) == (State.STALE, {"price": 1})
    assert (fresh.state, fresh.value) == (State.FRESH, {"price": 2})
    assert fresh.versions == {SCOPE: SourceVersion.of("shop-db", 42)}
    assert f"versions={{{SCOPE!r}: '42'}}" in repr(fresh)


@pytest.mark.parametrize(
    "error",
    [
        OriginUnavailable("503"),
        ConnectionRefusedError("refused"),
        ConnectionResetError("reset"),
        socket.gaierror("no such name"),
        TimeoutError("too slow"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_way_the_origin_fails_stale_is_served_if_the_dataset_permits(
    path: RequestPath, origin: CountedOrigin, time: Time, error: Exception
) -> None:
    """SWR-1 R-POL-3: refused, reset, no name, too slow and 5xx are all errors."""
    await path.get(id=42, load=origin)
    time.ms += FRESH_MS + STALE_MS
    origin.error = error

    answer = await path.get(id=42, load=origin)
    again = await path.get(id=42, load=origin)

    assert (answer.state, answer.value) == (State.STALE_ON_ERROR, {"price": 1})
    assert again.state is State.STALE_ON_ERROR
    assert origin.loads == 2


async def test_without_a_permit_stale_is_served_or_the_caller_is_told_when_to_return(
    path: RequestPath, origin: CountedOrigin, time: Time
) -> None:
    """R-ADM-3 R-POL-3 R-POL-5."""
    await path.get(id=42, load=origin)
    time.ms += FRESH_MS + STALE_MS
    origin.error = NoPermit("no_capacity", "no permit", retry_in_ms=400)
    answer = await path.get(id=42, load=origin)
    with pytest.raises(NothingToServe) as refused:
        await path.get(id=43, load=origin)

    assert (answer.state, answer.value) == (State.STALE_ON_ERROR, {"price": 1})
    assert (refused.value.reason, refused.value.retry_in_ms) == ("no_permit", 400)


@pytest.mark.parametrize(
    ("dataset", "age_ms"),
    [
        (product(), FRESH_MS + ERROR_MS),
        (product(error_ms=0), FRESH_MS + STALE_MS),
        (product(stale_ms=0, error_ms=0), FRESH_MS),
    ],
    ids=["past every window", "no stale on error", "no stale at all"],
)
async def test_past_its_windows_nothing_is_served_whatever_fails(
    opened: Any, origin: CountedOrigin, time: Time, dataset: Dataset, age_ms: int
) -> None:
    """R-FT-8 R-POL-2 R-POL-3 R-POL-4: the caller gets the origin's error instead."""
    async with opened(dataset) as path:
        await path.get(id=42, load=origin)
        time.ms += age_ms
        origin.error = OriginUnavailable("503")

        with pytest.raises(NothingToServe) as caught:
            await path.get(id=42, load=origin)
        with pytest.raises(NothingToServe) as again:
            await path.get(id=42, load=origin)

    assert caught.value.reason == "load_failed"
    assert caught.value.__cause__ is origin.error
    assert again.value.reason == "cooling"
    assert again.value.retry_in_ms
    assert origin.loads == 2


async def test_a_hard_purge_during_a_failing_load_is_not_answered_from_memory(
    path: RequestPath, origin: CountedOrigin, time: Time
) -> None:
    """R-POL-4 R-FT-8: what was removed meanwhile is not served on error either."""
    await path.get(id=42, load=origin)
    time.ms += FRESH_MS + STALE_MS
    origin.hold()
    origin.error = OriginUnavailable("503")
    reading = asyncio.create_task(path.get(id=42, load=origin))
    await origin.asked.wait()
    await purge(path, product(), mode=PurgeMode.HARD)
    origin.open.set()

    with pytest.raises(NothingToServe):
        await reading


# --- errors, not-founds, falsy values -------------------------------------------------


async def test_an_error_is_never_cached_and_the_next_load_gets_through(
    path: RequestPath, origin: CountedOrigin, time: Time
) -> None:
    """NEGATIVE-1 R-POL-7 R-FT-3 R-ADM-4: one failure, a back-off, then the value."""
    origin.error = OriginUnavailable("500")
    with pytest.raises(NothingToServe) as caught:
        await path.get(id=42, load=origin)
    origin.error = None
    retry_in_ms = caught.value.retry_in_ms
    assert retry_in_ms is not None
    time.ms += retry_in_ms + 1

    answer = await path.get(id=42, load=origin)

    assert (answer.state, answer.value) == (State.LOADED, {"price": 1})


async def test_a_not_found_is_cached_for_its_own_short_time(
    path: RequestPath, origin: CountedOrigin, time: Time
) -> None:
    """R-POL-7: negative, then negative from the cache, then asked again."""
    origin.value = NOT_FOUND
    first = await path.get(id=42, load=origin)
    time.ms += NEGATIVE_MS - 1
    second = await path.get(id=42, load=origin)

    assert (first.state, first.value) == (State.NEGATIVE, None)
    assert (second.state, second.value) == (State.NEGATIVE, None)
    assert origin.loads == 1

    time.ms += 1
    origin.value = {"price": 2}
    third = await path.get(id=42, load=origin)

    assert (third.state, third.value) == (State.LOADED, {"price": 2})


@pytest.mark.parametrize("value", [None, 0, "", [], {}, False, b"", 0.0], ids=repr)
async def test_empty_values_are_values(
    path: RequestPath, origin: CountedOrigin, value: object
) -> None:
    """EMPTY-1: cached, given back as themselves, and told from a miss and a not-found."""
    origin.value = value
    first = await path.get(id=42, load=origin)
    second = await path.get(id=42, load=origin)

    assert (first.state, second.state) == (State.LOADED, State.FRESH)
    assert first.value == second.value == value
    assert type(second.value) is type(value)
    assert origin.loads == 1


async def test_a_value_that_would_not_read_back_equal_is_refused(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """SERIAL-1: NaN becomes the caller's error, not somebody's null."""
    origin.value = {"price": float("nan")}

    with pytest.raises(NothingToServe) as caught:
        await path.get(id=42, load=origin)

    assert "NaN" in str(caught.value.__cause__)


async def test_a_damaged_body_is_a_miss(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """SERIAL-3 R-REC-1: loaded again, counted, and no error of a request."""
    await path.get(id=42, load=origin)
    key = path.key(id=42).text
    stored = await path.redis.get(key)
    await path.redis.set(key, stored[:-3] + b"}}}", keepttl=True)

    answer = await path.get(id=42, load=origin)

    assert (answer.state, answer.value) == (State.LOADED, {"price": 1})
    assert path.signals.total("entries_refused", "body") == 1
    assert (await path.get(id=42, load=origin)).state is State.FRESH


async def test_a_source_that_went_back_is_asked_seldom(
    path: RequestPath, origin: CountedOrigin, time: Time
) -> None:
    """R-ADM-4: restored from a backup, its rows are older than the entry that has run out."""
    origin.value = Value("newer", versions={SCOPE: 2})
    await path.get(id=42, load=origin)
    time.ms += FRESH_MS + STALE_MS + 1
    origin.value = Value("older", versions={SCOPE: 1})

    answer = await path.get(id=42, load=origin)

    assert (answer.state, answer.value) == (State.STALE_ON_ERROR, "newer")
    assert origin.loads == 2


async def test_a_damaged_vector_says_nothing_about_versions(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """SERIAL-3: it is not the answer's reader who meets the damage."""
    origin.value = Value("value", versions={SCOPE: 2})
    await path.get(id=42, load=origin)
    await path.redis.setrange(path.key(id=42).text, HEADER_BYTES, b"\xff")

    answer = await path.get(id=42, load=origin)

    assert (answer.state, answer.versions) == (State.FRESH, {})


# --- the value as the caller wants it -------------------------------------------------


async def test_bytes_pass_through_undecoded_on_request(
    opened: Any, origin: CountedOrigin
) -> None:
    """R-REC-2: decoded, as JSON bytes, or as stored; the answer says how it is packed."""
    rows = [{"id": number, "name": "a" * 20} for number in range(500)]
    origin.value = rows
    async with opened(product(compress_above=1_024)) as path:
        loaded = await path.get(id=42, load=origin, decode=False)
        decoded = await path.get(id=42, load=origin)
        plain = await path.get(id=42, load=origin, decode=False)
        stored = await path.get(id=42, load=origin, decode="stored")

    assert decoded.value == rows
    assert loaded.value == plain.value == orjson.dumps(rows)
    assert stored.encoding == "zstd"
    assert len(stored.value) < len(plain.value) / 5
    assert plain.encoding is decoded.encoding is None


async def test_callers_do_not_share_a_mutable_value(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """R-FLT-1: one flight, and each caller may change what it got."""
    first, second = await asyncio.gather(
        path.get(id=42, load=origin), path.get(id=42, load=origin)
    )
    first.value["price"] = 99

    assert second.value == {"price": 1}
    assert (await path.get(id=42, load=origin)).value == {"price": 1}


# --- loaders --------------------------------------------------------------------------


async def test_loaders_may_be_sync_async_or_partial(path: RequestPath) -> None:
    """R-ADM-2: one that is not async runs in a thread, and the loop goes on."""
    loop = asyncio.get_running_loop()

    def in_thread() -> str:
        asyncio.run_coroutine_threadsafe(CLOCK.sleep(0), loop).result(5)
        return "thread"

    async def asynchronous(word: str) -> str:
        return word

    assert (await path.get(id=1, load=in_thread)).value == "thread"
    assert (await path.get(id=2, load=partial(asynchronous, "part"))).value == "part"
    assert (await path.get(id=3, load=lambda: asynchronous("lambda"))).value == "lambda"


class Outcome(BaseException):
    """What test runners and green threads throw through code that catches Exception."""


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("raised", [Outcome, GeneratorExit, StopIteration])
async def test_whatever_a_loader_raises_is_a_failed_load(
    path: RequestPath, raised: type[BaseException], *, asynchronous: bool
) -> None:
    """R-FT-3 R-LSE-2: the lease is given back, and nobody waits for ever."""

    def in_thread() -> None:
        raise raised

    async def in_loop() -> None:
        raise raised

    with pytest.raises(NothingToServe) as caught:
        await path.get(id=42, load=in_loop if asynchronous else in_thread)

    assert caught.value.reason == "load_failed"
    assert raised.__name__ in str(caught.value.__cause__)
    assert not await path.redis.exists(Keyspace().lease(path.key(id=42).text))


async def test_a_loader_given_with_the_call_wins_over_the_origin(
    opened: Any, origin: CountedOrigin
) -> None:
    """R-CARD-4: a dataset with an origin loads from it only where no loader is given."""
    asked: list[str] = []

    def load_of(dataset: Dataset, _errand: Errand) -> Any:
        async def load(key: Any, floors: Any) -> Any:
            del floors
            asked.append(f"{dataset.name} {key.text}")
            raise OriginUnavailable("503")

        return load

    async with opened(product(), load_of=load_of) as path:
        assert (await path.get(id=1, load=origin)).value == {"price": 1}
        with pytest.raises(NothingToServe) as caught:
            await path.get(id=2)

    assert asked == ["product product:v3:2"]
    assert isinstance(caught.value.__cause__, OriginError)


async def test_without_any_loader_only_what_is_cached_is_served(
    opened: Any, origin: CountedOrigin, time: Time
) -> None:
    """R-POL-2 R-POL-6: fresh and stale are answers, the rest says why not."""
    async with opened(product(origin=None)) as path:
        await path.get(id=42, load=origin)
        time.ms += FRESH_MS
        stale = await path.get(id=42)
        with pytest.raises(NothingToServe, match="no_loader"):
            await path.get(id=43)

    assert stale.state is State.STALE
    assert origin.loads == 1


async def test_a_decorated_function_loads_what_its_arguments_name(
    path: RequestPath,
) -> None:
    """R-REC-3: by position, by name and by default are one key."""
    calls: list[int] = []

    @path.client.cached("product", deadline=timedelta(seconds=5))
    async def load_product(id: int = 7) -> dict[str, int]:  # noqa: A002 - a part's name
        calls.append(id)
        return {"id": id}

    assert await load_product(42) == await load_product(id=42) == {"id": 42}
    assert await load_product() == {"id": 7}
    assert calls == [42, 7]


async def test_a_function_whose_arguments_are_not_the_key_is_refused_at_decoration(
    path: RequestPath,
) -> None:
    """POISON-1 R-REC-3: an argument beside the key would answer for others."""

    def beside(id: int, currency: str) -> str:  # noqa: A002 - a part's name
        return f"{id} {currency}"

    with pytest.raises(BadKey, match="'currency' is no part of its key"):
        path.client.cached("product")(beside)
    with pytest.raises(BadKey, match="no argument 'id'"):
        path.client.cached("product")(lambda: "")
    with pytest.raises(BadKey, match="cannot be a part"):
        path.client.cached("product")(lambda **parts: str(parts))
    with pytest.raises(BadKey, match="no dataset 'nothing'"):
        path.client.cached("nothing")


async def test_a_bound_method_is_decorated_and_its_function_is_refused_with_that_advice(
    path: RequestPath,
) -> None:
    """R-REC-3: what `self` holds would change the answer, and not the key."""

    class Shop:
        def load(self, id: int) -> dict[str, int]:  # noqa: A002 - a part's name
            return {"id": id}

    with pytest.raises(BadKey, match="of a method, decorate the bound one"):
        path.client.cached("product")(Shop.load)
    assert await path.client.cached("product")(Shop().load)(42) == {"id": 42}


async def test_long_parts_are_not_kept_in_memory(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """KEYS-6: 8,000 search texts of 10 KB each would be 300 MB of every process."""
    for number in range(100):
        await path.get(id=f"{number} " + "é" * 5_000, load=origin)

    assert path.client._key.cache_info().currsize == 0
    await path.get(id=42, load=origin)
    assert path.client._key.cache_info().currsize == 1


# --- whose client ---------------------------------------------------------------------


async def test_a_client_of_another_event_loop_refuses_and_is_not_hurt(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """RPOOL-1: opened before a fork, or used from another thread, it would mix up replies."""
    await path.get(id=42, load=origin)

    with pytest.raises(WrongLoop, match="after it was forked"):
        await asyncio.to_thread(asyncio.run, path.get(id=42, load=origin))

    assert (await path.get(id=42, load=origin)).state is State.FRESH


async def test_a_closed_client_says_that_it_is_closed(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """R-FT-3: a request that outlives its service asks nobody."""
    await path.get(id=42, load=origin)
    await path.client.aclose()

    with pytest.raises(NothingToServe) as caught:
        await path.get(id=42, load=origin)

    assert caught.value.reason == "closed"


async def test_parts_that_make_no_key_are_named(path: RequestPath) -> None:
    """R-REC-3 KEYS-3: missing, unknown, of a type without one spelling; 1 is not True."""
    for parts, message in (
        ({}, "'id' is missing"),
        ({"id": 1, "locale": "de"}, "no part 'locale'"),
        ({"id": [1]}, "'id' is list"),
        ({"id": 1.0}, "'id' is float"),
    ):
        with pytest.raises(BadKey, match=message):
            await path.get(**parts)

    one = await path.get(id=1, load=lambda: "one")
    true = await path.get(id=True, load=lambda: "true")
    assert (one.value, true.value) == ("one", "true")


# --- invalidations during a load ------------------------------------------------------


async def test_a_load_that_an_invalidation_overtook_is_served_as_stale(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """STALE-SET-1 R-INV-3: the callers get an answer, and the next one is fresh."""
    origin.hold()
    reading = asyncio.create_task(path.get(id=42, load=origin))
    await origin.asked.wait()
    await purge(path, product())
    origin.open.set()
    overtaken = await reading
    origin.value = {"price": 2}
    behind = await path.get(id=42, load=origin)
    await refreshed(path, publishes=2)
    fresh = await path.get(id=42, load=origin)

    assert (overtaken.state, overtaken.value) == (State.STALE, {"price": 1})
    assert behind.state is State.STALE
    assert (fresh.state, fresh.value) == (State.FRESH, {"price": 2})


async def test_where_no_stale_is_permitted_an_overtaken_load_is_not_served(
    opened: Any, origin: CountedOrigin
) -> None:
    """R-INV-3 R-POL-4: the same callers get the next load's value."""
    dataset = product(stale_ms=0, error_ms=0, settle_ms=0)
    async with opened(dataset) as path:
        origin.hold()
        readers = [asyncio.create_task(path.get(id=42, load=origin)) for _ in range(20)]
        await origin.asked.wait()
        origin.value = {"price": 2}
        await purge(path, dataset)
        origin.open.set()
        answers = await asyncio.gather(*readers)

    assert {answer.value["price"] for answer in answers} == {2}
    assert origin.loads == 2
