"""What a refresh leaves behind, however it goes."""

import asyncio
import gc
import random
from collections import deque

import pytest

from tests.datasets import SOURCE, product
from tests.servers import Servers
from tests.stores import Visit, WatchedStore, store_on, tasks_left
from warmer.clock import SystemClock
from warmer.errors import (
    BadValue,
    NoPermit,
    OriginError,
    OriginInvalid,
    OriginRefused,
    OriginTimeout,
    OriginUnavailable,
    StoreRefused,
    StoreTimeout,
)
from warmer.model.dataset import Dataset
from warmer.model.entry import NOT_FOUND, Content, Flag, encode_value
from warmer.model.event import PurgeMode
from warmer.model.key import Key
from warmer.model.lease import new_token
from warmer.model.outcome import (
    Claimed,
    Cooling,
    Fenced,
    Fresh,
    Held,
    LeaseLost,
    Loaded,
    LoadFailed,
    Outdated,
    Published,
    Unstored,
)
from warmer.model.version import SourceVersion, Versions
from warmer.refresh import (
    RETRY_AFTER_CAP_MS,
    RETRY_BASE_MS,
    Load,
    Refresher,
    RefreshRequest,
)
from warmer.signals import Counters
from warmer.store.port import CacheStore, Claim, Invalidation

PRODUCT = product()
KEY = PRODUCT.key({"id": 42})
SCOPE = f"{SOURCE}/product:42"
CLOCK = SystemClock()


def at(version: int) -> Versions:
    return {SCOPE: SourceVersion.of(SOURCE, version)}


def row(version: int, text: str = "") -> Loaded:
    value = {"version": version, "text": text}
    return Loaded(encode_value(value, compress_above=None), at(version), load_ms=7)


class Origin:
    """Answers in order, the last one for ever; `gate` holds a load that has begun."""

    def __init__(self, *answers: Loaded | BaseException) -> None:
        self.answers = deque(answers)
        self.loads = 0
        self.floors: list[Versions] = []
        self.stopped = 0
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self, _key: Key, floors: Versions) -> Loaded:
        self.loads += 1
        self.floors.append(floors)
        self.began.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        answer = self.answers[0]
        if len(self.answers) > 1:
            self.answers.popleft()
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Fleet:
    """Processes that refresh the same keys on the same server."""

    def __init__(self, store: CacheStore) -> None:
        self.store = store
        self.signals = Counters()

    def refresher(
        self,
        load: Load,
        *,
        dataset: Dataset = PRODUCT,
        store: CacheStore | None = None,
    ) -> Refresher:
        return Refresher(
            store=store or self.store,
            datasets={dataset.name: dataset},
            load_of=lambda _dataset, _errand: load,
            random=random.Random(7),
            signals=self.signals,
        )

    async def claimed(self, dataset: Dataset = PRODUCT) -> Claimed:
        """A lease as a request path takes it."""
        reply = await self.store.claim(
            Claim(KEY, new_token(), dataset.lease_ms, dataset.guard_ms)
        )
        assert isinstance(reply, Claimed)
        return reply

    async def stored(self) -> object:
        entry = await self.store.read(KEY)
        return entry.content().value() if entry else None

    async def lease_is_gone(self) -> None:
        while (await self.store.inspect(KEY)).lease_token is not None:
            await CLOCK.sleep(0.005)

    async def assert_nothing_left(self) -> None:
        family = await self.store.inspect(KEY)
        assert family.lease_token is None
        assert family.guard.get("owner", "") == ""
        assert tasks_left() == []


REQUEST = RefreshRequest(KEY)


def failing(*points: str) -> Visit:
    """No reply from the cache server at these points."""

    async def visit(point: str) -> None:
        if point in points:
            raise StoreTimeout(f"no reply: {point}")

    return visit


@pytest.fixture
async def fleet(a_store: CacheStore) -> Fleet:
    return Fleet(a_store)


# --- one load per key -----------------------------------------------------------------


