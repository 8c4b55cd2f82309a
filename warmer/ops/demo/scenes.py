"""The scenes of the play: what is done to the stage, and what is measured of it.

Each waits for things that happened (a query held, a log applied, a version read), never
for time to pass; what does not happen ends the play with DemoError.
"""

from collections.abc import Sequence

from warmer.ops.demo.findings import (
    InvalidatedDuringLoad,
    OriginLoad,
    OutOfOrder,
    Stampede,
    Update,
)
from warmer.ops.demo.reads import (
    Ask,
    Read,
    failed,
    fresh_at,
    older_after_fresh,
    states,
)
from warmer.ops.demo.shop import LOCALES
from warmer.ops.demo.stage import Stage

CALLERS = 20
"""For each key, in each reader process."""

_CURRENT = {"fresh", "loaded", "waited"}
"""States that claim: this is the current value."""


async def stampede(stage: Stage) -> Stampede:
    """Hundreds of callers in several processes ask at once for keys that nobody has."""
    asks = [Ask("notes", {"locale": locale}) for locale in LOCALES]
    asks += [_product(number, "en") for number in range(11, 16)]
    before = await stage.origin.meter()
    reads = await stage.readers.burst(asks, callers=CALLERS)
    after = await stage.origin.meter()
    return Stampede(
        callers=len(reads),
        processes=len(stage.readers),
        distinct_keys=len(asks),
        origin_loads=sum(after.since(before).values()),
        failed=failed(reads),
        last_answer_s=_seconds(
            min(read.began for read in reads), max(read.ended for read in reads)
        ),
        states=states(reads),
    )


async def update(stage: Stage) -> Update:
    """A price changes while readers read it in three languages."""
    product = 42
    asks = [_product(product, locale) for locale in LOCALES]
    await stage.readers.watch(asks)
    before = await stage.origin.meter()
    async with stage.feed.following():
        committed = stage.clock.monotonic()
        change = await stage.origin.reprice(product, 19_90)
        reads = await stage.readers.until([change.lsn] * len(asks))
    after = await stage.origin.meter()
    newest = dict.fromkeys(range(len(asks)), change.lsn)
    fresh = fresh_at(reads, newest)
    return Update(
        seconds_to_fresh=None if fresh is None else _seconds(committed, fresh),
        stale_reads_after_fresh=older_after_fresh(reads, newest),
        keys=len(asks),
        origin_loads=sum(after.since(before).values()),
        failed=failed(reads),
        states=states(_since(reads, committed)),
    )


async def out_of_order(stage: Stage) -> OutOfOrder:
    """A row changes twice, and the older change's event arrives after the newer one's."""
    product = 43
    asks = [_product(product, locale) for locale in LOCALES]
    keys = [stage.key(ask) for ask in asks]
    await stage.readers.watch(asks)
    await stage.origin.reprice(product, 21_00)
    await stage.origin.reprice(product, 22_00)
    older, newer = await stage.feed.take(2)
    unchanged = await stage.generations(keys)
    await stage.feed.emit(newer)
    await stage.until(lambda: stage.reached(keys, newer.lsn), "the newer price is read")

    before, applied = await stage.origin.meter(), await stage.generations(keys)
    emitted = stage.clock.monotonic()
    await stage.feed.emit(older)
    await stage.until(stage.log_is_applied, "the older event is worked on")
    reads = await stage.readers.until([newer.lsn] * len(asks))
    after, at_last = await stage.origin.meter(), await stage.generations(keys)
    later = _since(reads, emitted)
    return OutOfOrder(
        # Refused: the newer event left its mark on the key, the older one did not.
        rejected=sum(
            first < second == third
            for first, second, third in zip(unchanged, applied, at_last, strict=True)
        ),
        value_unchanged=bool(later)
        and all(read.version == newer.lsn for read in later),
        origin_loads=sum(after.since(before).values()),
        failed=failed(reads),
        states=states(later),
    )


async def invalidated_during_load(stage: Stage) -> InvalidatedDuringLoad:
    """A load has read a row; before its answer arrives, the row changes once more."""
    product = 44
    ask = _product(product, "en")
    key = stage.key(ask)
    await stage.readers.watch([ask])
    before = await stage.origin.meter()
    await stage.origin.hold(f"/products/{product}?locale=en")
    await stage.origin.reprice(product, 23_00)
    await stage.feed.emit(*await stage.feed.take(1))
    await stage.origin.held()
    (loading,) = await stage.generations([key])

    change = await stage.origin.reprice(product, 24_00)
    await stage.feed.emit(*await stage.feed.take(1))
    await stage.until(
        lambda: stage.invalidated_since(key, loading), "the second change is applied"
    )
    applied = stage.clock.monotonic()
    await stage.origin.let_go()
    reads = await stage.readers.until([change.lsn])
    after = await stage.origin.meter()

    final = await stage.readers.burst([ask], callers=1)
    fresh = fresh_at(reads, {0: change.lsn})
    return InvalidatedDuringLoad(
        final_version_is_newest=all(read.version == change.lsn for read in final),
        old_given_as_current=sum(
            read.version < change.lsn and read.state in _CURRENT
            for read in _since(reads, applied)
        ),
        seconds_to_fresh=None if fresh is None else _seconds(applied, fresh),
        origin_loads=sum(after.since(before).values()),
        failed=failed([*reads, *final]),
        states=states(_since(reads, applied)),
    )


async def origin_load(stage: Stage) -> OriginLoad:
    """What the origin bore in the whole play."""
    reading = await stage.origin.meter()
    return OriginLoad(
        limit=reading.limit,
        max_concurrency=reading.max_concurrency,
        queries=sum(reading.queries.values()),
    )


def _product(number: int, locale: str) -> Ask:
    return Ask("product", {"id": number, "locale": locale})


def _since(reads: Sequence[Read], instant: float) -> list[Read]:
    return [read for read in reads if read.began >= instant]


def _seconds(since: float, until: float) -> float:
    return round(until - since, 3)
