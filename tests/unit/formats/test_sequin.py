"""What Sequin says of a row."""

from typing import Any

import pytest

from tests.formats import KEYED_BY_ID, arrived, refused, told
from warmer.model.source import Source

SHOP = Source("shop-db", "sequin", unlisted=KEYED_BY_ID)


def message(action: str = "update", about: Any = None, **fields: Any) -> dict[str, Any]:
    metadata = {
        "table_schema": "public",
        "table_name": "note",
        "commit_timestamp": "2026-09-21T13:33:20.123Z",
        "commit_lsn": 123_456_790,
        "commit_idx": 1,
        "idempotency_key": "MTIzNDU2Nzkw",
        "database": {"id": "12b6", "name": "shop"},
    }
    value = {
        "record": {"id": 7, "text": "hi"},
        "changes": {"text": "ho"},
        "action": action,
        "metadata": metadata | (about or {}),
    }
    return value | fields


@pytest.mark.parametrize("action", ["insert", "update", "delete"])
def test_a_row_is_ordered_by_commit_and_known_again(action: str) -> None:
    """R-INV-1."""
    (arrival,) = arrived(SHOP, message(action))
    version = arrival.event.version
    assert version is not None
    assert version.parts() == (123_456_790, 1)
    assert arrival.event.entities == ("note:7",)
    assert arrival.identity == "MTIzNDU2Nzkw"
    assert arrival.position == version.digits
    assert arrival.event.occurred_at == 1_789_997_600_123


def test_a_batch_is_its_messages() -> None:
    two = {"data": [message(), message(about={"commit_idx": 2}, record={"id": 8})]}
    assert told(SHOP, two) == [
        (("note:7",), (123_456_790, 1)),
        (("note:8",), (123_456_790, 2)),
    ]


def test_a_changed_key_names_both() -> None:
    assert told(SHOP, message(changes={"id": 6}))[0][0] == ("note:7", "note:6")


def test_a_backfilled_row_moves_no_floor() -> None:
    (arrival,) = arrived(SHOP, message("read", changes=None))
    assert (arrival.event.version, arrival.event.warm) == (None, True)


def test_without_an_order_every_event_applies() -> None:
    assert told(SHOP, message(about={"commit_idx": None})) == [(("note:7",), None)]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"data": []}, "data: is empty"),
        ({"data": [7]}, "data: is a number"),
        (message("merge"), "action: 'merge' is not"),
        (message(metadata=None), "metadata: is null"),
        (message(record="x"), "record: is text"),
        (message(about={"commit_lsn": "x/y"}), "metadata.commit_lsn: is no LSN"),
        (message(about={"commit_idx": -1}), "metadata.commit_idx: is a number"),
        (message(about={"table_name": ""}), "metadata.table_name: is empty"),
        ([1], "message: is a list"),
    ],
)
def test_what_is_not_understood_names_the_field(value: object, says: str) -> None:
    assert says in refused(SHOP, value)
