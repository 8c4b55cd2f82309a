"""Pauses, replays and bounds of the event log, on both servers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.control import control_of
from tests.processes import Children
from tests.servers import ServerProcess
from warmer.clock import SystemClock
from warmer.errors import Backlogged
from warmer.ingest.event_log import decode, record_of
from warmer.model.arrival import Accepted, Arrival
from warmer.model.event import Event
from warmer.model.source import Source
from warmer.model.version import SourceVersion
from warmer.store import event_stream
from warmer.store.control import ControlServer
from warmer.store.keyspace import held

SHOP = Source("shop-db", "plain")
HOUR_MS = 3_600_000
CLOCK = SystemClock()


@pytest.fixture
async def control(server: ServerProcess) -> AsyncIterator[ControlServer]:
    async with control_of(server) as connected:
        yield connected


async def accept(
    control: ControlServer, *numbers: int, source: Source = SHOP, epoch: int = 0
) -> Accepted:
    """Take events in whose ids the numbers stand."""
    records = []
    for number in numbers:
        version = SourceVersion.of(source.name, number, epoch=epoch)
        event = Event(f"e{number}", source.name, (f"product:{number}",), version)
        records.append(record_of(Arrival(event)))
    return await control.events.accept(records, source)


async def ids(control: ControlServer, *, newest: int = 10_000) -> list[str]:
    """Ids of the log's events, in its order."""
    return [event.id for event in await logged(control, newest=newest)]


async def logged(control: ControlServer, *, newest: int = 10_000) -> list[Event]:
    entries = reversed(await control.events.newest(count=newest))
    return [
        decode(entry.event or b"", epoch=entry.epoch, ordered=entry.ordered)
        for entry in entries
    ]


async def over(control: ControlServer) -> None:
    """Return when the pause is over by the server's clock."""
    while (await control.sources.show("shop-db")).paused_until is not None:
        await CLOCK.sleep(0.001)


# --- what is shown --------------------------------------------------------------------


async def test_a_source_is_shown_with_what_it_told(control: ControlServer) -> None:
    """R-INV-1: numbers above 2^53 come back as they were."""
    large = 2**63 + 1
    version = SourceVersion.of("shop-db", large, 7)
    event = Event(
        "e", "shop-db", ("product:1",), version, occurred_at=1_790_000_000_000
    )
    record = record_of(
        Arrival(event, lineage="binlog-a", position=version.digits, identity="a")
    )
    await control.events.accept([record, record], SHOP)

    state = await control.sources.show("shop-db")

    assert (state.accepted, state.duplicate, state.epoch) == (1, 1, 0)
    assert (state.newest, state.newest_at) == ((large, 7), 1_790_000_000_000)
    assert (state.lineage, state.lineages, state.identities) == ("binlog-a", 1, 1)
    assert state.heard_at is not None
    assert await control.sources.names() == ["shop-db"]


async def test_a_source_never_heard_of_has_nothing_to_tell(
    control: ControlServer,
) -> None:
    state = await control.sources.show("shop-db")

    assert (state.epoch, state.heard_at, state.paused_until) == (0, None, None)
    assert await control.sources.names() == []


async def test_an_opening_goes_beyond_epochs_that_events_gave_themselves(
    control: ControlServer,
) -> None:
    """R-CARD-2: else its floors would be below theirs, and it would open nothing."""
    await accept(control, 7, epoch=5)

    opened = await control.events.accept([], SHOP, open_epoch="restored")

    assert opened.epoch == 6


async def test_a_producers_own_new_epoch_is_no_regression(
    control: ControlServer,
) -> None:
    """R-CARD-2: it says itself that its versions count anew."""
    for number, epoch, at in ((900, 1, 0), (5, 2, 600_000)):
        version = SourceVersion.of("shop-db", number, epoch=epoch)
        event = Event("e", "shop-db", ("product:1",), version, occurred_at=at)
        accepted = await control.events.accept([record_of(Arrival(event))], SHOP)

        assert accepted.regressed == 0


