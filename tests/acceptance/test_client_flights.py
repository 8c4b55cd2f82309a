"""Many callers of one key: how often the origin is asked, and how long anybody waits."""

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tests.clients import CLOCK, CountedOrigin, RequestPath, request_path
from tests.datasets import product
from tests.processes import Children
from tests.servers import ServerProcess
from warmer import NothingToServe, State
from warmer.model.dataset import ColdStart, Dataset
from warmer.model.lease import Lease, new_token
from warmer.model.outcome import Claimed, ReleaseReply
from warmer.store.keyspace import Keyspace
from warmer.store.port import Claim

PATIENT = timedelta(seconds=20)
SHORT = timedelta(milliseconds=80)
SLOW_MS = 400


@pytest.fixture
def origin() -> CountedOrigin:
    return CountedOrigin({"price": 1})


@pytest.fixture
def opened(server: ServerProcess) -> Any:
    """`opened(dataset)`: a process's request path."""
    return partial(request_path, server.url)


@pytest.fixture
async def path(opened: Any) -> AsyncIterator[RequestPath]:
    async with opened(product()) as path:
        yield path


def lease_name(path: RequestPath) -> str:
    return Keyspace().lease(path.key(id=42).text)


async def taken_by_another(path: RequestPath, *, ms: int = 10_000) -> str:
    """A plain client holds the lease: it knows SET NX PX and compare-and-delete."""
    token = "plain-client"  # noqa: S105 - not a password
    assert await path.redis.set(lease_name(path), token, nx=True, px=ms)
    return token


async def claimed_by(path: RequestPath, dataset: Dataset) -> Lease:
    """Another process of ours holds the lease."""
    reply = await path.store.inner.claim(
        Claim(path.key(id=42), new_token(), dataset.lease_ms, guard_ms=dataset.guard_ms)
    )
    assert isinstance(reply, Claimed)
    return reply.lease


async def idle(path: RequestPath) -> None:
    async with asyncio.timeout(10):
        while len(path.client._flights):
            await CLOCK.sleep(0.002)


async def timed(reading: Any) -> tuple[Any, float]:
    """What it gave, value or error, and after how many seconds."""
    began = CLOCK.monotonic()
    outcome = (await asyncio.gather(reading, return_exceptions=True))[0]
    return outcome, CLOCK.monotonic() - began


async def expired(path: RequestPath, origin: CountedOrigin, *, load_ms: int) -> None:
    """An entry past its windows for fresh and stale, whose load took `load_ms`."""
    loading = asyncio.create_task(path.get(id=42, load=origin, deadline=PATIENT))
    origin.hold()
    await origin.asked.wait()
    await CLOCK.sleep(load_ms / 1000)
    origin.open.set()
    await loading
    async with asyncio.timeout(10):
        while (entry := await path.store.inner.read(path.key(id=42))) is None or (
            entry.stale_until > path.store.now_ms()
        ):
            await CLOCK.sleep(0.005)


# --- one load -------------------------------------------------------------------------


async def test_hundreds_of_callers_of_an_expired_key_are_one_load(
    opened: Any, origin: CountedOrigin
) -> None:
    """R-FT-1 R-FLT-1 STAMPEDE-1 R-OBS-2: in one process and in three; everybody is answered."""
    async with (
        opened(product()) as one,
        opened(product()) as two,
        opened(product()) as three,
    ):
        origin.hold()
        callers = [
            asyncio.create_task(path.get(id=42, load=origin, deadline=PATIENT))
            for _ in range(200)
            for path in (one, two, three)
        ]
        await origin.asked.wait()
        await CLOCK.sleep(0.05)
        origin.open.set()
        answers = await asyncio.gather(*callers)

    states = Counter(answer.state for answer in answers)
    assert origin.loads == 1
    assert all(answer.value == {"price": 1} for answer in answers)
    assert states[State.LOADED] == 1
    assert states[State.WAITED] == 599


async def test_four_processes_with_a_hundred_callers_each_are_one_load(
    server: ServerProcess, path: RequestPath, children: Children
) -> None:
    """R-FT-1 R-LSE-5: cold, then expired again, and each time exactly one."""
    readers = [children.python("tests.readers", server.url) for _ in range(4)]
    for reader in readers:
        await reader.line("ready")
    for turn in ("1", "2"):
        await path.redis.delete(path.key(id=42).text)
        await path.redis.publish("go", turn)
        for reader in readers:
            found = await reader.line(rf"turn {turn}: (\d+) values (\d+) errors")
            assert found.groups() == ("100", "0")

        assert await path.redis.get("origin:loads") == turn.encode()


