"""The lease of a key: one owner, for a bounded time, whoever the others are."""

import asyncio

from tests.protocol.world import (
    KEY,
    SCOPE,
    World,
    change,
    claim,
    claimed,
    publication,
    rows,
    version,
)
from warmer.model.outcome import (
    Claimed,
    Cooling,
    Fresh,
    Held,
    PublishReply,
    ReleaseReply,
    RenewReply,
)


async def test_of_many_claims_at_once_one_gets_the_lease(world: World) -> None:
    """R-LSE-1, R-LSE-5."""
    replies = await asyncio.gather(
        *(world.store.claim(claim(f"token-{number}")) for number in range(12))
    )

    assert sum(isinstance(reply, Claimed) for reply in replies) == 1
    assert sum(isinstance(reply, Held) for reply in replies) == 11


async def test_a_claim_says_how_long_the_lease_is_held(world: World) -> None:
    """R-LSE-1."""
    await claimed(world, "theirs", lease_ms=5_000)
    await world.advance(1_200)

    assert await world.store.claim(claim()) == Held(3_800, None)


async def test_a_lease_has_an_expiry_from_its_first_moment(world: World) -> None:
    """R-LSE-3, LEASE-1: nothing comes between the lease and its expiry."""
    await claimed(world, lease_ms=5_000)

    assert (await world.kept()).lease_until == world.now() + 5_000


async def test_the_next_holder_gets_in_when_the_lease_of_a_dead_one_ends(
    world: World,
) -> None:
    """R-LSE-1, LEASE-1."""
    await claimed(world, "dead", lease_ms=5_000)
    await world.advance(5_000)

    assert isinstance(await world.store.claim(claim()), Claimed)


async def test_a_holder_prolongs_its_lease_while_it_loads(world: World) -> None:
    """R-LSE-3."""
    lease = await claimed(world, lease_ms=5_000)
    await world.advance(4_000)

    assert await world.store.renew(lease, 5_000) is RenewReply.RENEWED
    await world.advance(4_000)
    assert await world.store.claim(claim("other")) == Held(1_000, None)


async def test_a_lost_lease_is_not_prolonged_and_its_work_is_refused(
    world: World,
) -> None:
    """R-LSE-4, LEASE-LOST-1: deleted under its owner, taken by another."""
    first = await claimed(world, "first")
    await world.lose_lease()
    second = await claimed(world, "second")

    assert await world.store.renew(first, 5_000) is RenewReply.LOST
    assert await world.store.publish(first, publication()) is PublishReply.FENCED
    assert await world.store.publish(second, publication()) is PublishReply.PUBLISHED


async def test_a_late_publish_is_refused_and_a_late_release_harms_nobody(
    world: World,
) -> None:
    """R-LSE-4, R-FT-5, LEASE-3: the load took longer than the lease, another owner came."""
    late = await claimed(world, "late", lease_ms=1_000)
    await world.advance(1_001)
    await claimed(world, "next")

    assert await world.store.publish(late, publication()) is PublishReply.FENCED
    assert await world.store.release(late) is ReleaseReply.FOREIGN
    assert (await world.kept()).lease == "next"


async def test_work_that_outlived_its_lease_is_kept_while_nobody_else_claimed(
    world: World,
) -> None:
    """R-LSE-4: a slow origin cannot livelock."""
    slow = await claimed(world, lease_ms=1_000)
    await world.advance(3_000)

    assert await world.store.publish(slow, publication()) is PublishReply.PUBLISHED


async def test_lost_never_held_and_released_twice_are_told_apart(world: World) -> None:
    """R-LSE-2, LEASE-8: three results, and the foreign lease is untouched."""
    first = await claimed(world, "first", lease_ms=1_000)
    await world.advance(1_000)
    assert await world.store.release(first) is ReleaseReply.EXPIRED

    second = await claimed(world, "second")
    assert await world.store.release(first) is ReleaseReply.FOREIGN
    assert (await world.kept()).lease == "second"

    assert await world.store.release(second) is ReleaseReply.RELEASED
    assert await world.store.release(second) is ReleaseReply.EXPIRED


async def test_a_lease_travels_to_another_task_and_is_released_there(
    world: World,
) -> None:
    """R-LSE-2, LEASE-5: the token is in the handle."""
    lease = await asyncio.create_task(claimed(world))

    reply = await asyncio.create_task(world.store.release(lease))

    assert reply is ReleaseReply.RELEASED
    assert (await world.kept()).lease is None


async def test_the_fence_grows_though_everything_was_lost(world: World) -> None:
    """R-LSE-4: an eviction or a flush issues no fence twice."""
    first = await claimed(world, "first")
    await world.lose_lease()
    await world.lose_guard()
    await world.advance(1)

    second = await claimed(world, "second")

    assert second.fence > first.fence


async def test_the_fence_grows_though_the_clock_went_back(world: World) -> None:
    """R-LSE-4, CLOCK-1."""
    first = await claimed(world, "first")
    await world.store.release(first)
    world.now.ms -= 3_600_000

    second = await claimed(world, "second")

    assert second.fence > first.fence


