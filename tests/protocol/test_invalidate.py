"""An event makes stale what depends on it, unless it is provably older; and is not lost."""

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
from warmer.model.event import PurgeMode
from warmer.model.lease import Lease
from warmer.model.outcome import Claimed, InvalidateReply, InvalidateResult
from warmer.model.outcome import PublishReply as Published
from warmer.model.version import Versions


async def stored(world: World, versions: Versions | None = None) -> Lease:
    """A fresh entry."""
    lease = await claimed(world)
    reply = await world.store.publish(lease, publication(versions))
    assert reply is Published.PUBLISHED
    return lease


async def fence_of(world: World) -> int:
    entry = await world.store.read(KEY)
    assert entry is not None
    return entry.fence


async def test_a_soft_purge_makes_stale_and_keeps_the_body(world: World) -> None:
    """R-INV-1, R-POL-2."""
    lease = await stored(world, rows(1))
    await world.advance(10)

    reply = await world.store.invalidate(change(2, stale_ms=5_000, error_ms=70_000))

    assert reply.result is InvalidateResult.PURGED
    assert reply.fence >= lease.fence
    entry = await world.store.read(KEY)
    assert entry is not None
    assert entry.content().value() == {"name": "tea"}
    assert entry.fresh_until == world.now()
    assert entry.stale_until == world.now() + 5_000
    assert entry.error_until == world.now() + 70_000
    assert (await world.kept()).entry_until == entry.error_until


async def test_a_soft_purge_never_lengthens_a_window(world: World) -> None:
    """R-POL-2, R-FT-8."""
    await stored(world, rows(1))
    before = await world.store.read(KEY)
    assert before is not None
    await world.advance(80_000)

    await world.store.invalidate(change(2, stale_ms=900_000, error_ms=900_000))

    entry = await world.store.read(KEY)
    assert entry is not None
    assert entry.fresh_until == before.fresh_until
    assert entry.stale_until == before.stale_until
    assert entry.error_until == before.error_until


async def test_a_hard_purge_removes(world: World) -> None:
    """R-POL-4."""
    await stored(world, rows(1))

    reply = await world.store.invalidate(change(2, mode=PurgeMode.HARD))

    assert reply.result is InvalidateResult.PURGED
    assert (await world.kept()).entry is None


async def test_a_soft_purge_without_windows_removes(world: World) -> None:
    """R-POL-4: nothing may be served any more."""
    await stored(world, rows(1))

    await world.store.invalidate(change(2, stale_ms=0, error_ms=0))

    assert (await world.kept()).entry is None


async def test_a_late_event_removes_nothing_from_a_newer_value(world: World) -> None:
    """R-INV-2, R-FT-7, R-CARD-2: event 41 against a value built from 42."""
    await stored(world, rows(42))
    before = (await world.kept()).entry

    reply = await world.store.invalidate(change(41))

    assert reply.result is InvalidateResult.OLDER
    assert (await world.kept()).entry == before


async def test_events_out_of_order_leave_the_highest_floor(world: World) -> None:
    """R-FT-7, R-INV-2."""
    for number in (3, 1, 2):
        await world.store.invalidate(change(number))

    assert (await world.kept()).guard[f"floor.{SCOPE}"] == version(3).encode()


async def test_the_same_event_twice_is_applied_twice_and_harms_nothing(
    world: World,
) -> None:
    """R-FT-7: a tie is not provably older."""
    await stored(world, rows(1))
    first = await world.store.invalidate(change(2))
    second = await world.store.invalidate(change(2))

    assert first == second
    lease = await claimed(world, "next")
    assert await world.store.publish(lease, publication(rows(2))) is Published.PUBLISHED


async def test_the_event_of_the_value_itself_is_applied(world: World) -> None:
    """R-INV-2: equal is not older; a wrong apply costs one load, a wrong reject more."""
    await stored(world, rows(42))

    reply = await world.store.invalidate(change(42))

    assert reply.result is InvalidateResult.PURGED


async def test_an_event_without_an_entry_is_noted_for_the_load_that_runs(
    world: World,
) -> None:
    """R-INV-3, STALE-SET-1."""
    lease = await claimed(world)

    reply = await world.store.invalidate(change(2))

    assert reply == InvalidateReply(InvalidateResult.NOTED, lease.fence)
    assert (
        await world.store.publish(lease, publication(rows(1)))
        is not Published.PUBLISHED
    )


async def test_a_load_that_must_see_the_change_has_a_higher_fence_than_the_reply(
    world: World,
) -> None:
    """R-INV-3: the worker asks for a refresh above this fence."""
    before = await stored(world)
    reply = await world.store.invalidate(change())

    after = await claimed(world, "refresh")

    assert before.fence <= reply.fence < after.fence


async def test_a_lost_guard_does_not_lower_the_fence_of_the_reply(world: World) -> None:
    """R-INV-3: or a refresh would take what was stored before the event for enough."""
    before = await stored(world)
    await world.lose_guard()
    await world.advance(1)

    reply = await world.store.invalidate(change())

    assert reply.fence >= before.fence


