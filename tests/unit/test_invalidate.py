"""Events applied to the reference cache, and what they put into the due set."""

from collections.abc import Sequence

import pytest

from tests.datasets import product
from tests.stores import WatchedStore
from warmer.errors import StoreTimeout
from warmer.invalidate import AT_ONCE, Applied, Invalidator
from warmer.model.dataset import Dataset, EntityPattern, RefreshOn
from warmer.model.due import DueKey, Lane
from warmer.model.event import Event, PurgeMode
from warmer.model.key import KeyTemplate
from warmer.model.prefix_scan import PrefixAsk
from warmer.model.version import SourceVersion
from warmer.signals import Counters
from warmer.store.reference import ReferenceStore

NOW = 1_790_000_000_000


class DueList:
    """The due set as a list of what was asked for."""

    def __init__(self) -> None:
        self.keys: list[DueKey] = []
        self.warm: list[DueKey] = []

    async def add(
        self, lane: Lane, keys: Sequence[DueKey], *, due_in_ms: int = 0
    ) -> int:
        assert due_in_ms == 0
        asked = self.keys if lane is Lane.NOW else self.warm
        asked += keys
        return len(keys)


class ScanList:
    """Scans as a list of what was asked for."""

    def __init__(self) -> None:
        self.asks: list[PrefixAsk] = []

    async def ask(self, ask: PrefixAsk) -> None:
        self.asks.append(ask)


class Bench:
    """An invalidator on a reference store."""

    def __init__(self, *datasets: Dataset) -> None:
        self.reference = ReferenceStore(lambda: NOW)
        self.store = WatchedStore(self.reference)
        self.due = DueList()
        self.scans = ScanList()
        self.signals = Counters()
        self.invalidator = Invalidator(
            store=self.store,
            datasets={dataset.name: dataset for dataset in datasets},
            due=self.due,
            scans=self.scans,
            signals=self.signals,
        )

    async def apply(self, *events: Event) -> Applied:
        return await self.invalidator.apply(events)

    @property
    def due_texts(self) -> list[str]:
        return sorted(key.key.text for key in self.due.keys)


def event(
    *entities: str,
    version: int | None = None,
    source: str = "shop-db",
    mode: PurgeMode | None = None,
) -> Event:
    return Event(
        id="e1",
        source=source,
        entities=entities,
        version=None if version is None else SourceVersion.of(source, version),
        mode=mode,
    )


def by_locale(**changes: object) -> Dataset:
    """Products per locale, in two schema versions that are both read."""
    return product(
        template=KeyTemplate("product:v{schema}:{locale}:{id}"),
        vary={"locale": ("de", "en", "fr")},
        live_schemas=(2, 3),
        refresh_on=RefreshOn.ALL,
        **changes,
    )


async def test_one_entity_reaches_every_variant_of_every_live_schema() -> None:
    """R-INV-4, R-REC-4, R-REC-5."""
    bench = Bench(by_locale(path="/v{schema}/products/{id}"))

    applied = await bench.apply(event("product:42", version=7))

    assert applied == Applied(purged=0, noted=6, older=0, due=6, unknown=0)
    assert bench.due_texts == [
        f"product:v{schema}:{locale}:42"
        for schema in (2, 3)
        for locale in ("de", "en", "fr")
    ]


async def test_a_schema_version_that_the_path_does_not_give_is_left_to_its_readers() -> (
    None
):
    """R-REC-4: version 2's keys never hold version 3's representation."""
    bench = Bench(by_locale())

    applied = await bench.apply(event("product:42", version=7))

    assert (applied.noted, applied.due) == (6, 3)
    assert bench.due_texts == [
        f"product:v3:{locale}:42" for locale in ("de", "en", "fr")
    ]


async def test_a_key_to_refresh_carries_what_it_must_reach() -> None:
    """R-INV-3, LOST-INVAL-4: a lost guard forgets nothing."""
    bench = Bench(product(refresh_on=RefreshOn.ALL))

    await bench.apply(event("product:1", version=7), event("product:2"))

    versioned, blind = bench.due.keys
    assert versioned.wanted == {"shop-db/product:1": SourceVersion.of("shop-db", 7)}
    assert versioned.wanted_fence < NOW * 1000  # the fence of a claim from now on
    assert versioned.event_id == "e1"
    assert blind.wanted == {}


async def test_only_keys_that_had_an_entry_are_refreshed_by_default() -> None:
    """R-CARD-3: hot keys, not every key that there could be."""
    bench = Bench(product())
    applied = await bench.apply(event("product:1", version=7))

    assert (applied.noted, applied.due) == (1, 0)
    assert bench.due.keys == []


async def test_what_is_provably_older_refreshes_nothing() -> None:
    """R-INV-2, CDC-ORDER-6: discarded and counted."""
    bench = Bench(product(refresh_on=RefreshOn.ALL))
    await bench.apply(event("product:1", version=100))
    bench.due.keys.clear()

    applied = await bench.apply(event("product:1", version=90))

    assert (applied.older, applied.due) == (1, 0)
    assert bench.signals.total("invalidations", "product", "older") == 1


async def test_a_dataset_without_an_origin_is_invalidated_and_not_refreshed() -> None:
    """R-INV-4: its callers load it."""
    bench = Bench(product(origin=None, path=None, refresh_on=RefreshOn.ALL))

    applied = await bench.apply(event("product:1"))

    assert (applied.noted, applied.due) == (1, 0)