async def test_a_value_published_between_read_and_claim_is_not_loaded_again(
    opened: Any, path: RequestPath, origin: CountedOrigin
) -> None:
    """R-FLT-4: the double check is part of the claim."""
    async with opened(product()) as other:

        async def visit(point: str) -> None:
            if point == "claim:before":
                await other.get(id=42, load=origin)

        path.store.visit = visit
        answer = await path.get(id=42, load=origin)

    assert (answer.state, answer.value) == (State.FRESH, {"price": 1})
    assert origin.loads == 1


async def test_a_hot_stale_key_is_not_claimed_by_every_reader(
    opened: Any, origin: CountedOrigin
) -> None:
    """R-POL-2 R-ADM-4: 500 stale reads while another refreshes cost one claim."""
    dataset = product(fresh_ms=1, stale_ms=60_000)
    async with opened(dataset) as path:
        await path.get(id=42, load=origin)
        await CLOCK.sleep(0.005)
        await taken_by_another(path)
        path.store.calls.clear()
        answers = [await path.get(id=42, load=origin) for _ in range(500)]

    assert {answer.state for answer in answers} == {State.STALE}
    assert path.store.calls["claim"] <= 1 + 2  # one a second, should this take so long
    assert origin.loads == 1


async def test_early_refresh_keeps_a_hot_key_fresh(
    opened: Any, origin: CountedOrigin
) -> None:
    """R-JIT-2: with beta, a reader refreshes before the end; nobody sees it expire."""
    dataset = product(fresh_ms=600, early_refresh_beta=1_000.0)
    async with opened(dataset) as path:
        origin.takes_s = 0.02
        await path.get(id=42, load=origin)
        states = Counter[State]()
        async with asyncio.timeout(10):
            while origin.loads < 4:
                states[(await path.get(id=42, load=origin)).state] += 1
                await CLOCK.sleep(0.005)

    assert set(states) == {State.FRESH}


# --- deadlines and bounds -------------------------------------------------------------


