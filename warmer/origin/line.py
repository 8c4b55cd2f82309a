"""Loads that wait for a permit: the urgent first, and within a purpose one group after the other.

Holds: a group (a dataset's tenant) that asks a hundred times as much delays another's next
load by one of its own, not by a hundred. Within a group, in order of arrival.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from warmer.model.dataset import Dataset
from warmer.model.key import Key
from warmer.model.permit import PURPOSES

TENANTS = 1_024
"""Told apart, of one dataset: by a hash, so that few share a limit and none is listed."""


@dataclass(frozen=True, slots=True)
class Group:
    """Loads that are alike to every limit: their dataset's, their tenant's."""

    name: str
    pools: tuple[str, ...]
    """From the whole origin's to the narrowest."""


def group_of(dataset: Dataset, key: Key) -> Group:
    """Return which loads this one counts with."""
    pools = [""]
    if dataset.limit is not None:
        pools.append(f"dataset:{dataset.name}")
    if dataset.tenant is None:
        return Group(dataset.name, tuple(pools))
    text = dict(key.parts)[dataset.tenant]
    number = crc32(text.encode()) % TENANTS
    if dataset.tenant_limit is not None:
        pools.append(f"tenant:{dataset.name}:{number}")
    return Group(f"{dataset.name}:{number}", tuple(pools))


@dataclass(slots=True, eq=False)
class Waiting:
    """One load in line; `turn` is done when it may begin, or fails with its refusal."""

    rank: int
    group: Group
    turn: asyncio.Future[None]


class Line:
    """Who waits."""

    def __init__(self) -> None:
        self._groups: list[OrderedDict[Group, dict[Waiting, None]]] = [
            OrderedDict() for _ in PURPOSES
        ]
        self.counts = [0] * len(PURPOSES)

    def __len__(self) -> int:
        return sum(self.counts)

    def join(self, load: Waiting) -> None:
        """Stand at the end of its group."""
        self._groups[load.rank].setdefault(load.group, {})[load] = None
        self.counts[load.rank] += 1

    def leave(self, load: Waiting) -> bool:
        """Leave, wherever it stands; return False if it had left before."""
        groups = self._groups[load.rank]
        if load not in groups.get(load.group, ()):
            return False
        del groups[load.group][load]
        if not groups[load.group]:
            del groups[load.group]
        self.counts[load.rank] -= 1
        return True

    def call(self, load: Waiting) -> None:
        """Take it out of the line; its group stands behind the others now."""
        self.leave(load)
        groups = self._groups[load.rank]
        if load.group in groups:
            groups.move_to_end(load.group)

    def next(self) -> Iterator[Waiting]:
        """Yield who may be next, the first of each group; the line must not change meanwhile."""
        for groups in self._groups:
            for loads in groups.values():
                yield next(iter(loads))

    def all(self) -> list[Waiting]:
        """Return everyone."""
        return [
            load
            for groups in self._groups
            for loads in groups.values()
            for load in loads
        ]

    def of(self, group: Group, rank: int) -> int:
        """Return how many of this group and purpose wait."""
        return len(self._groups[rank].get(group, ()))

    def crowding_out(self, group: Group, rank: int) -> Waiting | None:
        """Return whose place one that joins now has more right to, None for nobody's.

        The last of the largest group, of those that are less urgent; or as urgent, and
        larger than its own: a group that fills the line keeps no other out.
        """
        for at in reversed(range(rank, len(self._groups))):
            if not self._groups[at]:
                continue
            largest = max(self._groups[at].values(), key=len)
            if at > rank or len(largest) > self.of(group, rank) + 1:
                return next(reversed(largest))
        return None

    def ahead_of(self, group: Group, rank: int) -> int:
        """Return how many are called before one that joins now."""
        turns = self.of(group, rank) + 1
        same = self._groups[rank].items()
        return sum(self.counts[:rank]) + sum(
            len(loads) if other == group else min(len(loads), turns)
            for other, loads in same
        )
