"""How events of a source enter the event log: known again, ordered, kept back; both servers."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import orjson
import pytest

from tests.control import control_of
from tests.servers import ServerProcess
from warmer.errors import Backlogged, StoreError
from warmer.ingest.event_log import decode, record_of
from warmer.model.arrival import Accepted, Arrival
from warmer.model.event import Event
from warmer.model.source import OnRegression, Source
from warmer.model.version import SourceVersion
from warmer.store import event_stream
from warmer.store.control import ControlServer
from warmer.store.event_stream import EventStream, Logged
from warmer.store.keyspace import held, source_recent, source_seen, source_state

SHOP = Source("shop-db", "debezium")
T0 = 1_790_000_000_000


@pytest.fixture
async def control(server: ServerProcess) -> AsyncIterator[ControlServer]:
    async with control_of(server) as connected:
        yield connected


@pytest.fixture
def events(control: ControlServer) -> EventStream:
    return control.events


def change(
    version: int | None,
    *,
    id_: int = 1,
    at: int = T0,
    lineage: str = "",
    in_commit_order: bool = True,
    identity: str = "",
) -> Arrival:
    """A change of product `id_`, at a place in the source's log."""
    of = None if version is None else SourceVersion.of("shop-db", version)
    return Arrival(
        Event(
            id=f"e-{id_}-{version}",
            source="shop-db",
            entities=(f"product:{id_}",),
            version=of,
            occurred_at=at,
        ),
        lineage=lineage,
        position=of.digits if of is not None and in_commit_order else "",
        identity=identity,
    )


async def accept(
    events: EventStream, *arrivals: Arrival, source: Source = SHOP
) -> Accepted:
    return await events.accept([record_of(each) for each in arrivals], source)


async def logged(events: EventStream) -> list[Logged]:
    return list(reversed(await events.newest(count=10_000)))


async def versions(events: EventStream) -> list[str | None]:
    """The versions of the log's events as their readers take them, in its order."""
    found = []
    for entry in await logged(events):
        assert entry.event is not None
        event = decode(entry.event, epoch=entry.epoch, ordered=entry.ordered)
        found.append(None if event.version is None else str(event.version))
    return found


async def test_events_stand_in_the_log_in_their_order(events: EventStream) -> None:
    """R-INV-1, SCRIPT-4."""
    large = 2**63 + 1
    accepted = await accept(events, change(1), change(large, id_=2), change(None))
    assert replace(accepted, log_id="") == Accepted(new=(True, True, True))
    assert await versions(events) == ["1", str(large), None]


async def test_what_is_no_text_of_lua_comes_back_as_it_was(events: EventStream) -> None:
    """The bytes that enter are those that are read."""
    event = replace(change(1).event, entities=('a"\\/ü:%00',), id='ü"\\')
    record = record_of(Arrival(event))
    await events.accept([record], SHOP)
    (entry,) = await logged(events)
    assert entry.event == record.event


async def test_a_repetition_is_known_and_not_appended(events: EventStream) -> None:
    """R-INV-1: within one call and across calls, by identity and not by content."""
    first, twin = change(1, identity="a"), change(1, identity="b")
    accepted = await accept(events, first, first, twin, change(1), change(1))
    assert accepted.new == (True, False, True, True, True)
    assert (await accept(events, twin)).new == (False,)
    assert len(await logged(events)) == 4


async def test_sources_do_not_know_each_others_identities(events: EventStream) -> None:
    other = replace(SHOP, name="other-db")
    await accept(events, change(1, identity="a"))
    assert (await accept(events, change(1, identity="a"), source=other)).new == (True,)


async def test_a_repetition_is_forgotten_after_its_window(
    events: EventStream, server: ServerProcess
) -> None:
    short = replace(SHOP, dedupe_ms=1)
    await accept(events, change(1, identity="a"), source=short)
    asked = server.command("TIME")
    while (
        server.command("TIME")[0] == asked[0]
        and not (await accept(events, change(1, identity="a"), source=short)).new[0]
    ):
        pass
    none = replace(SHOP, dedupe_ms=0)
    assert (await accept(events, *[change(1, identity="b")] * 2, source=none)).new == (
        True,
        True,
    )


async def test_only_so_many_identities_are_kept(
    events: EventStream, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "MAX_SEEN", 10)
    for number in range(30):
        await accept(events, change(1, identity=str(number)))
    assert server.command("ZCARD", source_seen("shop-db")) == 10
    newest = await accept(events, change(1, identity="29"))
    assert newest.new == (False,)


