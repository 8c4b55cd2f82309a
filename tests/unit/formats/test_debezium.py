"""What Debezium says of a row, by every connector and in every shape it comes in."""

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from warmer.errors import BadEvent
from warmer.ingest.formats import Changes, Ignored, Message, Read, Unreadable, reader
from warmer.ingest.mapping import arrivals
from warmer.model.arrival import Arrival
from warmer.model.source import (
    Before,
    EntityTemplate,
    Order,
    Snapshot,
    Source,
    Table,
)

SHOP = Source("shop-db", "debezium")
BY_COMMIT = replace(SHOP, order=Order.COMMIT)
KEY = {"id": 9}


def postgresql(op: str = "u", *, origin: Any = None, **fields: Any) -> dict[str, Any]:
    """A change of public.note, row 9, at LSN 500."""
    source = {
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
    return envelope(op, source | (origin or {}), **fields)


def mysql(op: str = "u", *, origin: Any = None, **fields: Any) -> dict[str, Any]:
    """A change of shop.note, row 9, in the 42nd binlog."""
    source = {
        "version": "3.6.3.Final",
        "connector": "mysql",
        "name": "shop",
        "ts_ms": 1_790_000_000_000,
        "snapshot": "false",
        "db": "shop",
        "table": "note",
        "server_id": 11,
        "gtid": "5b1c1a6e-0000-11f0-aaaa-0242ac120002:4711",
        "file": "binlog.000042",
        "pos": 4524,
        "row": 1,
        "thread": 66,
        "query": None,
    }
    return envelope(op, source | (origin or {}), **fields)


def sqlserver(op: str = "u", *, origin: Any = None, **fields: Any) -> dict[str, Any]:
    source = {
        "version": "3.6.3.Final",
        "connector": "sqlserver",
        "name": "shop",
        "ts_ms": 1_790_000_000_000,
        "snapshot": "false",
        "db": "shop",
        "schema": "dbo",
        "table": "note",
        "change_lsn": "00000027:00000758:0003",
        "commit_lsn": "00000027:00000758:0005",
        "event_serial_no": "2",
    }
    return envelope(op, source | (origin or {}), **fields)


def mongodb(op: str = "u", *, origin: Any = None, **fields: Any) -> dict[str, Any]:
    source = {
        "version": "3.6.3.Final",
        "connector": "mongodb",
        "name": "shop",
        "ts_ms": 1_790_000_000_000,
        "snapshot": "false",
        "db": "shop",
        "rs": "rs0",
        "collection": "note",
        "ord": 31,
        "wallTime": 1_790_000_000_000,
    }
    return envelope(op, source | (origin or {}), after=None, **fields)


def envelope(op: str, source: dict[str, Any], **fields: Any) -> dict[str, Any]:
    value = {
        "before": None,
        "after": {"id": 9, "text": "hi"},
        "source": source,
        "transaction": None,
        "op": op,
        "ts_ms": 1_790_000_000_500,
    }
    return {name: part for name, part in (value | fields).items() if part != "absent"}


def read(value: object, key: object = KEY, source: Source = SHOP) -> Read:
    (one,) = reader(source.format)([Message(value, key)], source)
    return one


def arrived(value: object, key: object = KEY, source: Source = SHOP) -> list[Arrival]:
    found = read(value, key, source)
    assert isinstance(found, Changes), found
    return arrivals(found, source)[0]


def only(value: object, key: object = KEY, source: Source = SHOP) -> Arrival:
    (arrival,) = arrived(value, key, source)
    return arrival


def refused(value: object, key: object = KEY, source: Source = SHOP) -> str:
    found = read(value, key, source)
    if isinstance(found, Unreadable):
        return found.reason
    assert isinstance(found, Changes), found
    with pytest.raises(BadEvent) as error:
        arrivals(found, source)
    return str(error.value)


@dataclass(frozen=True)
class Ordered:
    """An event, and what orders it."""

    value: dict[str, Any]
    row: tuple[int, ...] | None
    commit: tuple[int, ...] | None
    lineage: str


ORDERED = {
    "postgresql": Ordered(postgresql(), (500,), (480, 500), "postgresql/notes/notes/"),
    "postgresql: first of a slot": Ordered(
        postgresql(origin={"sequence": '[null,"500"]'}),
        (500,),
        None,
        "postgresql/notes/notes/",
    ),
    "postgresql: no sequence": Ordered(
        postgresql(origin={"sequence": None}), (500,), None, "postgresql/notes/notes/"
    ),
    "postgresql: sequence of a release before 1.7": Ordered(
        postgresql(origin={"sequence": '["480","480"]', "version": "1.6.4.Final"}),
        (500,),
        (480, 500),
        "postgresql/notes/notes/",
    ),
    "postgresql: above 2^53": Ordered(
        postgresql(origin={"lsn": 2**53 + 1, "sequence": f'["{2**53}","{2**53 + 1}"]'}),
        (2**53 + 1,),
        (2**53, 2**53 + 1),
        "postgresql/notes/notes/",
    ),
    "mysql": Ordered(mysql(), (42, 4524, 1), (42, 4524, 1), "mysql/shop//binlog"),
    "mysql: a longer number": Ordered(
        mysql(origin={"file": "binlog.1000000", "pos": 4}),
        (1_000_000, 4, 1),
        (1_000_000, 4, 1),
        "mysql/shop//binlog",
    ),
    "mysql: names that are not padded": Ordered(
        mysql(origin={"file": "mysql-bin-changelog.10", "row": 0}),
        (10, 4524, 0),
        (10, 4524, 0),
        "mysql/shop//mysql-bin-changelog",
    ),
    "mysql: source without a position": Ordered(
        mysql(origin={"file": "", "pos": 0}), None, None, "mysql/shop//"
    ),
    "mariadb": Ordered(
        mysql(origin={"connector": "mariadb", "gtid": "0-1-7"}),
        (42, 4524, 1),
        (42, 4524, 1),
        "mariadb/shop//binlog",
    ),
    "mongodb": Ordered(
        mongodb(),
        (1_790_000_000_000, 31),
        (1_790_000_000_000, 31),
        "mongodb/shop//wall",
    ),
    "mongodb: before 3.4": Ordered(
        mongodb(origin={"version": "3.3.1.Final"}),
        (1_790_000_000_000, 31),
        (1_790_000_000_000, 31),
        "mongodb/shop//cluster",
    ),
    "oracle": Ordered(
        postgresql(origin={"connector": "oracle", "commit_scn": "2000", "scn": "1990"}),
        (2000, 1990),
        (2000, 1990),
        "oracle/notes//",
    ),
    "no connector told": Ordered(
        envelope("u", {"db": "notes", "table": "note"}), None, None, "///"
    ),
    "another connector": Ordered(
        postgresql(origin={"connector": "db2"}), None, None, "db2/notes//"
    ),
}


def test_databases_of_one_binlog_are_of_one_lineage() -> None:
    """CDC-GAP-4: they alternate, and would open an epoch and lose their order by it."""
    (one,), (other,) = arrived(mysql()), arrived(mysql(origin={"db": "b"}))
    assert one.lineage == other.lineage != ""


@pytest.mark.parametrize("name", ORDERED)
def test_a_connector_orders_by_what_is_its_own(name: str) -> None:
    """R-INV-1, SCRIPT-4: numbers keep every digit, and compare as numbers."""
    case = ORDERED[name]
    for order, parts in ((Order.ROW, case.row), (Order.COMMIT, case.commit)):
        arrival = only(case.value, source=replace(SHOP, order=order))
        version = arrival.event.version
        assert (None if version is None else version.parts()) == parts
        assert arrival.lineage == ("" if parts is None else case.lineage)
        assert arrival.event.entities == ("note:9",)


def test_a_sql_server_lsn_of_80_bits_is_packed_whole() -> None:
    """R-INV-1: by commit, then change, then serial number."""
    version = only(sqlserver()).event.version
    assert version is not None
    assert version.digits == "000000270000075800050000002700000758000300000002"
    older = [
        {"commit_lsn": "00000027:00000758:0004"},
        {"change_lsn": "00000027:00000758:0002"},
        {"event_serial_no": 1},
        {"change_lsn": None, "event_serial_no": None},
        {
            "commit_lsn": "00000026:FFFFFFFF:ffff",
            "change_lsn": "ffffffff:ffffffff:ffff",
        },
    ]
    for origin in older:
        before = only(sqlserver(origin=origin)).event.version
        assert before is not None
        assert before.digits < version.digits


@pytest.mark.parametrize("with_schema", [False, True])
@pytest.mark.parametrize("op", ["c", "u"])
def test_a_change_is_the_row_and_its_commits_time(
    op: str, *, with_schema: bool
) -> None:
    value: Any = postgresql(op)
    key: Any = KEY
    if with_schema:
        value = {"schema": {"type": "struct"}, "payload": value}
        key = {"schema": None, "payload": key}
    event = only(value, key).event
    assert event.entities == ("note:9",)
    assert event.occurred_at == 1_790_000_000_123
    assert not event.warm


def test_two_rows_of_one_transaction_are_ordered_as_committed() -> None:
    """CDC-ORDER-1: LSNs of interleaved transactions go back, commits do not."""
    first = only(
        postgresql(origin={"lsn": 700, "sequence": '["480","700"]'}), source=BY_COMMIT
    ).event.version
    later = only(
        postgresql(origin={"lsn": 600, "sequence": '["710","600"]'}), source=BY_COMMIT
    ).event.version
    assert first is not None
    assert later is not None
    assert later.digits > first.digits


def test_a_deletes_made_up_columns_name_no_entity() -> None:
    """R-INV-1: of `before` only the key is true, without REPLICA IDENTITY FULL."""
    gone = postgresql("d", before={"id": 9, "folder_id": 0}, after=None)
    by_folder = Table((EntityTemplate("folder:{folder_id}"),))
    source = replace(SHOP, tables={"note": by_folder})
    assert only(gone).event.entities == ("note:9",)
    assert "folder_id: missing" in refused(gone, source=source)
    full = replace(source, before=Before.FULL)
    assert only(gone, source=full).event.entities == ("folder:0",)


def test_a_row_that_moved_names_where_it_was_and_where_it_is() -> None:
    """R-INV-4."""
    moved = mysql(before={"id": 9, "folder_id": 1}, after={"id": 9, "folder_id": 2})
    by_folder = Table((EntityTemplate("folder:{folder_id}"),))
    event = only(moved, source=replace(SHOP, tables={"note": by_folder})).event
    assert event.entities == ("folder:2", "folder:1")


def test_an_unchanged_large_value_is_not_told_and_not_used() -> None:
    """CDC-SHAPE-4."""
    after = {"id": 9, "slug": "__debezium_unavailable_value"}
    by_slug = replace(SHOP, tables={"note": Table((EntityTemplate("slug:{slug}"),))})
    assert only(postgresql(after=after)).event.entities == ("note:9",)
    assert "slug: missing" in refused(postgresql(after=after), source=by_slug)
    known = postgresql(after=after, before={"id": 9, "slug": "a"})
    full = replace(by_slug, before=Before.FULL)
    assert only(known, source=full).event.entities == ("slug:a",)


def test_a_changed_primary_key_comes_as_two_events_each_with_its_key() -> None:
    gone = postgresql("d", before={"id": 9, "text": ""}, after=None)
    come = postgresql("c", after={"id": 10, "text": "hi"})
    assert only(gone, {"id": 9}).event.entities == ("note:9",)
    assert only(come, {"id": 10}).event.entities == ("note:10",)


def test_a_sink_that_sends_no_key_is_read_by_configured_columns() -> None:
    """CDC-SHAPE-6: not dropped in silence either."""
    keyed = replace(
        SHOP, tables={"note": Table((EntityTemplate("note:{key}"),), key=("id",))}
    )
    changed = postgresql(before={"id": 8}, after={"id": 9})
    assert only(changed, None, keyed).event.entities == ("note:9", "note:8")
    gone = postgresql("d", before={"id": 8, "text": ""}, after=None)
    assert only(gone, None, keyed).event.entities == ("note:8",)
    assert "key: missing" in refused(postgresql(), None)
    assert "neither the message nor" in refused(gone, None)


@pytest.mark.parametrize(
    "sent",
    ["eyJpZCI6OX0=", '{"id":9}', "eyJzY2hlbWEiOm51bGwsInBheWxvYWQiOnsiaWQiOjl9fQ=="],
)
def test_a_header_may_bring_the_key(sent: str) -> None:
    source = replace(SHOP, key_header="x-debezium-key")
    message = Message(postgresql(), headers={"x-debezium-key": sent})
    (found,) = reader("debezium")([message], source)
    assert isinstance(found, Changes), found
    assert arrivals(found, source)[0][0].event.entities == ("note:9",)


@pytest.mark.parametrize(("sent", "entity"), [("OQ==", "note:9"), ("a-9", "note:a-9")])
def test_a_header_may_bring_the_one_column_of_the_key(sent: str, entity: str) -> None:
    """As the transform HeaderFrom of a key's field does."""
    source = replace(SHOP, key_header="x-debezium-id")
    message = Message(
        postgresql("d", before=None, after=None), headers={"x-debezium-id": sent}
    )
    (found,) = reader("debezium")([message], source)
    assert isinstance(found, Changes), found
    assert arrivals(found, source)[0][0].event.entities == (entity,)


def test_a_table_of_another_schema_has_entities_of_its_own() -> None:
    arrival = only(postgresql(origin={"schema": "audit"}))
    assert arrival.event.entities == ("audit.note:9",)


def test_parts_of_a_compound_key_do_not_run_into_each_other() -> None:
    """KEYS-3."""
    first = only(postgresql(), {"a": "x:y", "b": "z"}).event.entities
    second = only(postgresql(), {"a": "x", "b": "y:z"}).event.entities
    assert first != second


@pytest.mark.parametrize(
    "key", [{"id": '{"$oid":"65f0"}'}, {"id": '"65f0"'}, {"id": "65f0"}]
)
def test_a_document_is_its_id_however_it_is_written(key: dict[str, str]) -> None:
    gone = mongodb("d")
    assert only(gone, key).event.entities == ("note:65f0",)


def test_a_document_whose_id_has_parts_is_its_ids_text() -> None:
    """Its own spelling of the id is another, and must not become another entity."""
    key = {"id": '{"a": 1,"b": 2}'}
    written = mongodb() | {"after": '{"_id":{"b":2,"a":1}}'}
    assert only(mongodb("d"), key).event.entities == only(written, key).event.entities


def test_a_text_that_looks_like_json_is_itself_where_keys_are_columns() -> None:
    """KEYS-3: two rows must not become one entity."""
    quoted = only(postgresql(), {"slug": '"a"'}).event.entities
    assert quoted != only(postgresql(), {"slug": "a"}).event.entities


def test_a_document_is_read_out_of_its_text() -> None:
    source = replace(SHOP, tables={"note": Table((EntityTemplate("folder:{folder}"),))})
    value = mongodb() | {
        "after": '{"_id":{"$oid":"65f0"},"folder":{"$numberLong":"7"}}'
    }
    assert only(value, {"id": '{"$oid":"65f0"}'}, source).event.entities == (
        "folder:7",
    )


def test_documents_of_one_transaction_share_a_version_and_no_identity() -> None:
    """They are told apart by their key, so none is taken for a repetition."""
    one, two = only(mongodb(), {"id": '"a"'}), only(mongodb(), {"id": '"b"'})
    assert one.event.version == two.event.version
    assert (one.identity, two.identity) == ("", "")
    assert one.event.id != two.event.id


@pytest.mark.parametrize("marked", ["true", "false", "incremental", True])
def test_a_row_that_was_only_read_moves_no_floor(marked: object) -> None:
    """CDC-ORDER-1: told by `op`; a transaction that was open commits later, and lower."""
    value = postgresql("r", origin={"snapshot": marked})
    warm = only(value)
    assert (warm.event.version, warm.position, warm.lineage) == (None, "", "")
    assert warm.event.warm
    assert not only(
        value, source=replace(SHOP, snapshot=Snapshot.INVALIDATE)
    ).event.warm
    assert arrived(value, source=replace(SHOP, snapshot=Snapshot.IGNORE)) == []


def test_a_truncated_table_is_all_entities_that_begin_so() -> None:
    value = postgresql("t", before="absent", after="absent")
    event = only(value, None).event
    assert (event.entities, event.prefixes) == ((), ("note:",))
    assert event.version is not None


IGNORED = {
    "tombstone": None,
    "message": {"op": "m", "source": {}, "message": {"prefix": "p", "content": ""}},
    "heartbeat": {"ts_ms": 1_790_000_000_000},
    "schema_change": {"source": {}, "ts_ms": 1, "databaseName": "shop", "ddl": "ALTER"},
    "transaction": {"status": "BEGIN", "id": "771:901344", "ts_ms": 1},
}


@pytest.mark.parametrize("why", IGNORED)
def test_what_changes_no_row_is_ignored_by_name(why: str) -> None:
    """CDC-SHAPE-1."""
    assert read(IGNORED[why]) == Ignored(why)
    if IGNORED[why] is not None:
        assert read({"schema": None, "payload": IGNORED[why]}) == Ignored(why)


UNREADABLE = [
    (postgresql("x"), "op: 'x' is not one of"),
    (postgresql() | {"op": ["c"]}, "op: a list is not one of"),
    ({"id": 9, "text": "hi"}, "op: missing"),
    (postgresql() | {"source": None}, "source: is null"),
    (postgresql(origin={"connector": 7}), "source.connector: is a number"),
    (postgresql(origin={"table": ""}), "source.table: is empty"),
    (postgresql(origin={"lsn": True}), "source.lsn: is a boolean"),
    (postgresql(origin={"lsn": 1e30}), "source.lsn: is a number that is not whole"),
    (postgresql(origin={"lsn": -1}), "source.lsn: is a number"),
    (
        postgresql(origin={"sequence": "[1"}),
        "source.sequence: is text that is not JSON",
    ),
    (postgresql(origin={"sequence": "[1]"}), "source.sequence: is no list of two"),
    (postgresql(after=[1]), "after: is a list"),
    (postgresql(after=None), "after, before and key are missing"),
    (mysql(origin={"file": "binlog"}), "source.file: is no binlog file's name"),
    (mongodb(origin={"ord": [1]}), "source.ord: is a list"),
    ({"status": ["END"], "id": "1", "ts_ms": 1}, "op: missing"),
    (postgresql(origin={"ts_ms": None, "ts_sec": 2**63}), "source.ts_sec"),
    (mysql(origin={"pos": None}), "source.pos: is null"),
    (sqlserver(origin={"commit_lsn": "27:758:5"}), "source.commit_lsn: is no LSN"),
    (sqlserver(origin={"event_serial_no": 2**32}), "source.event_serial_no"),
    (mongodb() | {"after": "{"}, "after: is text that is not JSON"),
    ("text", "value: is text"),
    (7, "value: is a number"),
]


@pytest.mark.parametrize("index", range(len(UNREADABLE)))
def test_what_is_not_understood_names_the_field_and_the_shape(index: int) -> None:
    value, says = UNREADABLE[index]
    assert says in refused(value, None)


@pytest.mark.parametrize(
    "key", [{}, "text", 7, [1], {"id": None}, {"id": 1.5}, {"id": {}}]
)
def test_a_key_that_names_no_row_is_told(key: object) -> None:
    assert "key" in refused(postgresql("d", after=None), key)


def test_no_value_of_a_row_stands_in_a_reason() -> None:
    """OBS-3: it may be somebody's data."""
    secret = "4111-1111-1111-1111"  # noqa: S105 - so that nothing shows it
    for value in (
        postgresql(after=secret),
        postgresql(origin={"sequence": secret}),
        postgresql(origin={"lsn": secret}),
        mongodb() | {"after": json.dumps([secret])},
    ):
        assert secret not in refused(value)
