"""A loaded body is stored by its owner only, once, and never over something newer."""

import pytest

from tests.protocol.world import (
    KEY,
    POSITION,
    SCOPE,
    World,
    change,
    claim,
    claimed,
    publication,
    rows,
    version,
)
from warmer.model.entry import NOT_FOUND, encode_value
from warmer.model.event import PurgeMode
from warmer.model.outcome import (
    Claimed,
    Cooling,
    Held,
    InvalidateResult,
    PublishReply,
)
from warmer.model.version import SourceVersion, Versions


async def test_header_and_body_are_written_in_one_step(world: World) -> None:
    """R-REC-1: all that is said about a value is there with it."""
    lease = await claimed(world)
    await world.advance(25)
    await world.store.publish(lease, publication(rows(7), load_ms=25))

    entry = await world.store.read(KEY)

    assert entry is not None
    assert entry.content().value() == {"name": "tea"}
    assert entry.created_at == world.now()
    assert entry.fresh_until == world.now() + 60_000
    assert entry.stale_until == entry.fresh_until + 30_000
    assert entry.error_until == entry.fresh_until + 300_000
    assert (entry.schema_version, entry.load_ms) == (3, 25)
    assert (entry.fence, entry.versions()) == (lease.fence, rows(7))


async def test_an_entry_leaves_the_server_when_its_last_window_ends(
    world: World,
) -> None:
    """R-POL-6, R-FT-8."""
    lease = await claimed(world)
    await world.store.publish(lease, publication())

    assert (await world.kept()).entry_until == world.now() + 360_000
    await world.advance(360_000)
    assert await world.store.read(KEY) is None


async def test_publishing_ends_the_lease(world: World) -> None:
    """R-LSE-2."""
    lease = await claimed(world)
    await world.store.publish(lease, publication())

    assert (await world.kept()).lease is None


async def test_a_large_body_is_stored_byte_for_byte_like_a_small_one(
    world: World,
) -> None:
    """R-REC-1: staged beside the entry, then put in its place with its header."""
    large = encode_value(b"\x00 large \xff" * 40_000, compress_above=None)
    lease = await claimed(world)
    await world.store.publish(lease, publication(rows(1), content=large))

    entry = await world.store.read(KEY)

    assert entry is not None
    assert entry.content() == large
    assert entry.versions() == rows(1)
    assert (await world.kept()).entry_until == world.now() + 360_000


async def test_not_found_is_an_entry_of_its_own(world: World) -> None:
    """R-POL-7."""
    lease = await claimed(world)
    await world.store.publish(lease, publication(content=NOT_FOUND, fresh_ms=5_000))

    entry = await world.store.read(KEY)

    assert entry is not None
    assert entry.negative


async def test_a_repeated_publish_says_already_and_changes_nothing(
    world: World,
) -> None:
    """R-REC-1: the reply of the first attempt was lost."""
    lease = await claimed(world)
    await world.store.publish(lease, publication(rows(1)))
    before = await world.kept()
    await world.advance(10)

    reply = await world.store.publish(lease, publication(rows(1)))

    assert reply is PublishReply.ALREADY
    assert await world.kept() == before


async def test_a_repeated_publish_after_a_purge_brings_nothing_back(
    world: World,
) -> None:
    """STALE-SET-1: a claim publishes once."""
    lease = await claimed(world)
    await world.store.publish(lease, publication())
    await world.store.invalidate(change(mode=PurgeMode.HARD))

    assert await world.store.publish(lease, publication()) is PublishReply.FENCED
    assert await world.store.read(KEY) is None


async def test_a_publish_without_a_guard_is_refused(world: World) -> None:
    """R-LSE-4: unproven, so one more load."""
    lease = await claimed(world)
    await world.lose_guard()

    assert await world.store.publish(lease, publication()) is PublishReply.FENCED


async def test_a_fence_that_a_failover_issued_twice_is_told_apart_by_its_token(
    world: World,
) -> None:
    """R-LSE-4: the claim was not replicated when the primary died."""
    lost = await claimed(world, "lost")
    await world.lose_lease()
    await world.lose_guard()
    again = await claimed(world, "again")
    assert again.fence == lost.fence

    assert await world.store.publish(lost, publication()) is PublishReply.FENCED
    assert await world.store.publish(again, publication()) is PublishReply.PUBLISHED


