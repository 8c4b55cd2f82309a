"""Short spellings of a message's way to its events, for tests of formats."""

from collections.abc import Mapping

from warmer.errors import BadEvent
from warmer.ingest.formats import Changes, Ignored, Message, Read, reader
from warmer.ingest.mapping import arrivals
from warmer.model.arrival import Arrival
from warmer.model.source import EntityTemplate, Source, Table

KEYED_BY_ID = Table((EntityTemplate("{table}:{key}"),), key=("id",))


def read(
    source: Source,
    value: object,
    *,
    key: object = None,
    headers: Mapping[str, str] | None = None,
) -> Read:
    """What the source's format says of one message."""
    (one,) = reader(source.format)([Message(value, key, headers or {})], source)
    return one


def arrived(
    source: Source,
    value: object,
    *,
    key: object = None,
    headers: Mapping[str, str] | None = None,
) -> list[Arrival]:
    """The events of a message that is understood."""
    found = read(source, value, key=key, headers=headers)
    assert isinstance(found, Changes), found
    return arrivals(found, source)[0]


def told(
    source: Source,
    value: object,
    *,
    key: object = None,
    headers: Mapping[str, str] | None = None,
) -> list[tuple[tuple[str, ...], tuple[int, ...] | None]]:
    """Entities and version of each event of a message; prefixes end in a star."""
    return [
        (
            arrival.event.entities
            + tuple(f"{prefix}*" for prefix in arrival.event.prefixes),
            None if arrival.event.version is None else arrival.event.version.parts(),
        )
        for arrival in arrived(source, value, key=key, headers=headers)
    ]


def refused(
    source: Source,
    value: object,
    *,
    key: object = None,
    headers: Mapping[str, str] | None = None,
) -> str:
    """Why a message is not understood."""
    found = read(source, value, key=key, headers=headers)
    assert not isinstance(found, Ignored), found
    if not isinstance(found, Changes):
        return found.reason
    try:
        arrivals(found, source)
    except BadEvent as exc:
        return str(exc)
    raise AssertionError(f"it was understood: {found}")
