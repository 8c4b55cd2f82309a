"""A dataset: a family of keys with one template, one policy, one origin.

The policy is part of the data's contract, not of the servers' set-up.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from warmer.errors import BadKey
from warmer.model.event import PurgeMode
from warmer.model.key import Key, KeyTemplate, Part, decode_part
from warmer.model.version import Scope


class ColdStart(StrEnum):
    """No entry at all, and somebody else holds the lease: what a caller gets."""

    WAIT = "wait"
    """The other's value, within the deadline; else NothingToServe."""
    EMPTY = "empty"
    """The dataset's declared empty value, at once, for this one request."""
    LOAD = "load"
    """A load of its own within the local limit, when waiting cannot be in time."""


class RefreshOn(StrEnum):
    """Which keys of a changed entity are refreshed at once, before anyone asks."""

    CACHED = "cached"
    """Those that had an entry."""
    ALL = "all"
    NONE = "none"


class VersionMeans(StrEnum):
    """What the version that a loader reports stands for."""

    NONE = "none"
    """The loader reports none."""
    ENTITY = "entity"
    """The version of one entity, e.g. a row's version column."""
    POSITION = "position"
    """A position of the source, taken from the data's own snapshot or before it."""


@dataclass(frozen=True, slots=True)
class Jitter:
    """Spread of fresh_until: `base + random(0, absolute_ms)`, times `random(1-ratio, 1+ratio)`."""

    absolute_ms: int = 0
    ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class LoaderVersion:
    """What a loader's version means. `entity` is a template over the key's parts.

    `header` or `pointer` (an RFC 6901 JSON pointer) say where an HTTP origin puts it.
    """

    means: VersionMeans = VersionMeans.NONE
    source: str = ""
    entity: str = ""
    header: str | None = None
    pointer: str | None = None

    def scope(self, key: Key) -> Scope:
        """Return the scope that a version reported for `key` belongs to."""
        if self.means is VersionMeans.POSITION:
            return self.source
        return f"{self.source}/{self.entity.format_map(dict(key.parts))}"


class EntityPattern:
    """Which entities a dataset depends on: `shop-db/product:{id}`.

    Names that are key parts bind them; other names match anything (a list that depends
    on every note names `notes/note:{note_id}`).
    """

    __slots__ = ("_pieces", "_regex", "names", "source", "text")

    def __init__(self, text: str) -> None:
        """Parse `source/entity`; raises BadKey that says what is wrong with it."""
        source, slash, entity = text.partition("/")
        if not (source and slash and entity):
            raise BadKey(f"entity pattern {text!r} is not source/entity")
        self.text = text
        self.source = source
        pieces = re.split(r"\{([a-z][a-z0-9_]*)\}", entity)
        if any(brace in literal for literal in pieces[::2] for brace in "{}"):
            raise BadKey(f"entity pattern {text!r}: parts are {{lower_case}} names")
        if any(not literal for literal in pieces[2:-1:2]):
            raise BadKey(
                f"entity pattern {text!r}: two parts need something between them"
            )
        self._pieces = pieces
        self.names = tuple(pieces[1::2])
        if len(set(self.names)) != len(self.names):
            raise BadKey(f"entity pattern {text!r}: a part is named twice")
        self._regex = re.compile(
            "".join(
                f"(?P<{piece}>[^:]+)" if at % 2 else re.escape(piece)
                for at, piece in enumerate(pieces)
            )
        )

    def match(self, entity: str) -> dict[str, str | bytes] | None:
        """Return the parts that `entity` binds, None if it is not of this pattern."""
        found = self._regex.fullmatch(entity)
        if found is None:
            return None
        return {name: decode_part(text) for name, text in found.groupdict().items()}

    def scope_of(self, parts: Mapping[str, str], prefix: str) -> Scope | None:
        """Return what a key depends on of the entities that begin with `prefix`.

        One entity where the key's encoded parts bind it, else the source; None if none of
        them is of this pattern.
        """
        known = ""
        for at, piece in enumerate(self._pieces):
            if at % 2 and piece not in parts:
                # Any entity that begins as far as is known.
                overlap = known.startswith(prefix) or prefix.startswith(known)
                return self.source if overlap else None
            known += parts[piece] if at % 2 else piece
        return f"{self.source}/{known}" if known.startswith(prefix) else None


@dataclass(frozen=True, slots=True)
class Dataset:
    """One dataset. Durations are integer milliseconds; 0 switches a window off.

    `vary` lists the values of the parts that an entity does not bind. `live_schemas`
    are the schema versions that invalidations reach, the current one among them. `tenant`
    is the part of the key that says whose load it is; the limits are of the whole fleet.
    """

    name: str
    template: KeyTemplate
    schema_version: int
    live_schemas: tuple[int, ...]
    vary: Mapping[str, tuple[str, ...]]
    entities: tuple[EntityPattern, ...]
    origin: str | None
    path: str | None
    fresh_ms: int
    stale_ms: int
    error_ms: int
    negative_ms: int
    lease_ms: int
    load_timeout_ms: int
    settle_ms: int
    reorder_ms: int
    jitter: Jitter
    early_refresh_beta: float
    cold_start: ColdStart
    empty: object
    purge: PurgeMode
    refresh_on: RefreshOn
    compress_above: int | None
    max_body_bytes: int
    max_waiters: int
    version: LoaderVersion
    limit: int | None = None
    tenant: str | None = None
    tenant_limit: int | None = None

    @property
    def guard_ms(self) -> int:
        """How long a guard must outlive the last claim or invalidation.

        Longer than the entry, the longest load and the reorder window together: the
        guard is what refuses a load that none of them would.
        """
        windows = max(self.fresh_ms, self.negative_ms) + max(
            self.stale_ms, self.error_ms
        )
        jittered = int(windows * (1 + self.jitter.ratio)) + self.jitter.absolute_ms
        return jittered + self.lease_ms + self.load_timeout_ms + self.reorder_ms

    def loads(self, schema_version: int) -> bool:
        """Return whether an origin asked by this dataset gives that representation.

        A path without `{schema}` gives the current one: under another version's key it
        would break that version's readers.
        """
        if schema_version == self.schema_version:
            return True
        return self.path is not None and "{schema}" in self.path

    def key(self, parts: Mapping[str, Part], *, schema: int | None = None) -> Key:
        """Return the canonical key; raises BadKey naming a missing or unknown part."""
        version = self.schema_version if schema is None else schema
        return self.template.key(self.name, version, parts)

    def keys_of(self, source: str, entity: str) -> Iterator[Key]:
        """Yield the keys, of every live schema version, that depend on this entity."""
        for pattern in self.entities:
            if pattern.source != source:
                continue
            bound = pattern.match(entity)
            if bound is None:
                continue
            choices = [
                (bound[name],) if name in bound else self.vary[name]
                for name in self.template.names
            ]
            for schema in self.live_schemas:
                for values in itertools.product(*choices):
                    parts = dict(zip(self.template.names, values, strict=True))
                    yield self.key(parts, schema=schema)


Datasets = Mapping[str, Dataset]
