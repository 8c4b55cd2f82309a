"""What wal2json says of rows, in both of its formats."""

from typing import Any

import pytest

from tests.formats import KEYED_BY_ID, read, refused, told
from warmer.ingest.formats import Changes, Ignored, Message, Unreadable, reader
from warmer.ingest.mapping import arrivals
from warmer.model.source import Source

SHOP = Source("shop-db", "wal2json", unlisted=KEYED_BY_ID)
BEGIN = {"action": "B", "lsn": "0/16B3748", "nextlsn": "0/16B3778"}
COMMIT = {"action": "C", "lsn": "0/16B3748", "nextlsn": "0/16B3778"}
COMMIT_LSN = 0x16B3748


def line(action: str = "U", id_: int = 7, **fields: Any) -> dict[str, Any]:
    value: dict[str, Any] = {
        "action": action,
        "lsn": "0/16B3700",
        "schema": "public",
        "table": "note",
        "columns": [
            {"name": "id", "type": "integer", "value": id_},
            {"name": "text", "type": "text", "value": "hi"},
        ],
        "identity": [{"name": "id", "type": "integer", "value": id_}],
    }
    return value | fields


def versions(*lines: dict[str, Any]) -> list[tuple[int, ...] | None]:
    reads = reader("wal2json")([Message(each) for each in lines], SHOP)
    return [
        None if arrival.event.version is None else arrival.event.version.parts()
        for found in reads
        if isinstance(found, Changes)
        for arrival in arrivals(found, SHOP)[0]
    ]


def test_rows_are_ordered_by_their_commit_where_it_is_told() -> None:
    """R-INV-1: a line takes it from the beginning that came before."""
    assert versions(BEGIN, line("I"), line(), COMMIT, line()) == [
        (COMMIT_LSN, 1),
        (COMMIT_LSN, 2),
        (0x16B3700,),
    ]


def test_what_is_not_understood_holds_up_no_other_line() -> None:
    reads = reader("wal2json")([Message(BEGIN), Message(7), Message(line())], SHOP)
    assert isinstance(reads[1], Unreadable)
    assert isinstance(reads[2], Changes)


def test_a_row_without_an_lsn_always_applies() -> None:
    assert versions(line(lsn=None)) == [None]


@pytest.mark.parametrize(
    ("value", "entities"),
    [
        (line("I", identity=None), ("note:7",)),
        (line("D", columns=None), ("note:7",)),
        (line(identity=[{"name": "id", "value": 6}]), ("note:7", "note:6")),
        (line(pk=[{"name": "id", "type": "integer"}]), ("note:7",)),
        (line("T", columns=None, identity=None), ("note:*",)),
    ],
)
def test_a_line_is_its_row(value: dict[str, Any], entities: tuple[str, ...]) -> None:
    assert told(SHOP, value)[0][0] == entities


def test_the_key_is_what_the_plugin_calls_so() -> None:
    """R-INV-4: with REPLICA IDENTITY FULL the identity is the whole row."""
    bare = Source("shop-db", "wal2json")
    pk = [{"name": "id", "type": "integer"}]
    whole = [{"name": "id", "value": 6}, {"name": "text", "value": "hi"}]
    assert told(bare, line(identity=whole, pk=pk))[0][0] == ("note:7", "note:6")
    gone = line("D", columns=None, identity=whole, pk=pk)
    assert told(bare, gone)[0][0] == ("note:6",)
    assert "key: missing" in refused(bare, line())
    first = {
        "nextlsn": "0/1",
        "change": [
            {
                "kind": "insert",
                "table": "note",
                "pk": {"pknames": ["id"], "pktypes": ["integer"]},
                "columnnames": ["id"],
                "columnvalues": [7],
            }
        ],
    }
    assert told(bare, first) == [(("note:7",), (1, 0))]


def test_the_first_format_is_a_transaction_at_once() -> None:
    value = {
        "xid": 571,
        "nextlsn": "0/16B3748",
        "timestamp": "2026-09-21 13:33:20.123+00",
        "change": [
            {
                "kind": "update",
                "schema": "public",
                "table": "note",
                "columnnames": ["id", "text"],
                "columnvalues": [7, "hi"],
                "oldkeys": {"keynames": ["id"], "keyvalues": [6]},
            },
            {"kind": "message", "prefix": "p"},
            {
                "kind": "delete",
                "schema": "public",
                "table": "note",
                "oldkeys": {"keynames": ["id"], "keyvalues": [8]},
            },
        ],
    }
    assert told(SHOP, value) == [
        (("note:7", "note:6"), (COMMIT_LSN, 0)),
        (("note:8",), (COMMIT_LSN, 2)),
    ]
    assert read(SHOP, {"nextlsn": "0/1", "change": []}) == Ignored("transaction")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (BEGIN, "transaction"),
        (COMMIT, "transaction"),
        ({"action": "M", "prefix": "p", "content": "c"}, "message"),
    ],
)
def test_what_changes_no_row_is_ignored(value: object, reason: str) -> None:
    assert read(SHOP, value) == Ignored(reason)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (line("X"), "action: 'X' is not one of"),
        (line(lsn="16B3700/"), "lsn: is no LSN"),
        (line(table=None), "table: is null"),
        (line(columns={}), "columns: is an object"),
        (line(columns=[{"value": 7}]), "columns.name: is null"),
        (line(pk=[7]), "pk: is a number"),
        (line(pk={}), "pk: is an object"),
        ({"change": 7}, "change: is a number"),
        ({"change": [{"kind": "merge"}]}, "change.kind: 'merge' is not known"),
        (
            {"change": [{"kind": "insert", "table": "n", "columnnames": ["id"]}]},
            "columnnames: does not match",
        ),
    ],
)
def test_what_is_not_understood_names_the_field(value: object, says: str) -> None:
    assert says in refused(SHOP, value)