async def test_ten_refreshes_of_one_key_are_one_load(fleet: Fleet) -> None:
    """R-FLT-4, R-LSE-5: the others find the lease held, or the new entry."""
    origin = Origin(row(42))
    workers = [fleet.refresher(origin.load) for _ in range(10)]
    outcomes = await asyncio.gather(*(worker.run(REQUEST) for worker in workers))
    late = await fleet.refresher(origin.load).run(REQUEST)

    assert origin.loads == 1
    assert sum(isinstance(outcome, Published) for outcome in outcomes) == 1
    assert all(isinstance(outcome, Published | Held | Fresh) for outcome in outcomes)
    assert isinstance(late, Fresh)
    assert fleet.signals.total("refreshes", "product", "published") == 1
    await fleet.assert_nothing_left()


async def test_a_refresh_that_must_reach_a_version_loads_although_the_entry_is_fresh(
    fleet: Fleet,
) -> None:
    """R-INV-3: and its load is told the floor it has to reach."""
    origin = Origin(row(41), row(42))
    refresher = fleet.refresher(origin.load)
    await refresher.run(REQUEST)
    outcome = await refresher.run(RefreshRequest(KEY, wanted=at(42)))

    assert outcome == Published(row(42))
    assert origin.floors == [{}, at(42)]
    assert isinstance(await refresher.run(RefreshRequest(KEY, wanted=at(42))), Fresh)


async def test_a_warm_up_never_overwrites_newer_data(fleet: Fleet) -> None:
    """R-WRM-4: a load from a lagging replica is refused like everybody's."""
    await fleet.refresher(Origin(row(42)).load).run(REQUEST)
    reply = await fleet.store.invalidate(
        Invalidation(
            KEY, SCOPE, SourceVersion.of(SOURCE, 43), PurgeMode.SOFT, 30_000, 0, 60_000
        )
    )
    warm_up = fleet.refresher(Origin(row(41)).load)
    outcome = await warm_up.run(RefreshRequest(KEY, wanted_fence=reply.fence))

    assert outcome == Outdated(row(41))
    assert await fleet.stored() == {"version": 42, "text": ""}
    await fleet.assert_nothing_left()


# --- the lease ------------------------------------------------------------------------


async def test_a_load_longer_than_its_lease_keeps_it(fleet: Fleet) -> None:
    """R-LSE-3: renewed at a third of it, and never without an expiry."""
    short = product(lease_ms=600)
    origin = Origin(row(42))
    origin.gate.clear()
    renewed = asyncio.Semaphore(0)

    async def visit(point: str) -> None:
        if point == "renew:after":
            renewed.release()

    store = WatchedStore(fleet.store, visit)
    refresh = asyncio.create_task(
        fleet.refresher(origin.load, dataset=short, store=store).run(REQUEST)
    )
    for _ in range(4):
        await renewed.acquire()
        family = await fleet.store.inspect(KEY)
        assert family.lease_ms is not None
        assert 0 < family.lease_ms < 700
    rival = await fleet.refresher(origin.load, dataset=short).run(REQUEST)
    origin.gate.set()

    assert isinstance(rival, Held)
    assert await refresh == Published(row(42))
    assert origin.loads == 1
    await fleet.assert_nothing_left()


async def test_an_owner_that_never_noticed_its_lease_expire_cannot_overwrite(
    fleet: Fleet,
) -> None:
    """R-FT-5, R-LSE-4, LEASE-3: the fence refuses its late write, without an error."""
    short = product(lease_ms=60)
    slow, quick = Origin(row(41)), Origin(row(42))
    slow.gate.clear()
    deaf = WatchedStore(fleet.store, failing("renew:before"))
    late = asyncio.create_task(
        fleet.refresher(slow.load, dataset=short, store=deaf).run(REQUEST)
    )
    await slow.began.wait()
    await fleet.lease_is_gone()
    await fleet.refresher(quick.load, dataset=short).run(REQUEST)
    slow.gate.set()

    assert await late == Fenced(row(41))
    assert await fleet.stored() == {"version": 42, "text": ""}
    assert fleet.signals.total("renewals_failed", "product") > 0
    await fleet.assert_nothing_left()


