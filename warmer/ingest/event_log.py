"""The event log's JSON: what a producer may write into it, and what a worker reads.

    {"id": "…", "source": "shop-db", "entities": ["product:42"], "version": 17,
     "mode": "soft", "occurred_at": 1790000000123}

`version` is a whole number, a list of up to four, or {"epoch": 2, "parts": [17]}; each
number may be written as a decimal string, because 2^53 is the end of many languages'
numbers. Only `source` and `entities` must be there. Anything else is refused by the name
of its field: a version that cannot be compared would let old data win.

Holds: what `encode` writes, `decode` reads back equal. Nothing over its bound gets in.
"""

import re
import secrets
from dataclasses import replace
from typing import Annotated, Any, TypeGuard

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    ValidationError,
)

from warmer.errors import BadEvent
from warmer.model.arrival import Arrival, Record
from warmer.model.event import Event, PurgeMode
from warmer.model.key import canonical_entity
from warmer.model.version import MAX_PARTS, SourceVersion, check_source

MAX_EVENT_BYTES = 262_144
"""One event in the log; a full one of MAX_ENTITIES ids has room."""
MAX_ENTITIES = 1_000
MAX_PREFIXES = 16
MAX_ID_BYTES = 256

_SHOWN = 80
_ENCODED = frozenset({"id", "source", "entities", "version", "mode", "occurred_at"})
_ENCODED_VERSION = frozenset({"epoch", "parts"})
_MODES = {mode.value: mode for mode in PurgeMode}
_DECIMAL = re.compile(r"[0-9]{1,20}")


def _whole(value: object) -> object:
    """Take a decimal string for its number, and nothing else that pydantic would."""
    if isinstance(value, bool | float):
        raise ValueError("must be a whole number, or one as a decimal string")  # noqa: TRY004 - pydantic's way
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit() and len(value) <= 20):  # noqa: PLR2004 - digits of 2^64
            raise ValueError(f"{value[:_SHOWN]!r} is not a whole number")
        return int(value)
    return value


def _version(value: object) -> object:
    """Take one number, or a list of them, for a version without an epoch."""
    if value is None or isinstance(value, dict):
        return value
    return {"parts": value if isinstance(value, list) else [value]}


_U64 = Annotated[int, BeforeValidator(_whole), Field(ge=0, lt=2**64)]
_U32 = Annotated[int, BeforeValidator(_whole), Field(ge=0, lt=2**32)]
_Text = Annotated[
    str, StringConstraints(strict=True, min_length=1, max_length=MAX_ID_BYTES)
]
_Prefix = Annotated[str, StringConstraints(strict=True, max_length=MAX_ID_BYTES)]


