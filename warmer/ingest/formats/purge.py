"""Purge calls: keys that a caller knows, without a version, so that they always apply.

    {"surrogate_keys": ["product:7", "category:3"], "soft": true}
    {"tags": ["product:7"]}
    {"purge_everything": true}

A surrogate key is the entity. `soft` keeps what is there as stale; without it, a purge
does what its dataset says. Addresses, hosts and prefixes of them name no entity here and
are refused by name.
"""

from warmer.errors import BadEvent
from warmer.ingest.formats import Changes, Message, Named, Read, Unreadable
from warmer.ingest.formats.fields import an_object, shape, text
from warmer.model.event import PurgeMode
from warmer.model.source import Source

MAX_KEYS = 256
_LISTS = ("surrogate_keys", "tags", "entities")
_REFUSED = ("files", "urls", "hosts", "prefixes", "url")
_KNOWN = {*_LISTS, "soft", "purge_everything", "source"}


def read(message: Message, source: Source) -> Read:
    """Return the entities that a call names, or why there are none."""
    _ = source
    try:
        return Changes((_named(message.value),))
    except BadEvent as exc:
        return Unreadable(str(exc))


def _named(value: object) -> Named:
    call = an_object(value, "purge")
    for name in _REFUSED:
        if name in call:
            raise BadEvent(f"{name}: names no entity; purge by surrogate key")
    for name in sorted(set(call) - _KNOWN):
        raise BadEvent(f"{name[:80]!r}: is not known; a purge has {', '.join(_LISTS)}")
    mode = PurgeMode.SOFT if _flag(call.get("soft"), "soft") else None
    if _flag(call.get("purge_everything"), "purge_everything"):
        return Named(prefixes=("",), mode=mode)
    keys = tuple(key for name in _LISTS for key in _keys(call.get(name), name))
    if not keys:
        raise BadEvent("surrogate_keys: missing or empty")
    if len(keys) > MAX_KEYS:
        raise BadEvent(f"surrogate_keys: {len(keys)} of them, allowed are {MAX_KEYS}")
    return Named(entities=keys, mode=mode)


def _keys(value: object, name: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadEvent(f"{name}: is {shape(value)}, not a list")
    return [text(key, name) for key in value]


def _flag(value: object, name: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise BadEvent(f"{name}: is {shape(value)}, not true or false")
