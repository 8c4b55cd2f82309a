"""Entries of a source's Redis stream -> messages, whichever sink wrote them.

Debezium Server's Redis sink has two layouts, and a null key or value is the word `default`:

    {"id": 7}  {"before": …, "after": …}          compact: the field's name is the key
    key {"id": 7}  value {"after": …}  __OP u     extended: then headers, in upper case
    message {"database": "shop", …}               Maxwell, or anything in one field
    action update  record {"id": 7}  changes …    Sequin: a map, what is no text as JSON

Each entry is told by itself: a sink may have been set up anew in the middle of a stream.

Holds: what is none of these is refused, by what it looks like and never by its data.
"""

import re
from collections.abc import Mapping

import orjson

from warmer.errors import BadEvent
from warmer.ingest.formats import Message

NULL = b"default"
KEY, VALUE = b"key", b"value"
_OF_SEQUIN = frozenset({b"action", b"record"})
_JSON = re.compile(rb"\s*[\[{]|null\s*$")


def message_of(fields: Mapping[bytes, bytes]) -> Message:
    """Return the message in an entry; raises BadEvent."""
    if VALUE in fields:
        return _extended(fields)
    if len(fields) == 1:
        ((name, value),) = fields.items()
        return _single(name, value)
    if fields.keys() >= _OF_SEQUIN:
        return Message(
            {_text("field", name): _plain(value) for name, value in fields.items()}
        )
    raise BadEvent(
        f"entry: {len(fields)} fields, allowed are one, key and value, or a Sequin map"
    )


def bytes_of(fields: Mapping[bytes, bytes]) -> tuple[bytes, bytes | None]:
    """Return value and key of an entry as they came, for its dead letter."""
    if VALUE in fields:
        return fields[VALUE], fields.get(KEY)
    if len(fields) == 1:
        ((name, value),) = fields.items()
        return value, name
    shown = {_shown(name): _shown(value) for name, value in fields.items()}
    return orjson.dumps(shown), None


def _extended(fields: Mapping[bytes, bytes]) -> Message:
    return Message(
        _json("value", fields[VALUE]),
        key=_json("key", fields[KEY]) if KEY in fields else None,
        headers={
            _text("header", name).lower(): _text("header", value)
            for name, value in fields.items()
            if name not in {KEY, VALUE}
        },
    )


def _single(name: bytes, value: bytes) -> Message:
    """Return a compact entry, or one whose field's name says nothing.

    A name that is no JSON is a producer's word for "here it is": Maxwell's can be set.
    """
    try:
        key = _json("key", name)
    except BadEvent:
        key = None
    return Message(_json("value", value), key=key)


def _json(what: str, raw: bytes) -> object:
    if raw == NULL:
        return None
    try:
        value: object = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise BadEvent(f"{what}: {len(raw)} bytes that are no JSON") from None
    return value


def _plain(value: bytes) -> object:
    """Return a map's value: JSON where it is written so, else the text it is."""
    return _json("field", value) if _JSON.match(value) else _text("field", value)


def _text(what: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadEvent(f"{what}: {len(raw)} bytes that are no UTF-8") from None


def _shown(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")