async def test_an_earlier_load_of_the_same_token_is_refused(world: World) -> None:
    """R-LSE-4: its lease ran out, and the retry of its claim began a new load."""
    first = await claimed(world, lease_ms=100)
    await world.advance(100)
    again = await claimed(world)
    assert again.fence > first.fence

    assert await world.store.publish(first, publication()) is PublishReply.FENCED
    assert await world.store.publish(again, publication()) is PublishReply.PUBLISHED


# --- an invalidation lands while the load runs -------------------------------------------


async def test_an_older_row_is_not_stored_after_its_change(world: World) -> None:
    """R-INV-3, R-FT-7, STALE-SET-1: loaded v1, event v2 handled, then published."""
    lease = await claimed(world)
    await world.store.invalidate(change(2))

    reply = await world.store.publish(lease, publication(rows(1)))

    assert reply is not PublishReply.PUBLISHED
    entry = await world.store.read(KEY)
    assert entry is None or entry.fresh_until <= world.now()


async def test_a_load_that_already_read_the_new_row_is_current(world: World) -> None:
    """R-INV-3: its version proves it, so the load is not wasted."""
    lease = await claimed(world)
    await world.store.invalidate(change(2))

    reply = await world.store.publish(lease, publication(rows(2)))

    assert reply is PublishReply.PUBLISHED


async def test_a_load_without_a_version_that_spans_a_change_is_not_current(
    world: World,
) -> None:
    """R-INV-3, INFLIGHT-1, INFLIGHT-4: ambiguous, so it counts as older."""
    lease = await claimed(world)
    await world.store.invalidate(change())

    reply = await world.store.publish(lease, publication())

    assert reply is PublishReply.KEPT_STALE
    entry = await world.store.read(KEY)
    assert entry is not None
    assert entry.kept_stale
    assert entry.fresh_until <= world.now()
    assert isinstance(await world.store.claim(claim("next")), Claimed)


async def test_read_then_evict_stays_evicted_until_a_later_load(world: World) -> None:
    """R-INV-3, INFLIGHT-5: a stale read starts a refresh, the event comes 1 ms later."""
    first = await claimed(world)
    await world.store.publish(first, publication(fresh_ms=1_000))
    await world.advance(2_000)
    refresh = await claimed(world, "refresh")
    await world.advance(1)
    await world.store.invalidate(change(mode=PurgeMode.HARD))

    assert await world.store.publish(refresh, publication()) is PublishReply.OUTDATED
    assert await world.store.read(KEY) is None
    later = await claimed(world, "later")
    assert await world.store.publish(later, publication()) is PublishReply.PUBLISHED


async def test_a_dataset_without_stale_windows_keeps_no_overtaken_load(
    world: World,
) -> None:
    """R-POL-4: old means wrong here."""
    lease = await claimed(world)
    await world.store.invalidate(change())

    reply = await world.store.publish(lease, publication(stale_ms=0, error_ms=300_000))

    assert reply is PublishReply.OUTDATED


async def test_the_stale_window_of_an_overtaken_load_counts_from_its_claim(
    world: World,
) -> None:
    """R-POL-2: staleness stays bounded under a stream of events."""
    lease = await claimed(world)
    claimed_at = world.now()
    await world.advance(3_000)
    await world.store.invalidate(change())

    await world.store.publish(lease, publication(stale_ms=30_000, error_ms=0))

    entry = await world.store.read(KEY)
    assert entry is not None
    assert entry.stale_until == claimed_at + 30_000


async def test_a_load_longer_than_its_stale_window_is_not_kept(world: World) -> None:
    """R-FT-8."""
    lease = await claimed(world, lease_ms=60_000)
    await world.advance(40_000)
    await world.store.invalidate(change())

    reply = await world.store.publish(lease, publication(stale_ms=30_000, error_ms=0))

    assert reply is PublishReply.OUTDATED


async def test_an_overtaken_load_is_not_kept_after_a_hard_purge(world: World) -> None:
    """R-POL-4: removed means removed."""
    lease = await claimed(world)
    await world.store.invalidate(change(mode=PurgeMode.HARD))

    assert await world.store.publish(lease, publication()) is PublishReply.OUTDATED


