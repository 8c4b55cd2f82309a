"""CloudEvents whose producers name the entity, in both of their modes."""

import base64
from dataclasses import replace
from typing import Any

import pytest

from tests.formats import arrived, refused, told
from warmer.errors import BadEvent
from warmer.ingest.formats.cloudevents import of_binary, source_of
from warmer.model.event import PurgeMode
from warmer.model.source import Source

SHOP = Source("shop", "cloudevents", cloudevents_source="/shop/catalog")


def event(**attributes: Any) -> dict[str, Any]:
    value = {
        "specversion": "1.0",
        "id": "01J",
        "source": "/shop/catalog",
        "type": "shop.product.updated",
        "subject": "product:7",
        "time": "2026-02-03T04:05:06.789Z",
        "sequence": "00000000000000004711",
        "datacontenttype": "application/json",
        "data": {"tags": ["category:3"], "price": 5},
    }
    return value | attributes


def test_an_event_names_its_entity_and_its_version() -> None:
    """R-INV-1."""
    (arrival,) = arrived(SHOP, event())
    assert arrival.event.entities == ("product:7", "category:3")
    assert arrival.event.version is not None
    assert arrival.event.version.parts() == (4711,)
    assert arrival.event.occurred_at == 1_770_091_506_789
    assert arrival.identity == "01J"
    assert (arrival.position, arrival.lineage) == ("", "by version")


@pytest.mark.parametrize(
    ("sequence", "version"),
    [
        ("9", (9,)),
        ("10", (10,)),
        (10, (10,)),
        (None, None),
        ("0009-01J", None),
        ("-5", None),
    ],
)
def test_a_sequence_is_compared_as_a_number_or_not_at_all(
    sequence: object, version: tuple[int, ...] | None
) -> None:
    """CDC-ORDER-4: as text, 9 would come after 10."""
    assert told(SHOP, event(sequence=sequence))[0][1] == version


def test_other_attributes_may_make_the_version() -> None:
    source = replace(SHOP, version_fields=("revision",))
    assert told(source, event(revision="5"))[0][1] == (5,)
    assert told(source, event())[0][1] is None


def test_a_mode_may_be_asked_for() -> None:
    (arrival,) = arrived(SHOP, event(data={"mode": "hard"}))
    assert arrival.event.mode is PurgeMode.HARD
    assert arrived(SHOP, event(data="text"))[0].event.mode is None


def test_an_attribute_that_is_null_is_absent() -> None:
    assert told(SHOP, event(sequence=None, data=None, time=None))[0][0] == (
        "product:7",
    )


def test_binary_mode_is_the_same_event() -> None:
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "01J",
        "ce-source": "/shop/catalog",
        "ce-type": "t",
        "ce-subject": "product:M%C3%BCller",
        "ce-sequence": "4711",
        "content-type": "application/json",
    }
    value = of_binary(b'{"tags": ["category:3"]}', headers)
    assert source_of(value) == "/shop/catalog"
    assert told(SHOP, value) == [(("product:M%C3%BCller", "category:3"), (4711,))]
    assert told(SHOP, of_binary(b"", headers))[0][1] == (4711,)
    assert told(SHOP, of_binary(b"<xml/>", headers))[0][1] == (4711,)
    with pytest.raises(BadEvent, match="ce-subject"):
        of_binary(b"", headers | {"ce-subject": "%FF"})


def test_data_may_come_in_base64() -> None:
    data = base64.b64encode(b'{"tags":["a:1"]}').decode()
    assert told(SHOP, event(data=None, data_base64=data))[0][0] == ("product:7", "a:1")
    assert told(SHOP, event(data=None, data_base64="?"))[0][0] == ("product:7",)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (event(specversion="0.3"), "specversion: '0.3' is not 1.0"),
        (event(specversion=1.0), "specversion: is a number"),
        (event(id=None), "id: is null"),
        (event(type=""), "type: is empty"),
        (event(subject=None), "subject: is null"),
        (event(source="/other"), "source: is none that this sender speaks for"),
        (event(sequence=True), "sequence: is a boolean"),
        (event(sequence=1e20), "sequence: is a number that is not whole"),
        (event(data={"tags": "a"}), "data.tags: is text"),
        (event(data={"tags": ["a"] * 101}), "data.tags: 101 of them"),
        (event(data={"tags": [7]}), "data.tags: is a number"),
        ([], "event: is a list"),
    ],
)
def test_what_is_not_understood_names_the_attribute(value: object, says: str) -> None:
    assert says in refused(SHOP, value)


@pytest.mark.parametrize("value", [None, [], "x", {}, {"source": 7}])
def test_what_has_no_source_is_of_none(value: object) -> None:
    assert source_of(value) == ""
