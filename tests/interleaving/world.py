"""A small model world: a source of truth, replicas that lag, and the loads made from them.

One key is built from one or two entities of one source. A change has a place in the
source's log; a loaded body is the number of its load, and the load knows up to which
place it contains each entity: so what an entry lacks is a fact here, not a guess.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from warmer.model.key import KeyTemplate
from warmer.model.version import Scope, SourceVersion, Versions

SOURCE = "db"
KEY = KeyTemplate("item:v{schema}:{id}").key("items", 1, {"id": 7})

LEASE_MS = 100
SETTLE_MS = 40
FRESH_MS = 300
STALE_MS = 200
ERROR_MS = 400
LAG_RETRY_MS = 20
RETRY_MS = 30
GUARD_MS = 100_000
"""Longer than a schedule: a guard goes by eviction only, and the model knows when."""


class Reports(StrEnum):
    """Which versions a loader reports. A row that is gone has none (see `Source.read`)."""

    ENTITY = "entity"
    POSITION = "position"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the source's log."""

    at: int
    entity: str
    version: SourceVersion
    deleted: bool

    @property
    def scope(self) -> Scope:
        """The scope an invalidation of this change names."""
        return f"{SOURCE}/{self.entity}"


@dataclass(slots=True)
class Load:
    """What one loader read: per entity, up to which place of the log it contains it."""

    number: int
    contains: dict[str, int]
    versions: Versions
    negative: bool
    claim_seq: int
    """When its claim was carried out, in steps and in ms."""
    claimed_at: int
    published_seq: int = 0
    purged_at: int = 0
    """Of the last invalidation before it was published."""


@dataclass(slots=True)
class Source:
    """The log, and how far the slowest replica is."""

    entities: tuple[str, ...]
    random: Random
    log: list[Change] = field(default_factory=list)
    replica: int = 0
    epoch: int = 0
    _digit: int = 0

    @property
    def head(self) -> int:
        """Place of the newest change."""
        return len(self.log)

    def write(
        self, entity: str, *, deleted: bool = False, epoch: bool = False
    ) -> Change:
        """Change an entity; `epoch` = the source was restored, its versions begin anew."""
        if epoch:
            self.epoch += 1
            self._digit = 0
        self._digit += 1
        version = SourceVersion.of(SOURCE, self._digit, epoch=self.epoch)
        change = Change(len(self.log) + 1, entity, version, deleted)
        self.log.append(change)
        return change

    def replicate(self) -> None:
        """Let the slowest replica come nearer."""
        self.replica = self.random.randint(min(self.replica + 1, self.head), self.head)

    def read_place(self) -> int:
        """Return where a read is served from: the slowest replica, or a faster one."""
        if self.random.random() < 0.5:
            return self.replica
        return self.random.randint(self.replica, self.head)

    def last(self, entity: str, place: int) -> Change | None:
        """Return the newest change of an entity at a place of the log."""
        for change in reversed(self.log[:place]):
            if change.entity == entity:
                return change
        return None

    def found(self, contains: dict[str, int]) -> tuple[bool, Versions]:
        """Return whether the key's first entity is missing, and the rows' versions."""
        rows: dict[Scope, SourceVersion] = {}
        for entity, place in contains.items():
            change = self.last(entity, place)
            if change and not change.deleted:
                rows[change.scope] = change.version
        return f"{SOURCE}/{self.entities[0]}" not in rows, rows

    def position(self, place: int) -> Versions:
        """Return the source's position at a place of the log."""
        if place == 0:
            return {SOURCE: SourceVersion.of(SOURCE, 0)}
        return {SOURCE: self.log[place - 1].version}

    def place_of(self, version: SourceVersion) -> int:
        """Return the place of the log that a version stands for."""
        for change in self.log:
            if change.version == version:
                return change.at
        raise LookupError(version)