async def test_an_entity_that_nothing_depends_on_is_counted_and_no_error() -> None:
    """R-INV-1."""
    bench = Bench(product())

    applied = await bench.apply(
        event("price:1"), event("product:1", source="somewhere")
    )

    assert (applied.unknown, applied.noted) == (2, 0)
    assert bench.signals.total("entities_unknown", "shop-db") == 1
    assert bench.signals.total("entities_unknown", "other") == 1


@pytest.mark.parametrize(
    ("of_event", "of_dataset"),
    [(None, PurgeMode.HARD), (PurgeMode.HARD, PurgeMode.SOFT)],
)
async def test_the_events_mode_goes_before_the_datasets(
    of_event: PurgeMode | None, of_dataset: PurgeMode
) -> None:
    """R-POL-4: hard where old data is wrong."""
    bench = Bench(product(purge=of_dataset))

    await bench.apply(event("product:1", mode=of_event))

    assert "hard" in bench.reference.guards["product:v3:1"].value


async def test_two_datasets_may_depend_on_one_entity() -> None:
    """R-INV-4: a list and the thing itself."""
    listed = product(
        name="list",
        template=KeyTemplate("list:v{schema}"),
        entities=(EntityPattern("shop-db/product:{product_id}"),),
        refresh_on=RefreshOn.ALL,
    )
    bench = Bench(product(refresh_on=RefreshOn.ALL), listed)

    await bench.apply(event("product:1"), event("product:2"))

    assert bench.due_texts == ["list:v3", "list:v3", "product:v3:1", "product:v3:2"]


async def test_a_large_fan_out_is_worked_off_in_bounded_parts() -> None:
    """R-INV-4: not all keys of an entity are under way at once."""
    locales = tuple(f"l{number}" for number in range(AT_ONCE + 10))
    bench = Bench(
        product(
            template=KeyTemplate("product:v{schema}:{locale}:{id}"),
            vary={"locale": locales},
        )
    )
    running, most = 0, 0

    async def visit(point: str) -> None:
        nonlocal running, most
        running += 1 if point.endswith("before") else -1
        most = max(most, running)

    bench.store.visit = visit

    applied = await bench.apply(event("product:1"))

    assert applied.noted == len(locales)
    assert most <= AT_ONCE


async def test_a_server_that_fails_in_the_middle_leaves_the_events_to_be_repeated() -> (
    None
):
    """R-INV-3: nothing is acknowledged that was not applied; repeating is harmless."""
    bench = Bench(by_locale(path="/v{schema}/products/{id}"))
    failing = True

    async def visit(point: str) -> None:
        if failing and point == "invalidate:after" and bench.store.calls.total() > 3:
            raise StoreTimeout("no reply")

    bench.store.visit = visit
    with pytest.raises(StoreTimeout):
        await bench.apply(event("product:1", version=7))
    failing = False

    applied = await bench.apply(event("product:1", version=7))

    assert applied.due == 6
    assert len(bench.due_texts) == 6


async def test_an_event_of_prefixes_asks_for_a_scan_and_its_entities_are_applied_too() -> (
    None
):
    """R-INV-4: a truncated table names no rows."""
    bench = Bench(product())
    version = SourceVersion.of("shop-db", 7)
    truncated = Event(
        "e1",
        "shop-db",
        entities=("product:1",),
        version=version,
        mode=PurgeMode.HARD,
        prefixes=("product:", "prod"),
    )

    applied = await bench.apply(truncated)

    assert bench.scans.asks == [
        PrefixAsk("shop-db", prefix, PurgeMode.HARD, version, "e1")
        for prefix in ("product:", "prod")
    ]
    assert (applied.noted, applied.unknown) == (1, 0)


async def test_no_scan_is_asked_for_that_could_reach_nothing() -> None:
    """R-INV-4: a table that nothing is built from, a source that nobody configured."""
    bench = Bench(product())

    applied = await bench.apply(
        Event("e1", "other-db", (), prefixes=("",)),
        Event("e2", "shop-db", (), prefixes=("audit:", "product:")),
    )

    assert [ask.prefix for ask in bench.scans.asks] == ["product:"]
    assert applied.unknown == 2
    assert bench.signals.total("entities_unknown", "other") == 1


async def test_a_row_that_was_only_read_purges_nothing_and_warms_its_keys() -> None:
    """CDC-ORDER-1: a snapshot moves no floor; what is not fresh is loaded."""
    bench = Bench(by_locale(path="/v{schema}/products/{id}"), product(name="listed"))
    warm = Event("e1", "shop-db", ("product:42",), prefixes=("product:",), warm=True)

    applied = await bench.apply(warm)

    assert (applied.noted, applied.purged, applied.due) == (0, 0, 7)
    assert (bench.reference.guards, bench.scans.asks, bench.due.keys) == ({}, [], [])
    assert {key.wanted_fence for key in bench.due.warm} == {0}
    assert len(bench.due.warm) == 7


@pytest.mark.parametrize(
    "changes",
    [{"origin": None, "path": None}, {"refresh_on": RefreshOn.NONE}],
    ids=["no origin", "refresh_on none"],
)
async def test_keys_that_workers_do_not_load_are_not_warmed(
    changes: dict[str, object],
) -> None:
    """R-INV-4: only callers load them."""
    bench = Bench(product(**changes))

    applied = await bench.apply(Event("e1", "shop-db", ("product:1",), warm=True))

    assert (applied.due, bench.due.warm) == (0, [])