async def test_work_that_outlived_its_lease_is_kept_while_nobody_else_claimed(
    fleet: Fleet,
) -> None:
    """R-LSE-4: a slow origin behind an unreachable cache server is not a livelock."""
    short = product(lease_ms=60)
    origin = Origin(row(42))
    origin.gate.clear()
    deaf = WatchedStore(fleet.store, failing("renew:before"))
    late = asyncio.create_task(
        fleet.refresher(origin.load, dataset=short, store=deaf).run(REQUEST)
    )
    await origin.began.wait()
    await fleet.lease_is_gone()
    origin.gate.set()

    assert await late == Published(row(42))
    await fleet.assert_nothing_left()


async def test_an_owner_that_learns_its_lease_is_lost_stops_loading(
    fleet: Fleet,
) -> None:
    """LEASE-LOST-1: the cache server forgot the lease, and another worker has the next."""
    short = product(lease_ms=90)
    origin = Origin(row(41))
    origin.gate.clear()
    gone = asyncio.Event()

    async def visit(point: str) -> None:
        if point == "renew:before":
            await gone.wait()

    store = WatchedStore(fleet.store, visit)
    first = asyncio.create_task(
        fleet.refresher(origin.load, dataset=short, store=store).run(REQUEST)
    )
    await origin.began.wait()
    await fleet.lease_is_gone()
    second = await fleet.claimed()
    gone.set()

    assert await first == LeaseLost()
    assert origin.stopped == 1
    assert store.calls["publish"] == 0
    assert (await fleet.store.inspect(KEY)).lease_token == second.lease.token
    assert fleet.signals.total("leases_lost", "product") == 1
    assert fleet.signals.total("releases", "product", "foreign") == 1


async def test_what_was_loaded_when_the_lease_was_found_lost_is_not_thrown_away(
    fleet: Fleet,
) -> None:
    """R-LSE-4: nobody else has claimed, so it is published after all."""
    short = product(lease_ms=90)
    origin = Origin(row(42))
    origin.gate.clear()
    renewing, gone = asyncio.Event(), asyncio.Event()

    async def visit(point: str) -> None:
        if point == "renew:before":
            renewing.set()
            await gone.wait()

    refresh = asyncio.create_task(
        fleet.refresher(
            origin.load, dataset=short, store=WatchedStore(fleet.store, visit)
        ).run(REQUEST)
    )
    await renewing.wait()
    await fleet.lease_is_gone()
    origin.gate.set()
    for _ in range(5):
        await CLOCK.sleep(0)
    gone.set()

    assert await refresh == Published(row(42))
    assert fleet.signals.total("leases_lost", "product") == 1
    await fleet.assert_nothing_left()


# --- failures -------------------------------------------------------------------------


async def test_a_failed_refresh_lets_a_later_one_through(fleet: Fleet) -> None:
    """R-FT-3, R-LSE-2, R-ADM-4, NEGATIVE-1: not at once, and the error is no value."""
    down = OriginUnavailable("500")
    origin = Origin(down, row(42))
    refresher = fleet.refresher(origin.load)
    failed = await refresher.run(REQUEST)
    await fleet.assert_nothing_left()
    early = await refresher.run(REQUEST)
    assert await fleet.stored() is None
    assert isinstance(early, Cooling)
    await CLOCK.sleep(early.retry_in_ms / 1000 + 0.002)
    later = await refresher.run(REQUEST)

    assert isinstance(failed, LoadFailed)
    assert failed.error is down
    assert early.retry_in_ms <= failed.retry_in_ms <= RETRY_BASE_MS
    assert later == Published(row(42))
    assert origin.loads == 2
    assert fleet.signals.total("load_failures", "product", "unavailable") == 1


