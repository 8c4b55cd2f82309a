"""Debezium's change events in CloudEvents."""

from dataclasses import replace
from typing import Any

import pytest

from tests.formats import KEYED_BY_ID, arrived, read, refused, told
from warmer.ingest.formats import Ignored
from warmer.model.source import Order, Source

SHOP = Source("shop-db", "debezium-cloudevents", unlisted=KEYED_BY_ID)


def event(**attributes: Any) -> dict[str, Any]:
    value = {
        "id": 'name:shop;lsn:901344;txId:771;sequence:["480","901344"]',
        "source": "/debezium/postgresql/shop",
        "specversion": "1.0",
        "type": "io.debezium.connector.postgresql.DataChangeEvent",
        "time": "2026-09-21T13:33:20.123Z",
        "datacontenttype": "application/json",
        "iodebeziumop": "u",
        "iodebeziumversion": "3.6.3.Final",
        "iodebeziumconnector": "postgresql",
        "iodebeziumname": "shop",
        "iodebeziumtsms": "1790000000123",
        "iodebeziumsnapshot": "false",
        "iodebeziumdb": "shop",
        "iodebeziumsequence": '["480","901344"]',
        "iodebeziumschema": "public",
        "iodebeziumtable": "note",
        "iodebeziumtxId": "771",
        "iodebeziumlsn": "901344",
        "iodebeziumxmin": None,
        "data": {"before": None, "after": {"id": 7, "text": "hi"}},
    }
    return value | attributes


def mysql(**attributes: Any) -> dict[str, Any]:
    return event(
        iodebeziumconnector="mysql",
        iodebeziumlsn=None,
        iodebeziumsequence=None,
        iodebeziumfile="binlog.000042",
        iodebeziumpos="4524",
        iodebeziumrow=1,
        **attributes,
    )


def test_an_event_is_its_row_in_its_connectors_order() -> None:
    """R-INV-1."""
    (arrival,) = arrived(SHOP, event())
    assert arrival.event.version is not None
    assert arrival.event.version.parts() == (901_344,)
    assert arrival.event.entities == ("note:7",)
    assert arrival.event.occurred_at == 1_790_000_000_123
    assert arrival.lineage == "postgresql/shop/shop/"
    assert told(replace(SHOP, order=Order.COMMIT), event())[0][1] == (480, 901_344)
    assert told(SHOP, mysql())[0][1] == (42, 4524, 1)


def test_an_id_that_rows_share_tells_no_repetition() -> None:
    (arrival,) = arrived(SHOP, event())
    assert arrival.identity == ""


def test_names_and_schemas_may_be_as_other_releases_write_them() -> None:
    upper = {
        name.replace("iodebezium", "ioDebezium"): item for name, item in event().items()
    }
    assert told(SHOP, upper) == told(SHOP, event())
    wrapped = event(data={"schema": {}, "payload": event()["data"]})
    assert told(SHOP, wrapped) == told(SHOP, event())


def test_a_truncated_table_and_a_row_that_was_read() -> None:
    assert told(SHOP, event(iodebeziumop="t", data=None))[0][0] == ("note:*",)
    (arrival,) = arrived(SHOP, event(iodebeziumop="r"))
    assert arrival.event.version is None
    assert read(SHOP, None) == Ignored("tombstone")
    assert read(SHOP, event(iodebeziumop="m")) == Ignored("message")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (event(iodebeziumop=None), "iodebeziumop: null is not one of"),
        (event(iodebeziumconnector=7), "source.connector: is a number"),
        (event(iodebeziumtable=None), "source.table: is null"),
        (event(iodebeziumlsn="x"), "source.lsn: is text"),
        (event(data=7), "data: is a number"),
        (event(data=None), "missing"),
        (7, "event: is a number"),
    ],
)
def test_what_is_not_understood_names_the_field(value: object, says: str) -> None:
    assert says in refused(SHOP, value)
