"""A lane's drain, in this process, with a refresher that does as it is told."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import cast

import pytest

from jobs import drain as drain_module
from jobs.drain import Drain
from jobs.pulse import Pulse
from jobs.slots import Slots
from jobs.verdict import ABANDONED_AT_LEAST, RetryPolicy
from tests.control import PRODUCT, control_of, due_key
from tests.servers import ServerProcess
from warmer.clock import SystemClock
from warmer.errors import OriginUnavailable, StoreUnavailable
from warmer.model.due import DueKey, Lane
from warmer.model.entry import NOT_FOUND
from warmer.model.outcome import (
    Held,
    KeptStale,
    Loaded,
    LoadFailed,
    Published,
    RefreshOutcome,
)
from warmer.refresh import Refresher, RefreshRequest
from warmer.signals import Counters
from warmer.store.control import ControlServer

CLOCK = SystemClock()
LOADED = Loaded(NOT_FOUND, {}, 5)
DONE = Published(LOADED)


class Refreshing:
    """Stands in for the refresher: counts, and answers what it is told."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.running = 0
        self.most = 0
        self.answer: Callable[[str, int], RefreshOutcome | Exception] = (
            lambda _key, _run: DONE
        )
        self.gate = asyncio.Event()
        self.gate.set()
        self.began = asyncio.Event()

    async def run(self, request: RefreshRequest) -> RefreshOutcome:
        text = request.key.text
        self.runs[text] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        self.began.set()
        try:
            await self.gate.wait()
            await CLOCK.sleep(0.002)
            answer = self.answer(text, self.runs[text])
        finally:
            self.running -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
async def control(server: ServerProcess) -> AsyncIterator[ControlServer]:
    async with control_of(server) as connected:
        yield connected


def reports(name: str, *labels: str, error: BaseException | None = None) -> None:
    del name, labels, error


@asynccontextmanager
async def draining(
    control: ControlServer, refreshing: Refreshing, *, total: int = 8
) -> AsyncIterator[Drain]:
    drain = Drain(
        Lane.NOW,
        control=control,
        refresher=cast("Refresher", refreshing),
        datasets={"product": PRODUCT},
        slots=Slots(total),
        policy=RetryPolicy(max_tries=3, base_ms=20, cap_ms=50),
        clock=CLOCK,
        random=Random(1),
        signals=Counters(),
        report=reports,
        pulse=Pulse(CLOCK, within_s=20),
    )
    serving = asyncio.create_task(drain.serve())
    try:
        yield drain
    finally:
        await drain.stop(0)
        await serving


async def drained(
    control: ControlServer, drain: Drain, *, within_s: float = 20
) -> None:
    """Ask, and wait until nothing is due or worked on."""
    drain.ask()
    async with asyncio.timeout(within_s):
        while True:
            await CLOCK.sleep(0.005)
            depth = await control.due.depth(Lane.NOW)
            if not depth.due and not depth.doing:
                return


async def all_ready(control: ControlServer) -> None:
    async with asyncio.timeout(20):
        while (depth := await control.due.depth(Lane.NOW)).ready < depth.due:
            await CLOCK.sleep(0.005)


async def test_a_lane_is_drained_with_as_many_at_once_as_there_are_slots(
    control: ControlServer,
) -> None:
    """R-CARD-3: bounded, and used in full."""
    refreshing = Refreshing()
    await control.due.add(Lane.NOW, [due_key(id_) for id_ in range(500)])

    async with draining(control, refreshing) as drain:
        await drained(control, drain)

    assert set(refreshing.runs.values()) == {1}
    assert len(refreshing.runs) == 500
    assert refreshing.most == 8


