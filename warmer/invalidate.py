"""Invalidate: events -> every key that depends on them, stale or gone -> which to refresh now.

Holds: when `apply` returns, each key of each live schema version has seen each event, and
the keys worth it are in the due set with what they must reach. When it raises, the same
events may be applied again without harm; so they are acknowledged only after it returned.
Does not hold: order. Versions decide what is newer, not the order of arrival.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from warmer.errors import BadKey
from warmer.model.dataset import Dataset, Datasets
from warmer.model.due import DueKey, Lane
from warmer.model.event import Event
from warmer.model.key import Key
from warmer.model.outcome import InvalidateReply, InvalidateResult
from warmer.model.version import Scope
from warmer.policy.hot import refresh_now
from warmer.signals import Signals
from warmer.store.port import CacheStore, Invalidation

AT_ONCE = 512
"""Invalidations under way. An entity may touch any number of keys; they are not all in
memory at once."""


class DuePort(Protocol):
    """Where keys to refresh are put."""

    async def add(
        self, lane: Lane, keys: Sequence[DueKey], *, due_in_ms: int = 0
    ) -> int:
        """Ask for keys to be refreshed; return how many were not due before."""
        ...


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a batch of events.

    `purged`, `noted`, `older` count keys; `unknown` counts entities that no dataset depends on.
    """

    purged: int
    noted: int
    older: int
    due: int
    unknown: int


@dataclass(frozen=True, slots=True)
class _Touch:
    """One entity's change, as one key meets it."""

    event: Event
    dataset: Dataset
    key: Key
    scope: Scope


class Invalidator:
    """Applies events to the cache, and fills the due set."""

    def __init__(
        self,
        *,
        store: CacheStore,
        datasets: Datasets,
        due: DuePort,
        signals: Signals,
    ) -> None:
        self._store = store
        self._due = due
        self._signals = signals
        self._of_source: dict[str, list[Dataset]] = {}
        for dataset in datasets.values():
            for source in sorted({pattern.source for pattern in dataset.entities}):
                self._of_source.setdefault(source, []).append(dataset)

    async def apply(self, events: Sequence[Event]) -> Applied:
        """Return what became of these events; StoreError = apply them again."""
        results: Counter[InvalidateResult] = Counter()
        unknown: Counter[str] = Counter()
        due = 0
        touches = self._touches(events, unknown)
        while batch := list(islice(touches, AT_ONCE)):
            replies = await self._invalidate(batch)
            results.update(reply.result for reply in replies)
            due += await self._ask_for(batch, replies)
        for source, count in unknown.items():
            self._signals.count("entities_unknown", source, by=count)
        return Applied(
            purged=results[InvalidateResult.PURGED],
            noted=results[InvalidateResult.NOTED],
            older=results[InvalidateResult.OLDER],
            due=due,
            unknown=unknown.total(),
        )

    def _touches(
        self, events: Sequence[Event], unknown: Counter[str]
    ) -> Iterator[_Touch]:
        for event in events:
            for entity in event.entities:
                found = False
                for touch in self._touched(event, entity):
                    found = True
                    yield touch
                if not found:
                    # The label is a source that some dataset names: of bounded variety.
                    known = event.source in self._of_source
                    unknown[event.source if known else "other"] += 1

    def _touched(self, event: Event, entity: str) -> Iterator[_Touch]:
        scope = f"{event.source}/{entity}"
        for dataset in self._of_source.get(event.source, ()):
            try:
                for key in dataset.keys_of(event.source, entity):
                    yield _Touch(event, dataset, key, scope)
            except BadKey:
                # An id that makes no key of this dataset has none to invalidate either.
                self._signals.count("entities_refused", dataset.name)

    async def _invalidate(self, touches: Sequence[_Touch]) -> list[InvalidateReply]:
        # Together: the store sends what meets in one loop turn as one pipeline.
        replies = await asyncio.gather(
            *(self._store.invalidate(_invalidation(touch)) for touch in touches),
            return_exceptions=True,
        )
        applied: list[InvalidateReply] = []
        for touch, reply in zip(touches, replies, strict=True):
            if isinstance(reply, BaseException):
                raise reply
            applied.append(reply)
            self._signals.count(
                "invalidations", touch.dataset.name, reply.result.value.lower()
            )
        return applied

    async def _ask_for(
        self, touches: Sequence[_Touch], replies: Sequence[InvalidateReply]
    ) -> int:
        keys = [
            DueKey(
                key=touch.key,
                wanted={touch.scope: touch.event.version}
                if touch.event.version
                else {},
                wanted_fence=reply.fence,
                event_id=touch.event.id,
            )
            for touch, reply in zip(touches, replies, strict=True)
            # A dataset without an origin is loaded by its callers only.
            if touch.dataset.origin is not None
            # Another version's keys are refreshed by those who read it.
            and touch.dataset.loads(touch.key.schema_version)
            and refresh_now(touch.dataset, reply.result)
        ]
        if not keys:
            return 0
        await self._due.add(Lane.NOW, keys)
        return len({key.key.text for key in keys})


def _invalidation(touch: _Touch) -> Invalidation:
    dataset, event = touch.dataset, touch.event
    return Invalidation(
        key=touch.key,
        scope=touch.scope,
        version=event.version,
        mode=event.mode or dataset.purge,
        stale_ms=dataset.stale_ms,
        error_ms=dataset.error_ms,
        guard_ms=dataset.guard_ms,
    )
