"""What formats read out of messages: each takes a value and names it when it is not right.

Holds: an error names the field and the value's shape, never the value. A boolean is no
number, and a number that JSON's reader rounded is none either.
"""

import base64
import binascii
import contextlib
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

import orjson

from warmer.errors import BadEvent

U64 = 2**64
MAX_NESTED_BYTES = 1_000_000

_DECIMAL = re.compile(r"[0-9]{1,20}")
_SHOWN = 80

Object = Mapping[str, Any]

_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number that is not whole, or too large",
    str: "text",
    list: "a list",
    dict: "an object",
}


def shape(value: object) -> str:
    """Return what kind of value it is; it may be somebody's data, so never more."""
    return _KINDS.get(type(value), type(value).__name__)


def an_object(value: object, name: str) -> Object:
    """Return an object; raises BadEvent."""
    if not isinstance(value, dict):
        raise BadEvent(f"{name}: is {shape(value)}, not an object")
    return cast("Object", value)


def object_or_none(value: object, name: str) -> Object | None:
    """Return an object, or None for null; raises BadEvent."""
    return None if value is None else an_object(value, name)


def text(value: object, name: str) -> str:
    """Return text that is not empty; raises BadEvent."""
    if not isinstance(value, str) or not value:
        what = "empty" if value == "" else shape(value)
        raise BadEvent(f"{name}: is {what}, not text")
    return value


def text_or(value: object, name: str, default: str = "") -> str:
    """Return text, the default for null; raises BadEvent."""
    if value is None:
        return default
    if not isinstance(value, str):
        raise BadEvent(f"{name}: is {shape(value)}, not text")
    return value


def whole(value: object, name: str) -> int:
    """Return an unsigned 64-bit number, which may stand as decimal text; raises BadEvent."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < U64:
        raise BadEvent(f"{name}: is {shape(value)}, not a whole number of 64 bits")
    return value


def whole_or_none(value: object, name: str) -> int | None:
    """Return an unsigned 64-bit number, None for null; raises BadEvent."""
    return None if value is None else whole(value, name)


def unix_ms(value: object) -> int | None:
    """Return the Unix ms of an ISO 8601 time; None where it is not told, or not so."""
    if not isinstance(value, str):
        return None
    try:
        told = datetime.fromisoformat(value)
    except ValueError:
        return None
    if told.tzinfo is None:
        return None
    return max(0, int(told.timestamp() * 1_000))


def shown(value: object) -> str:
    """Return a word of the format itself, such as an operation, as it may be told."""
    return repr(value[:_SHOWN]) if isinstance(value, str) else shape(value)


def nested(value: object, name: str) -> object:
    """Return the JSON in a text that holds JSON; raises BadEvent."""
    inner = text(value, name)
    if len(inner) > MAX_NESTED_BYTES:
        raise BadEvent(f"{name}: {len(inner)} characters")
    try:
        return orjson.loads(inner)
    except orjson.JSONDecodeError:
        raise BadEvent(f"{name}: is text that is not JSON") from None


def log_file(name: str, field: str) -> tuple[str, int]:
    """Return a binlog file's base name and its ordinal: `("binlog", 42)`.

    As a number: names are not always padded, and .999999 is followed by .1000000.
    """
    base, dot, ordinal = name.rpartition(".")
    if not (dot and base) or not _DECIMAL.fullmatch(ordinal) or int(ordinal) >= U64:
        raise BadEvent(f"{field}: is no binlog file's name")
    return base, int(ordinal)


def log_sequence_number(value: object, name: str) -> int:
    """Return a PostgreSQL LSN: a number, decimal text, or `16/B3748`; raises BadEvent."""
    if isinstance(value, str) and "/" in value:
        high, _, low = value.partition("/")
        if not re.fullmatch(r"[0-9A-Fa-f]{1,8}", high) or not re.fullmatch(
            r"[0-9A-Fa-f]{1,8}", low
        ):
            raise BadEvent(f"{name}: is no LSN")
        return int(high, 16) << 32 | int(low, 16)
    return whole(value, name)


def key_of_header(headers: Mapping[str, str], name: str) -> object | None:
    """Return the record key that a header brings, JSON in base64 or as it is; else None."""
    value = headers.get(name) if name else None
    if not value:
        return None
    for raw in (_decoded(value), value.encode()):
        with contextlib.suppress(orjson.JSONDecodeError):
            return cast("object", orjson.loads(raw or b""))
    sink = "x-debezium-"
    return header(headers, name[len(sink) :]) if name.startswith(sink) else value


def header(headers: Mapping[str, str], name: str) -> str | None:
    """Return a record's header: itself, or as Debezium's HTTP sink sends it, in base64."""
    if name in headers:
        return headers[name]
    sent = headers.get(f"x-debezium-{name}")
    if sent is None:
        return None
    raw = _decoded(sent)
    if raw is None:
        return sent
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return sent


def _decoded(value: str) -> bytes | None:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None
