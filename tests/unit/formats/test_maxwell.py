"""What Maxwell says of a row."""

from dataclasses import replace
from typing import Any

import pytest

from tests.formats import KEYED_BY_ID, arrived, read, refused, told
from warmer.ingest.formats import Ignored
from warmer.model.source import EntityTemplate, Source, Table

SHOP = Source("shop-db", "maxwell", unlisted=KEYED_BY_ID)
BY_FOLDER = replace(SHOP, unlisted=Table((EntityTemplate("folder:{folder}"),)))


def event(type_: str = "update", **fields: Any) -> dict[str, Any]:
    value = {
        "database": "shop",
        "table": "note",
        "type": type_,
        "ts": 1_790_000_000,
        "xid": 9001,
        "xoffset": 3,
        "position": "mysql-bin.000042:800911",
        "gtid": "5b1c1a6e-0000-11f0-aaaa-0242ac120002:1-4711",
        "server_id": 11,
        "data": {"id": 7, "folder": 1},
    }
    return {name: part for name, part in (value | fields).items() if part != "absent"}


@pytest.mark.parametrize("type_", ["insert", "update", "delete"])
def test_a_row_is_ordered_by_its_place_in_the_binlog(type_: str) -> None:
    """R-INV-1."""
    (arrival,) = arrived(SHOP, event(type_))
    version = arrival.event.version
    assert version is not None
    assert arrival.event.entities == ("note:7",)
    assert version.parts() == (42, 800_911, 3)
    assert arrival.position == version.digits
    assert arrival.lineage == "maxwell/mysql-bin"
    assert arrival.event.occurred_at == 1_790_000_000_000


def test_the_last_row_of_a_transaction_comes_last() -> None:
    last = event(xoffset="absent", commit=True)
    assert told(SHOP, last) == [(("note:7",), (42, 800_911, 2**64 - 1))]


def test_without_a_position_every_event_applies() -> None:
    """A transaction's number begins again with its server."""
    assert told(SHOP, event(position="absent")) == [(("note:7",), None)]


def test_a_moved_row_names_where_it_was() -> None:
    """R-INV-4: `old` has what changed, and nothing else."""
    moved = event(old={"folder": 2})
    assert told(BY_FOLDER, moved)[0][0] == ("folder:1", "folder:2")
    renumbered = event(old={"id": 6})
    assert told(SHOP, renumbered)[0][0] == ("note:7", "note:6")


def test_the_key_may_come_with_the_row() -> None:
    source = Source("shop-db", "maxwell")
    keyed = event(primary_key=[7], primary_key_columns=["id"])
    assert told(source, keyed)[0][0] == ("note:7",)
    assert told(source, event(primary_key_columns=["id"]))[0][0] == ("note:7",)
    assert "key: missing" in refused(source, event())


def test_a_row_that_was_bootstrapped_moves_no_floor() -> None:
    (arrival,) = arrived(SHOP, event("bootstrap-insert"))
    assert (arrival.event.version, arrival.event.warm) == (None, True)


def test_a_dropped_table_is_all_its_rows() -> None:
    (arrival,) = arrived(SHOP, event("table-drop", data="absent"))
    assert arrival.event.prefixes == ("note:",)


@pytest.mark.parametrize(
    ("type_", "reason"),
    [
        ("bootstrap-start", "bootstrap"),
        ("bootstrap-complete", "bootstrap"),
        ("table-alter", "schema_change"),
        ("database-create", "schema_change"),
    ],
)
def test_what_changes_no_row_is_ignored(type_: str, reason: str) -> None:
    assert read(SHOP, event(type_)) == Ignored(reason)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"type": 7}, "type: is a number"),
        ({"type": "merge"}, "type: 'merge' is not known"),
        ({"data": None}, "data: is null"),
        ({"old": [1]}, "old: is a list"),
        ({"table": None}, "table: is null"),
        ({"position": "800911"}, "position: is no binlog file's name"),
        ({"position": "mysql-bin.000042:x"}, "position: is text, not a whole number"),
        ({"ts": 2**64 - 1}, "ts: is a number, not a whole number of 64 bits"),
        ({"xoffset": 1.5}, "xoffset: is a number that is not whole"),
        ({"primary_key_columns": "id"}, "primary_key_columns: is no list"),
        (
            {"primary_key_columns": ["id"], "primary_key": []},
            "primary_key: does not match",
        ),
    ],
)
def test_what_is_not_understood_names_the_field(
    fields: dict[str, Any], says: str
) -> None:
    assert says in refused(SHOP, event(**fields))
