"""Producers' own formats, one file each: a message -> events, or why not.

A message is never dropped in silence: it gives events, or is ignored for a reason that
is counted, or is unreadable and becomes a dead letter.
"""

from dataclasses import dataclass

from warmer.model.event import Event


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it was received. `value` None is a tombstone; `key` may be missing."""

    value: bytes | None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Events:
    """The changes the message tells of, in order."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Ignored:
    """Nothing to invalidate; `reason` is a word of bounded variety."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Not understood; `reason` names the field and the shape, never the value."""

    reason: str


Read = Events | Ignored | Unreadable
