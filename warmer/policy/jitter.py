"""How long a load is fresh: spread, so that keys warmed together do not expire together."""

from random import Random
from typing import NamedTuple

from warmer.model.dataset import Dataset


class Windows(NamedTuple):
    """Windows of one entry: fresh from its publish, the others from the end of fresh."""

    fresh_ms: int
    stale_ms: int
    error_ms: int


def windows(dataset: Dataset, *, negative: bool, random: Random) -> Windows:
    """Return the jittered windows of a load.

    A negative entry has a short window of its own, and no stale ones: a thing that
    appears must not stay missing.
    """
    if negative:
        return Windows(_jittered(dataset, dataset.negative_ms, random), 0, 0)
    fresh_ms = _jittered(dataset, dataset.fresh_ms, random)
    return Windows(fresh_ms, dataset.stale_ms, dataset.error_ms)


def _jittered(dataset: Dataset, base_ms: int, random: Random) -> int:
    """Return `base x random(1-r, 1+r) + random(0, j)`: what `Dataset.guard_ms` outlives.

    The absolute part shrinks with a base shorter than fresh_ms: 30 s of jitter made for
    an hour must not keep a not-found of 5 s.
    """
    if base_ms <= 0:
        return 0
    ratio, absolute_ms = dataset.jitter.ratio, dataset.jitter.absolute_ms
    if 0 < base_ms < dataset.fresh_ms:
        absolute_ms = absolute_ms * base_ms // dataset.fresh_ms
    spread = base_ms * random.uniform(1 - ratio, 1 + ratio)
    return max(1, int(spread + random.uniform(0, absolute_ms)))