@pytest.mark.parametrize(
    "error",
    [
        OriginUnavailable("500"),
        OriginRefused("401"),
        OriginTimeout("read", "slow"),
        OriginInvalid("no version"),
        RuntimeError("a bug in the load"),
        TimeoutError("of the load's own making"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_is_never_stored_as_a_value_nor_as_not_found(
    fleet: Fleet, error: Exception
) -> None:
    """NEGATIVE-1, NEGATIVE-4, R-POL-7: whatever was raised is handed on as it is."""
    outcome = await fleet.refresher(Origin(error).load).run(REQUEST)

    assert isinstance(outcome, LoadFailed)
    assert outcome.error is error
    assert (await fleet.store.inspect(KEY)).entry is None
    await fleet.assert_nothing_left()


@pytest.mark.parametrize(
    ("asked_ms", "least_ms"), [(5_000, 5_000), (10**12, RETRY_AFTER_CAP_MS), (-5, 0)]
)
async def test_the_fleet_waits_as_long_as_the_origin_asked(
    fleet: Fleet, asked_ms: int, least_ms: int
) -> None:
    """RETRY-2: within reason, and not all keys at the same instant."""
    busy = OriginRefused("429", retry_in_ms=asked_ms)
    refresher = fleet.refresher(Origin(busy).load)
    failed = await refresher.run(REQUEST)
    next_one = await refresher.run(REQUEST)

    assert isinstance(failed, LoadFailed)
    assert least_ms < failed.retry_in_ms <= least_ms + RETRY_BASE_MS
    assert isinstance(next_one, Cooling)
    assert least_ms - 1_000 < next_one.retry_in_ms <= failed.retry_in_ms


async def test_a_load_that_got_no_permit_has_not_failed(fleet: Fleet) -> None:
    """R-ADM-3 R-ADM-4: whoever has a permit may load at once, and nobody backs off for it."""
    refused = NoPermit("no_capacity", "no permit", retry_in_ms=400)
    outcome = await fleet.refresher(Origin(refused).load).run(REQUEST)
    family = await fleet.store.inspect(KEY)
    elsewhere = await fleet.refresher(Origin(row(41)).load).run(REQUEST)

    assert outcome == LoadFailed(refused, 400)
    assert family.guard.get("failures", "0") == "0"
    assert isinstance(elsewhere, Published)
    await fleet.assert_nothing_left()


async def test_failures_in_a_row_are_waited_out_longer_and_longer(
    fleet: Fleet,
) -> None:
    """R-ADM-4, RETRY-5: the wait doubles with what the fleet, not the process, has seen."""
    retry_in_ms = []
    for _ in range(3):
        refresher = fleet.refresher(Origin(OriginUnavailable("503")).load)
        outcome = await refresher.run(REQUEST)
        assert isinstance(outcome, LoadFailed)
        retry_in_ms.append(outcome.retry_in_ms)
        await CLOCK.sleep(outcome.retry_in_ms / 1000 + 0.002)

    assert retry_in_ms[1] <= 2 * RETRY_BASE_MS
    assert retry_in_ms[2] > retry_in_ms[0]


@pytest.mark.parametrize(
    "content",
    [
        Content(Flag.RAW, b"x" * 70_000),
        encode_value("x" * 70_000, compress_above=1_000),
    ],
    ids=["plain", "small only while compressed"],
)
async def test_a_value_too_large_is_refused_before_it_is_sent(
    fleet: Fleet, content: Content
) -> None:
    """PAYLOAD-1: what was stored stays, and so does the connection."""
    small = product(max_body_bytes=64_000)
    await fleet.refresher(Origin(row(41)).load, dataset=small).run(REQUEST)
    store = WatchedStore(fleet.store)
    origin = Origin(Loaded(content, at(42), load_ms=1))
    refresher = fleet.refresher(origin.load, dataset=small, store=store)
    outcome = await refresher.run(RefreshRequest(KEY, wanted=at(42)))

    assert isinstance(outcome, LoadFailed)
    assert isinstance(outcome.error, OriginInvalid)
    assert store.calls["publish"] == 0
    assert await fleet.stored() == {"version": 41, "text": ""}
    await fleet.assert_nothing_left()


async def test_versions_that_fit_no_entry_are_refused_before_they_are_sent(
    fleet: Fleet,
) -> None:
    """R-REC-1: an error of the load, not of the cache server."""
    versions = {
        f"{SOURCE}/product:{number:0200d}": SourceVersion.of(SOURCE, number)
        for number in range(20)
    }
    loaded = Loaded(row(1).content, versions, load_ms=1)
    outcome = await fleet.refresher(Origin(loaded).load).run(REQUEST)

    assert isinstance(outcome, LoadFailed)
    assert isinstance(outcome.error, OriginInvalid)
    await fleet.assert_nothing_left()


async def test_a_trickling_answer_does_not_stretch_the_load(fleet: Fleet) -> None:
    """R-ADM-2: the load has one limit, however many steps it takes."""
    impatient = product(load_timeout_ms=80)

    async def trickle(_key: Key, _floors: Versions) -> Loaded:
        while True:
            await CLOCK.sleep(0.005)

    outcome = await fleet.refresher(trickle, dataset=impatient).run(REQUEST)

    assert isinstance(outcome, LoadFailed)
    assert isinstance(outcome.error, OriginTimeout)
    assert outcome.error.phase == "total"
    assert 0 < outcome.retry_in_ms <= RETRY_BASE_MS
    await fleet.assert_nothing_left()


async def test_a_load_that_cancels_itself_has_failed(fleet: Fleet) -> None:
    """R-LSE-2: it does not pass for the caller's own cancellation."""
    origin = Origin(asyncio.CancelledError())
    outcome = await fleet.refresher(origin.load).run(REQUEST)

    assert isinstance(outcome, LoadFailed)
    assert isinstance(outcome.error, OriginUnavailable)
    await fleet.assert_nothing_left()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BadValue("NaN"), "invalid"),
        (OriginTimeout("connect", "slow"), "timeout"),
        (KeyError("id"), "failed"),
        (OriginError("other"), "failed"),
    ],
    ids=str,
)
async def test_why_loads_fail_is_counted_in_few_words(
    fleet: Fleet, error: Exception, reason: str
) -> None:
    """R-OBS-1, OBS-1: never by a text from outside."""
    await fleet.refresher(Origin(error).load).run(REQUEST)

    assert fleet.signals.total("load_failures", "product", reason) == 1
    assert fleet.signals.total("refreshes", "product", "load_failed") == 1