async def test_a_new_lineage_opens_an_epoch_before_its_first_event(
    events: EventStream,
) -> None:
    """CDC-GAP-4: a failover to another log; what follows does not look older."""
    await accept(events, change(900, lineage="binlog-a"))
    accepted = await accept(
        events, change(5, lineage="binlog-b"), change(6, lineage="binlog-b")
    )
    assert accepted.epoch == 1
    assert await versions(events) == [
        "900",
        "0 (epoch 1)",
        "5 (epoch 1)",
        "6 (epoch 1)",
    ]
    opening = (await logged(events))[1]
    assert opening.event is not None
    event = decode(opening.event)
    assert (event.entities, event.prefixes, event.id) == ((), ("",), "epoch-1")


async def test_an_old_lineage_says_nothing_about_order(events: EventStream) -> None:
    """A wrong refusal serves stale data: its events apply, and move nothing."""
    for lineage in "ab":
        await accept(events, change(7, lineage=lineage))
    assert (await accept(events, change(7, lineage="a"))).epoch is None
    assert await versions(events) == ["7", "0 (epoch 1)", "7 (epoch 1)", None]


async def test_after_an_opening_by_hand_an_old_lineage_is_in_order_again(
    events: EventStream,
) -> None:
    """CDC-GAP-4: failover and failback."""
    for lineage in "aba":
        await accept(events, change(7, lineage=lineage))
    await events.accept([], SHOP, open_epoch="failed back")
    await accept(events, change(8, at=T0 + 1, lineage="a"))
    await accept(events, change(9, at=T0 + 2, lineage="a"))
    assert (await versions(events))[-3:] == [
        "0 (epoch 2)",
        "8 (epoch 2)",
        "9 (epoch 2)",
    ]


async def test_events_without_a_lineage_keep_the_epoch(events: EventStream) -> None:
    await accept(events, change(7, lineage="a"), change(8, lineage="b"))
    assert (await accept(events, change(9), change(None))).epoch is None
    assert (await versions(events))[-2:] == ["9 (epoch 1)", None]


async def test_beyond_so_many_lineages_none_is_told_apart(
    events: EventStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "MAX_LINEAGES", 3)
    for lineage in "abcde":
        await accept(events, change(7, lineage=lineage))
    found = await versions(events)
    assert found[-2:] == [None, None]
    assert "0 (epoch 3)" not in found


async def test_an_epoch_is_opened_by_hand(events: EventStream) -> None:
    await accept(events, change(7))
    opened = await events.accept([], SHOP, open_epoch="restored from a backup")
    assert replace(opened, log_id="") == Accepted(new=(), epoch=1)
    await accept(events, change(3, at=T0 + 1))
    assert await versions(events) == ["7", "0 (epoch 1)", "3 (epoch 1)"]


@pytest.mark.parametrize("in_commit_order", [True, False])
async def test_what_may_be_of_the_order_that_ended_says_nothing_about_the_new_one(
    events: EventStream, *, in_commit_order: bool
) -> None:
    """CDC-GAP-4: a late 901 of the old log would have every version below it refused."""
    await accept(events, change(900, at=T0, in_commit_order=in_commit_order))
    await events.accept([], SHOP, open_epoch="restored")
    for version, at in ((901, T0), (899, T0 - 5), (5, T0 + 1), (6, T0 + 2)):
        await accept(events, change(version, at=at, in_commit_order=in_commit_order))
    assert (await versions(events))[2:] == [None, None, "5 (epoch 1)", "6 (epoch 1)"]


async def test_a_stray_event_after_regressions_does_not_bring_the_old_order_back(
    events: EventStream,
) -> None:
    """CDC-GAP-4: two doors, of which one delivers later."""
    source = replace(SHOP, regression_entities=1, on_regression=OnRegression.OPEN_EPOCH)
    await accept(events, change(900, at=T0), source=source)
    for version, at in ((5, T0 + 70_000), (899, T0 - 5), (6, T0 + 70_001)):
        await accept(events, change(version, at=at), source=source)
    assert (await versions(events))[1:] == [
        "0 (epoch 1)",
        "5 (epoch 1)",
        None,
        "6 (epoch 1)",
    ]