class _Border(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class WireVersion(_Border):
    """A version as it is written."""

    epoch: _U32 = 0
    parts: list[_U64] = Field(min_length=1, max_length=MAX_PARTS)


class WireEvent(_Border):
    """An event as it is written."""

    id: _Text = Field(default_factory=lambda: secrets.token_hex(16))
    source: _Text
    entities: list[_Text] = Field(default=[], max_length=MAX_ENTITIES)
    prefixes: list[_Prefix] = Field(default=[], max_length=MAX_PREFIXES)
    version: Annotated[WireVersion | None, BeforeValidator(_version)] = None
    mode: PurgeMode | None = None
    warm: StrictBool = False
    occurred_at: _U64 | None = None


def event_of(wire: object) -> Event:
    """Return the event that a JSON object stands for; raises BadEvent naming the field."""
    try:
        read = WireEvent.model_validate(wire)
    except ValidationError as exc:
        raise BadEvent(_first_problem(exc)) from None
    check_source(read.source)
    if not (read.entities or read.prefixes):
        raise BadEvent("entities: missing, and prefixes too")
    return Event(
        id=read.id,
        source=read.source,
        entities=tuple(dict.fromkeys(map(canonical_entity, read.entities))),
        version=SourceVersion.of(
            read.source, *read.version.parts, epoch=read.version.epoch
        )
        if read.version
        else None,
        mode=read.mode,
        occurred_at=read.occurred_at,
        prefixes=tuple(
            canonical_entity(prefix) if prefix else ""
            for prefix in dict.fromkeys(read.prefixes)
        ),
        warm=read.warm,
    )


def decode(stored: bytes, *, epoch: int = 0, ordered: bool = True) -> Event:
    """Return the event in an entry of the log; raises BadEvent.

    `epoch` is the source's when the event entered the log; not `ordered`: its version says
    nothing about what is newer, and counts as none.
    """
    event = _decoded(stored)
    version = event.version
    if version is None or (ordered and epoch <= version.epoch):
        return event
    if not ordered:
        return replace(event, version=None)
    return replace(event, version=replace(version, epoch=epoch))


def _decoded(stored: bytes) -> Event:
    if len(stored) > MAX_EVENT_BYTES:
        raise BadEvent(f"event: {len(stored)} bytes, allowed are {MAX_EVENT_BYTES}")
    try:
        wire = orjson.loads(stored)
    except orjson.JSONDecodeError as exc:
        raise BadEvent(f"event: not JSON: {exc}") from None
    return _as_encoded(wire) or event_of(wire)


def _as_encoded(wire: object) -> Event | None:
    """Return the event if it is written as `encode` does, None where the model must decide.

    The model takes 20 microseconds, more than all else that becomes of an event here.
    """
    if not isinstance(wire, dict) or not wire.keys() <= _ENCODED:
        return None
    id_, source, entities = wire.get("id"), wire.get("source"), wire.get("entities")
    mode, occurred_at = wire.get("mode"), wire.get("occurred_at")
    if not (_is_text(id_) and _is_text(source) and _are_texts(entities)):
        return None
    if not (mode is None or (isinstance(mode, str) and mode in _MODES)):
        return None
    if not (occurred_at is None or _is_whole(occurred_at, 2**64)):
        return None
    check_source(source)
    version = None
    if wire.get("version") is not None:
        version = _version_as_encoded(source, wire["version"])
        if version is None:
            return None
    return Event(
        id=id_,
        source=source,
        entities=tuple(dict.fromkeys(map(canonical_entity, entities))),
        version=version,
        mode=_MODES[mode] if mode else None,
        occurred_at=occurred_at,
    )


def _version_as_encoded(source: str, wire: object) -> SourceVersion | None:
    if not isinstance(wire, dict) or wire.keys() != _ENCODED_VERSION:
        return None
    epoch, parts = wire["epoch"], wire["parts"]
    if not (_is_whole(epoch, 2**32) and isinstance(parts, list)):
        return None
    if not 0 < len(parts) <= MAX_PARTS:
        return None
    digits = ""
    for part in parts:
        if not (isinstance(part, str) and _DECIMAL.fullmatch(part)):
            return None
        number = int(part)
        if number >= 2**64:
            return None
        digits += f"{number:016x}"
    return SourceVersion(source, epoch, digits)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_BYTES


def _are_texts(value: object) -> TypeGuard[list[str]]:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MAX_ENTITIES
        and all(map(_is_text, value))
    )


def _is_whole(value: object, end: int) -> TypeGuard[int]:
    # Not isinstance: true is a number to it.
    return type(value) is int and 0 <= value < end


def encode(event: Event) -> bytes:
    """Return an event as it stands in the log; raises BadEvent if it is too large."""
    wire: dict[str, Any] = {
        "id": event.id,
        "source": event.source,
        "entities": event.entities,
    }
    if event.version is not None:
        wire["version"] = {
            "epoch": event.version.epoch,
            "parts": [str(part) for part in event.version.parts()],
        }
    if event.mode is not None:
        wire["mode"] = event.mode.value
    if event.occurred_at is not None:
        wire["occurred_at"] = event.occurred_at
    if event.prefixes:
        wire["prefixes"] = event.prefixes
    if event.warm:
        wire["warm"] = True
    stored = orjson.dumps(wire)
    if len(stored) > MAX_EVENT_BYTES:
        raise BadEvent(f"event: {len(stored)} bytes, allowed are {MAX_EVENT_BYTES}")
    return stored


def record_of(arrival: Arrival) -> Record:
    """Return an arrival as the event log takes it; raises BadEvent if it is too large."""
    return Record(
        event=encode(arrival.event),
        lineage=arrival.lineage,
        entity=next(iter(arrival.event.entities), ""),
        ordered_by=arrival.ordered_by,
        digits=arrival.digits,
        occurred_at=arrival.event.occurred_at,
        identity=arrival.identity,
    )


def _first_problem(error: ValidationError) -> str:
    problems = error.errors(include_url=False)
    first = problems[0]
    where = ".".join(str(step) for step in first["loc"]) or "event"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where}: {first['msg']}; it is {_shape(first['input'])}{more}"


_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


def _shape(value: object) -> str:
    """Return what kind of value it is, never the value: it may be somebody's data."""
    kind = _KINDS.get(type(value), type(value).__name__)
    return f"{kind} of {len(value)}" if isinstance(value, str | list | dict) else kind
