"""A B A B: contenders take turns within one run, and only ratios within a round are kept.

The machine is shared and noisy: absolute rates drift twofold between runs, the ratio of two
neighbours in one round hardly does.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random

Read = Callable[[int], Awaitable[object]]
"""Reads the entry of this number."""


async def rate(read: Read, *, tasks: int, keys: int, for_s: float) -> float:
    """Reads per second of so many tasks, each with one read under way."""
    end = time.perf_counter() + for_s
    done = 0

    async def reader(number: int) -> None:
        nonlocal done
        # Each in an order of its own: readers in one order fall into step, and a peer
        # that coalesces equal keys then looks faster than it is on real traffic.
        order = Random(number).sample(range(keys), keys)
        for key in itertools.cycle(order):
            if time.perf_counter() >= end:
                return
            await read(key)
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(reader(number) for number in range(tasks)))
    return done / (time.perf_counter() - began)


async def interleaved(
    contenders: Mapping[str, Read],
    *,
    tasks: int,
    keys: int,
    rounds: int,
    for_s: float,
) -> dict[str, list[float]]:
    """Rates of each contender, one a round; every other round runs in reverse order."""
    names = list(contenders)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        await rate(contenders[name], tasks=tasks, keys=keys, for_s=for_s / 3)
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            measured = await rate(contenders[name], tasks=tasks, keys=keys, for_s=for_s)
            rates[name].append(measured)
    return rates


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    pairs = zip(ours, theirs, strict=True)
    return round(statistics.median(mine / other for mine, other in pairs), 2)