async def test_a_clock_that_was_ahead_keeps_nothing_out_of_the_new_order(
    events: EventStream, server: ServerProcess
) -> None:
    """What happened later than the opening, by the server's clock, is of the new order."""
    seconds = int(server.command("TIME")[0])
    await accept(events, change(900, at=(seconds + 36_000) * 1_000))
    await events.accept([], SHOP, open_epoch="restored")
    await accept(events, change(5, at=(seconds + 3_600) * 1_000))
    assert (await versions(events))[-1] == "5 (epoch 1)"


async def test_an_opening_has_as_many_parts_as_the_sources_versions(
    events: EventStream,
) -> None:
    """Floors of other lengths would not compare."""
    version = SourceVersion.of("shop-db", 42, 4524, 1)
    event = replace(change(1).event, version=version)
    await accept(events, Arrival(event, position=version.digits))
    await events.accept([], SHOP, open_epoch="restored")
    assert (await versions(events))[-1] == "0:0:0 (epoch 1)"


async def test_every_event_after_an_opening_has_its_epoch(events: EventStream) -> None:
    """R-CARD-2: none that entered later looks older than the opening."""

    async def write(id_: int) -> None:
        for version in range(50):
            await accept(events, change(version, id_=id_, in_commit_order=False))

    async def open_one() -> None:
        await events.accept([], SHOP, open_epoch="restored")

    await asyncio.gather(write(1), open_one(), write(2), open_one(), write(3))
    epochs = [entry.epoch for entry in await logged(events)]
    assert epochs == sorted(epochs)
    assert set(epochs) <= {0, 1, 2}
    assert len(epochs) == 152


REGRESSED = {
    "a restored database": (change(5, at=T0 + 60_001), None),
    "a transaction that was open long": (change(5, at=T0 + 60_000), "5"),
    "a late repetition": (change(5, at=T0 - 5), "5"),
    "no time is told": (
        replace(change(5), event=replace(change(5).event, occurred_at=None)),
        "5",
    ),
    "another shape": (
        replace(change(5, at=T0 + 60_001), position="0" * 32),
        "5",
    ),
}


@pytest.mark.parametrize("name", REGRESSED)
@pytest.mark.parametrize("in_commit_order", [True, False])
async def test_a_lower_version_of_a_newer_commit_is_applied(
    events: EventStream, name: str, *, in_commit_order: bool
) -> None:
    """CDC-ORDER-1, R-CARD-2: by the source's own times; its version counts as none."""
    arrival, expected = REGRESSED[name]
    if not in_commit_order and name == "another shape":
        version = SourceVersion.of("shop-db", 0, 5)
        arrival = replace(arrival, event=replace(arrival.event, version=version))
        expected = "0:5"
    if not in_commit_order:
        arrival = replace(arrival, position="")
    await accept(events, change(900, in_commit_order=in_commit_order))
    accepted = await accept(events, arrival)
    assert (await versions(events))[-1] == expected
    assert accepted.regressed == (expected is None)
    assert not accepted.regression


async def test_an_entitys_own_order_says_nothing_of_others(events: EventStream) -> None:
    await accept(events, change(900, in_commit_order=False))
    later = change(5, id_=2, at=T0 + 600_000, in_commit_order=False)
    assert (await accept(events, later)).regressed == 0
    assert (await versions(events))[-1] == "5"


async def test_a_version_that_went_back_stays_so_until_an_epoch_is_opened(
    events: EventStream,
) -> None:
    """It moves nothing: the next one is told from the same newest."""
    await accept(events, change(900))
    for version in (5, 6):
        await accept(events, change(version, at=T0 + 70_000))
    await events.accept([], SHOP, open_epoch="restored")
    await accept(events, change(7, at=T0 + 80_000))
    assert await versions(events) == ["900", None, None, "0 (epoch 1)", "7 (epoch 1)"]


async def test_several_entities_that_went_back_are_told_once(
    events: EventStream,
) -> None:
    """R-CARD-2: distinct ones, so that no single producer's clock raises it."""
    three = replace(SHOP, regression_entities=3)
    await accept(events, change(900), source=three)
    told = []
    for id_ in (1, 1, 2, 2, 3, 4, 5):
        back = change(5, id_=id_, at=T0 + 70_000)
        told.append((await accept(events, back, source=three)).regression)
    assert told == [False, False, False, False, True, False, False]


