"""What Canal and TiCDC say of rows."""

from typing import Any

import pytest

from tests.formats import arrived, read, refused, told
from warmer.ingest.formats import Ignored
from warmer.model.source import Source

SHOP = Source("shop-db", "canal")


def message(type_: str = "UPDATE", **fields: Any) -> dict[str, Any]:
    value = {
        "database": "shop",
        "table": "note",
        "type": type_,
        "isDdl": False,
        "pkNames": ["id"],
        "data": [{"id": "7", "text": "hi"}, {"id": "8", "text": "hi"}],
        "old": [{"text": "ho"}, {"id": "9"}],
        "es": 1_790_000_000_123,
        "ts": 1_790_000_000_500,
        "id": 3,
        "sql": "",
    }
    return value | fields


def test_a_message_is_its_rows_and_none_has_an_order() -> None:
    """R-INV-4: the key that a row had is named too."""
    assert told(SHOP, message()) == [
        (("note:7",), None),
        (("note:8", "note:9"), None),
    ]
    (first, _) = arrived(SHOP, message("DELETE", old=None))
    assert first.event.entities == ("note:7",)
    assert first.event.occurred_at == 1_790_000_000_123


def test_a_row_is_a_row_whatever_its_flag() -> None:
    assert len(told(SHOP, message(isDdl="false"))) == 2


def test_ticdc_orders_the_whole_cluster() -> None:
    commit = 446_600_000_000_000_001
    first, _ = arrived(SHOP, message(_tidb={"commitTs": commit}))
    assert first.event.version is not None
    assert first.event.version.parts() == (commit,)
    assert first.position == first.event.version.digits


def test_a_truncated_table_is_all_its_rows() -> None:
    empty = message("TRUNCATE", isDdl=True, data=None, old=None)
    assert told(SHOP, empty) == [(("note:*",), None)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (message("ALTER", isDdl=True, data=None), "schema_change"),
        (message("CREATE"), "schema_change"),
        (message("TIDB_WATERMARK"), "heartbeat"),
    ],
)
def test_what_changes_no_row_is_ignored(value: object, reason: str) -> None:
    assert read(SHOP, value) == Ignored(reason)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (message("MERGE"), "type: 'MERGE' is not known"),
        (message(data=None), "data: has no rows"),
        (message(data="x"), "data: is text"),
        (message(data=[7]), "data: is a number"),
        (message(table=None), "table: is null"),
        (message(pkNames=None), "key: missing"),
        (message(es=-1), "es: is a number"),
        (message(_tidb={"commitTs": 2.5}), "_tidb.commitTs: is a number"),
    ],
)
def test_what_is_not_understood_names_the_field(value: object, says: str) -> None:
    assert says in refused(SHOP, value)
