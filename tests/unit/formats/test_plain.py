"""Plain JSON of a producer's own."""

from dataclasses import replace
from typing import Any

import pytest

from tests.formats import arrived, refused, told
from warmer.model.event import PurgeMode
from warmer.model.source import Order, Source

SHOP = Source("shop-db", "plain")


@pytest.mark.parametrize(
    ("value", "entities", "version"),
    [
        ({"entity": "product:42", "version": 17}, ("product:42",), (17,)),
        ({"entity": "product:42", "version": "17"}, ("product:42",), (17,)),
        ({"entity": "product:42", "version": [3, 17]}, ("product:42",), (3, 17)),
        ({"entity": "product:42", "version": 2**64 - 1}, ("product:42",), (2**64 - 1,)),
        ({"entity": "product:42"}, ("product:42",), None),
        ({"entities": ["a:1", "b:2", "a:1"]}, ("a:1", "b:2"), None),
        ({"entity": "a:1", "entities": ["b:2"]}, ("a:1", "b:2"), None),
        ({"prefixes": ["product:"]}, ("product:*",), None),
        ({"prefixes": [""]}, ("*",), None),
        ({"prefixes": ["a b:", "a b:"]}, ("a%20b:*",), None),
        ({"entity": "a b", "trace": {"own": 1}}, ("a%20b",), None),
        ({"entity": "a:1", "revision": 5, "identity": "x"}, ("a:1",), None),
        ({"entity": "a:1", "version": 5, "versions": [5]}, ("a:1",), (5,)),
    ],
)
def test_a_message_names_its_entities(
    value: dict[str, Any], entities: tuple[str, ...], version: tuple[int, ...] | None
) -> None:
    """R-INV-1."""
    assert told(SHOP, value) == [(entities, version)]


def test_the_rest_of_an_event_is_told_too() -> None:
    value = {
        "entity": "a:1",
        "mode": "hard",
        "occurred_at": 1_790_000_000_123,
        "id": "e",
    }
    (arrival,) = arrived(SHOP, value)
    assert arrival.event.mode is PurgeMode.HARD
    assert arrival.event.occurred_at == 1_790_000_000_123
    assert (arrival.identity, arrival.event.id) == ("e", "e")


def test_other_fields_may_make_the_version() -> None:
    source = replace(SHOP, version_fields=("epoch", "revision"))
    value = {"entity": "a:1", "epoch": 2, "revision": "9"}
    assert told(source, value) == [(("a:1",), (2, 9))]
    assert told(source, {"entity": "a:1", "epoch": 2}) == [(("a:1",), None)]
    assert told(replace(SHOP, order=Order.NONE), {"entity": "a:1", "version": 1}) == [
        (("a:1",), None)
    ]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            {"entity": "a:1", "verison": 17},
            "'verison': is not known; did you mean version",
        ),
        ({"entity": "a:1", "Version": 17}, "did you mean version"),
        ({"entity": "a:1", "entites": ["b:2"]}, "did you mean entities"),
        ({"prefix": "a:"}, "did you mean prefixes"),
        ({"entity": "a:1"} | {f"f{n}": n for n in range(100)}, "event: 101 fields"),
        ({"prefixes": ["a" * 300]}, "300 bytes"),
        ({"version": 17}, "entity: missing"),
        ({"entities": []}, "entity: missing"),
        ({"entity": 7}, "entity: is a number"),
        ({"entity": ""}, "entity: is empty"),
        ({"entity": "a" * 300}, "entity: 300 bytes"),
        ({"entities": "a:1"}, "entities: is text"),
        ({"entities": ["a"] * 1_001}, "entities: 1001 of them"),
        ({"prefixes": ["a:"] * 17}, "prefixes: 17 of them"),
        ({"entity": "a:1", "version": 1.5}, "version: is a number that is not whole"),
        ({"entity": "a:1", "version": 1e30}, "version: is a number that is not whole"),
        ({"entity": "a:1", "version": "build10"}, "version: is text"),
        ({"entity": "a:1", "version": True}, "version: is a boolean"),
        ({"entity": "a:1", "version": [1, 2, 3, 4, 5]}, "version: 5 parts"),
        ({"entity": "a:1", "mode": "gone"}, "mode: allowed are soft and hard"),
        ({"entity": "a:1", "occurred_at": "now"}, "occurred_at: is text"),
        ([], "event: is a list"),
    ],
)
def test_what_is_not_understood_names_the_field(value: object, says: str) -> None:
    """CDC-ORDER-4: a version that is no number is refused, not compared as text."""
    assert says in refused(SHOP, value)
