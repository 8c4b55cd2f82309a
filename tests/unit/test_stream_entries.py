"""Entries of Redis streams, as sinks write them, become messages."""

import pytest

from warmer.errors import BadEvent
from warmer.ingest.formats import Message
from warmer.ingest.stream_entries import bytes_of, message_of

KEY, VALUE = b'{"id":7}', b'{"before":null,"after":{"id":7}}'
CHANGE = {"before": None, "after": {"id": 7}}


def test_a_compact_entry_has_its_key_as_the_name_of_its_field() -> None:
    """R-INV-1: Debezium Server's default."""
    assert message_of({KEY: VALUE}) == Message(CHANGE, key={"id": 7})


def test_an_extended_entry_has_key_value_and_headers_by_lower_case_name() -> None:
    """R-INV-1: Debezium Server's other layout."""
    fields = {b"key": KEY, b"value": VALUE, b"__OP": b"u", b"__SOURCE_LSN": b"17"}

    assert message_of(fields) == Message(
        CHANGE, key={"id": 7}, headers={"__op": "u", "__source_lsn": "17"}
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({KEY: b"default"}, Message(None, key={"id": 7})),
        ({b"default": VALUE}, Message(CHANGE)),
        ({b"key": b"default", b"value": VALUE}, Message(CHANGE)),
        ({b"key": KEY, b"value": b"default"}, Message(None, key={"id": 7})),
    ],
    ids=["tombstone", "no key", "extended, no key", "extended tombstone"],
)
def test_the_word_default_stands_for_null(
    fields: dict[bytes, bytes], message: Message
) -> None:
    """CDC-SHAPE-1: it is no JSON, and no error."""
    assert message_of(fields) == message


def test_one_field_of_any_name_holds_the_message() -> None:
    """R-INV-1: Maxwell's is called `message`, unless it is set otherwise."""
    assert message_of({b"message": b'{"type":"update"}'}) == Message({"type": "update"})
    assert message_of({b"row": b'{"type":"update"}'}) == Message({"type": "update"})


def test_a_map_of_sequin_is_put_together_again() -> None:
    """R-INV-1: text stands as it is, the rest as JSON."""
    fields = {
        b"action": b"update",
        b"record": KEY,
        b"changes": b"null",
        b"metadata": b'{"table_name":"product"}',
    }

    assert message_of(fields) == Message(
        {
            "action": "update",
            "record": {"id": 7},
            "changes": None,
            "metadata": {"table_name": "product"},
        }
    )


@pytest.mark.parametrize(
    "fields",
    [
        {KEY: b"secret text"},
        {b"key": b"secret", b"value": VALUE},
        {b"key": KEY, b"value": VALUE, b"H": b"secret\xff"},
        {b"secret": b"1", b"another": b"2"},
        {b"secret": b"\xff"},
        {b"action": b"secret\xff", b"record": KEY},
        {},
    ],
    ids=["value", "key", "header", "fields", "binary", "map", "nothing"],
)
def test_what_is_no_message_is_refused_by_its_shape_and_not_its_data(
    fields: dict[bytes, bytes],
) -> None:
    """CDC-SHAPE-1: it becomes a dead letter, with its bytes."""
    with pytest.raises(BadEvent) as refused:
        message_of(fields)

    assert "secret" not in str(refused.value)


def test_a_dead_letter_gets_an_entrys_bytes_as_they_came() -> None:
    """R-CARD-3: what was not understood can be looked at."""
    assert bytes_of({KEY: b"\xff"}) == (b"\xff", KEY)
    assert bytes_of({b"key": b"k", b"value": b"v", b"H": b"h"}) == (b"v", b"k")
    assert bytes_of({b"a": b"1", b"b": b"\xff"}) == (b'{"a":"1","b":"\\\\xff"}', None)
