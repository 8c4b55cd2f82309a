"""Debezium's flattened rows."""

from dataclasses import replace
from typing import Any

import pytest

from tests.formats import KEYED_BY_ID, arrived, read, refused, told
from warmer.ingest.formats import Ignored
from warmer.model.source import EntityTemplate, Order, Source, Table

SHOP = Source("shop-db", "debezium-flattened", unlisted=KEYED_BY_ID)


def row(**fields: Any) -> dict[str, Any]:
    value = {
        "id": 7,
        "sku": "A-1",
        "__op": "u",
        "__table": "note",
        "__lsn": 901_344,
        "__source_ts_ms": 1_790_000_000_123,
        "__deleted": "false",
    }
    return value | fields


ORDERED = [
    (row(), Order.ROW, (901_344,)),
    (row(), Order.COMMIT, None),
    (row(__source_sequence='["480","901344"]'), Order.COMMIT, (480, 901_344)),
    (row(__lsn=None, __source_lsn="901344"), Order.ROW, (901_344,)),
    (
        row(__lsn=None, __source_file="binlog.000042", __source_pos=4, __source_row=0),
        Order.ROW,
        (42, 4, 0),
    ),
    (
        row(__lsn=None, __commit_lsn="00000027:00000758:0005", __change_lsn=None),
        Order.ROW,
        (0x2700000758, 0x0005 << 48, 0),
    ),
    (row(__lsn=None), Order.ROW, None),
]


@pytest.mark.parametrize("index", range(len(ORDERED)))
def test_the_version_is_what_was_added(index: int) -> None:
    """R-INV-1: without added fields, every event applies."""
    value, order, version = ORDERED[index]
    assert told(replace(SHOP, order=order), value) == [(("note:7",), version)]


def test_a_rewritten_delete_is_read_by_its_key() -> None:
    """Its other columns may be made up."""
    gone = row(__deleted="true", __op="d")
    assert told(SHOP, gone) == [(("note:7",), (901_344,))]
    by_sku = replace(SHOP, unlisted=Table((EntityTemplate("sku:{sku}"),), key=("id",)))
    assert "sku: missing" in refused(by_sku, gone)
    assert told(by_sku, row())[0][0] == ("sku:A-1",)


def test_a_column_may_be_the_version() -> None:
    source = replace(SHOP, version_fields=("revision",))
    assert told(source, row(revision=5)) == [(("note:7",), (5,))]
    gone = row(revision=0, __deleted="true")
    assert told(source, gone) == [(("note:7",), None)]


def test_a_source_of_one_table_need_not_tell_it() -> None:
    by_sku = Table((EntityTemplate("sku:{sku}"),))
    source = replace(SHOP, tables={"note": by_sku})
    assert told(source, row(__table=None))[0][0] == ("sku:A-1",)
    # Which part of the name is a schema, and which a database, is not known.
    qualified = replace(SHOP, tables={"public.note": by_sku})
    assert "__table: is null" in refused(qualified, row(__table=None))
    assert "__table: is null" in refused(SHOP, row(__table=None))


def test_a_row_of_a_snapshot_moves_no_floor() -> None:
    (arrival,) = arrived(SHOP, row(__op="r"))
    assert (arrival.event.version, arrival.event.warm) == (None, True)


def test_what_changes_no_row_is_ignored_by_name() -> None:
    """CDC-SHAPE-1: the transform lets through what is no row."""
    assert read(SHOP, None) == Ignored("tombstone")
    assert read(SHOP, {"ts_ms": 1}) == Ignored("heartbeat")


def test_only_the_commits_time_is_when_it_happened() -> None:
    read_later = row(__ts_ms=1_790_000_099_000)
    (arrival,) = arrived(SHOP, read_later)
    assert arrival.event.occurred_at == 1_790_000_000_123


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (row(__op="x"), "__op: 'x' is not one of"),
        (row(__op=7), "__op: a number is not one of"),
        (row(__lsn=1.5), "source.lsn: is a number that is not whole"),
        ([7], "value: is a list"),
        (row(id=None), "key: is null"),
    ],
)
def test_what_is_not_understood_names_the_field(value: object, says: str) -> None:
    assert says in refused(SHOP, value)
