"""Invalidate: events -> every key that depends on them, stale or gone -> which to refresh now.

Holds: when `apply` returns, each key of each live schema version has seen each event, and
the keys worth it are in the due set with what they must reach. What names no entities but
all that begin so is asked for of a scan by then (see `warmer.prefix_purge`). When it raises,
the same events may be applied again without harm; so they are acknowledged only after it
returned.
Does not hold: order. Versions decide what is newer, not the order of arrival.
"""

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
from warmer.model.prefix_scan import PrefixAsk
from warmer.model.version import Scope
from warmer.policy.hot import refresh_now, warmed
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


class ScanPort(Protocol):
    """Where scans of the cache server are asked for."""

    async def ask(self, ask: PrefixAsk) -> None:
        """Ask for a scan; it is not lost any more when this returns."""
        ...


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a batch of events.

    `purged`, `noted`, `older` count keys; `unknown` counts entities and prefixes of which no
    dataset depends on any.
    """

    purged: int
    noted: int
    older: int
    due: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Touch:
    """One change, as one key meets it. Not `told`: the key's parts are not known."""

    event: Event
    dataset: Dataset
    key: Key
    scope: Scope
    told: bool = True


@dataclass(frozen=True, slots=True)
class Purged:
    """What invalidations found, and how many keys became due."""

    results: Counter[InvalidateResult]
    due: int


class Invalidator:
    """Applies events to the cache, and fills the due set."""

    def __init__(
        self,
        *,
        store: CacheStore,
        datasets: Datasets,
        due: DuePort,
        scans: ScanPort,
        signals: Signals,
    ) -> None:
        self._store = store
        self._due = due
        self._scans = scans
        self._signals = signals
        self._of_source: dict[str, list[Dataset]] = {}
        for dataset in datasets.values():
            for source in sorted({pattern.source for pattern in dataset.entities}):
                self._of_source.setdefault(source, []).append(dataset)

    async def apply(self, events: Sequence[Event]) -> Applied:
        """Return what became of these events; StoreError = apply them again."""
        unknown: Counter[str] = Counter()
        await self._ask_for_scans(events, unknown)
        purging = self._touches([each for each in events if not each.warm], unknown)
        purged = await self.purge(purging, lane=Lane.NOW)
        warming = self._touches([each for each in events if each.warm], unknown)
        warm = await self._warm(warming)
        for source, count in unknown.items():
            self._signals.count("entities_unknown", source, by=count)
        return Applied(
            purged=purged.results[InvalidateResult.PURGED],
            noted=purged.results[InvalidateResult.NOTED],
            older=purged.results[InvalidateResult.OLDER],
            due=purged.due + warm,
            unknown=unknown.total(),
        )

    async def purge(self, touches: Iterator[Touch], *, lane: Lane) -> Purged:
        """Invalidate keys, some at a time, and put those worth it into `lane`."""
        results: Counter[InvalidateResult] = Counter()
        due = 0
        while batch := list(islice(touches, AT_ONCE)):
            replies = await self._invalidate(batch)
            results.update(reply.result for reply in replies)
            due += await self._ask_for(batch, replies, lane)
        return Purged(results, due)

    async def _ask_for_scans(
        self, events: Sequence[Event], unknown: Counter[str]
    ) -> None:
        for event in events:
            if event.warm:
                continue
            for prefix in event.prefixes:
                if not self._may_reach(event.source, prefix):
                    unknown[self._label(event.source)] += 1
                    continue
                await self._scans.ask(
                    PrefixAsk(event.source, prefix, event.mode, event.version, event.id)
                )
                self._signals.count("scans_asked", event.source)

    def _may_reach(self, source: str, prefix: str) -> bool:
        return any(
            pattern.scope_of({}, prefix) is not None
            for dataset in self._of_source.get(source, ())
            for pattern in dataset.entities
            if pattern.source == source
        )

    def _label(self, source: str) -> str:
        """Return a source that some dataset names, or a word for all others."""
        return source if source in self._of_source else "other"

    async def _warm(self, touches: Iterator[Touch]) -> int:
        """Ask for keys that were read, not changed: what is fresh is left as it is."""
        due = 0
        while batch := list(islice(touches, AT_ONCE)):
            keys = [
                DueKey(key=touch.key, event_id=touch.event.id)
                for touch in batch
                if _loadable(touch) and warmed(touch.dataset)
            ]
            if keys:
                await self._due.add(Lane.WARM, keys)
            due += len(keys)
        return due

    def _touches(
        self, events: Sequence[Event], unknown: Counter[str]
    ) -> Iterator[Touch]:
        for event in events:
            for entity in event.entities:
                found = False
                for touch in self._touched(event, entity):
                    found = True
                    yield touch
                if not found:
                    unknown[self._label(event.source)] += 1

    def _touched(self, event: Event, entity: str) -> Iterator[Touch]:
        scope = f"{event.source}/{entity}"
        for dataset in self._of_source.get(event.source, ()):
            try:
                for key in dataset.keys_of(event.source, entity):
                    yield Touch(event, dataset, key, scope)
            except BadKey:
                # An id that makes no key of this dataset has none to invalidate either.
                self._signals.count("entities_refused", dataset.name)

    async def _invalidate(self, touches: Sequence[Touch]) -> list[InvalidateReply]:
        replies = await self._store.invalidate_many(
            [_invalidation(touch) for touch in touches]
        )
        found = Counter(
            (touch.dataset.name, reply.result)
            for touch, reply in zip(touches, replies, strict=True)
        )
        for (dataset, result), number in found.items():
            self._signals.count(
                "invalidations", dataset, result.value.lower(), by=number
            )
        return replies

    async def _ask_for(
        self,
        touches: Sequence[Touch],
        replies: Sequence[InvalidateReply],
        lane: Lane,
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
            if _loadable(touch) and refresh_now(touch.dataset, reply.result)
        ]
        if not keys:
            return 0
        await self._due.add(lane, keys)
        return len({key.key.text for key in keys})


def _loadable(touch: Touch) -> bool:
    """Return whether a worker can load this key."""
    # A dataset without an origin is loaded by its callers only; another version's keys are
    # refreshed by those who read it.
    return (
        touch.told
        and touch.dataset.origin is not None
        and touch.dataset.loads(touch.key.schema_version)
    )


def _invalidation(touch: Touch) -> Invalidation:
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