async def test_an_incomparable_version_is_applied(world: World) -> None:
    """R-INV-2: two parts against one; only the provably older is rejected."""
    await stored(world, rows(42))

    reply = await world.store.invalidate(change(version=version(1, 1)))

    assert reply.result is InvalidateResult.PURGED


async def test_an_event_of_an_older_epoch_is_older(world: World) -> None:
    """R-INV-2, CLOCK-1: before the restore, whatever its number."""
    await stored(world, rows(1, epoch=1))

    reply = await world.store.invalidate(change(999))

    assert reply.result is InvalidateResult.OLDER


async def test_a_floor_that_only_a_claim_raised_does_not_excuse_the_event(
    world: World,
) -> None:
    """R-INV-3: the entry that is there is older than the event all the same."""
    await stored(world, rows(1))
    await claimed(world, "refresh", wanted=rows(5))

    reply = await world.store.invalidate(change(2))

    assert reply.result is InvalidateResult.PURGED


async def test_what_only_the_entry_knew_is_remembered(world: World) -> None:
    """R-INV-2: the entry is evicted before the floor would have been needed."""
    await stored(world, rows(42))
    await world.store.invalidate(change(41))
    await world.lose_entry()
    lease = await claimed(world, "lagging")

    reply = await world.store.publish(lease, publication(rows(40)))

    assert reply is Published.OUTDATED


async def test_an_event_below_the_floor_is_old_news(world: World) -> None:
    """R-INV-2, R-FT-7: the entry's load began after a newer event of the same row."""
    await world.store.invalidate(change(5))
    await stored(world)
    before = (await world.kept()).entry

    reply = await world.store.invalidate(change(4))

    assert reply.result is InvalidateResult.OLDER
    assert (await world.kept()).entry == before


async def test_an_old_event_that_comes_again_changes_nothing(world: World) -> None:
    """R-INV-2: otherwise a replay of the event log would overtake every load."""
    await stored(world, rows(42))
    await world.store.invalidate(change(41))
    before = await world.kept()

    reply = await world.store.invalidate(change(41))

    assert reply.result is InvalidateResult.OLDER
    assert await world.kept() == before


async def test_a_load_without_a_version_is_judged_by_an_old_event_too(
    world: World,
) -> None:
    """R-INV-3: the entry is newer than the event; the load that runs may not be."""
    await stored(world, rows(42))
    lease = await claimed(world, "early", seen_fence=(await fence_of(world)))
    await world.store.invalidate(change(41))

    reply = await world.store.publish(lease, publication())

    assert reply is not Published.PUBLISHED


async def test_a_hard_purge_is_not_excused_by_a_floor(world: World) -> None:
    """R-POL-4: nothing newer is stored, so what is stored goes."""
    await stored(world)
    await world.store.invalidate(change(5))

    reply = await world.store.invalidate(change(4, mode=PurgeMode.HARD))

    assert reply.result is InvalidateResult.PURGED
    assert (await world.kept()).entry is None


async def test_a_stream_of_events_starves_nobody(world: World) -> None:
    """R-INV-3, R-POL-2: each load is overtaken, and each caller still gets an answer."""
    for number in range(5):
        lease = await claimed(world, f"load-{number}")
        await world.advance(100)
        await world.store.invalidate(change(number + 1))
        reply = await world.store.publish(lease, publication(rows(number)))
        assert reply in (Published.KEPT_STALE, Published.PUBLISHED)
        entry = await world.store.read(KEY)
        assert entry is not None
        assert entry.stale_until > world.now()


async def test_one_event_of_two_entities_is_two_changes(world: World) -> None:
    """R-INV-4."""
    await world.store.invalidate(change(2))
    await world.store.invalidate(change(9, scope="shop-db/stock:42"))
    lease = await claimed(world)
    versions = {SCOPE: version(2), "shop-db/stock:42": version(8)}

    assert await world.store.publish(lease, publication(versions)) is Published.OUTDATED


async def test_a_guard_that_is_full_forgets_no_change(world: World) -> None:
    """R-INV-3: beyond its bound an entity counts as a change without a version."""
    for number in range(80):
        await world.store.invalidate(change(1, scope=f"shop-db/row:{number}"))
    guard = (await world.kept()).guard
    assert len(guard) <= 142
    lease = await claimed(world)
    await world.store.invalidate(change(2, scope="shop-db/row:one-more"))

    reply = await world.store.publish(
        lease, publication({"shop-db": version(9)}, stale_ms=0)
    )

    assert reply is Published.OUTDATED


async def test_a_stale_entry_may_be_refreshed_at_once(world: World) -> None:
    """R-CARD-3."""
    await stored(world, rows(1))
    await world.store.invalidate(change(2))

    reply = await world.store.claim(claim("refresh"))

    assert isinstance(reply, Claimed)
    assert reply.lease.floors == rows(2)
    assert reply.entry is not None
