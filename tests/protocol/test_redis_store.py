"""What only the adapter to a real server can show: batches, errors, damaged bodies, clocks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace

import pytest
from typing_extensions import override

from tests.protocol.world import (
    KEY,
    SCOPE,
    RedisWorld,
    change,
    claim,
    claimed,
    publication,
    rows,
    version,
)
from tests.servers import ServerProcess, Servers
from warmer.clock import Clock, SystemClock
from warmer.errors import StoreRefused, StoreTimeout, StoreUnavailable
from warmer.model.entry import Content, Flag, encode_value
from warmer.model.key import Key
from warmer.model.outcome import (
    Claimed,
    ClaimReply,
    Fresh,
    Held,
    InvalidateResult,
    PublishReply,
    ReleaseReply,
    RenewReply,
)
from warmer.signals import Counters
from warmer.store.call_lane import BATCH, IN_FLIGHT, CallLane
from warmer.store.connections import Endpoint, connect
from warmer.store.keyspace import Keyspace
from warmer.store.read_lane import ReadLane
from warmer.store.redis_store import STAGE_ABOVE, RedisStore
from warmer.store.script import Command, Reply
from warmer.store.wakeups import Wakeups

LARGE = encode_value(b"x" * (STAGE_ABOVE + 1), compress_above=None)


def key(number: int) -> Key:
    return replace(KEY, text=f"product:v3:{number}", parts=(("id", str(number)),))


@contextlib.asynccontextmanager
async def store_on(
    server: ServerProcess,
    *,
    timeout_ms: int = 5_000,
    url: str | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[RedisStore]:
    """A store as a process has it, by the server's own clock."""
    clock = clock or SystemClock()
    redis = connect(Endpoint(url=url or server.url, timeout_ms=timeout_ms))
    lane = ReadLane(redis, timeout_ms=timeout_ms)
    wakeups = Wakeups(redis, clock=clock)
    store = RedisStore(
        redis,
        keyspace=Keyspace(),
        lane=lane,
        wakeups=wakeups,
        clock=clock,
        signals=Counters(),
        timeout_ms=timeout_ms,
    )
    try:
        yield store
    finally:
        await store.aclose()
        await wakeups.aclose()
        await lane.aclose()
        await redis.aclose()


# --- batches --------------------------------------------------------------------------


async def loop_turn() -> None:
    turned = asyncio.Event()
    asyncio.get_running_loop().call_soon(turned.set)
    await turned.wait()


class WatchedLane:
    """Counts exchanges, and how many of them are under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.exchanges = self.at_once = self._under_way = 0
        exchange = CallLane._exchange_on_primary

        async def counted(lane: CallLane, commands: list[Command]) -> list[Reply]:
            assert len(commands) <= BATCH + 1
            self.exchanges += 1
            self._under_way += 1
            self.at_once = max(self.at_once, self._under_way)
            try:
                return await exchange(lane, commands)
            finally:
                self._under_way -= 1

        monkeypatch.setattr(CallLane, "_exchange_on_primary", counted)


def claims(
    store: RedisStore, count: int
) -> list[Coroutine[object, object, ClaimReply]]:
    return [store.claim(claim(f"t{at}", key=key(at))) for at in range(count)]


async def test_calls_that_meet_leave_in_one_pipeline(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-CARD-3: 40 claims in one loop turn are three exchanges, not 40."""
    async with store_on(server) as store:
        await store.start()
        watched = WatchedLane(monkeypatch)

        replies = await asyncio.gather(*claims(store, 40))

    assert all(isinstance(reply, Claimed) for reply in replies)
    assert watched.exchanges == 3