async def test_enough_regressions_may_open_an_epoch(events: EventStream) -> None:
    """CDC-GAP-4."""
    source = replace(SHOP, regression_entities=2, on_regression=OnRegression.OPEN_EPOCH)
    await accept(events, change(900), source=source)
    await accept(events, change(5, id_=1, at=T0 + 70_000), source=source)
    opened = await accept(events, change(6, id_=2, at=T0 + 70_000), source=source)
    assert (opened.epoch, opened.regression) == (1, True)
    await accept(events, change(7, id_=1, at=T0 + 70_001), source=source)
    assert await versions(events) == [
        "900",
        None,
        "0 (epoch 1)",
        "6 (epoch 1)",
        "7 (epoch 1)",
    ]


async def test_a_clock_that_is_wrong_does_not_open_one_epoch_after_another(
    events: EventStream,
) -> None:
    """R-CARD-2: each makes every key stale; meanwhile what went back applies."""
    source = replace(SHOP, regression_entities=1, on_regression=OnRegression.OPEN_EPOCH)
    for version in (900, 5, 901, 6, 902, 7):
        ahead = 70_000 * (version % 900 + 1)
        await accept(events, change(version, at=T0 + ahead), source=source)
    assert (await logged(events))[-1].epoch == 1


async def test_only_so_many_entities_are_remembered(
    events: EventStream, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "MAX_RECENT", 50)
    changes = [change(1, id_=id_, in_commit_order=False) for id_ in range(200)]
    await accept(events, *changes)
    assert server.command("HLEN", source_recent("shop-db")) == 50


async def test_a_full_log_takes_nothing_until_it_is_read(server: ServerProcess) -> None:
    """LOST-INVAL-1: refused whole, and taken again without a restart."""
    async with control_of(server) as control:
        control.events._max_backlog = 3
        events = control.events
        await accept(events, *[change(1, identity="a")] * 1, change(2), change(3))
        with pytest.raises(Backlogged) as full:
            await accept(events, change(4, identity="b"))
        assert full.value.waiting == 3
        given = await events.read("a", count=100, block_ms=1_000)
        with pytest.raises(Backlogged):
            await accept(events, change(4, identity="b"))
        await events.acknowledge([entry.id for entry in given])
        assert (await accept(events, change(4, identity="b"))).new == (True,)
        assert len(await logged(events)) == 4


async def test_a_long_batch_is_taken_in_parts(events: EventStream) -> None:
    changes = [change(number, identity=str(number)) for number in range(1_234)]
    accepted = await accept(events, *changes)
    assert accepted.new == (True,) * 1_234
    assert await versions(events) == [str(number) for number in range(1_234)]


async def test_large_events_go_a_few_at_a_time(events: EventStream) -> None:
    large = tuple(f"{'x' * 250}{number}" for number in range(900))
    event = replace(change(1).event, entities=large)
    accepted = await accept(events, *[Arrival(event)] * 9)
    assert accepted.new == (True,) * 9


async def test_a_flush_forgets_the_epoch_and_takes_events_again(
    events: EventStream, server: ServerProcess
) -> None:
    """Floors may outlive it on a cache server of its own: see the control server's page."""
    await accept(events, change(7, lineage="a"), change(8, lineage="b"))
    server.command("FLUSHALL")
    assert (await accept(events, change(9, lineage="b"))).new == (True,)
    assert await versions(events) == ["9"]


async def test_a_state_of_the_wrong_type_is_an_error_and_no_loss(
    events: EventStream, server: ServerProcess
) -> None:
    server.command("SET", source_state("shop-db"), "x")
    with pytest.raises(StoreError):
        await accept(events, change(1))
    server.command("DEL", source_state("shop-db"))
    assert (await accept(events, change(1))).new == (True,)


async def test_a_paused_sources_events_are_kept_back(
    events: EventStream, server: ServerProcess
) -> None:
    """Producers are answered as ever; nothing is applied."""
    until = str(int(server.command("TIME")[0]) * 1000 + 60_000)
    server.command("HSET", source_state("shop-db"), "paused_until", until)
    await accept(events, change(1), change(2))
    assert await logged(events) == []
    kept = server.command("XRANGE", held("shop-db"), "-", "+")
    ids = [orjson.loads(fields[b"event"])["id"] for _, fields in kept]
    assert ids == ["e-1-1", "e-1-2"]
    other = replace(SHOP, name="other-db")
    await accept(events, change(3), source=other)
    assert await versions(events) == ["3"]