async def test_the_same_token_asking_again_gets_its_own_claim_back(
    world: World,
) -> None:
    """R-LSE-1: the reply of the first attempt was lost."""
    first = await world.store.claim(claim())

    assert await world.store.claim(claim()) == first


async def test_a_fresh_entry_is_given_instead_of_the_lease(world: World) -> None:
    """R-FLT-4: somebody published between the read and the claim."""
    lease = await claimed(world, "first")
    await world.store.publish(lease, publication(rows(1)))

    reply = await world.store.claim(claim("second"))

    assert isinstance(reply, Fresh)
    assert reply.entry.versions() == rows(1)
    assert (await world.kept()).lease is None


async def test_who_has_seen_the_fresh_entry_may_refresh_it_early(world: World) -> None:
    """R-JIT-2."""
    lease = await claimed(world)
    await world.store.publish(lease, publication())

    reply = await world.store.claim(claim("early", seen_fence=lease.fence))

    assert isinstance(reply, Claimed)
    assert reply.entry is None


async def test_a_refresh_that_was_asked_for_is_not_satisfied_by_an_older_row(
    world: World,
) -> None:
    """R-INV-3: fresh, and below the version that the refresh must reach."""
    lease = await claimed(world)
    await world.store.publish(lease, publication(rows(1)))

    reply = await world.store.claim(claim("worker", wanted=rows(2)))

    assert isinstance(reply, Claimed)
    assert reply.lease.floors == rows(2)


async def test_a_refresh_without_a_version_wants_a_load_that_began_later(
    world: World,
) -> None:
    """R-INV-3."""
    lease = await claimed(world)
    await world.store.publish(lease, publication())

    asked = claim("worker", wanted_fence=lease.fence)

    assert isinstance(await world.store.claim(asked), Claimed)


async def test_what_a_refresh_must_reach_survives_a_lost_guard(world: World) -> None:
    """STALE-SET-1: the floor was evicted with the guard; the claim brings it back."""
    await world.store.invalidate(change(2))
    await world.lose_guard()
    lease = await claimed(world, wanted=rows(2))

    reply = await world.store.publish(lease, publication(rows(1)))

    assert reply is PublishReply.OUTDATED


async def test_a_failed_load_makes_the_fleet_back_off(world: World) -> None:
    """R-ADM-4, R-FT-3: nobody else tries at once, and later somebody may."""
    lease = await claimed(world)
    await world.store.release(lease, retry_ms=400)

    assert await world.store.claim(claim("other")) == Cooling(400, None)
    await world.advance(400)
    reply = await world.store.claim(claim("other"))
    assert isinstance(reply, Claimed)
    assert reply.lease.failures == 1


async def test_a_failure_reported_twice_counts_once(world: World) -> None:
    """R-ADM-4: the reply of the first release was lost."""
    lease = await claimed(world)
    await world.store.release(lease, retry_ms=400)
    await world.store.release(lease, retry_ms=400)

    assert (await world.kept()).guard["failures"] == "1"


async def test_a_success_ends_the_back_off(world: World) -> None:
    """R-ADM-4."""
    failed = await claimed(world, "failed")
    await world.store.release(failed, retry_ms=400)
    await world.advance(400)
    lease = await claimed(world)

    await world.store.publish(lease, publication())

    guard = (await world.kept()).guard
    assert "failures" not in guard
    assert "retry_at" not in guard


async def test_an_invalidation_does_not_end_the_back_off(world: World) -> None:
    """R-ADM-4: a storm of events must not become a storm of loads."""
    lease = await claimed(world)
    await world.store.release(lease, retry_ms=400)

    await world.store.invalidate(change(1))

    assert isinstance(await world.store.claim(claim("other")), Cooling)


async def test_whoever_may_not_load_is_given_the_stale_entry(world: World) -> None:
    """R-POL-2: one round trip answers both questions."""
    lease = await claimed(world)
    await world.store.publish(lease, publication(rows(1), fresh_ms=1_000))
    await world.advance(1_500)
    await claimed(world, "owner")

    reply = await world.store.claim(claim("other"))

    assert isinstance(reply, Held)
    assert reply.entry is not None
    assert reply.entry.versions() == rows(1)


async def test_the_guard_outlives_lease_and_claim(world: World) -> None:
    """R-LSE-4: what refuses a late publish must be there when it comes."""
    await claimed(world, lease_ms=5_000, guard_ms=600_000)

    assert (await world.kept()).guard_until == world.now() + 600_000


async def test_a_short_claim_does_not_shorten_the_guard(world: World) -> None:
    """R-INV-3: floors are kept for the longest time anyone asked for."""
    await world.store.invalidate(change(2, guard_ms=600_000))

    await claimed(world, guard_ms=1_000)

    kept = await world.kept()
    assert kept.guard_until == world.now() + 600_000
    assert kept.guard[f"floor.{SCOPE}"] == version(2).encode()


async def test_keys_do_not_share_a_lease(world: World) -> None:
    """R-LSE-1: one per key, never a global one."""
    other = KEY.__class__("product:v3:43", "product", 3, (("id", "43"),))
    await claimed(world)

    assert isinstance(await world.store.claim(claim("other", key=other)), Claimed)
