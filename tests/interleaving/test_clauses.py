"""Every clause of the contract is needed: without it the search finds what breaks."""

import pytest

from tests.interleaving.invariants import Broken
from tests.interleaving.mutants import (
    MUTANTS,
    NOTES_REPEATED_EVENTS,
    Mutant,
    clauses,
    script_clauses,
)
from tests.interleaving.real import RealPlays
from tests.protocol.world import (
    KEY,
    START_MS,
    change,
    claim,
    publication,
    rows,
    version,
)
from warmer.model.outcome import Claimed, PublishReply
from warmer.store.port import MAX_GUARD_FIELDS
from warmer.store.reference import ReferenceStore

BOUNDED = "bounded"
"""The one clause that no order of calls needs: it bounds a guard, see its own test."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[str(each) for each in MUTANTS])
async def test_a_clause_that_is_left_out_is_missed(
    mutant: Mutant, valkey_plays: RealPlays
) -> None:
    """R-INV-3, R-LSE-4: in the contract by the search, in the scripts by the same schedule."""
    caught = mutant.caught()

    assert caught.invariant in mutant.breaks.split()
    valkey_plays.use(mutant.clause.partition(".")[0], mutant.mutated_script())
    with pytest.raises(Broken):
        await valkey_plays.play(caught.seed)


def test_every_clause_has_a_mutant() -> None:
    """A clause that is added without one fails here."""
    tested = {mutant.clause for mutant in MUTANTS} | {BOUNDED}

    assert tested == clauses()
    assert tested == script_clauses()


async def test_an_event_that_is_repeated_does_not_hold_back_a_running_load() -> None:
    """[invalidate.remember]: it is noted once; what it told is known to the claim."""
    contract = ReferenceStore(lambda: START_MS)
    without = NOTES_REPEATED_EVENTS.module().ReferenceStore(lambda: START_MS)

    assert await _after_a_repeated_event(contract) is PublishReply.PUBLISHED
    assert await _after_a_repeated_event(without) is PublishReply.KEPT_STALE


async def _after_a_repeated_event(store: ReferenceStore) -> PublishReply:
    """Return what becomes of a load without versions beside a newer entry."""
    first = await store.claim(claim("first"))
    assert isinstance(first, Claimed)
    await store.publish(first.lease, publication(rows(5)))
    await store.invalidate(change(3))
    running = await store.claim(claim("running", seen_fence=first.lease.fence))
    assert isinstance(running, Claimed)
    await store.invalidate(change(3))
    return await store.publish(running.lease, publication())


async def test_a_guard_is_bounded_whatever_a_refresh_wants() -> None:
    """[bounded]: floors that a claim raises take no more fields than a guard may have."""
    store = ReferenceStore(lambda: 1)
    for at in range(MAX_GUARD_FIELDS):
        await store.claim(claim(wanted={f"shop-db/item:{at}": version(1)}))

    fields = len((await store.inspect(KEY)).guard)

    assert fields < MAX_GUARD_FIELDS + 10
