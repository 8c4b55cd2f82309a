"""Producers' own formats, one file each: a message -> what changed, or why nothing did.

A format's file has one function, `read(message, source)`. It knows the producer's field
names and nothing else: which entities a row stands for, what a snapshot row does and
which version counts is the source's declaration, see `warmer.ingest.mapping`.

A message is never dropped in silence: it gives changes, or is ignored for a reason that
is counted, or is unreadable and becomes a dead letter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import cast

from warmer.model.event import PurgeMode
from warmer.model.source import Before, Row, Source

FORMATS = (
    "canal",
    "cloudevents",
    "cockroachdb",
    "debezium",
    "debezium-cloudevents",
    "debezium-flattened",
    "debezium-outbox",
    "dms",
    "maxwell",
    "plain",
    "purge",
    "sequin",
    "wal2json",
)
"""Each is the module of that name, here, with _ for -."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message, its JSON read. `value` None is a tombstone; `key` is the record's key.

    `headers` are by lower-case name: of the request, or of the record. `raw` are its bytes
    as they came, b"" if it came in an array.
    """

    value: object
    key: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes = b""


class Kind(StrEnum):
    """What happened to a row."""

    WRITTEN = "written"
    DELETED = "deleted"
    SNAPSHOT = "snapshot"
    """It was read, not changed: a snapshot, a backfill."""
    TRUNCATED = "truncated"
    """All rows of the table are gone."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """What a message tells of one row.

    `key` are the columns that identify it, None if the message does not say; `after` and
    `before` are its columns as they are and were, None if not told. `before_is` says how
    much of `before` is true where the source's declaration does not.
    `row_version` orders the changes of one row, `commit_version` those of the whole
    source in commit order: 1 to 4 unsigned 64-bit parts, None where not known.
    `lineage` names within what they compare. `occurred_at` is Unix ms of the commit.
    `id` is the producer's for this event; `unique` = no other event has it.
    """

    kind: Kind
    table: str
    db: str = ""
    schema: str = ""
    key: Row | None = None
    after: Row | None = None
    before: Row | None = None
    before_is: Before = Before.FULL
    row_version: tuple[int, ...] | None = None
    commit_version: tuple[int, ...] | None = None
    lineage: str = ""
    occurred_at: int | None = None
    id: str = ""
    unique: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """A change whose producer names the entities itself, or all that begin so."""

    entities: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    version: tuple[int, ...] | None = None
    mode: PurgeMode | None = None
    occurred_at: int | None = None
    id: str = ""
    unique: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that a message tells of, in order; at least one."""

    changes: tuple[RowChange | Named, ...]


@dataclass(frozen=True, slots=True)
class Ignored:
    """Nothing to invalidate; `reason` is a word of bounded variety."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Not understood; `reason` names the field and the shape, never the value."""

    reason: str


Read = Changes | Ignored | Unreadable
ReadAll = Callable[[Sequence[Message], Source], Sequence[Read]]


def reader(format_name: str) -> ReadAll:
    """Return what reads a body's messages in this format: one `Read` for each.

    A format whose messages need their neighbours has `read_all` in place of `read`.
    """
    module = import_module(f"{__name__}.{format_name.replace('-', '_')}")
    read_all = getattr(module, "read_all", None)
    if read_all is not None:
        return cast("ReadAll", read_all)
    return lambda messages, source: [module.read(each, source) for each in messages]