async def test_a_repeated_publish_of_an_overtaken_load_says_so(world: World) -> None:
    """R-REC-1."""
    lease = await claimed(world)
    await world.store.invalidate(change())
    await world.store.publish(lease, publication())

    reply = await world.store.publish(lease, publication())

    assert reply is PublishReply.ALREADY_KEPT


# --- newer and older ----------------------------------------------------------------------


async def test_the_slow_loader_with_the_old_row_does_not_win(world: World) -> None:
    """STALE-SET-4: no event involved; A returns v1 late, B returned v2."""
    slow = await claimed(world, "slow", lease_ms=100)
    await world.advance(100)
    fast = await claimed(world, "fast")
    await world.store.publish(fast, publication(rows(2)))

    assert await world.store.publish(slow, publication(rows(1))) is PublishReply.FENCED
    entry = await world.store.read(KEY)
    assert entry is not None
    assert entry.versions() == rows(2)


async def test_a_lagging_replica_does_not_overwrite_a_newer_entry(world: World) -> None:
    """R-WRM-4, STALE-SET-4: the rightful owner, with an older row than what is stored."""
    first = await claimed(world, "first")
    await world.store.publish(first, publication(rows(2), fresh_ms=1_000))
    await world.advance(1_500)
    lagging = await claimed(world, "lagging")

    reply = await world.store.publish(lagging, publication(rows(1)))

    assert reply is PublishReply.OUTDATED


async def test_a_lagging_replica_is_not_hammered(world: World) -> None:
    """R-ADM-4: its version is below a floor, so the key cools down for a moment."""
    await world.store.invalidate(change(2))
    lease = await claimed(world)

    await world.store.publish(lease, publication(rows(1), lag_retry_ms=50))

    assert await world.store.claim(claim("next")) == Cooling(50, None)


async def test_a_source_that_went_back_is_not_hammered(world: World) -> None:
    """R-ADM-4: restored from a backup, it is behind the entry for as long as that is there."""
    first = await claimed(world, "first")
    await world.store.publish(first, publication(rows(2), fresh_ms=1_000))
    await world.advance(1_500)
    lease = await claimed(world, "restored")

    await world.store.publish(lease, publication(rows(1), lag_retry_ms=50))

    cooling = await world.store.claim(claim("next"))
    assert isinstance(cooling, Cooling)
    assert cooling.retry_in_ms == 50


async def test_an_unproven_load_soon_after_a_change_is_read_once_more(
    world: World,
) -> None:
    """R-INV-3: a replica may lag by `settle`."""
    await world.store.invalidate(change())
    purged_at = world.now()
    await world.advance(100)
    lease = await claimed(world)

    await world.store.publish(lease, publication(settle_ms=2_000))

    entry = await world.store.read(KEY)
    assert entry is not None
    assert entry.fresh_until == purged_at + 2_000


async def test_an_unproven_load_of_a_refresh_whose_guard_was_lost_is_read_once_more(
    world: World,
) -> None:
    """R-INV-3: the event is news to the guard, so the replica may lag by `settle` again."""
    await world.store.invalidate(change(2))
    await world.lose_guard()
    lease = await claimed(world, wanted=rows(2))
    await world.advance(100)

    await world.store.publish(lease, publication(settle_ms=2_000))

    entry = await world.store.read(KEY)
    assert entry is not None
    assert entry.fresh_until == world.now() - 100 + 2_000