# --- not found ------------------------------------------------------------------------


async def test_not_found_is_kept_for_a_time_of_its_own(fleet: Fleet) -> None:
    """R-POL-7: and never served stale."""
    loaded = Loaded(NOT_FOUND, {}, load_ms=3)
    outcome = await fleet.refresher(Origin(loaded).load).run(REQUEST)
    entry = await fleet.store.read(KEY)

    assert outcome == Published(loaded)
    assert entry is not None
    assert entry.negative
    assert entry.fresh_until - entry.created_at == PRODUCT.negative_ms
    assert entry.stale_until == entry.error_until == entry.fresh_until


async def test_a_not_found_that_may_not_be_kept_still_ends_the_older_entry(
    fleet: Fleet,
) -> None:
    """R-POL-7: what is known to be gone is not served stale, and not found is no entry."""
    forgetful = product(negative_ms=0)
    await fleet.refresher(Origin(row(41)).load, dataset=forgetful).run(REQUEST)
    gone = Loaded(NOT_FOUND, at(42), load_ms=3)
    refresher = fleet.refresher(Origin(gone).load, dataset=forgetful)
    outcome = await refresher.run(RefreshRequest(KEY, wanted=at(42)))
    while (await fleet.store.inspect(KEY)).entry is not None:
        await CLOCK.sleep(0.001)

    assert outcome == Published(gone)
    await fleet.assert_nothing_left()


