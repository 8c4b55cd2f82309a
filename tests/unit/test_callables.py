"""What a callable returns becomes a load: the value as itself, versions as events spell them."""

from typing import Any

import pytest

from tests.datasets import product
from warmer import NOT_FOUND, BadValue, Value
from warmer.clock import SystemClock
from warmer.errors import BadEvent
from warmer.model.outcome import Loaded
from warmer.model.version import SourceVersion
from warmer.origin.callables import load_with


async def loaded(result: Any) -> Loaded:
    dataset = product()
    load = load_with(lambda: result, dataset, SystemClock())
    return await load(dataset.key({"id": 42}), {})


async def test_versions_meet_those_of_events_however_they_are_written() -> None:
    """R-INV-1 KEYS-8: a number, its parts, or with an epoch; ids in the one canonical form."""
    found = await loaded(
        Value(
            "value",
            versions={
                "shop-db/product:42": 7,
                "shop-db/note:a b/ö": (1, 2),
                "shop-db": SourceVersion.of("shop-db", 9, epoch=3),
            },
        )
    )

    assert found.versions == {
        "shop-db/product:42": SourceVersion.of("shop-db", 7),
        "shop-db/note:a%20b/%C3%B6": SourceVersion.of("shop-db", 1, 2),
        "shop-db": SourceVersion.of("shop-db", 9, epoch=3),
    }
    assert found.content.value() == "value"


async def test_only_the_marker_is_a_not_found() -> None:
    """EMPTY-1 R-POL-7: with versions too, so that a deletion can be proven."""
    assert (await loaded(NOT_FOUND)).content.negative
    deleted = await loaded(Value(NOT_FOUND, versions={"shop-db/product:42": 8}))
    assert deleted.content.negative
    assert deleted.versions
    values: list[Any] = [None, 0, "", [], False, b""]
    for value in values:
        assert not (await loaded(value)).content.negative


@pytest.mark.parametrize(
    "result",
    [float("nan"), (1, 2), {1: "a"}, {"x": float("inf")}, object(), {1, 2}],
    ids=["nan", "tuple", "number as key", "infinity", "object", "set"],
)
async def test_what_would_not_read_back_equal_is_refused(result: object) -> None:
    """SERIAL-1: loudly, before anything is stored."""
    with pytest.raises(BadValue):
        await loaded(result)


@pytest.mark.parametrize("version", [-1, 2**64, (), (1, 2, 3, 4, 5)], ids=repr)
async def test_a_version_out_of_range_is_refused(version: Any) -> None:
    """SCRIPT-4: rather than compared wrongly later."""
    with pytest.raises(BadEvent):
        await loaded(Value("value", versions={"shop-db/product:42": version}))
