"""What a changefeed of CockroachDB says of a row."""

from dataclasses import replace
from typing import Any

import pytest

from tests.formats import KEYED_BY_ID, arrived, read, refused, told
from warmer.ingest.formats import Ignored
from warmer.model.source import EntityTemplate, Source, Table

SHOP = Source("shop-db", "cockroachdb")


def row(**fields: Any) -> dict[str, Any]:
    value = {
        "after": {"id": 7, "text": "hi"},
        "key": [7],
        "topic": "note",
        "updated": "1790000000123456789.0000000002",
    }
    return value | fields


def feed(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"payload": list(rows), "length": len(rows)}


def test_a_row_is_ordered_by_two_whole_numbers() -> None:
    """SCRIPT-4: never by a float, which would round them."""
    (arrival,) = arrived(SHOP, feed(row()))
    version = arrival.event.version
    assert version is not None
    assert version.parts() == (1_790_000_000_123_456_789, 2)
    assert arrival.event.entities == ("note:7",)
    assert arrival.event.occurred_at == 1_790_000_000_123
    assert (arrival.position, arrival.ordered_by) == ("", "note:7")


def test_rows_come_several_at_a_time_and_older_ones_again() -> None:
    """CDC-ORDER-6: which of them is older is told by the version."""
    again = feed(row(), row(updated="1790000000123456788.0000000000", after=None))
    newer, older = (version for _, version in told(SHOP, again))
    assert newer is not None
    assert older is not None
    assert older < newer


def test_the_key_is_named_by_the_table() -> None:
    keyed = replace(SHOP, tables={"note": KEYED_BY_ID})
    assert told(keyed, feed(row()))[0][0] == ("note:7",)
    compound = feed(row(key=["eu", 7]))
    assert told(SHOP, compound)[0][0] == ("note:eu:7",)


def test_a_deleted_row_is_named_by_its_key_wherever_that_is_declared() -> None:
    """R-INV-4: a delete brings the key's values and no column."""
    by_id = Table((EntityTemplate("note:{id}"),), key=("id",))
    gone = feed(row(after=None))
    assert told(replace(SHOP, tables={"note": by_id}), gone)[0][0] == ("note:7",)
    assert told(replace(SHOP, unlisted=by_id), gone)[0][0] == ("note:7",)
    full = feed(row(after=None, topic="shop.public.note"))
    assert told(replace(SHOP, tables={"public.note": by_id}), full)[0][0] == ("note:7",)
    assert told(SHOP, full)[0][0] == ("note:7",)


def test_an_enriched_row_tells_the_same() -> None:
    value = row(
        op="u",
        key={"id": 7},
        source={
            "database_name": "shop",
            "table_name": "note",
            "ts_hlc": "1790000000123456789.0000000002",
        },
    )
    assert told(SHOP, feed(value)) == [(("note:7",), (1_790_000_000_123_456_789, 2))]
    (read_only,) = arrived(SHOP, feed(value | {"op": "r"}))
    assert read_only.event.version is None


def test_a_resolved_time_changes_no_row() -> None:
    assert read(SHOP, {"resolved": "1790000000123456789.0"}) == Ignored("resolved")
    assert read(SHOP, feed()) == Ignored("empty")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"payload": 7}, "payload: is a number"),
        ({"payload": [7]}, "payload: is a number"),
        (feed(row(updated=1.79e18)), "updated: is a number that is not whole"),
        (feed(row(updated="soon")), "updated: is no time"),
        (feed(row(updated="9" * 19 + ".9999999999")), None),
        (feed(row(key=7)), "key: is a number"),
        (feed(row(key=[None])), "key: is null"),
        (feed(row(topic=None)), "topic: is null"),
        (feed(row(after=7)), "after: is a number"),
        (feed(row(op="x")), "op: 'x' is not"),
    ],
)
def test_what_is_not_understood_names_the_field(
    value: object, says: str | None
) -> None:
    if says is None:
        assert told(SHOP, value)
    else:
        assert says in refused(SHOP, value)
