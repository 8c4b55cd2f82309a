"""Purge calls in the shapes that callers have."""

import pytest

from tests.formats import arrived, refused, told
from warmer.model.event import PurgeMode
from warmer.model.source import Source

CDN = Source("cdn", "purge")


@pytest.mark.parametrize(
    ("value", "entities"),
    [
        ({"surrogate_keys": ["a", "b"]}, ("a", "b")),
        ({"tags": ["product:7"]}, ("product:7",)),
        ({"entities": ["product:7"], "source": "cdn"}, ("product:7",)),
        ({"purge_everything": True}, ("*",)),
    ],
)
def test_a_call_names_entities_and_no_version(
    value: object, entities: tuple[str, ...]
) -> None:
    """R-INV-4: so it always applies."""
    assert told(CDN, value) == [(entities, None)]


def test_a_soft_purge_keeps_what_is_there() -> None:
    (soft,) = arrived(CDN, {"tags": ["a"], "soft": True})
    (other,) = arrived(CDN, {"tags": ["a"], "soft": False})
    assert (soft.event.mode, other.event.mode) == (PurgeMode.SOFT, None)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({}, "surrogate_keys: missing or empty"),
        ({"surrogate_keys": []}, "surrogate_keys: missing or empty"),
        ({"surrogate_keys": "a"}, "surrogate_keys: is text"),
        ({"surrogate_keys": [7]}, "surrogate_keys: is a number"),
        ({"surrogate_keys": ["a"] * 257}, "surrogate_keys: 257 of them"),
        ({"files": ["https://x"]}, "files: names no entity"),
        ({"prefixes": ["x"]}, "prefixes: names no entity"),
        ({"tags": ["a"], "soft": "1"}, "soft: is text"),
        ({"tags": ["a"], "hard": True}, "'hard': is not known"),
        ([], "purge: is a list"),
    ],
)
def test_what_is_not_understood_names_the_field(value: object, says: str) -> None:
    assert says in refused(CDN, value)
