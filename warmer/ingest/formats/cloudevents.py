"""CloudEvents 1.0 whose producers name the entity: the native way in.

    {"specversion": "1.0", "id": "01J…", "source": "/shop/catalog", "type": "product.updated",
     "subject": "product:7", "sequence": "4711", "data": {"tags": ["category:3"]}}

`subject` is the entity. `sequence` is its version, as decimal text; with `sequencetype`
Integer it is signed, of 32 bits, and begins again after its largest, which no order
survives: from then on an epoch has to be opened. A sequence of another form, or none,
makes an event that always applies. `data.tags` are entities that changed with it.
`data.mode` is soft or hard. `source` and `id` together tell a repetition.

Holds: an attribute that is null is absent; names are compared without regard to case,
because producers that write them otherwise exist.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from urllib.parse import unquote

import orjson

from warmer.errors import BadEvent
from warmer.ingest.formats import Changes, Message, Named, Read, Unreadable
from warmer.ingest.formats.fields import (
    Object,
    an_object,
    shape,
    shown,
    text,
    unix_ms,
    whole,
)
from warmer.model.event import PurgeMode
from warmer.model.source import Source

MAX_TAGS = 100
_DECIMAL = re.compile(r"[0-9]{1,20}")


def read(message: Message, source: Source) -> Read:
    """Return the entities that an event names, or why there are none."""
    try:
        return Changes((_named(_attributes(message.value), source),))
    except BadEvent as exc:
        return Unreadable(str(exc))


def source_of(event: object) -> str:
    """Return an event's `source` attribute, "" if it has none."""
    if not isinstance(event, dict):
        return ""
    value = event.get("source")
    return value if isinstance(value, str) else ""


def of_binary(body: bytes, headers: Mapping[str, str]) -> object:
    """Return the event that `ce-` headers and a body make, as if it were structured.

    Raises BadEvent if the body is not what its content type says.
    """
    event: dict[str, object] = {
        name.removeprefix("ce-"): _percent_decoded(name, value)
        for name, value in headers.items()
        if name.startswith("ce-")
    }
    if not body:
        return event
    try:
        event["data"] = orjson.loads(body)
    except orjson.JSONDecodeError:
        # Data of another type says nothing that is asked here.
        event["data_base64"] = base64.b64encode(body).decode()
    return event


def _attributes(value: object) -> Object:
    event = an_object(value, "event")
    return {name.lower(): item for name, item in event.items() if item is not None}


def _named(event: Object, source: Source) -> Named:
    if not text(event.get("specversion"), "specversion").startswith("1."):
        raise BadEvent(f"specversion: {shown(event['specversion'])} is not 1.0")
    for name in ("id", "source", "type"):
        text(event.get(name), name)
    if source.cloudevents_source not in {"", event["source"]}:
        raise BadEvent("source: is none that this sender speaks for")
    data = _data(event)
    return Named(
        entities=(text(event.get("subject"), "subject"), *_tags(data)),
        version=_version(event, source),
        mode=_mode(data),
        occurred_at=unix_ms(event.get("time")),
        id=event["id"],
        unique=True,
    )


def _version(event: Object, source: Source) -> tuple[int, ...] | None:
    names = source.version_fields or ("sequence",)
    parts = [_part(event.get(name), name) for name in names]
    return None if None in parts else tuple(part for part in parts if part is not None)


def _part(value: object, name: str) -> int | None:
    """Return one number; None where there is none, or text that is not decimal."""
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        return None
    return None if value is None else whole(value, name)


def _data(event: Object) -> Object:
    data = event.get("data")
    if data is None and isinstance(event.get("data_base64"), str):
        try:
            data = orjson.loads(base64.b64decode(event["data_base64"], validate=True))
        except (binascii.Error, ValueError):
            data = None
    return data if isinstance(data, dict) else {}


def _tags(data: Object) -> tuple[str, ...]:
    tags = data.get("tags")
    if tags is None:
        return ()
    if not isinstance(tags, list):
        raise BadEvent(f"data.tags: is {shape(tags)}, not a list")
    if len(tags) > MAX_TAGS:
        raise BadEvent(f"data.tags: {len(tags)} of them, allowed are {MAX_TAGS}")
    return tuple(text(tag, "data.tags") for tag in tags)


def _mode(data: Object) -> PurgeMode | None:
    match data.get("mode"):
        case "soft":
            return PurgeMode.SOFT
        case "hard":
            return PurgeMode.HARD
        case _:
            return None


def _percent_decoded(name: str, value: str) -> str:
    try:
        # Header values are read as Latin-1; what is not ASCII there is UTF-8.
        return unquote(value.encode("latin-1").decode(), errors="strict")
    except UnicodeError:
        raise BadEvent(f"{name}: is not valid UTF-8") from None
