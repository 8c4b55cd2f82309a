"""Plain JSON of a producer's own: an entity, and its version where there is one.

    {"entity": "product:42", "version": 17}
    {"entities": ["product:42", "category:3"], "version": [3, 17], "mode": "hard",
     "occurred_at": 1790000000123, "id": "…"}
    {"prefixes": ["product:"]}

`source.version_fields` names other fields for the version. An `id` tells a repetition.

Holds: a field that nobody knows is passed over, so that a producer may add one. But if it
is spelt almost as the version or a list that is missing, the message is refused, into the
dead letters: a `verison` would lose its order, `entites` their invalidation, unheard.
"""

from difflib import get_close_matches

from warmer.errors import BadEvent
from warmer.ingest.event_log import MAX_ENTITIES, MAX_PREFIXES
from warmer.ingest.formats import Changes, Message, Named, Read, Unreadable
from warmer.ingest.formats.fields import (
    Object,
    an_object,
    shape,
    text,
    text_or,
    whole,
    whole_or_none,
)
from warmer.model.event import PurgeMode
from warmer.model.source import Source

MAX_FIELDS = 100

_KNOWN = frozenset(
    {"entity", "entities", "prefixes", "version", "mode", "occurred_at", "id"}
)
_ALMOST = 0.85
"""`verison` and `Version` are almost version; `revision` and `version_id` are not."""
_MODES = {"soft": PurgeMode.SOFT, "hard": PurgeMode.HARD}


def read(message: Message, source: Source) -> Read:
    """Return the entities that a message names, or why there are none."""
    try:
        return Changes((_named(an_object(message.value, "event"), source),))
    except BadEvent as exc:
        return Unreadable(str(exc))


def _named(event: Object, source: Source) -> Named:
    _refuse_misspelt(event, source)
    entities = (*_one(event), *_texts(event, "entities", MAX_ENTITIES))
    prefixes = _texts(event, "prefixes", MAX_PREFIXES, empty=True)
    if not (entities or prefixes):
        raise BadEvent("entity: missing, and entities and prefixes too")
    id_ = text_or(event.get("id"), "id")
    return Named(
        entities=entities,
        prefixes=prefixes,
        version=_version(event, source),
        mode=_mode(event.get("mode")),
        occurred_at=whole_or_none(event.get("occurred_at"), "occurred_at"),
        id=id_,
        unique=bool(id_),
    )


def _refuse_misspelt(event: Object, source: Source) -> None:
    """Refuse an unknown field that seems to stand for one whose absence nobody would see."""
    if len(event) > MAX_FIELDS:
        raise BadEvent(f"event: {len(event)} fields, allowed are {MAX_FIELDS}")
    told = ("entities", "prefixes", *(source.version_fields or ("version",)))
    missing = [name for name in told if event.get(name) is None]
    for name in event.keys() - _KNOWN - set(source.version_fields):
        meant = get_close_matches(name.lower(), missing, n=1, cutoff=_ALMOST)
        if meant:
            raise BadEvent(f"{name[:80]!r}: is not known; did you mean {meant[0]}?")


def _one(event: Object) -> tuple[str, ...]:
    return () if event.get("entity") is None else (text(event["entity"], "entity"),)


def _texts(
    event: Object, name: str, most: int, *, empty: bool = False
) -> tuple[str, ...]:
    values = event.get(name)
    if values is None:
        return ()
    if not isinstance(values, list):
        raise BadEvent(f"{name}: is {shape(values)}, not a list")
    if len(values) > most:
        raise BadEvent(f"{name}: {len(values)} of them, allowed are {most}")
    read_one = text_or if empty else text
    return tuple(read_one(value, name) for value in values)


def _version(event: Object, source: Source) -> tuple[int, ...] | None:
    if source.version_fields:
        parts = [event.get(name) for name in source.version_fields]
    else:
        value = event.get("version")
        parts = value if isinstance(value, list) else [value]
    if not parts or any(part is None for part in parts):
        return None
    return tuple(whole(part, "version") for part in parts)


def _mode(value: object) -> PurgeMode | None:
    if value is None:
        return None
    mode = _MODES.get(value) if isinstance(value, str) else None
    if mode is None:
        raise BadEvent("mode: allowed are soft and hard")
    return mode