@pytest.mark.parametrize(
    "answer",
    [
        KeptStale(LOADED),
        Held(30, None),
        LoadFailed(OriginUnavailable("x"), 20),
        StoreUnavailable("away"),
        KeyError("a mistake of ours"),
    ],
)
async def test_a_key_that_is_not_finished_comes_back_within_its_delay(
    control: ControlServer, answer: RefreshOutcome | Exception
) -> None:
    """R-ADM-4: not at the next sweep."""
    refreshing = Refreshing()
    refreshing.answer = lambda _key, run: answer if run == 1 else DONE
    await control.due.add(Lane.NOW, [due_key(1)])

    async with draining(control, refreshing) as drain:
        await drained(control, drain)

    assert refreshing.runs == {"product:v3:1": 2}
    assert await control.parked_count() == 0


async def test_a_key_that_fails_for_good_is_set_aside(control: ControlServer) -> None:
    """R-ADM-4: bounded in number; the others go on."""
    refreshing = Refreshing()
    refreshing.answer = lambda key, _run: (
        LoadFailed(OriginUnavailable("x"), 5) if key.endswith(":1") else DONE
    )
    await control.due.add(Lane.NOW, [due_key(1, version=7), due_key(2)])

    async with draining(control, refreshing) as drain:
        await drained(control, drain)

    (letter,) = await control.parked()
    assert refreshing.runs == {"product:v3:1": 3, "product:v3:2": 1}
    assert letter.fields["reason"] == "unavailable"
    assert letter.fields["wanted"].startswith("shop-db/product:1@")


async def test_a_key_that_ended_too_many_workers_is_set_aside_without_a_load(
    control: ControlServer,
) -> None:
    """R-ADM-4: one attempt less, and it is loaded like any other."""
    await control.due.add(Lane.NOW, [due_key(1), due_key(2)])
    for deaths in range(ABANDONED_AT_LEAST):
        await control.due.take(Lane.NOW, 2 if deaths else 1, visible_ms=0)
        await control.due.sweep(Lane.NOW)
        await all_ready(control)
    refreshing = Refreshing()

    async with draining(control, refreshing) as drain:
        await drained(control, drain)

    (letter,) = await control.parked()
    assert letter.fields["reason"] == "abandoned"
    assert letter.fields["attempts"] == str(ABANDONED_AT_LEAST)
    assert refreshing.runs == {"product:v3:2": 1}


async def test_a_key_of_a_dataset_that_is_gone_is_set_aside(
    control: ControlServer,
) -> None:
    """SERIAL-3: a release that does not know it neither crashes nor loops."""
    gone = DueKey(PRODUCT.key({"id": 1}))
    await control.due.add(
        Lane.NOW,
        [DueKey(type(gone.key)("x:v1:1", "gone", 1, (("id", "1"),))), due_key(2)],
    )
    refreshing = Refreshing()

    async with draining(control, refreshing) as drain:
        await drained(control, drain)

    (letter,) = await control.parked()
    assert letter.fields["reason"] == "unknown_key"
    assert refreshing.runs == {"product:v3:2": 1}


async def test_a_key_of_another_release_is_left_to_a_worker_that_knows_it(
    control: ControlServer,
) -> None:
    """R-REC-4: a roll has workers of two releases; neither loads the other's keys."""
    ours = due_key(1)
    older = DueKey(PRODUCT.key({"id": 1}, schema=PRODUCT.schema_version - 1))
    refreshing = Refreshing()
    await control.due.add(Lane.NOW, [ours, older])

    async with draining(control, refreshing) as drain:
        await drained(control, drain)

    (letter,) = await control.parked()
    assert letter.fields["reason"] == "unknown_key"
    assert refreshing.runs == {ours.key.text: 1}


async def test_a_drain_that_stops_hands_back_what_it_cannot_finish(
    control: ControlServer,
) -> None:
    """ARQ-4: due at once, and nothing counted against it."""
    refreshing = Refreshing()
    refreshing.gate.clear()
    await control.due.add(Lane.NOW, [due_key(1)])

    async with draining(control, refreshing) as drain:
        drain.ask()
        await refreshing.began.wait()
        await drain.stop(0)

    depth = await control.due.depth(Lane.NOW)
    (key,) = (await control.due.take(Lane.NOW, 1, visible_ms=10_000)).keys
    assert (depth.due, depth.doing, key.attempts) == (1, 0, 0)


