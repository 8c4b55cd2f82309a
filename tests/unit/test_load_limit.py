"""The line of loads before one origin."""

import asyncio

import pytest

from warmer.clock import SystemClock
from warmer.errors import OriginRefused
from warmer.origin.limit import LoadLimit
from warmer.signals import Counters

TURNS = SystemClock()


class Watch:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Line:
    """Loads that take a turn, and keep it until they are let go."""

    def __init__(self, limit: int, *, max_waiting: int = 100) -> None:
        self.watch = Watch()
        self.signals = Counters()
        self.limit = LoadLimit(
            limit,
            max_waiting=max_waiting,
            origin="shop",
            clock=self.watch,
            signals=self.signals,
        )
        self.began: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    async def load(self, name: str, *, within_ms: int = 1_000) -> None:
        end = self.ends.setdefault(name, asyncio.Event())
        async with self.limit.turn(within_ms=within_ms):
            self.began.append(name)
            await end.wait()

    async def start(self, *names: str) -> list["asyncio.Task[None]"]:
        tasks = [asyncio.create_task(self.load(name)) for name in names]
        await settled()
        return tasks

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await settled()


async def settled() -> None:
    for _ in range(5):
        await TURNS.sleep(0)


async def test_turns_are_given_in_order_of_arrival() -> None:
    """R-ADM-1: nobody overtakes, and no more run than may."""
    line = Line(2)
    tasks = await line.start("a", "b", "c", "d")
    assert (line.limit.running, line.limit.waiting) == (2, 2)
    await line.end("b")
    tasks += await line.start("e")
    for name in "acde":
        await line.end(name)
    await asyncio.gather(*tasks)

    assert line.began == ["a", "b", "c", "d", "e"]
    assert (line.limit.running, line.limit.waiting) == (0, 0)


async def test_a_full_line_refuses() -> None:
    """R-ADM-3: a bound, and a reason that is counted."""
    line = Line(1, max_waiting=1)
    tasks = await line.start("a", "b")
    with pytest.raises(OriginRefused):
        await line.load("c")
    await line.end("a")
    await line.end("b")
    await asyncio.gather(*tasks)

    assert line.began == ["a", "b"]
    assert line.signals.counts == {("loads_refused", "shop", "line_full"): 1}


async def test_a_line_without_places_still_gives_turns() -> None:
    """R-ADM-3: `local_queue = 0` refuses only what would have to wait."""
    line = Line(1, max_waiting=0)
    [task] = await line.start("a")
    with pytest.raises(OriginRefused):
        await line.load("b")
    await line.end("a")
    await task
    [again] = await line.start("a")
    await again

    assert line.began == ["a", "a"]


async def test_a_load_whose_turn_would_come_too_late_is_refused_at_once() -> None:
    """R-ADM-3, R-FLT-2: going by how long loads have taken, and told when to come back."""
    line = Line(1)
    [first] = await line.start("a")
    line.watch.seconds += 0.4
    await line.end("a")
    await first
    waiting = await line.start("b", "c")
    with pytest.raises(OriginRefused) as refused:
        await line.load("d", within_ms=799)
    patient = asyncio.create_task(line.load("d", within_ms=801))
    await settled()
    for name in "bcd":
        await line.end(name)
    await asyncio.gather(*waiting, patient)

    assert 799 <= (refused.value.retry_in_ms or 0) <= 801
    assert line.began == ["a", "b", "c", "d"]
    assert line.signals.counts == {("loads_refused", "shop", "too_late"): 1}


async def test_who_goes_away_leaves_its_place_and_its_turn() -> None:
    """HTTPPOOL-1: whether it waits, or runs, or was just called."""
    line = Line(1)
    running, waits, last = await line.start("a", "b", "c")
    waits.cancel()
    await settled()
    assert (line.limit.running, line.limit.waiting) == (1, 1)
    running.cancel()
    last.cancel()
    await settled()
    assert (line.limit.running, line.limit.waiting) == (0, 0)
    [after] = await line.start("d")
    await line.end("d")
    await after

    assert line.began == ["a", "d"]
