"""A client that knows SET NX PX and compare-and-delete, and nothing else, takes part."""

from tests.protocol.world import World, change, claim, claimed, publication, rows
from warmer.model.outcome import Claimed, Held, PublishReply, ReleaseReply, RenewReply


async def test_a_plain_clients_lease_keeps_a_claim_away(world: World) -> None:
    """R-LSE-1, R-CARD-4."""
    assert await world.plain_lock("plain", ms=700)

    assert await world.store.claim(claim()) == Held(700, None)


async def test_a_claim_keeps_a_plain_client_away(world: World) -> None:
    """R-LSE-1, R-CARD-4."""
    lease = await claimed(world)
    assert not await world.plain_lock("plain", ms=700)

    await world.store.release(lease)

    assert await world.plain_lock("plain", ms=700)


async def test_a_plain_client_cannot_unlock_what_it_does_not_hold(world: World) -> None:
    """R-LSE-2."""
    await claimed(world)

    assert not await world.plain_unlock("plain")
    assert (await world.kept()).lease == "mine"


async def test_a_plain_clients_unlock_lets_the_next_claim_in(world: World) -> None:
    """R-LSE-2, R-CARD-4."""
    await world.plain_lock("plain", ms=700)
    await world.plain_unlock("plain")

    assert isinstance(await world.store.claim(claim()), Claimed)


async def test_a_plain_clients_lease_is_neither_renewed_nor_released_by_others(
    world: World,
) -> None:
    """R-LSE-2, LEASE-8."""
    lease = await claimed(world, lease_ms=1_000)
    await world.advance(1_000)
    await world.plain_lock("plain", ms=700)

    assert await world.store.renew(lease, 5_000) is RenewReply.LOST
    assert await world.store.release(lease) is ReleaseReply.FOREIGN
    assert (await world.kept()).lease == "plain"


async def test_a_load_that_outlived_its_lease_yields_to_a_plain_client(
    world: World,
) -> None:
    """R-LSE-4: the plain client writes its own value, without a fence."""
    lease = await claimed(world, lease_ms=1_000)
    await world.advance(1_000)
    await world.plain_lock("plain", ms=700)

    assert await world.store.publish(lease, publication()) is PublishReply.FENCED


async def test_a_lease_that_somebody_left_without_expiry_is_given_one(
    world: World,
) -> None:
    """R-LSE-3, LEASE-1: set-if-absent, and dead before the expiry."""
    await world.plain_lock("dead", ms=None)

    assert await world.store.claim(claim(lease_ms=5_000)) == Held(5_000, None)
    await world.advance(5_000)
    assert isinstance(await world.store.claim(claim()), Claimed)


async def test_events_are_applied_while_a_plain_client_holds_the_lease(
    world: World,
) -> None:
    """R-INV-3: a floor is raised whoever loads."""
    await world.plain_lock("plain", ms=700)
    await world.store.invalidate(change(2))
    await world.plain_unlock("plain")
    lease = await claimed(world)

    reply = await world.store.publish(lease, publication(rows(1)))

    assert reply is PublishReply.OUTDATED
