"""A refresh may be cancelled at every await; what is left then is asked of the server."""

import asyncio
import gc
import random
from collections.abc import Iterator

import pytest
from typing_extensions import override

from tests.datasets import product
from tests.stores import WatchedStore, tasks_left
from warmer.clock import SystemClock
from warmer.errors import OriginUnavailable
from warmer.model.dataset import Dataset
from warmer.model.entry import encode_value
from warmer.model.key import Key
from warmer.model.outcome import ClaimReply, Loaded, LoadFailed, Published
from warmer.model.version import Versions
from warmer.refresh import Load, Refresher, RefreshRequest
from warmer.signals import Counters
from warmer.store.port import CacheStore, Claim

CLOCK = SystemClock()
PRODUCT = product()
SHORT = product(lease_ms=60)
"""Renewed after 20 ms."""
KEY = PRODUCT.key({"id": 42})
VALUE = Loaded(encode_value("value", compress_above=None), {}, load_ms=1)


@pytest.fixture(autouse=True)
def nothing_is_lost(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Asyncio reports an error that nobody took, once its task is collected."""
    yield
    gc.collect()
    records = caplog.get_records("call") + caplog.records
    assert [record for record in records if record.name == "asyncio"] == []


def refresher(
    store: CacheStore, load: Load, *, dataset: Dataset = PRODUCT
) -> Refresher:
    return Refresher(
        store=store,
        datasets={"product": dataset},
        load_of=lambda _dataset, _errand: load,
        random=random.Random(7),
        signals=Counters(),
    )


async def assert_nothing_left(a_store: CacheStore, key: Key = KEY) -> None:
    family = await a_store.inspect(key)
    assert family.lease_token is None
    assert family.guard.get("owner", "") == ""
    assert tasks_left() == []


async def some_turns(count: int = 5) -> None:
    for _ in range(count):
        await CLOCK.sleep(0)


class Stop:
    """Where a refresh is held until the test lets it go on; reached once."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def visit(self, point: str) -> None:
        if point == self.point and not self.reached.is_set():
            self.reached.set()
            await self.go_on.wait()


@pytest.mark.parametrize("cancels", [1, 3])
@pytest.mark.parametrize(
    ("point", "answer"),
    [
        ("claim:before", "value"),
        ("claim:after", "value"),
        ("load", "value"),
        ("load", "error"),
        ("renew:before", "late value"),
        ("renew:after", "late value"),
        ("publish:before", "value"),
        ("publish:after", "value"),
        ("release:before", "error"),
        ("release:after", "error"),
    ],
)
async def test_cancelled_at_any_call_it_leaves_no_lease_and_no_task(
    a_store: CacheStore, point: str, answer: str, cancels: int
) -> None:
    """R-LSE-2, R-FLT-1: a call on its way ends first, since only its reply tells the state."""
    stop = Stop(point)
    never = asyncio.Event()

    async def load(_key: Key, _floors: Versions) -> Loaded:
        await stop.visit("load")
        if answer == "error":
            raise OriginUnavailable("503")
        if answer == "late value":
            await never.wait()
        return VALUE

    dataset = SHORT if answer == "late value" else PRODUCT
    store = WatchedStore(a_store, stop.visit)
    refresh = asyncio.create_task(
        refresher(store, load, dataset=dataset).run(RefreshRequest(KEY))
    )
    await stop.reached.wait()
    for _ in range(cancels):
        refresh.cancel()
        await some_turns()
    stop.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await refresh

    await assert_nothing_left(a_store)


@pytest.mark.parametrize("answer", ["value", "error"])
async def test_cancelled_at_any_turn_of_the_loop_it_leaves_no_lease_and_no_task(
    a_store: CacheStore, answer: str
) -> None:
    """R-LSE-2: every await there is, counted out, until one refresh runs to its end."""

    async def turns(_point: str) -> None:
        await some_turns(2)

    async def load(_key: Key, _floors: Versions) -> Loaded:
        await some_turns(2)
        if answer == "error":
            raise OriginUnavailable("503")
        return VALUE

    for turn in range(200):
        key = PRODUCT.key({"id": turn})
        refresh = asyncio.create_task(
            refresher(WatchedStore(a_store, turns), load).run(RefreshRequest(key))
        )
        await some_turns(turn)
        refresh.cancel()
        try:
            outcome = await refresh
        except asyncio.CancelledError:
            await assert_nothing_left(a_store, key)
            continue
        assert isinstance(outcome, Published | LoadFailed)
        assert turn > 10
        return
    raise AssertionError("no refresh ended within 200 turns")


async def test_cancelled_again_while_it_gives_the_lease_back_it_still_does(
    a_store: CacheStore,
) -> None:
    """R-LSE-2: an impatient caller leaves no lease either."""
    loading, releasing = Stop("load"), Stop("release:before")

    async def load(_key: Key, _floors: Versions) -> Loaded:
        await loading.visit("load")
        return VALUE

    refresh = asyncio.create_task(
        refresher(WatchedStore(a_store, releasing.visit), load).run(RefreshRequest(KEY))
    )
    await loading.reached.wait()
    refresh.cancel()
    await releasing.reached.wait()
    refresh.cancel()
    await some_turns()
    releasing.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await refresh

    await assert_nothing_left(a_store)


class Wire(WatchedStore):
    """What was sent is carried out, whoever stops waiting for the reply."""

    @override
    async def claim(self, claim: Claim) -> ClaimReply:
        return await asyncio.shield(asyncio.create_task(super().claim(claim)))


async def test_giving_a_lease_back_never_overtakes_its_claim(
    a_store: CacheStore,
) -> None:
    """R-LSE-2: on another connection it could, and the lease would stay."""
    stop = Stop("claim:before")

    async def load(_key: Key, _floors: Versions) -> Loaded:
        return VALUE

    refresh = asyncio.create_task(
        refresher(Wire(a_store, stop.visit), load).run(RefreshRequest(KEY))
    )
    await stop.reached.wait()
    refresh.cancel()
    await some_turns()
    stop.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await refresh
    await some_turns()

    await assert_nothing_left(a_store)


async def test_a_stopped_load_is_waited_for_until_it_has_cleaned_up(
    a_store: CacheStore,
) -> None:
    """R-FLT-1: what it holds (a connection, a permit) is back when the caller goes on."""
    stop = Stop("load")
    cleaned_up = False

    async def load(_key: Key, _floors: Versions) -> Loaded:
        nonlocal cleaned_up
        try:
            await stop.visit("load")
        finally:
            await some_turns(50)
            cleaned_up = True
        return VALUE

    refresh = asyncio.create_task(refresher(a_store, load).run(RefreshRequest(KEY)))
    await stop.reached.wait()
    refresh.cancel()
    with pytest.raises(asyncio.CancelledError):
        await refresh

    assert cleaned_up
    await assert_nothing_left(a_store)


async def test_a_cancelled_refresh_does_not_count_as_a_failed_load(
    a_store: CacheStore,
) -> None:
    """R-ADM-4: the origin did nothing wrong, so nobody waits for it."""
    stop = Stop("load")

    async def load(_key: Key, _floors: Versions) -> Loaded:
        await stop.visit("load")
        return VALUE

    refresh = asyncio.create_task(refresher(a_store, load).run(RefreshRequest(KEY)))
    await stop.reached.wait()
    refresh.cancel()
    with pytest.raises(asyncio.CancelledError):
        await refresh
    stop.go_on.set()

    assert await refresher(a_store, load).run(RefreshRequest(KEY)) == Published(VALUE)


async def test_a_timeout_around_a_refresh_is_the_callers_own(
    a_store: CacheStore,
) -> None:
    """R-FLT-2: asyncio.timeout sees its own cancellation come back."""
    never = asyncio.Event()

    async def load(_key: Key, _floors: Versions) -> Loaded:
        await never.wait()
        return VALUE

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await refresher(a_store, load).run(RefreshRequest(KEY))

    await assert_nothing_left(a_store)