async def test_a_drain_outlives_a_server_that_is_away(
    control: ControlServer, server: ServerProcess
) -> None:
    """STREAM-9: what it takes and tells is asked again."""
    refreshing = Refreshing()
    async with draining(control, refreshing) as drain:
        await asyncio.to_thread(server.kill)
        drain.ask()
        await CLOCK.sleep(0.3)
        await asyncio.to_thread(server.start)
        await control.due.add(Lane.NOW, [due_key(1)])
        await drained(control, drain)

    assert refreshing.runs == {"product:v3:1": 1}


async def test_more_than_one_process_can_do_calls_for_another(
    control: ControlServer, server: ServerProcess
) -> None:
    """R-LSE-5: a drain with no slot left has a job queued for whoever is free."""
    refreshing = Refreshing()
    refreshing.gate.clear()
    await control.due.add(Lane.NOW, [due_key(id_) for id_ in range(20)])
    server.command("DEL", "warmer:queue", "warmer:wake:now")

    async with draining(control, refreshing, total=4) as drain:
        drain.ask()
        async with asyncio.timeout(10):
            while not server.command("ZCARD", "warmer:queue"):
                await CLOCK.sleep(0.01)
        running = refreshing.running
        refreshing.gate.set()
        await drained(control, drain)

    assert running == 4
    assert sum(refreshing.runs.values()) == 20


async def test_keys_that_a_last_look_took_are_handed_back(
    control: ControlServer, server: ServerProcess
) -> None:
    """ARQ-4: told to stop while it takes, a drain begins nothing any more."""
    refreshing = Refreshing()
    await control.due.add(Lane.NOW, [due_key(id_) for id_ in range(5)])

    async with draining(control, refreshing) as drain:
        server.pause()
        drain.ask()
        await CLOCK.sleep(0.2)
        stopping = asyncio.create_task(drain.stop(1))
        await CLOCK.sleep(0.1)
        server.resume()
        await stopping

    depth = await control.due.depth(Lane.NOW)
    assert refreshing.runs == {}
    assert (depth.due, depth.doing) == (5, 0)


async def test_a_load_longer_than_a_key_may_lie_keeps_its_key(
    control: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-LSE-3: however long a load may take, a crash is noticed as soon as ever."""
    monkeypatch.setattr(drain_module, "VISIBLE_MS", 300)
    monkeypatch.setattr(drain_module, "KEEP_EVERY_S", 0.05)
    monkeypatch.setattr(drain_module, "SLICE_S", 0.05)
    refreshing = Refreshing()
    refreshing.gate.clear()
    await control.due.add(Lane.NOW, [due_key(1)])

    async with draining(control, refreshing) as drain:
        drain.ask()
        await refreshing.began.wait()
        for _ in range(10):
            await CLOCK.sleep(0.1)
            assert (await control.due.sweep(Lane.NOW)).abandoned == 0
        refreshing.gate.set()
        await drained(control, drain)

    assert refreshing.runs == {"product:v3:1": 1}


async def test_what_ended_while_the_server_was_away_is_told_when_it_is_back(
    control: ControlServer, server: ServerProcess
) -> None:
    """STREAM-9: not first when the key counts as abandoned."""
    refreshing = Refreshing()
    refreshing.gate.clear()
    await control.due.add(Lane.NOW, [due_key(1)])

    async with draining(control, refreshing) as drain:
        drain.ask()
        await refreshing.began.wait()
        server.pause()
        refreshing.gate.set()
        await CLOCK.sleep(2.5)  # longer than a call to the server may take
        server.resume()
        await drained(control, drain, within_s=2)

    assert refreshing.runs == {"product:v3:1": 1}