@pytest.mark.parametrize(
    ("known", "reported", "expected"),
    [
        (version(41), version(42), PublishReply.PUBLISHED),
        (version(42), version(42), PublishReply.PUBLISHED),
        (version(42), version(41), PublishReply.OUTDATED),
        # Neighbours above 2^53, where floats end.
        (
            version(201605131024011015),
            version(201605131024011014),
            PublishReply.OUTDATED,
        ),
        (
            version(201605131024011014),
            version(201605131024011015),
            PublishReply.PUBLISHED,
        ),
        # 0xaa above 0xa9 and below 0xab, whatever the server's collation.
        (version(0xAA), version(0xA9), PublishReply.OUTDATED),
        (version(0xAA), version(0xAB), PublishReply.PUBLISHED),
        # The most significant part decides.
        (version(1, 2**64 - 1), version(2, 0), PublishReply.PUBLISHED),
        (version(2, 0), version(1, 2**64 - 1), PublishReply.OUTDATED),
        # A new epoch beats any version of the old one.
        (version(999), version(1, epoch=1), PublishReply.PUBLISHED),
        (version(1, epoch=1), version(999), PublishReply.OUTDATED),
    ],
)
async def test_versions_are_compared_exactly(
    world: World, known: SourceVersion, reported: SourceVersion, expected: PublishReply
) -> None:
    """SCRIPT-4, CLOCK-1, R-FT-7: by epoch, then digit by digit, by no clock."""
    await world.store.invalidate(change(version=known))
    lease = await claimed(world)

    reply = await world.store.publish(lease, publication({SCOPE: reported}))

    assert reply is expected


async def test_a_position_holds_for_every_entity_of_its_source(world: World) -> None:
    """R-INV-3: the data's snapshot contains all changes up to it."""
    await world.store.invalidate(change(5))
    await world.store.invalidate(change(6, scope="shop-db/stock:42"))
    lease = await claimed(world)

    reply = await world.store.publish(lease, publication({POSITION: version(6)}))

    assert reply is PublishReply.PUBLISHED


async def test_a_position_below_one_entitys_floor_is_behind(world: World) -> None:
    """R-INV-3."""
    await world.store.invalidate(change(5))
    await world.store.invalidate(change(6, scope="shop-db/stock:42"))
    lease = await claimed(world)

    reply = await world.store.publish(lease, publication({POSITION: version(5)}))

    assert reply is PublishReply.OUTDATED


async def test_a_lower_version_of_another_entity_is_not_older(world: World) -> None:
    """R-INV-1: floors are kept per entity."""
    await world.store.invalidate(change(1_000, scope="shop-db/stock:42"))
    lease = await claimed(world)
    mixed: Versions = {SCOPE: version(3), "shop-db/stock:42": version(1_000)}

    reply = await world.store.publish(lease, publication(mixed))

    assert reply is PublishReply.PUBLISHED


# --- what is stored there that is no entry --------------------------------------------------


@pytest.mark.parametrize(
    "found",
    [
        b"",
        b"plain text of an older cache",
        b"WE\x02" + bytes(80),
        b"WE\x01" + bytes(61),
    ],
    ids=["empty", "foreign", "next format", "another key's"],
)
async def test_what_is_no_entry_of_this_release_is_a_miss_and_is_replaced(
    world: World, found: bytes
) -> None:
    """SERIAL-3: after a roll-back, a miss and not an error."""
    await world.put_entry(found)
    assert await world.store.read(KEY) is None
    reply = await world.store.claim(claim())
    assert isinstance(reply, Claimed)
    assert reply.entry is None

    assert (
        await world.store.publish(reply.lease, publication()) is PublishReply.PUBLISHED
    )


async def test_what_is_no_entry_is_removed_by_an_event(world: World) -> None:
    """SERIAL-3: the other release would serve it as fresh."""
    await world.put_entry(b"WE\x02" + bytes(80))

    reply = await world.store.invalidate(change(1))

    assert reply.result is InvalidateResult.PURGED
    assert (await world.kept()).entry is None


async def test_another_keys_entry_under_this_name_is_not_served(world: World) -> None:
    """R-REC-3: renamed or copied by hand."""
    lease = await claimed(world)
    await world.store.publish(lease, publication(rows(9)))
    stored = (await world.kept()).entry
    assert stored is not None
    other = KEY.__class__("product:v3:43", "product", 3, (("id", "43"),))
    await world.put_entry(stored, key=other)

    reply = await world.store.claim(claim(key=other))

    assert isinstance(reply, Claimed)
    assert reply.entry is None


async def test_a_waiter_is_given_the_lease_time_left_not_an_owner(world: World) -> None:
    """R-LSE-1: the owner's token is nobody else's business."""
    lease = await claimed(world)

    reply = await world.store.claim(claim("other"))

    assert isinstance(reply, Held)
    assert lease.token not in repr(reply)
