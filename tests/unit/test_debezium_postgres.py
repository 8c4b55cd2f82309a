"""What Debezium says of a PostgreSQL table, in every shape it comes in."""

from typing import Any

import orjson
import pytest

from warmer.errors import BadEvent
from warmer.ingest.formats import Events, Ignored, Message, Unreadable
from warmer.ingest.formats.debezium_postgres import DebeziumPostgres
from warmer.model.event import Event
from warmer.model.version import SourceVersion

READER = DebeziumPostgres("shop-db")


def change(op: str = "u", **fields: Any) -> dict[str, Any]:
    """A change of public.note, row 9, at LSN 500."""
    source: dict[str, Any] = {
        "version": "3.6.3.Final",
        "connector": "postgresql",
        "name": "notes",
        "ts_ms": 1_790_000_000_123,
        "snapshot": "false",
        "db": "notes",
        "sequence": '["480","500"]',
        "schema": "public",
        "table": "note",
        "txId": 7,
        "lsn": 500,
        "xmin": None,
    }
    value = {
        "before": None,
        "after": {"id": 9, "text": "hi"},
        "source": source | fields.pop("source", {}),
        "transaction": None,
        "op": op,
        "ts_ms": 1_790_000_000_500,
    }
    return value | fields


def message(value: object, key: object = {"id": 9}) -> Message:
    return Message(orjson.dumps(value), None if key is None else orjson.dumps(key))


def read_events(value: object, key: object = {"id": 9}) -> tuple[Event, ...]:
    read = READER.read(message(value, key))
    assert isinstance(read, Events), read
    return read.events


def reason(read: object) -> str:
    assert isinstance(read, Unreadable), read
    return read.reason


@pytest.mark.parametrize("with_schema", [False, True])
@pytest.mark.parametrize("op", ["c", "u"])
def test_a_change_is_the_row_and_its_version(op: str, *, with_schema: bool) -> None:
    """R-INV-1: with the schema beside it, and without."""
    value: dict[str, Any] = change(op)
    key: dict[str, Any] = {"id": 9}
    if with_schema:
        value = {"schema": {"type": "struct"}, "payload": value}
        key = {"schema": None, "payload": key}

    (event,) = read_events(value, key)

    assert event == Event(
        id=f"{op}:500:note:9",
        source="shop-db",
        entities=("note:9",),
        version=SourceVersion.of("shop-db", 500),
        occurred_at=1_790_000_000_123,
    )


def test_a_delete_is_versioned_like_any_change_and_its_tombstone_is_ignored() -> None:
    """CDC-SHAPE-1: of `before` only the key is real."""
    deleted = change("d", before={"id": 9, "text": ""}, after=None)

    (event,) = read_events(deleted)

    assert event.entities == ("note:9",)
    assert event.version == SourceVersion.of("shop-db", 500)
    for tombstone in (None, b"null", b"default"):
        assert READER.read(Message(tombstone, b'{"id":9}')) == Ignored("tombstone")


def test_a_row_of_a_snapshot_carries_no_version() -> None:
    """CDC-ORDER-1: a change that commits after the snapshot may have a lower LSN."""
    (event,) = read_events(change("r", source={"snapshot": "true"}))

    assert (event.entities, event.version) == (("note:9",), None)


def test_an_incremental_snapshot_without_an_lsn_carries_no_version() -> None:
    """CDC-ORDER-1: told by `op`, not by `snapshot`."""
    value = change("r", source={"snapshot": "incremental"})
    del value["source"]["lsn"]

    (event,) = read_events(value)

    assert event.version is None


def test_an_lsn_above_2_to_the_53_keeps_its_digits() -> None:
    """SCRIPT-4."""
    (event,) = read_events(change(source={"lsn": 2**53 + 1}))

    assert event.version == SourceVersion.of("shop-db", 2**53 + 1)


def test_a_new_epoch_says_that_the_lsn_began_again() -> None:
    """CDC-GAP-4."""
    read = DebeziumPostgres("shop-db", epoch=3).read(message(change()))

    assert isinstance(read, Events)
    assert read.events[0].version == SourceVersion.of("shop-db", 500, epoch=3)


def test_an_unchanged_large_column_does_not_matter() -> None:
    """CDC-SHAPE-4: values come from the origin, never from an event."""
    placeholder = "__debezium_unavailable_value"

    (event,) = read_events(change(after={"id": 9, "text": placeholder}))

    assert event.entities == ("note:9",)
    assert "after.id" in reason(
        DebeziumPostgres("shop-db", columns={"public.note": ("id",)}).read(
            message(change(after={"id": placeholder}), None)
        )
    )


