"""Scans that are asked for, and their progress, on both servers."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.control import control_of
from tests.servers import ServerProcess
from warmer.model.event import PurgeMode
from warmer.model.prefix_scan import PrefixAsk
from warmer.model.version import SourceVersion
from warmer.store.prefix_scans import MAX_ASKS, PrefixScans

LEASE_MS = 60_000


@pytest.fixture
async def scans(server: ServerProcess) -> AsyncIterator[PrefixScans]:
    async with control_of(server) as control:
        yield control.scans


def ask(
    prefix: str = "product:",
    *,
    version: int | None = None,
    mode: PurgeMode | None = None,
    event: str = "e1",
) -> PrefixAsk:
    of = None if version is None else SourceVersion.of("shop-db", version)
    return PrefixAsk("shop-db", prefix, mode, of, event)


async def taken(scans: PrefixScans, owner: str = "a") -> tuple[PrefixAsk, ...] | None:
    scan = await scans.take(owner, lease_ms=LEASE_MS)
    return None if scan is None else scan.asks


async def test_nothing_is_scanned_that_nobody_asked_for(scans: PrefixScans) -> None:
    """R-INV-4."""
    assert await taken(scans) is None


async def test_what_was_asked_for_is_taken_as_it_was_asked(scans: PrefixScans) -> None:
    """R-INV-4: also an event's id with blanks in it."""
    asked = ask("", version=2**63 + 1, mode=PurgeMode.HARD, event="all of it")
    await scans.ask(asked)

    assert await taken(scans) == (asked,)


async def test_a_thousand_askings_are_one_scan_to_the_newest_version(
    scans: PrefixScans,
) -> None:
    """R-INV-4: a table that is emptied by every test run."""
    for version in (*range(1_000), 500):
        await scans.ask(ask(version=version, event=f"e{version}"))

    assert await taken(scans) == (ask(version=999, event="e500"),)
    assert await scans.done("a")
    assert await scans.asked() == 0


async def test_what_is_asked_for_anew_during_a_scan_is_scanned_once_more(
    scans: PrefixScans,
) -> None:
    """R-INV-3: names that it has already seen may hold what was loaded in between."""
    await scans.ask(ask(version=1))
    await scans.ask(ask("price:"))
    await taken(scans)
    await scans.ask(ask(version=1))
    ended = await scans.done("a")

    assert ended
    assert await taken(scans) == (ask(version=1),)


async def test_one_worker_at_a_time_has_the_scan(scans: PrefixScans) -> None:
    """R-INV-4: the cache server is scanned once, not by the whole fleet."""
    await scans.ask(ask())
    first = await taken(scans, "a")

    assert first == (ask(),)
    assert await taken(scans, "b") is None
    assert not await scans.keep("b", cursor=1, run_id="r", lease_ms=LEASE_MS)
    assert not await scans.done("b")


async def test_a_scan_goes_on_where_its_worker_left_it(scans: PrefixScans) -> None:
    """R-INV-3: left or killed, its lease ends; what it reports afterwards is not taken."""
    await scans.ask(ask())
    await taken(scans, "a")
    await scans.ask(ask("price:"))
    await scans.keep("a", cursor=2**63 + 1, run_id="r1", lease_ms=0)

    scan = await scans.take("b", lease_ms=LEASE_MS)

    assert scan is not None
    assert (scan.asks, scan.cursor, scan.run_id) == ((ask(),), 2**63 + 1, "r1")
    assert not await scans.keep("a", cursor=0, run_id="r1", lease_ms=LEASE_MS)


async def test_an_older_version_never_lowers_what_was_asked_for(
    scans: PrefixScans,
) -> None:
    """R-INV-2."""
    await scans.ask(ask(version=7))
    await scans.ask(ask(version=5, event="e2"))

    assert await taken(scans) == (ask(version=7, event="e2"),)


async def test_an_asking_without_a_version_is_not_taken_for_one_that_has_one(
    scans: PrefixScans,
) -> None:
    """R-INV-2: the one applies to every key, the other spares those proven newer."""
    await scans.ask(ask())
    await scans.ask(ask(version=5))

    asked = await taken(scans)

    assert asked is not None
    assert set(asked) == {ask(), ask(version=5)}


async def test_versions_that_do_not_compare_do_not_stand_for_each_other(
    scans: PrefixScans,
) -> None:
    """R-INV-2: a key proven newer than the one may lack what the other says."""
    two_parts = replace(ask(), version=SourceVersion.of("shop-db", 3, 0))
    await scans.ask(ask(version=5))
    await scans.ask(two_parts)

    asked = await taken(scans)

    assert asked is not None
    assert set(asked) == {two_parts, ask(version=5)}


async def test_too_many_kinds_of_asking_become_one_for_the_whole_source(
    scans: PrefixScans,
) -> None:
    """R-INV-4: bounded; more is invalidated than was asked for, never less."""
    for number in range(MAX_ASKS + 50):
        await scans.ask(ask(f"p{number}:", version=number))

    asked = await taken(scans)

    assert asked is not None
    assert len(asked) == MAX_ASKS + 1
    assert [each.version for each in asked if not each.prefix] == [None]


async def test_a_record_that_cannot_be_read_does_not_hold_up_the_others(
    scans: PrefixScans, server: ServerProcess
) -> None:
    """R-CARD-3: it goes with the scan."""
    server.command("HSET", "warmer:scans", "nonsense", "nonsense")
    await scans.ask(ask())

    assert await taken(scans) == (ask(),)
    assert await scans.done("a")
    assert await scans.asked() == 0
