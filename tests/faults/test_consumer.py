"""The reader of the event log, in this process, beside others of its kind."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import TYPE_CHECKING, cast

import orjson
import pytest

from jobs.consume import Consumer
from jobs.pulse import Pulse
from tests.control import control_of
from tests.fleet import until
from tests.servers import ServerProcess
from warmer.clock import SystemClock
from warmer.errors import StoreUnavailable
from warmer.ingest.event_log import encode
from warmer.invalidate import Applied
from warmer.model.event import Event
from warmer.signals import Counters
from warmer.store.control import ControlServer

if TYPE_CHECKING:
    from warmer.invalidate import Invalidator

CLOCK = SystemClock()


class Applying:
    """Stands in for the invalidator: notes what it is given, and fails as told."""

    def __init__(self) -> None:
        self.applied: list[str] = []
        self.fails: Callable[[str], Exception | None] = lambda _: None
        self.gate = asyncio.Event()
        self.gate.set()
        self.began = asyncio.Event()
        self.asked = asyncio.Event()

    async def apply(self, events: Sequence[Event]) -> Applied:
        self.began.set()
        await self.gate.wait()
        for event in events:
            error = self.fails(event.id)
            if error is not None:
                raise error
        self.applied += [event.id for event in events]
        return Applied(purged=0, noted=0, older=0, due=len(events), unknown=0)


@pytest.fixture
async def control(server: ServerProcess) -> AsyncIterator[ControlServer]:
    async with control_of(server) as connected:
        yield connected


def reports(name: str, *labels: str, error: BaseException | None = None) -> None:
    del name, labels, error


def _consumer(
    control: ControlServer, applying: Applying, *, abandoned_ms: int
) -> Consumer:
    return Consumer(
        control=control,
        invalidator=cast("Invalidator", applying),
        batch=100,
        clock=CLOCK,
        random=Random(1),
        signals=Counters(),
        report=reports,
        pulse=Pulse(CLOCK, within_s=20),
        on_due=applying.asked.set,
        abandoned_ms=abandoned_ms,
    )


@asynccontextmanager
async def consuming(
    control: ControlServer, applying: Applying, *, abandoned_ms: int = 10_000
) -> AsyncIterator[Consumer]:
    consumer = _consumer(control, applying, abandoned_ms=abandoned_ms)
    serving = asyncio.create_task(consumer.serve())
    try:
        yield consumer
    finally:
        applying.gate.set()
        consumer.stop()
        await serving


async def append(control: ControlServer, *ids: str) -> None:
    await control.events.append(
        [encode(Event(id_, "shop-db", ("product:1",))) for id_ in ids]
    )


async def acknowledged(control: ControlServer) -> None:
    async def all_of_them() -> bool:
        state = await control.events.state()
        return not state.pending and not state.lag

    await until(all_of_them, within_s=20, what=lambda: "not acknowledged")


async def test_an_event_that_cannot_be_applied_does_not_hold_up_the_others(
    control: ControlServer,
) -> None:
    """CDC-SHAPE-1: it becomes a dead letter with the kind of its error."""
    applying = Applying()
    applying.fails = lambda id_: KeyError(id_) if id_ == "bad" else None
    await append(control, "a", "bad", "b")

    async with consuming(control, applying):
        await acknowledged(control)

    (letter,) = await control.parked()
    assert applying.applied == ["a", "b"]
    assert (letter.fields["kind"], letter.fields["reason"]) == ("event", "KeyError")


async def test_events_that_met_a_server_that_was_away_come_again(
    control: ControlServer,
) -> None:
    """R-INV-3: acknowledged only once they are applied."""
    applying = Applying()
    failures = 3

    def fails(_id: str) -> Exception | None:
        nonlocal failures
        failures -= 1
        return StoreUnavailable("away") if failures >= 0 else None

    applying.fails = fails
    await append(control, "a", "b")

    async with consuming(control, applying):
        await acknowledged(control)

    assert applying.applied == ["a", "b"]
    assert await control.parked_count() == 0


async def test_a_batch_that_takes_long_is_not_taken_over_while_its_consumer_lives(
    control: ControlServer,
) -> None:
    """STREAM-6: several times as long as what counts as abandoned."""
    slow, other = Applying(), Applying()
    slow.gate.clear()
    await append(control, "a")
    async with consuming(control, slow, abandoned_ms=300):
        await slow.began.wait()
        async with consuming(control, other, abandoned_ms=300):
            await CLOCK.sleep(1.5)
            slow.gate.set()
            await acknowledged(control)

    assert (slow.applied, other.applied) == (["a"], [])


async def test_what_a_crashed_consumer_held_is_applied_by_another(
    control: ControlServer,
) -> None:
    """STREAM-6, STREAM-4: also where some of it was deleted meanwhile."""
    await append(control, "a", "b")
    await control.events.read("crashed", count=100, block_ms=1_000)
    applying = Applying()

    async with consuming(control, applying, abandoned_ms=200):
        await acknowledged(control)

    assert applying.applied == ["a", "b"]


async def test_a_consumer_that_stops_leaves_no_name_behind(
    control: ControlServer,
) -> None:
    """STREAM-6: names do not pile up over restarts."""
    applying = Applying()
    await append(control, "a")

    async with consuming(control, applying):
        await acknowledged(control)

    assert (await control.events.state()).consumers == 0


async def test_keys_that_became_due_are_looked_into_at_once(
    control: ControlServer,
) -> None:
    """R-CARD-1: this process does not wait for arq to poll its queue."""
    applying = Applying()
    await append(control, "a")

    async with consuming(control, applying), asyncio.timeout(20):
        await applying.asked.wait()


class Ended(BaseException):
    """As a process ends: nothing of it runs any further."""


async def test_an_event_that_ends_its_consumers_is_set_aside_and_no_other_for_it(
    control: ControlServer,
) -> None:
    """STREAM-6: by the server's count of deliveries, which outlives the processes."""
    others = [f"e{number}" for number in range(20)]
    await append(control, *others[:10], "poison", *others[10:])
    applying = Applying()

    def ends(id_: str) -> Exception | None:
        if id_ == "poison":
            raise Ended
        return None

    applying.fails = ends
    deaths = 0
    while not await control.parked_count():
        consumer = _consumer(control, applying, abandoned_ms=50)
        serving = asyncio.create_task(consumer.serve())

        async def ended(serving: "asyncio.Task[None]" = serving) -> bool:
            return serving.done() or bool(await control.parked_count())

        await until(ended, within_s=20, what=lambda: "neither dead nor parked")
        if serving.done():
            deaths += 1
            with suppress(Ended):
                await serving
            continue
        await acknowledged(control)
        consumer.stop()
        await serving

    (letter,) = await control.parked()
    assert letter.fields["reason"].startswith("abandoned")
    assert orjson.loads(letter.fields["payload"])["id"] == "poison"
    assert set(applying.applied) == set(others)
    assert 3 <= deaths <= 8