async def test_callers_wait_no_longer_than_they_may_and_the_load_is_kept(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """R-FT-2 R-FLT-2 R-FLT-3: a slow origin; 300 callers are told in time, the next is served."""
    origin.hold()
    outcomes = await asyncio.gather(
        *(timed(path.get(id=42, load=origin, deadline=SHORT)) for _ in range(300))
    )
    origin.open.set()
    await idle(path)
    late = await path.get(id=42, load=origin)

    assert all(isinstance(error, NothingToServe) for error, _ in outcomes)
    assert {error.reason for error, _ in outcomes} == {"deadline"}
    assert max(seconds for _, seconds in outcomes) < SHORT.total_seconds() + 1
    assert (late.state, origin.loads) == (State.FRESH, 1)


async def test_a_slow_origin_is_an_error_to_who_cannot_wait_for_it(
    opened: Any, origin: CountedOrigin
) -> None:
    """R-FT-2 R-POL-3: stale on error where permitted, at the deadline."""
    async with opened(product(fresh_ms=20, stale_ms=0)) as path:
        await expired(path, origin, load_ms=0)
        origin.hold()
        answer, seconds = await timed(path.get(id=42, load=origin, deadline=SHORT))
        origin.open.set()

    assert answer.state is State.STALE_ON_ERROR
    assert 0.05 < seconds < SHORT.total_seconds() + 1


async def test_nobody_waits_for_a_load_that_cannot_be_in_time(
    opened: Any, origin: CountedOrigin
) -> None:
    """R-FLT-2: the last one took 400 ms, the caller has 80: answered at once, loaded behind."""
    async with opened(product(fresh_ms=20, stale_ms=0, error_ms=0)) as path:
        loading = asyncio.create_task(path.get(id=42, load=origin, deadline=PATIENT))
        origin.hold()
        await origin.asked.wait()
        await CLOCK.sleep(SLOW_MS / 1000)
        origin.open.set()
        await loading
        # Nothing keeps an entry past its windows; this caller read it just before.
        entry = await path.store.inner.read(path.key(id=42))
        assert entry is not None
        entry.fresh_until = entry.stale_until = entry.error_until = 0
        path.store.read = _reads(entry)
        origin.hold()
        error, seconds = await timed(path.get(id=42, load=origin, deadline=SHORT))
        await origin.asked.wait()
        origin.open.set()

    assert isinstance(error, NothingToServe)
    assert error.reason == "deadline"
    assert error.retry_in_ms
    assert SLOW_MS / 2 < error.retry_in_ms < SLOW_MS + 1_000
    assert seconds < SHORT.total_seconds() / 2
    assert origin.loads == 2


def _reads(entry: Any) -> Any:
    async def read(_key: Any) -> Any:
        return entry

    return read


async def test_waiters_past_the_bound_are_told_at_once(
    opened: Any, origin: CountedOrigin
) -> None:
    """R-FLT-3: 30 may wait; the 31st does not, and the 30 are served."""
    async with opened(product(max_waiters=30)) as path:
        origin.hold()
        callers = [
            asyncio.create_task(path.get(id=42, load=origin, deadline=PATIENT))
            for _ in range(40)
        ]
        await origin.asked.wait()
        await asyncio.wait(callers, return_when=asyncio.FIRST_EXCEPTION)
        origin.open.set()
        outcomes = await asyncio.gather(*callers, return_exceptions=True)

    refused = [each for each in outcomes if isinstance(each, NothingToServe)]
    assert len(refused) == 10
    assert {error.reason for error in refused} == {"too_many_waiters"}
    assert origin.loads == 1


async def test_callers_that_leave_leave_nothing_behind_but_the_value(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """R-FLT-1 R-LSE-2 SWR-7: all are cancelled; the load ends, the lease with it."""
    origin.hold()
    callers = [asyncio.create_task(path.get(id=42, load=origin)) for _ in range(50)]
    await origin.asked.wait()
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    gc.collect()
    origin.open.set()
    await idle(path)

    assert not await path.redis.exists(lease_name(path))
    assert (await path.get(id=42, load=origin)).state is State.FRESH
    assert origin.loads == 1


async def test_closing_ends_the_load_and_gives_the_lease_back(
    opened: Any, path: RequestPath, origin: CountedOrigin
) -> None:
    """SWR-7 R-LSE-2 R-FT-3: a deploy in the middle of a load delays nobody."""
    async with opened(product()) as closing:
        origin.hold()
        caller = asyncio.create_task(closing.get(id=42, load=origin))
        await origin.asked.wait()
        before = asyncio.all_tasks()
        await closing.client.aclose()
        assert asyncio.all_tasks() < before
        assert not len(closing.client._flights)
    origin.open.set()

    with pytest.raises(NothingToServe):
        await caller
    assert not await path.redis.exists(lease_name(path))
    assert (await path.get(id=42, load=origin)).state is State.LOADED


# --- somebody else has the lease ------------------------------------------------------


async def test_a_waiter_takes_over_when_a_plain_client_gives_its_lease_back(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """R-LSE-1: a client that knows only SET NX PX takes part, and wakes nobody."""
    await taken_by_another(path)
    caller = asyncio.create_task(path.get(id=42, load=origin, deadline=PATIENT))
    await _waits(path)
    await path.redis.delete(lease_name(path))

    assert (await caller).state is State.LOADED


async def test_a_waiter_takes_over_when_the_lease_of_a_dead_owner_ends(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """LEASE-1 R-FT-3: after the lease, not after the deadline."""
    await taken_by_another(path, ms=300)
    answer, seconds = await timed(path.get(id=42, load=origin, deadline=PATIENT))

    assert answer.state is State.LOADED
    assert seconds < 3


async def test_a_waiter_contends_again_when_the_value_it_waited_for_is_gone(
    opened: Any, path: RequestPath, origin: CountedOrigin
) -> None:
    """STAMPEDE-4: published and evicted before it looked; it does not wait on."""
    async with opened(product()) as other:
        others = CountedOrigin("theirs")
        others.hold()
        loading = asyncio.create_task(other.get(id=42, load=others, deadline=PATIENT))
        await others.asked.wait()
        caller = asyncio.create_task(path.get(id=42, load=origin, deadline=PATIENT))
        await _waits(path)

        async def evict(point: str) -> None:
            if point == "publish:after":
                await other.redis.delete(other.key(id=42).text)

        other.store.visit = evict
        others.open.set()
        await loading
        answer, seconds = await timed(caller)

    assert answer.value in ({"price": 1}, "theirs")
    assert seconds < 2


async def test_a_waiter_is_served_what_another_process_loaded(
    opened: Any, path: RequestPath, origin: CountedOrigin
) -> None:
    """R-LSE-5 R-POL-5: woken, not polling: milliseconds after the publish."""
    async with opened(product()) as other:
        origin.hold()
        loading = asyncio.create_task(other.get(id=42, load=origin, deadline=PATIENT))
        await origin.asked.wait()
        waiting = asyncio.create_task(path.get(id=42, load=origin, deadline=PATIENT))
        await _waits(path)
        origin.open.set()
        loaded, waited = await asyncio.gather(loading, waiting)

    assert (loaded.state, waited.state) == (State.LOADED, State.WAITED)
    assert origin.loads == 1


async def _waits(path: RequestPath) -> None:
    """Return when a flight of this process is subscribed to the key's channel."""
    channel = Keyspace().channel(path.key(id=42).text)
    async with asyncio.timeout(10):
        while not (await path.redis.pubsub_numsub(channel))[0][1]:
            await CLOCK.sleep(0.002)


async def test_cold_start_wait_fails_at_the_deadline(
    path: RequestPath, origin: CountedOrigin
) -> None:
    """R-POL-5: wait, then fail, and say for how long the lease is held."""
    await taken_by_another(path)
    error, seconds = await timed(path.get(id=42, load=origin, deadline=SHORT))

    assert isinstance(error, NothingToServe)
    assert error.reason == "deadline"
    assert 0.05 < seconds < SHORT.total_seconds() + 1
    assert origin.loads == 0


async def test_cold_start_empty_answers_at_once_and_builds_nothing(
    opened: Any, origin: CountedOrigin
) -> None:
    """R-POL-5: an empty list for this request, and the value for the next one."""
    dataset = product(cold_start=ColdStart.EMPTY, empty=[])
    async with opened(dataset) as path:
        token = await taken_by_another(path)
        answer, seconds = await timed(path.get(id=42, load=origin, deadline=PATIENT))

        assert (answer.state, answer.value, answer.age_ms) == (State.EMPTY, [], None)
        assert seconds < 1
        assert origin.loads == 0
        assert await path.redis.get(lease_name(path)) == token.encode()
        await path.redis.delete(lease_name(path))
        assert (await path.get(id=42, load=origin)).state is State.LOADED


async def test_cold_start_empty_answers_who_comes_while_this_process_loads(
    opened: Any, origin: CountedOrigin
) -> None:
    """R-POL-5: only the one that loads waits for the load."""
    dataset = product(cold_start=ColdStart.EMPTY, empty=[])
    async with opened(dataset) as path:
        origin.hold()
        loading = asyncio.create_task(path.get(id=42, load=origin, deadline=PATIENT))
        await origin.asked.wait()
        empties = [await path.get(id=42, load=origin) for _ in range(20)]
        origin.open.set()

        assert {answer.state for answer in empties} == {State.EMPTY}
        assert (await loading).state is State.LOADED
        assert origin.loads == 1


async def test_cold_start_load_loads_for_itself_when_waiting_is_too_long(
    opened: Any, origin: CountedOrigin
) -> None:
    """R-POL-5: one load of its own for 50 callers, within the deadline, not published."""
    dataset = product(cold_start=ColdStart.LOAD, load_timeout_ms=500)
    async with opened(dataset) as path:
        await taken_by_another(path)
        deadline = timedelta(milliseconds=1_000)
        outcomes = await asyncio.gather(
            *(timed(path.get(id=42, load=origin, deadline=deadline)) for _ in range(50))
        )

        states = Counter(answer.state for answer, _ in outcomes)
        assert states == {State.LOADED: 1, State.WAITED: 49}
        assert min(seconds for _, seconds in outcomes) > 0.3
        assert origin.loads == 1
        assert not await path.redis.exists(path.key(id=42).text)


async def test_failures_are_the_fleets_and_cool_down_everywhere(
    opened: Any, path: RequestPath, origin: CountedOrigin
) -> None:
    """R-ADM-4 RETRY-5: what one process learned keeps the next from asking the origin."""
    origin.error = ConnectionRefusedError("refused")
    with pytest.raises(NothingToServe) as caught:
        await path.get(id=42, load=origin)
    async with opened(product()) as other:
        with pytest.raises(NothingToServe) as cooling:
            await other.get(id=42, load=origin)

    assert caught.value.reason == "load_failed"
    assert cooling.value.reason == "cooling"
    assert cooling.value.retry_in_ms
    assert cooling.value.retry_in_ms <= (caught.value.retry_in_ms or 0)
    assert origin.loads == 1


async def test_a_lease_may_be_released_from_another_thread(
    server: ServerProcess, path: RequestPath
) -> None:
    """LEASE-5: the token travels with the lease, not with a task or a thread."""
    dataset = product()
    lease = await claimed_by(path, dataset)

    async def release() -> ReleaseReply:
        async with request_path(server.url, dataset) as elsewhere:
            return await elsewhere.store.release(lease)

    reply = await asyncio.to_thread(asyncio.run, release())

    assert reply is ReleaseReply.RELEASED
    assert not await path.redis.exists(lease_name(path))