async def test_epochs_of_a_producers_own_stay_apart_after_an_opening(
    control: ControlServer,
) -> None:
    """R-CARD-2: of 3 and 4, below the source's, the larger would be the same: 1 looks old."""
    for number, epoch in ((900, 3), (901, 3), (1, 4), (902, 3), (2, 4), (1, 9)):
        version = SourceVersion.of("shop-db", number, epoch=epoch)
        event = Event("e", "shop-db", ("product:1",), version)
        await control.events.accept([record_of(Arrival(event))], SHOP)
        if number == 900:
            await control.events.accept([], SHOP, open_epoch="restored")

    told = [event.version and str(event.version) for event in await logged(control)]
    assert told == [
        "900 (epoch 3)",
        "0 (epoch 4)",
        "901 (epoch 4)",
        "0 (epoch 5)",
        "1 (epoch 5)",
        None,
        "2 (epoch 5)",
        "1 (epoch 9)",
    ]


# --- pauses ---------------------------------------------------------------------------


async def test_a_paused_sources_events_wait_and_keep_their_order(
    control: ControlServer,
) -> None:
    """R-INV-3: producers are answered, and nothing is lost."""
    other = Source("other-db", "plain")
    await accept(control, 1)
    await control.sources.pause("shop-db", for_ms=HOUR_MS, why="deploy")
    kept_back = await accept(control, 2, 3)
    await accept(control, 9, source=other)

    state = await control.sources.show("shop-db")
    before = await ids(control)
    moved = await control.sources.resume("shop-db")
    await accept(control, 4)

    assert (kept_back.new, kept_back.log_id) == ((True, True), "")
    assert (state.held, state.paused_why) == (2, "deploy")
    assert before == ["e1", "e9"]
    assert moved == 2
    assert await ids(control) == ["e1", "e9", "e2", "e3", "e4"]
    assert (await control.sources.show("shop-db")).paused_until is None


async def test_an_opening_during_a_pause_stands_between_old_and_new_events(
    control: ControlServer,
) -> None:
    """R-CARD-2: an older epoch's event after the opening would be refused."""
    await control.sources.pause("shop-db", for_ms=HOUR_MS, why="restore")
    await accept(control, 2)
    await control.events.accept([], SHOP, open_epoch="restored")
    await accept(control, 1)
    await control.sources.resume("shop-db")

    assert [str(event.version) for event in await logged(control)] == [
        "2",
        "0 (epoch 1)",
        "1 (epoch 1)",
    ]


async def test_events_after_a_pause_do_not_overtake_those_that_it_kept_back(
    control: ControlServer,
) -> None:
    """R-CARD-2: not even an opening does, while no worker has moved them."""
    await control.sources.pause("shop-db", for_ms=HOUR_MS, why="deploy")
    await accept(control, *range(250))
    await control.sources.pause("shop-db", for_ms=1, why="over at once")
    await over(control)
    await accept(control, 250)
    await control.events.accept([], SHOP, open_epoch="restored")

    moved = await control.sources.move_ended()

    assert moved == 252
    assert await ids(control) == [f"e{number}" for number in range(251)] + ["epoch-1"]
    assert (await accept(control, 251)).log_id


async def test_a_pause_that_lasts_moves_nothing(control: ControlServer) -> None:
    await control.sources.pause("shop-db", for_ms=HOUR_MS, why="deploy")
    await accept(control, 1)

    assert await control.sources.move_ended() == 0
    assert await ids(control) == []


async def test_moves_beside_writers_lose_nothing_and_keep_the_order(
    control: ControlServer,
) -> None:
    """R-INV-3: two movers at once, cut off at any batch, and a producer meanwhile."""
    await control.sources.pause("shop-db", for_ms=HOUR_MS, why="deploy")
    await accept(control, *range(1_000))
    begun = asyncio.create_task(control.sources.resume("shop-db"))
    while not await ids(control):
        await CLOCK.sleep(0)
    begun.cancel()

    async def produce() -> None:
        for number in range(1_000, 1_050):
            await accept(control, number)

    await asyncio.gather(
        produce(), control.sources.move_ended(), control.sources.resume("shop-db")
    )
    await control.sources.resume("shop-db")

    assert await ids(control) == [f"e{number}" for number in range(1_050)]
    await asyncio.gather(begun, return_exceptions=True)