def test_a_changed_primary_key_touches_the_old_row_and_the_new() -> None:
    """R-INV-4: it comes as a delete and a create at one LSN."""
    old = read_events(change("d", before={"id": 9, "text": ""}, after=None))
    new = read_events(change("c", after={"id": 10, "text": "hi"}), {"id": 10})

    assert [event.entities for event in (*old, *new)] == [("note:9",), ("note:10",)]


def test_a_table_without_a_key_is_read_by_its_configured_columns() -> None:
    """CDC-SHAPE-6: with the row before the change where that differs."""
    reader = DebeziumPostgres("shop-db", columns={"public.note": ("a", "b")})
    deleted = change("d", before={"a": 1, "b": "x:y", "c": 0}, after=None)
    moved = change("u", before={"a": 1, "b": "x"}, after={"a": 2, "b": "x"})
    kept = change("u", before={"a": 1, "b": "x"}, after={"a": 1, "b": "x"})

    read = [reader.read(message(value, None)) for value in (deleted, moved, kept)]

    entities = [
        [event.entities for event in one.events]
        for one in read
        if isinstance(one, Events)
    ]
    assert entities == [
        [("note:1:x%3Ay",)],
        [("note:2:x",), ("note:1:x",)],
        [("note:1:x",)],
    ]


def test_a_table_without_a_key_and_without_columns_is_not_dropped_in_silence() -> None:
    """CDC-SHAPE-6."""
    read = READER.read(message(change("d", before={"id": 9}, after=None), None))

    assert reason(read) == (
        "key: missing, and no columns are configured for public.note"
    )


def test_tables_of_other_schemas_do_not_meet() -> None:
    """KEYS-3."""
    (event,) = read_events(change(source={"schema": "archive"}))

    assert event.entities == ("archive.note:9",)


def test_parts_of_a_compound_key_do_not_run_into_each_other() -> None:
    """KEYS-3."""
    one = read_events(change(), {"a": "x:y", "b": "z"})
    other = read_events(change(), {"a": "x", "b": "y:z"})

    assert one[0].entities != other[0].entities


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"ts_ms": 1_790_000_000_000}, "heartbeat"),
        ({"status": "BEGIN", "id": "7:500", "ts_ms": 1}, "transaction"),
        ({"source": {}, "ddl": "ALTER TABLE note", "ts_ms": 1}, "schema_change"),
        ({"op": "m", "message": {"prefix": "p", "content": ""}}, "message"),
    ],
)
def test_what_changes_no_row_is_ignored_by_name(value: object, why: str) -> None:
    """CDC-SHAPE-1: counted, and no error."""
    assert READER.read(message(value, {"serverName": "notes"})) == Ignored(why)


@pytest.mark.parametrize(
    ("value", "key", "names"),
    [
        (change("t", after=None), None, "op: t (truncate)"),
        (change("x"), {"id": 9}, "op: 'x'"),
        (change(source={"connector": "mysql"}), {"id": 9}, "source.connector"),
        (change(source={"lsn": "0/9"}), {"id": 9}, "source.lsn"),
        (change(source={"lsn": -1}), {"id": 9}, "source.lsn"),
        (change(source={"table": ""}), {"id": 9}, "source.table"),
        (change() | {"source": None}, {"id": 9}, "source"),
        ({"id": 9, "text": "hi"}, {"id": 9}, "op: missing"),
        (change(), {"id": 9.5}, "key.id"),
        (change(), {"id": None}, "key.id"),
        (change(), {}, "key"),
        (change(), [9], "key: is list"),
        ([change()], {"id": 9}, "value: is list"),
        (change(), {"id": "x" * 300}, "entity"),
    ],
)
def test_what_is_not_understood_names_the_field(
    value: object, key: object, names: str
) -> None:
    """CDC-SHAPE-6: a dead letter says what to look at."""
    assert names in reason(READER.read(message(value, key)))


def test_what_is_not_json_is_unreadable() -> None:
    """CDC-SHAPE-1: the consumer lives on."""
    assert "not JSON" in reason(READER.read(Message(b"{", b'{"id":9}')))
    assert "not JSON" in reason(READER.read(Message(orjson.dumps(change()), b"\xff")))


def test_a_source_name_that_could_not_be_a_scope_is_refused_at_once() -> None:
    """R-INV-1."""
    with pytest.raises(BadEvent, match="source"):
        DebeziumPostgres("Shop DB")
