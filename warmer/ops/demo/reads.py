"""What the demo's readers saw, and what follows from it. Values only.

Instants are seconds of the machine's monotonic clock, which its processes share.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ask:
    """What a reader asks for."""

    dataset: str
    parts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Read:
    """One read: when it began and ended, the state and the version that it was given.

    `ask` is the number of its Ask. `state` is `failed: …` where nothing was given, and the
    version then is 0.
    """

    ask: int
    began: float
    ended: float
    state: str
    version: int


def version_of(value: Any) -> int:
    """Return the version that a value of the shop says it has."""
    return int(value["position"] if "position" in value else value["version"])


def states(reads: Iterable[Read]) -> dict[str, int]:
    """Return how many reads were given which state, the most frequent first."""
    return dict(Counter(read.state for read in reads).most_common())


def longest(reads: Iterable[Read]) -> float:
    """Return how long the slowest read took, in seconds."""
    return max((read.ended - read.began for read in reads), default=0.0)


def failed(reads: Iterable[Read]) -> int:
    """Return how many reads were given nothing."""
    return sum(read.state.startswith("failed") for read in reads)


def fresh_at(reads: Sequence[Read], newest: Mapping[int, int]) -> float | None:
    """Return when the last of the asks in `newest` was first seen at its newest version.

    None if one never was.
    """
    seen = _first_seen(reads, newest)
    return max(seen.values()) if len(seen) == len(newest) else None


def older_after_fresh(reads: Iterable[Read], newest: Mapping[int, int]) -> int:
    """Return how many reads began after any reader had seen the newest version, and got less."""
    reads = list(reads)
    seen = _first_seen(reads, newest)
    return sum(
        read.ask in seen
        and read.began > seen[read.ask]
        and 0 < read.version < newest[read.ask]
        for read in reads
    )


def _first_seen(reads: Iterable[Read], newest: Mapping[int, int]) -> dict[int, float]:
    seen: dict[int, float] = {}
    for read in reads:
        if read.ask in newest and read.version >= newest[read.ask]:
            seen[read.ask] = min(seen.get(read.ask, read.ended), read.ended)
    return seen
