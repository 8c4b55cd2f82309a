"""A B A B: contenders take turns within one run, and only ratios within a round are kept.

The machine is shared and noisy: absolute rates drift twofold between runs, the ratio of two
neighbours in one round hardly does.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

Read = Callable[[int], Awaitable[object]]
"""Reads the entry of this number."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Reads per second, and what one costs this process; the second is the steadier one."""

    rate: float
    cpu_us: float


async def pace(read: Read, *, tasks: int, keys: int, for_s: float) -> Pace:
    """The pace of so many tasks, each with one read under way."""
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

    began, cpu_began = time.perf_counter(), time.process_time()
    await asyncio.gather(*(reader(number) for number in range(tasks)))
    took, cpu_took = time.perf_counter() - began, time.process_time() - cpu_began
    return Pace(done / took, cpu_took / done * 1e6)


async def interleaved(
    contenders: Mapping[str, Read],
    *,
    tasks: int,
    keys: int,
    rounds: int,
    for_s: float,
) -> dict[str, list[Pace]]:
    """The pace of each contender, one a round; every other round runs in reverse order."""
    names = list(contenders)
    paces: dict[str, list[Pace]] = {name: [] for name in names}
    for name in names:
        await pace(contenders[name], tasks=tasks, keys=keys, for_s=for_s / 3)
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            measured = await pace(contenders[name], tasks=tasks, keys=keys, for_s=for_s)
            paces[name].append(measured)
    return paces


def ratio(ours: Sequence[Pace], theirs: Sequence[Pace]) -> float:
    """The median of the rounds' ratios of rates; above 1 is faster."""
    pairs = zip(ours, theirs, strict=True)
    return round(statistics.median(mine.rate / other.rate for mine, other in pairs), 2)
