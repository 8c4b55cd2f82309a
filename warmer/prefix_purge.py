"""Which keys on the cache server a scan's askings reach, told by their names.

A truncated table names no rows, and there is no list of the keys that there are: every name
on the server is looked at, and read back into the key that it is of. Names of guards too: a
load that runs without an entry has one.

Holds: a name reaches a key only if the dataset's own template makes that name of it. What
looks like a pattern in a template or a prefix is text.
Does not hold: that a key with neither entry nor guard is told from one that never was. A
load of it that begins later, from a replica that lags, is not seen through by `settle_for`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from warmer.invalidate import Touch
from warmer.model.dataset import Dataset, Datasets, EntityPattern
from warmer.model.event import Event
from warmer.model.key import Key
from warmer.model.prefix_scan import PrefixAsk


@dataclass(frozen=True, slots=True)
class _Reach:
    """One asking, where one pattern of a dataset may meet it."""

    event: Event
    pattern: EntityPattern
    prefix: str


class PrefixPurge:
    """What a scan invalidates."""

    def __init__(self, asks: Sequence[PrefixAsk], datasets: Datasets) -> None:
        self._reached: list[tuple[Dataset, list[_Reach]]] = []
        for dataset in datasets.values():
            reaches = [
                _Reach(_event(ask), pattern, ask.prefix)
                for ask in asks
                for pattern in dataset.entities
                # Nothing bound: whether any key can be reached at all.
                if pattern.source == ask.source
                and pattern.scope_of({}, ask.prefix) is not None
            ]
            if reaches:
                self._reached.append((dataset, reaches))

    def touches(self, texts: Iterable[str]) -> Iterator[Touch]:
        """Yield what happens to the keys among these names."""
        for text in texts:
            for dataset, reaches in self._reached:
                yield from _touched(dataset, reaches, text)


def _touched(dataset: Dataset, reaches: list[_Reach], text: str) -> Iterator[Touch]:
    parsed = dataset.template.parse(text)
    if parsed is not None:
        schema_version, parts = parsed
        if schema_version not in dataset.live_schemas:
            return
        key, told = Key(text, dataset.name, schema_version, tuple(parts.items())), True
    elif dataset.template.may_have_digested(text):
        # Its parts are not told, so any of the entities may be its.
        key, parts, told = (
            Key(text, dataset.name, dataset.schema_version, ()),
            {},
            False,
        )
    else:
        return
    for reach in reaches:
        scope = reach.pattern.scope_of(parts, reach.prefix)
        if scope is not None:
            yield Touch(reach.event, dataset, key, scope, told)


def _event(ask: PrefixAsk) -> Event:
    return Event(
        id=ask.event_id,
        source=ask.source,
        entities=(),
        version=ask.version,
        mode=ask.mode,
        prefixes=(ask.prefix,),
    )