async def test_few_pipelines_are_under_way_however_many_calls_wait(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RPOOL-6: the connections of a process are bounded, and the calls take turns."""
    async with store_on(server) as store:
        watched = WatchedLane(monkeypatch)

        replies = await asyncio.gather(*claims(store, 500))

    assert all(isinstance(reply, Claimed) for reply in replies)
    assert watched.at_once == IN_FLIGHT


async def test_a_call_too_many_is_refused_at_once(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RPOOL-6: what waits is bounded too."""
    monkeypatch.setattr("warmer.store.call_lane.MAX_WAITING", 5)
    async with store_on(server) as store:
        replies = await asyncio.gather(*claims(store, 7), return_exceptions=True)

    refused = [reply for reply in replies if isinstance(reply, StoreUnavailable)]
    assert len(refused) == 2
    assert "store_lane_full" in str(refused[0])


async def test_replies_reach_their_own_callers_whoever_goes_away(
    server: ServerProcess,
) -> None:
    """R-FLT-1, RPOOL-1: every third of 300 callers is cancelled, at any moment."""
    async with store_on(server) as store:
        tasks = []
        for number in range(300):
            asked = store.claim(claim(f"token-{number}", key=key(number)))
            tasks.append(asyncio.ensure_future(asked))
            if number % 7 == 0:
                await loop_turn()
            if number % 3 == 0:
                tasks[number // 2].cancel()
        replies = await asyncio.gather(*tasks, return_exceptions=True)

    gone = [reply for reply in replies if isinstance(reply, asyncio.CancelledError)]
    assert 0 < len(gone) < 150
    for number, reply in enumerate(replies):
        if isinstance(reply, asyncio.CancelledError):
            continue
        assert isinstance(reply, Claimed)
        assert reply.lease.token == f"token-{number}"
        assert reply.lease.key == f"product:v3:{number}"


async def test_a_publish_whose_caller_goes_away_is_still_carried_out(
    redis_world: RedisWorld,
) -> None:
    """R-LSE-2: it was sent, so it ends the lease as well."""
    store = redis_world.store
    lease = await claimed(redis_world)
    publishing = asyncio.ensure_future(store.publish(lease, publication()))
    await loop_turn()
    await loop_turn()
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)

    reply = await store.publish(lease, publication())

    assert reply is PublishReply.ALREADY
    assert (await redis_world.kept()).lease is None


async def test_a_server_that_hangs_is_given_up_within_the_timeout(
    start_server: Servers,
) -> None:
    """R-FLT-2: and works again as soon as it goes on."""
    server = start_server("valkey9")
    async with store_on(server, timeout_ms=200) as store:
        await store.claim(claim())
        server.pause()
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        replies = await asyncio.gather(
            *(
                store.claim(claim(f"t{number}", key=key(number)))
                for number in range(99)
            ),
            store.read(KEY),
            return_exceptions=True,
        )
        waited = loop.time() - asked_at
        server.resume()

        assert {type(reply) for reply in replies} == {StoreTimeout}
        assert waited < 2
        # A token of its own: what timed out may have been carried out.
        assert isinstance(await store.claim(claim("after", key=key(500))), Claimed)


async def test_a_server_that_is_gone_is_reported_and_found_again(
    start_server: Servers,
) -> None:
    """R-FT-3, RPOOL-4: no process needs a restart, and no connection stays taken."""
    server = start_server("redis7")
    async with store_on(server, timeout_ms=300) as store:
        await store.claim(claim())
        await asyncio.to_thread(server.kill)
        for asked in (store.claim(claim()), store.read(KEY)):
            with pytest.raises(StoreUnavailable):
                await asked
        await asyncio.to_thread(server.start)

        assert isinstance(await store.claim(claim()), Claimed)


async def test_a_call_that_meets_a_restart_succeeds_in_its_second_attempt(
    server: ServerProcess,
) -> None:
    """SCRIPT-1: connections broken, scripts gone."""
    async with store_on(server) as store:
        await store.claim(claim("before"))
        await asyncio.to_thread(server.restart)

        assert isinstance(await store.claim(claim("after")), Claimed)


async def test_a_closed_store_refuses_and_lets_what_was_sent_end(
    server: ServerProcess,
) -> None:
    """R-LSE-2."""
    async with store_on(server) as store:
        lease = await store.claim(claim())
        assert isinstance(lease, Claimed)
        releasing = asyncio.ensure_future(store.release(lease.lease))
        await loop_turn()
        await loop_turn()
        await store.aclose()

        assert await releasing is ReleaseReply.RELEASED
        with pytest.raises(StoreUnavailable):
            await store.claim(claim())


# --- large bodies ---------------------------------------------------------------------


async def test_a_large_body_leaves_nothing_beside_its_entry(
    redis_world: RedisWorld,
) -> None:
    """R-REC-1: stored, refused, or repeated."""
    store = redis_world.store
    lease = await claimed(redis_world)
    first = await store.publish(lease, publication(rows(2), content=LARGE))
    again = await store.publish(lease, publication(rows(2), content=LARGE))
    late = await store.publish(
        replace(lease, token="late"),  # noqa: S106
        publication(rows(2), content=LARGE),
    )
    await store.invalidate(change(3))
    next_lease = await claimed(redis_world, "next")
    lagging = await store.publish(next_lease, publication(rows(1), content=LARGE))

    assert (first, again) == (PublishReply.PUBLISHED, PublishReply.ALREADY)
    assert (late, lagging) == (PublishReply.FENCED, PublishReply.OUTDATED)
    assert await redis_world.redis.keys("stage:*") == []


async def test_a_staged_body_that_was_evicted_is_sent_once_more(
    redis_world: RedisWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-REC-1: between the two commands of one publish."""
    store = redis_world.store
    lease = await claimed(redis_world)
    # A body that is not staged is one that was evicted before the script ran.
    monkeypatch.setattr(RedisStore, "_stage", lambda *_: ("PING",))

    reply = await store.publish(lease, publication(rows(1), content=LARGE))

    assert reply is PublishReply.PUBLISHED
    entry = await store.read(KEY)
    assert entry is not None
    assert entry.content() == LARGE
    assert redis_world.signals.total("bodies_unstaged") == 1


# --- bodies that cannot be trusted ----------------------------------------------------


@pytest.mark.parametrize("fresh_ms", [60_000, 0], ids=["fresh", "stale"])
async def test_a_damaged_body_is_a_miss_that_is_loaded_again(
    redis_world: RedisWorld, fresh_ms: int
) -> None:
    """SERIAL-3: to the scripts it is an entry, and no claim turns in circles."""
    broken = Content(int(Flag.ZSTD), b"not a frame")
    lease = await claimed(redis_world)
    await redis_world.store.publish(
        lease, publication(rows(1), content=broken, fresh_ms=fresh_ms)
    )
    assert await redis_world.store.read(KEY) is None

    reply = await redis_world.store.claim(claim("next"))

    assert isinstance(reply, Claimed)
    assert reply.entry is None
    assert redis_world.signals.total("entries_refused", "inflated") >= 2
    await redis_world.store.publish(reply.lease, publication(rows(1)))
    assert isinstance(await redis_world.store.claim(claim("last")), Fresh)


async def test_an_entry_of_another_type_is_a_miss_and_is_replaced(
    redis_world: RedisWorld,
) -> None:
    """SERIAL-3: an older cache kept one hash of all locales under this name."""
    await redis_world.redis.hset(KEY.text, "en", "old")  # type: ignore[misc]
    assert await redis_world.store.read(KEY) is None
    lease = await claimed(redis_world)

    assert (
        await redis_world.store.publish(lease, publication()) is PublishReply.PUBLISHED
    )


async def test_an_entry_of_another_type_is_removed_by_an_event(
    redis_world: RedisWorld,
) -> None:
    """SERIAL-3."""
    await redis_world.redis.hset(KEY.text, "en", "old")  # type: ignore[misc]

    reply = await redis_world.store.invalidate(change(1))

    assert reply.result is InvalidateResult.PURGED


async def run_command(world: RedisWorld, *words: str | bytes) -> None:
    await world.redis.execute_command(*words)  # type: ignore[no-untyped-call]


BROKEN_GUARDS = {
    "another type": ("SET", "theirs"),
    **{
        f"{field} is {value!r}": ("HSET", field, value)
        for value in ("", "abc", "-1", "1e400", b"\xff", "9" * 17)
        for field in ("fence", "generation", "failures", "retry_at", "purged_at")
    },
    "blind": ("HSET", "blind", "1e400"),
    "raised": ("HSET", f"floor.{SCOPE}", version(1).encode(), f"raised.{SCOPE}", "x"),
    "no version": ("HSET", f"floor.{SCOPE}", "abc"),
    "half a version": ("HSET", f"floor.{SCOPE}", "00000000=12345"),
    "not a scope": ("HSET", b"floor.\xff", version(1).encode()),
}


@pytest.mark.parametrize("broken", BROKEN_GUARDS)
async def test_a_guard_that_nobody_can_read_fails_no_load(
    redis_world: RedisWorld, broken: str
) -> None:
    """SERIAL-3 R-FLT-1: it is as if it was lost; otherwise every load of the key failed."""
    command, *fields = BROKEN_GUARDS[broken]
    guard = Keyspace().guard(KEY.text)
    await run_command(redis_world, command, guard, *fields)

    lease = await claimed(redis_world)
    published = await redis_world.store.publish(lease, publication(rows(1)))

    assert published is PublishReply.PUBLISHED
    purged = await redis_world.store.invalidate(change(2))
    assert purged.result is InvalidateResult.PURGED


@pytest.mark.parametrize("broken", BROKEN_GUARDS)
async def test_a_guard_broken_during_a_load_ends_that_load_only(
    redis_world: RedisWorld, broken: str
) -> None:
    """SERIAL-3: nothing proves that no change came meanwhile, so it is not stored."""
    command, *fields = BROKEN_GUARDS[broken]
    guard = Keyspace().guard(KEY.text)
    lease = await claimed(redis_world)
    if command == "SET":
        await redis_world.redis.delete(guard)
    await run_command(redis_world, command, guard, *fields)

    published = await redis_world.store.publish(lease, publication(rows(1)))
    await redis_world.store.release(lease)

    assert published is PublishReply.FENCED
    assert isinstance(await redis_world.store.claim(claim("next")), Claimed)


async def test_a_guard_field_of_a_later_release_is_left_alone(
    redis_world: RedisWorld,
) -> None:
    """R-REC-4: two releases run side by side."""
    guard = Keyspace().guard(KEY.text)
    await redis_world.redis.hset(guard, "colour", "blue")  # type: ignore[misc]

    await claimed(redis_world)

    assert await redis_world.redis.hget(guard, "colour") == b"blue"  # type: ignore[misc]


async def test_a_lease_of_another_type_is_respected_and_ends(
    redis_world: RedisWorld,
) -> None:
    """R-LSE-1 LEASE-1: a client that keeps its locks as hashes, without an expiry."""
    store, redis = redis_world.store, redis_world.redis
    name = Keyspace().lease(KEY.text)
    mine = await claimed(redis_world)
    await redis.delete(name)
    await redis.hset(name, "theirs", "1")  # type: ignore[misc]

    assert await store.renew(mine, 1_000) is RenewReply.LOST
    assert await store.publish(mine, publication()) is PublishReply.FENCED
    assert await store.release(mine) is ReleaseReply.FOREIGN
    held = await store.claim(claim("next"))
    assert isinstance(held, Held)
    assert 0 < held.remaining_ms <= claim("next").lease_ms


async def test_a_refusal_is_counted_by_its_reason(redis_world: RedisWorld) -> None:
    """SERIAL-3."""
    await redis_world.put_entry(b"WE\x02" + bytes(80))
    await redis_world.store.read(KEY)
    await redis_world.put_entry(b"an older cache's")
    await redis_world.store.read(KEY)

    assert redis_world.signals.counts == {
        ("entries_refused", "format"): 1,
        ("entries_refused", "not_an_entry"): 1,
    }


async def test_people_see_why_a_stored_string_is_not_taken(
    redis_world: RedisWorld,
) -> None:
    """SERIAL-3."""
    await redis_world.put_entry(b"WE\x02" + bytes(80))

    family = await redis_world.store.inspect(KEY)

    assert (family.entry, family.entry_refused) == (None, "format")


# --- the server says no ---------------------------------------------------------------


def fill(server: ServerProcess) -> None:
    """Use all the memory there is."""
    server.command("CONFIG SET", "maxmemory", 1)


@pytest.mark.parametrize("kind", ["valkey9", "redis7"])
async def test_full_memory_refuses_a_publish_and_lets_the_lease_go(
    kind: str, start_server: Servers
) -> None:
    """MEMORY-1: retryable, the stale entry stays, the lease is freed, the fleet backs off."""
    server = start_server(kind)
    async with store_on(server) as store:
        first = await store.claim(claim("first"))
        assert isinstance(first, Claimed)
        await store.publish(first.lease, publication(rows(1), fresh_ms=0))
        for content in (encode_value("small", compress_above=None), LARGE):
            reply = await store.claim(claim(f"next-{len(content.body)}"))
            assert isinstance(reply, Claimed)
            fill(server)
            with pytest.raises(StoreRefused) as refused:
                await store.publish(reply.lease, publication(rows(2), content=content))

            assert refused.value.code == "OOM"
            assert await store.renew(reply.lease, 5_000) is RenewReply.RENEWED
            released = await store.release(reply.lease, retry_ms=1)
            assert released is ReleaseReply.RELEASED
            family = await store.inspect(KEY)
            assert family.lease_token is None
            assert "retry_at" in family.guard
            assert family.entry is not None
            assert family.entry.versions() == rows(1)
            server.command("CONFIG SET", "maxmemory", 0)
            server.command("HDEL", Keyspace().guard(KEY.text), "retry_at")


@pytest.mark.parametrize("kind", ["valkey9", "redis7"])
async def test_full_memory_does_not_keep_an_event_from_its_entry(
    kind: str, start_server: Servers
) -> None:
    """MEMORY-1, R-INV-3: what is stored goes stale; what is not cannot be noted."""
    server = start_server(kind)
    async with store_on(server) as store:
        first = await store.claim(claim("first"))
        assert isinstance(first, Claimed)
        await store.publish(first.lease, publication(rows(1)))
        fill(server)

        reply = await store.invalidate(change(2))

        assert reply.result is InvalidateResult.PURGED
        entry = await store.read(KEY)
        assert entry is not None
        assert entry.fresh_until < entry.created_at + 60_000
        with pytest.raises(StoreRefused, match="OOM"):
            await store.invalidate(change(2, key=key(1)))
        with pytest.raises(StoreRefused, match="OOM"):
            await store.claim(claim("next", key=key(1)))


@pytest.mark.parametrize("kind", ["valkey9", "redis7"])
async def test_a_server_that_evicts_takes_publishes_when_it_is_full(
    kind: str, start_server: Servers
) -> None:
    """MEMORY-1: where a plain SET succeeds, so does a script."""
    server = start_server(kind, maxmemory="6mb", maxmemory_policy="allkeys-lru")
    async with store_on(server) as store:
        for number in range(200):
            reply = await store.claim(claim(f"t{number}", key=key(number)))
            assert isinstance(reply, Claimed)
            content = encode_value(
                b"x" * (60_000 if number % 2 else 9_000), compress_above=None
            )
            published = await store.publish(
                replace(reply.lease),
                publication(key=key(number), content=content),
            )
            assert published in (PublishReply.PUBLISHED, PublishReply.FENCED)

    stats = server.command("INFO", "stats")
    assert stats["evicted_keys"] > 0


async def test_a_user_without_a_permission_is_told_which(
    start_server: Servers,
) -> None:
    """R-CARD-4: at start, and not first in a request."""
    server = start_server("redis7")
    server.command(
        *("ACL SETUSER", "app", "on", ">p@ss:w/rd", "~*", "&*"),
        *("+@all", "-script|load"),
    )
    url = server.url.replace("redis://", "redis://app:p%40ss%3Aw%2Frd@")
    async with store_on(server, url=url) as store:
        with pytest.raises(StoreRefused, match="script") as refused:
            await store.start()

    assert refused.value.code == "NOPERM"


@pytest.mark.parametrize("kind", ["valkey9", "redis7"])
async def test_a_permission_that_a_script_lacks_is_not_taken_for_a_miss(
    kind: str, start_server: Servers
) -> None:
    """R-FT-1: every caller would load."""
    server = start_server(kind)
    server.command("ACL SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-getrange")
    url = server.url.replace("redis://", "redis://app:pw@")
    async with store_on(server, url=url) as store:
        with pytest.raises(
            StoreRefused, match=r"getrange|can't run this command"
        ) as refused:
            await store.claim(claim())

    assert refused.value.code == "NOPERM"


@pytest.mark.parametrize("kind", ["valkey9", "redis7"])
async def test_a_user_without_rights_to_channels_stores_all_the_same(
    kind: str, start_server: Servers
) -> None:
    """ACL-1: Redis gives a new user none; every load was degraded, every refresh unstored."""
    server = start_server(kind)
    server.command("ACL SETUSER", "app", "on", ">pw", "resetchannels", "~*", "+@all")
    url = server.url.replace("redis://", "redis://app:pw@")
    async with store_on(server, url=url) as store:
        first = await store.claim(claim("first"))
        assert isinstance(first, Claimed)
        assert await store.release(first.lease) is ReleaseReply.RELEASED
        second = await store.claim(claim("second"))
        assert isinstance(second, Claimed)
        published = await store.publish(second.lease, publication())

    assert published is PublishReply.PUBLISHED


async def test_a_wrong_password_is_a_refusal_that_names_no_password(
    start_server: Servers,
) -> None:
    """RPOOL-12: not an outage, and no secret in a log."""
    server = start_server("redis7")
    url = server.url.replace("redis://", "redis://app:s3cret@")
    async with store_on(server, url=url) as store:
        with pytest.raises(StoreRefused) as refused:
            await store.claim(claim())

    assert refused.value.code == "NOAUTH"
    assert "s3cret" not in repr(refused.value)


# --- the clock ------------------------------------------------------------------------


class LateClock(SystemClock):
    """A host whose clock is an hour behind."""

    @override
    def now_ms(self) -> int:
        return super().now_ms() - 3_600_000


async def test_a_host_with_a_wrong_clock_judges_by_the_servers(
    server: ServerProcess,
) -> None:
    """CLOCK-1: an hour off, and the entry is fresh for exactly as long as for others."""
    redis = connect(Endpoint(url=server.url))
    lane = CallLane(redis, clock=LateClock(), timeout_ms=5_000)

    await lane.measure()

    seconds, microseconds = await redis.time()
    server_ms = seconds * 1000 + microseconds // 1000
    assert abs(lane.server_now_ms() - server_ms) < 1_000
    await lane.aclose()
    await redis.aclose()


async def test_the_first_read_of_a_process_is_judged_by_the_servers_clock(
    server: ServerProcess,
) -> None:
    """CLOCK-1: not an hour's worth of stale data until somebody measures."""
    async with store_on(server, clock=LateClock()) as store:
        await asyncio.gather(store.read(KEY), store.read(KEY))

        assert abs(store.now_ms() - SystemClock().now_ms()) < 1_000


async def test_a_process_that_only_reads_measures_again(server: ServerProcess) -> None:
    """CLOCK-1: clocks drift, and a failover brings another one."""
    async with store_on(server) as store:
        await store.read(KEY)
        store._calls._measure_at = 0
        await store.read(KEY)
        measuring = store._calls._measuring
        assert measuring is not None
        await measuring

        assert store._calls._measure_at > SystemClock().monotonic()
