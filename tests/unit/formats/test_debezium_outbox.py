"""Events of an outbox table."""

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.formats import arrived, read, refused, told
from warmer.ingest.formats import Ignored
from warmer.model.source import Source

SHOP = Source("shop", "debezium-outbox")
HEADERS = {"id": "6b1b", "aggregatetype": "order"}


def over_http(headers: dict[str, str]) -> dict[str, str]:
    """Headers of a record as Debezium's HTTP sink sends them."""
    return {
        f"x-debezium-{name}": base64.b64encode(value.encode()).decode()
        for name, value in headers.items()
    }


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("http", [False, True])
def test_an_event_is_its_aggregate(*, as_text: bool, http: bool) -> None:
    """R-INV-1: the best version there is, the aggregate's own."""
    payload: Any = {"payload": {"total": 5}, "version": 17}
    value = json.dumps(payload) if as_text else payload
    headers = over_http(HEADERS) if http else HEADERS
    (arrival,) = arrived(SHOP, value, key="42", headers=headers)
    assert arrival.event.entities == ("order:42",)
    assert arrival.event.version is not None
    assert arrival.event.version.parts() == (17,)
    assert arrival.identity == "6b1b"


def test_the_version_may_be_a_header() -> None:
    source = replace(SHOP, version_fields=("revision",))
    headers = over_http(HEADERS | {"revision": "9"})
    assert told(source, {}, key="42", headers=headers) == [(("order:42",), (9,))]
    assert told(source, {"version": 1}, key="42", headers=HEADERS)[0][1] is None


def test_the_aggregate_may_be_told_in_several_ways() -> None:
    wrapped = {"schema": {"type": "string"}, "payload": "42"}
    assert told(SHOP, {}, key=wrapped, headers=HEADERS)[0][0] == ("order:42",)
    keyed = replace(SHOP, key_header="x-key")
    headers = HEADERS | {"x-key": base64.b64encode(b'"42"').decode()}
    assert told(keyed, {}, headers=headers)[0][0] == ("order:42",)
    assert told(keyed, {}, headers=HEADERS | {"x-key": "a-42"})[0][0] == ("order:a-42",)
    sent = replace(SHOP, key_header="x-debezium-order")
    http = over_http(HEADERS | {"order": "a-42"})
    assert told(sent, {}, headers=http)[0][0] == ("order:a-42",)
    told_in_it = {"aggregateid": 42, "aggregatetype": "order"}
    assert told(SHOP, told_in_it)[0][0] == ("order:42",)


def test_without_a_type_the_key_is_the_entity() -> None:
    assert told(SHOP, {}, key="order:42")[0][0] == ("order:42",)


def test_a_payload_that_is_no_object_is_left_alone() -> None:
    assert told(SHOP, [1, 2], key="42", headers=HEADERS) == [(("order:42",), None)]
    assert read(SHOP, None, key="42") == Ignored("tombstone")


@pytest.mark.parametrize(
    ("value", "key", "says"),
    [
        ({}, None, "key: is null, not an aggregate's id"),
        ({}, True, "key: is a boolean"),
        ({}, {"id": 1}, "key: is an object"),
        ({"version": 1.5}, "42", "version: is a number that is not whole"),
        ("not json", "42", "payload: is text that is not JSON"),
    ],
)
def test_what_is_not_understood_names_the_field(
    value: object, key: object, says: str
) -> None:
    assert says in refused(SHOP, value, key=key)