async def test_a_killed_mover_leaves_every_event_in_one_place(
    control: ControlServer, server: ServerProcess, children: Children, tmp_path: Path
) -> None:
    """R-INV-3: kill -9 between two batches."""
    await control.sources.pause("shop-db", for_ms=HOUR_MS, why="deploy")
    await accept(control, *range(2_000))
    file = tmp_path / "warmer.toml"
    file.write_text(
        f'[cache]\nurl = "{server.url}"\n[datasets.product]\nkey = "product:v{{schema}}:{{id}}"\n'
        'entities = ["shop-db/product:{id}"]\nfresh_for = "60s"\n'
    )
    mover = children.warmer("source", "resume", "shop-db", "--config", str(file))
    while not server.command("EXISTS", "warmer:events"):
        await CLOCK.sleep(0)
    mover.kill()
    in_log = await control.events.state()
    kept_back = server.command("XLEN", held("shop-db"))

    await control.sources.resume("shop-db")

    assert in_log.length + kept_back == 2_000
    assert await ids(control) == [f"e{number}" for number in range(2_000)]


async def test_so_many_events_are_kept_back_and_more_are_refused(
    control: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOST-INVAL-1: refused, not forgotten; the producer sends again."""
    monkeypatch.setattr(event_stream, "MAX_HELD", 2)
    await control.sources.pause("shop-db", for_ms=HOUR_MS, why="deploy")
    await accept(control, 1, 2)

    with pytest.raises(Backlogged):
        await accept(control, 3)


async def test_a_server_that_forgot_all_takes_events_as_if_for_the_first_time(
    control: ControlServer, server: ServerProcess
) -> None:
    """STREAM-1: FLUSHALL in the middle of a pause."""
    await control.sources.pause("shop-db", for_ms=HOUR_MS, why="deploy")
    await accept(control, 1)
    server.command("FLUSHALL")

    moved = await control.sources.resume("shop-db")
    await accept(control, 2)

    assert moved == 0
    assert await ids(control) == ["e2"]


# --- replay ---------------------------------------------------------------------------


async def test_a_sources_events_are_replayed_in_order_with_their_epochs(
    control: ControlServer, server: ServerProcess
) -> None:
    """CDC-GAP-1, R-CARD-2: after a failover of the cache server that forgot purges."""
    other = Source("other-db", "plain")
    await accept(control, 1)
    await control.events.accept([], SHOP, open_epoch="restored")
    await accept(control, 2)
    await accept(control, 9, source=other)
    server.command("XADD", "warmer:events", "*", "event", "no JSON")
    await control.events.append([b'["no event"]'])

    counted = await control.events.replay("shop-db", since_ms=HOUR_MS, dry_run=True)
    length = (await control.events.state()).length
    replayed = await control.events.replay("shop-db", since_ms=HOUR_MS)

    entries = list(reversed(await control.events.newest(count=3)))
    assert (counted, replayed, length) == (3, 3, 6)
    assert [entry.epoch for entry in entries] == [0, 1, 1]
    assert (await ids(control, newest=3)) == ["e1", "epoch-1", "e2"]
    assert (await control.events.state()).length == 9


async def test_older_events_are_not_replayed_and_pages_are_joined(
    control: ControlServer, server: ServerProcess
) -> None:
    """The stream's own ids are the server's time."""
    event = record_of(Arrival(Event("old", "shop-db", ("product:1",)))).event
    server.command("XADD", "warmer:events", "1-1", "event", event)
    await accept(control, *range(1_234))

    assert await control.events.replay("shop-db", since_ms=HOUR_MS) == 1_234
    assert (await ids(control))[1:] == [f"e{number}" for number in range(1_234)] * 2


async def test_an_empty_log_has_nothing_to_replay(control: ControlServer) -> None:
    assert await control.events.replay("shop-db", since_ms=HOUR_MS) == 0


# --- the bound of the log -------------------------------------------------------------


async def test_a_log_that_is_too_long_loses_its_oldest_acknowledged_events(
    control: ControlServer,
) -> None:
    """STREAM-10: a fast source must not fill the server within `event_log_for`."""
    await control.events.append([b"event"] * 3_000)
    for _ in range(2):
        given = await control.events.read("a", count=1_000, block_ms=1)
        await control.events.acknowledge([entry.id for entry in given])

    fits = await control.events.trim(older_than_ms=HOUR_MS, at_most=3_000)
    first = await control.events.trim(older_than_ms=HOUR_MS, at_most=2_500)
    second = await control.events.trim(older_than_ms=HOUR_MS, at_most=10)

    state = await control.events.state()
    assert fits == 0
    assert 400 <= first <= 500
    assert 1_800 <= first + second <= 2_000
    assert (state.length, state.lag) == (3_000 - first - second, 1_000)
