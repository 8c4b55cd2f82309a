"""An invalidation event: these entities of this source changed."""

from dataclasses import dataclass
from enum import StrEnum

from warmer.model.version import SourceVersion


class PurgeMode(StrEnum):
    """What an invalidation does to an entry."""

    SOFT = "soft"
    """Make it stale, keep the body."""
    HARD = "hard"
    """Remove it."""


@dataclass(frozen=True, slots=True)
class Event:
    """One accepted event.

    `entities` are ids such as `product:42`, of `source`. `prefixes` mean every entity
    whose id begins so: a truncated table is `product:`, all of the source "". `version`
    is the source's version of that change, None if the producer has none. `mode`
    overrides the datasets' own purge mode. `warm` purges nothing: the keys are only
    refreshed where they are not fresh. `occurred_at` is Unix ms by the producer's clock.
    """

    id: str
    source: str
    entities: tuple[str, ...]
    version: SourceVersion | None = None
    mode: PurgeMode | None = None
    occurred_at: int | None = None
    prefixes: tuple[str, ...] = ()
    warm: bool = False
