"""What AWS DMS says of a row."""

from typing import Any

import pytest

from tests.formats import KEYED_BY_ID, arrived, read, refused, told
from warmer.ingest.formats import Ignored
from warmer.model.source import Source

SHOP = Source("shop-db", "dms", unlisted=KEYED_BY_ID)
LSN = (0x2 << 32) | 0x7C007328


def message(
    operation: str = "update", about: Any = None, **fields: Any
) -> dict[str, Any]:
    metadata = {
        "timestamp": "2026-09-21T13:33:21.000000Z",
        "record-type": "data",
        "operation": operation,
        "partition-key-type": "schema-table",
        "schema-name": "public",
        "table-name": "note",
        "transaction-id": 1140,
        "transaction-record-id": 2,
        "commit-timestamp": "2026-09-21T13:33:20.000000Z",
        "stream-position": "00000002/7C007328.2.00000002/7C007328",
    }
    value = {"data": {"id": 7, "text": "hi"}, "metadata": metadata | (about or {})}
    return value | fields


@pytest.mark.parametrize("operation", ["insert", "update", "delete"])
def test_a_row_is_ordered_by_its_stream_position(operation: str) -> None:
    """R-INV-1."""
    (arrival,) = arrived(SHOP, message(operation))
    assert arrival.event.version is not None
    assert arrival.event.version.parts() == (LSN, 2)
    assert arrival.event.entities == ("note:7",)
    assert arrival.event.occurred_at == 1_789_997_600_000


@pytest.mark.parametrize(
    "about",
    [
        {"transaction-record-id": None},
        {"stream-position": None},
        {"stream-position": "mysql-bin.000042:4524:1"},
    ],
)
def test_without_the_details_every_event_applies(about: dict[str, Any]) -> None:
    assert told(SHOP, message(about=about)) == [(("note:7",), None)]


@pytest.mark.parametrize(
    "value",
    [
        message() | {"before-image": {"id": 6}},
        message(data={"id": 7, "text": "hi", "BI_id": 6}),
    ],
    ids=["before-image", "columns"],
)
def test_a_changed_key_names_both(value: dict[str, Any]) -> None:
    assert told(SHOP, value)[0][0] == ("note:7", "note:6")


def test_a_loaded_row_moves_no_floor() -> None:
    (arrival,) = arrived(SHOP, message("load"))
    assert (arrival.event.version, arrival.event.warm) == (None, True)


def test_a_dropped_table_is_all_its_rows() -> None:
    gone = message("drop-table", {"record-type": "control"}, data=None)
    assert told(SHOP, gone) == [(("note:*",), (LSN, 2))]
    made = message("create-table", {"record-type": "control"}, data=None)
    assert read(SHOP, made) == Ignored("control")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (message("merge"), "metadata.operation: 'merge' is not known"),
        (message(data=None), "data: missing"),
        (message(data=7), "data: is a number"),
        (message(metadata=None), "metadata: is null"),
        (message(about={"table-name": 7}), "metadata.table-name: is a number"),
        (message() | {"before-image": 7}, "before-image: is a number"),
    ],
)
def test_what_is_not_understood_names_the_field(value: object, says: str) -> None:
    assert says in refused(SHOP, value)