# --- the cache server fails -----------------------------------------------------------


@pytest.mark.parametrize("point", ["publish:before", "publish:after"])
async def test_the_caller_gets_what_was_loaded_though_it_could_not_be_stored(
    fleet: Fleet, point: str
) -> None:
    """R-LSE-2, MEMORY-1: and the lease does not wait for its expiry."""
    store = WatchedStore(fleet.store, failing(point))
    outcome = await fleet.refresher(Origin(row(42)).load, store=store).run(REQUEST)

    assert isinstance(outcome, Unstored)
    assert outcome.loaded == row(42)
    assert isinstance(outcome.error, StoreTimeout)
    await fleet.assert_nothing_left()


@pytest.mark.parametrize("kind", ["valkey9", "redis7"])
async def test_a_full_cache_server_keeps_no_lease_and_what_it_has(
    start_server: Servers, kind: str
) -> None:
    """MEMORY-1: the load fills the server; its value is given, the old entry stays."""
    server = start_server(kind, maxmemory="16mb")

    async def load(_key: Key, _floors: Versions) -> Loaded:
        await asyncio.to_thread(server.command, "CONFIG", "SET", "maxmemory", "1mb")
        return row(42)

    async with store_on(server) as store:
        fleet = Fleet(store)
        await fleet.refresher(Origin(row(41)).load).run(REQUEST)
        outcome = await fleet.refresher(load).run(RefreshRequest(KEY, wanted=at(42)))

        assert isinstance(outcome, Unstored)
        assert isinstance(outcome.error, StoreRefused)
        assert outcome.error.code == "OOM"
        assert outcome.loaded == row(42)
        assert await fleet.stored() == {"version": 41, "text": ""}
        await fleet.assert_nothing_left()


async def test_a_bug_in_the_store_leaves_no_lease(fleet: Fleet) -> None:
    """R-LSE-2: it is raised, and the next refresh need not wait for an expiry."""

    async def visit(point: str) -> None:
        if point == "publish:before":
            raise RuntimeError("a bug")

    store = WatchedStore(fleet.store, visit)
    with pytest.raises(RuntimeError):
        await fleet.refresher(Origin(row(42)).load, store=store).run(REQUEST)

    await fleet.assert_nothing_left()


async def test_a_claim_whose_reply_was_lost_leaves_no_lease(fleet: Fleet) -> None:
    """R-LSE-2, LEASE-1: it may have been carried out."""
    store = WatchedStore(fleet.store, failing("claim:after"))
    with pytest.raises(StoreTimeout):
        await fleet.refresher(Origin(row(42)).load, store=store).run(REQUEST)

    await fleet.assert_nothing_left()


@pytest.mark.parametrize("answer", [row(42), OriginUnavailable("503")], ids=str)
async def test_a_release_that_fails_hides_neither_value_nor_error(
    fleet: Fleet, answer: Loaded | OriginError
) -> None:
    """R-LSE-2: the lease ends by its expiry then, and that is counted."""
    store = WatchedStore(fleet.store, failing("publish:before", "release:before"))
    outcome = await fleet.refresher(Origin(answer).load, store=store).run(REQUEST)
    family = await fleet.store.inspect(KEY)

    assert isinstance(outcome, Unstored | LoadFailed)
    assert answer in (getattr(outcome, "loaded", None), getattr(outcome, "error", None))
    assert fleet.signals.total("releases_failed", "product") == 1
    assert family.lease_ms is not None


async def test_a_refresh_is_not_collected_while_it_runs(fleet: Fleet) -> None:
    """SWR-7: every task has somebody who holds it and waits for it."""
    origin = Origin(row(42))
    origin.gate.clear()
    refresh = asyncio.create_task(fleet.refresher(origin.load).run(REQUEST))
    await origin.began.wait()
    for _ in range(3):
        gc.collect()
        await CLOCK.sleep(0)
    origin.gate.set()

    assert await refresh == Published(row(42))
    await fleet.assert_nothing_left()
