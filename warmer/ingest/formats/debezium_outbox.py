"""Events of an outbox table, as Debezium's router sends them.

The record's key is the aggregate's id, its value the table's payload, as it stands there:
JSON, or a text that holds JSON. What the router put into headers (`id`, the event's own
id; a version, an aggregate's type) comes as headers of the record, or in base64 as
`X-DEBEZIUM-…` over HTTP.

The version is a field or header that `version_fields` names; without that, `version`. The
entity is `<type>:<id>` where a type is told (header or field `aggregatetype`), else
what the key says.
"""

from warmer.errors import BadEvent
from warmer.ingest.formats import Changes, Ignored, Message, Named, Read, Unreadable
from warmer.ingest.formats.fields import (
    Object,
    header,
    key_of_header,
    nested,
    shape,
    text,
    whole,
)
from warmer.model.key import encode_part
from warmer.model.source import Source

_TYPES = ("aggregatetype", "aggregate_type")
_IDS = ("aggregateid", "aggregate_id")


def read(message: Message, source: Source) -> Read:
    """Return the aggregate that changed, or why there is none."""
    try:
        if message.value is None:
            return Ignored("tombstone")
        return Changes((_named(message, source),))
    except BadEvent as exc:
        return Unreadable(str(exc))


def _named(message: Message, source: Source) -> Named:
    payload = _payload(message.value)
    id_ = header(message.headers, "id") or ""
    return Named(
        entities=(_entity(message, payload, source),),
        version=_version(message, payload, source),
        id=id_,
        unique=bool(id_),
    )


def _payload(value: object) -> Object:
    """Return the payload's fields, none where it is not an object."""
    if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
        value = value["payload"]
    if isinstance(value, str):
        value = nested(value, "payload")
    return value if isinstance(value, dict) else {}


def _entity(message: Message, payload: Object, source: Source) -> str:
    aggregate = message.key
    if aggregate is None:
        aggregate = key_of_header(message.headers, source.key_header)
    if isinstance(aggregate, dict):
        aggregate = aggregate.get("payload", aggregate)
    if aggregate is None:
        aggregate = next(
            (of for name in _IDS if (of := _told(message, payload, name))), None
        )
    if not isinstance(aggregate, str | int) or isinstance(aggregate, bool):
        raise BadEvent(f"key: is {shape(aggregate)}, not an aggregate's id")
    kind = next((of for name in _TYPES if (of := _told(message, payload, name))), None)
    id_ = encode_part("key", aggregate)
    if kind is None:
        return text(str(aggregate), "key")
    return f"{encode_part('aggregatetype', text(kind, 'aggregatetype'))}:{id_}"


def _told(message: Message, payload: Object, name: str) -> object | None:
    found = header(message.headers, name)
    return payload.get(name) if found is None else found


def _version(
    message: Message, payload: Object, source: Source
) -> tuple[int, ...] | None:
    names = source.version_fields or ("version",)
    parts = [_told(message, payload, name) for name in names]
    if any(part is None for part in parts):
        return None
    return tuple(whole(part, name) for part, name in zip(parts, names, strict=True))
