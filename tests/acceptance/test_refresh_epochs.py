"""Loads after a source opened an epoch: origins tell bare versions, and they are stored."""

import random
from dataclasses import replace

import pytest

from tests.datasets import SOURCE, product
from warmer.model.entry import encode_value
from warmer.model.event import PurgeMode
from warmer.model.key import Key
from warmer.model.outcome import Loaded, LoadOutcome, Outdated, Published
from warmer.model.version import Scope, SourceVersion, Versions
from warmer.refresh import Refresher, RefreshRequest
from warmer.signals import Counters
from warmer.store.port import CacheStore, Invalidation

PRODUCT = product()
KEY = PRODUCT.key({"id": 42})
OWN = f"{SOURCE}/product:42"


def at(scope: Scope, version: int, *, epoch: int = 0) -> Versions:
    return {scope: SourceVersion.of(SOURCE, version, epoch=epoch)}


def loaded(versions: Versions) -> Loaded:
    return Loaded(encode_value({"n": 1}, compress_above=None), versions, load_ms=7)


async def refreshed(store: CacheStore, versions: Versions) -> LoadOutcome:
    """What becomes of a load that tells these versions."""

    async def load(_key: Key, _floors: Versions) -> Loaded:
        return loaded(versions)

    refresher = Refresher(
        store=store,
        datasets={PRODUCT.name: PRODUCT},
        load_of=lambda _dataset, _errand: load,
        random=random.Random(7),
        signals=Counters(),
    )
    outcome = await refresher.run(RefreshRequest(KEY))
    assert isinstance(outcome, Published | Outdated)
    return outcome


async def changed(
    store: CacheStore, scope: Scope, version: SourceVersion | None
) -> None:
    await store.invalidate(
        Invalidation(KEY, scope, version, PurgeMode.SOFT, 30_000, 0, 60_000)
    )


@pytest.mark.parametrize("scope", [OWN, SOURCE], ids=["entity", "position"])
@pytest.mark.parametrize("opened_for", [OWN, SOURCE], ids=["entity", "source"])
async def test_a_bare_version_is_published_after_an_epoch_was_opened(
    a_store: CacheStore, scope: Scope, opened_for: Scope
) -> None:
    """R-CARD-2, CDC-GAP-4: a restored database counts from lower numbers."""
    await refreshed(a_store, at(scope, 900))
    await changed(a_store, scope, SourceVersion.of(SOURCE, 901))
    await refreshed(a_store, at(scope, 901))
    await changed(a_store, opened_for, SourceVersion.of(SOURCE, 0, epoch=3))

    outcome = await refreshed(a_store, at(scope, 5))

    assert outcome == Published(loaded(at(scope, 5, epoch=3)))


async def test_what_is_older_within_the_new_epoch_is_refused(
    a_store: CacheStore,
) -> None:
    """R-INV-2: an epoch opens a new order, and does not end all order."""
    await changed(a_store, OWN, SourceVersion.of(SOURCE, 10, epoch=3))

    assert isinstance(await refreshed(a_store, at(OWN, 9)), Outdated)


async def test_a_key_without_floors_takes_the_epoch_of_its_entry(
    a_store: CacheStore,
) -> None:
    """R-CARD-2: a guard may be evicted; its entry refuses older versions all the same."""
    await refreshed(a_store, at(OWN, 7, epoch=3))
    await changed(a_store, OWN, None)

    outcome = await refreshed(a_store, at(OWN, 8))

    assert outcome == Published(loaded(at(OWN, 8, epoch=3)))


async def test_an_epoch_that_a_load_tells_is_left_alone(a_store: CacheStore) -> None:
    """R-CARD-2: whoever knows the epoch knows better."""
    await changed(a_store, OWN, SourceVersion.of(SOURCE, 10, epoch=3))
    told = at(OWN, 1, epoch=4)

    assert await refreshed(a_store, told) == Published(loaded(told))


async def test_other_sources_epochs_say_nothing(a_store: CacheStore) -> None:
    """R-CARD-2: versions compare within one source."""
    other = replace(SourceVersion.of(SOURCE, 0, epoch=3), source="other-db")
    await changed(a_store, "other-db", other)

    assert await refreshed(a_store, at(OWN, 1)) == Published(loaded(at(OWN, 1)))
