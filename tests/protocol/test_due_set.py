"""The due set's scripts, on both servers."""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest

from tests.control import PRODUCT, control_of, due_key
from tests.servers import ServerProcess
from warmer.model.due import (
    DueKey,
    Lane,
    Taken,
    TakenKey,
    Unfinished,
    key_of,
    member_of,
)
from warmer.model.version import SourceVersion
from warmer.store.control import ControlServer
from warmer.store.due_set import APART_MS, DueSet

VISIBLE_MS = 30_000


@pytest.fixture
async def control(server: ServerProcess) -> AsyncIterator[ControlServer]:
    async with control_of(server) as connected:
        yield connected


@pytest.fixture
def due(control: ControlServer) -> DueSet:
    return control.due


async def take(due: DueSet, lane: Lane = Lane.NOW, limit: int = 100) -> Taken:
    return await due.take(lane, limit, visible_ms=VISIBLE_MS)


async def take_one(due: DueSet, lane: Lane = Lane.NOW) -> TakenKey:
    taken = await take(due, lane)
    (key,) = taken.keys
    return key


async def take_when_due(due: DueSet, *, visible_ms: int = VISIBLE_MS) -> Taken:
    """The next keys, waited for by the server's own clock."""
    while True:
        taken = await due.take(Lane.NOW, 100, visible_ms=visible_ms)
        if taken.keys or taken.next_in_ms is None:
            return taken


def queued_jobs(server: ServerProcess) -> list[bytes]:
    jobs: list[bytes] = server.command("ZRANGE", "warmer:queue", 0, -1)
    return jobs


async def test_a_thousand_invalidations_of_one_key_are_one_refresh(due: DueSet) -> None:
    """R-CARD-3: the due set coalesces; the refresh must reach the newest version."""
    for version in (7, 1_000, 9):
        await due.add(Lane.NOW, [due_key(42, version=version, fence=version)] * 3)

    taken = await take(due)

    (key,) = taken.keys
    assert key_of(key.member, {"product": PRODUCT}) == PRODUCT.key({"id": 42})
    assert key.wanted == {"shop-db/product:42": SourceVersion.of("shop-db", 1_000)}
    assert key.wanted_fence == 1_000
    assert (key.attempts, key.event_id, taken.next_in_ms) == (0, "e1", None)


async def test_versions_above_2_to_the_53_are_told_apart(due: DueSet) -> None:
    """SCRIPT-4."""
    newer, older = 201_605_131_024_011_015, 201_605_131_024_011_014
    await due.add(Lane.NOW, [due_key(1, version=newer, fence=2**63 + 1)])
    await due.add(Lane.NOW, [due_key(1, version=older, fence=2**63)])

    key = await take_one(due)

    assert key.wanted["shop-db/product:1"].parts() == (newer,)
    assert key.wanted_fence == 2**63 + 1


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ((0xA9,), (0xAA,)),
        ((0xAA,), (0xAB,)),
        ((2**32 - 1,), (2**32,)),
        ((2**64 - 2,), (2**64 - 1,)),
        ((7, 0xAA), (7, 0xAB)),
        ((0xAA, 9), (0xAB, 0)),
    ],
)
async def test_the_newer_of_two_versions_is_wanted_in_whichever_order_they_come(
    due: DueSet, older: tuple[int, ...], newer: tuple[int, ...]
) -> None:
    """R-INV-2, SCRIPT-4: digit by digit, by no server's idea of an alphabet."""
    scope = "shop-db/product:1"
    for id_, versions in ((1, (older, newer)), (2, (newer, older))):
        for parts in versions:
            wanted = {scope: SourceVersion.of("shop-db", *parts)}
            await due.add(Lane.NOW, [DueKey(due_key(id_).key, wanted)])

    taken = await take(due)

    assert [key.wanted[scope].parts() for key in taken.keys] == [newer, newer]


async def test_a_higher_epoch_is_wanted_over_a_higher_number(due: DueSet) -> None:
    """CDC-GAP-4: after a failover of the source its numbers begin again."""
    restored = SourceVersion.of("shop-db", 5, epoch=2)
    first, second = due_key(1, version=900), due_key(1)
    scope = "shop-db/product:1"
    await due.add(Lane.NOW, [first])
    await due.add(Lane.NOW, [type(second)(second.key, {scope: restored})])
    await due.add(Lane.NOW, [first])

    key = await take_one(due)

    assert key.wanted == {scope: restored}


async def test_versions_of_different_entities_are_wanted_side_by_side(
    due: DueSet,
) -> None:
    """R-INV-4: a key built from two entities must reach both."""
    key = due_key(1).key
    price = SourceVersion.of("shop-db", 3)
    await due.add(Lane.NOW, [due_key(1, version=9)])
    await due.add(Lane.NOW, [type(due_key(1))(key, {"shop-db/price:1": price})])

    taken = await take_one(due)

    assert taken.wanted == {
        "shop-db/price:1": price,
        "shop-db/product:1": SourceVersion.of("shop-db", 9),
    }


async def test_two_workers_never_take_one_key(due: DueSet) -> None:
    """R-LSE-5: a batch is given to one of those that ask together."""
    await due.add(Lane.NOW, [due_key(id_) for id_ in range(500)])

    batches = await asyncio.gather(*(take(due, limit=50) for _ in range(10)))

    members = [key.member for batch in batches for key in batch.keys]
    assert len(members) == len(set(members)) == 500


async def test_a_key_asked_for_again_while_worked_on_is_due_when_that_is_done(
    due: DueSet,
) -> None:
    """ARQ-1, R-INV-3: the event that came during the run is not lost."""
    await due.add(Lane.NOW, [due_key(1, version=1)])
    working = await take_one(due)
    await due.add(Lane.NOW, [due_key(1, version=2)])
    meanwhile = await take(due)

    await due.done(Lane.NOW, [working])

    again = await take_one(due)
    assert meanwhile.keys == ()
    assert meanwhile.next_in_ms is not None
    assert meanwhile.next_in_ms > VISIBLE_MS - 10_000
    assert again.wanted["shop-db/product:1"].parts() == (2,)


async def test_a_finished_key_leaves_nothing_behind(
    due: DueSet, server: ServerProcess
) -> None:
    """R-CARD-3: what is stored for the due set is bounded by what is due."""
    await due.add(Lane.NOW, [due_key(1, version=1)])

    await due.done(Lane.NOW, [await take_one(due)])

    assert sorted(server.command("KEYS", "warmer:*")) == [
        b"warmer:queue",
        b"warmer:wake:now",
    ]


async def test_a_key_of_a_killed_worker_is_swept_back_with_what_it_must_reach(
    due: DueSet,
) -> None:
    """R-FT-4: no due key dies with its worker."""
    await due.add(Lane.NOW, [due_key(1, version=5)])
    await due.take(Lane.NOW, 10, visible_ms=0)

    swept = await due.sweep(Lane.NOW)

    key = await take_one(due)
    assert swept.abandoned == 1
    assert key.wanted["shop-db/product:1"].parts() == (5,)


async def test_a_key_that_was_abandoned_counts_it_as_a_failed_attempt(
    due: DueSet,
) -> None:
    """R-ADM-4: what ends its workers is bounded in number too, and a success resets it."""
    await due.add(Lane.NOW, [due_key(1, version=5)])
    attempts = []
    for _ in range(3):
        (key,) = (await due.take(Lane.NOW, 10, visible_ms=0)).keys
        attempts.append(key.attempts)
        await due.sweep(Lane.NOW)
    alive = await take_one(due)
    await due.add(Lane.NOW, [due_key(1)])
    await due.done(Lane.NOW, [alive])

    again = await take_one(due)

    assert attempts == [0, 1, 2]
    assert (alive.attempts, again.attempts) == (3, 0)
    assert alive.wanted["shop-db/product:1"].parts() == (5,)


async def test_keys_abandoned_together_again_come_back_one_by_one(due: DueSet) -> None:
    """R-FT-4: the first time at once, and then apart from the one that ends workers."""
    await due.add(Lane.NOW, [due_key(id_) for id_ in range(4)])
    await due.take(Lane.NOW, 10, visible_ms=0)
    await due.sweep(Lane.NOW)
    at_once = (await due.take(Lane.NOW, 10, visible_ms=0)).keys
    await due.sweep(Lane.NOW)

    first = await take(due)
    depth = await due.depth(Lane.NOW)

    assert len(at_once) == 4
    assert (len(first.keys), depth.due, depth.ready) == (1, 3, 0)
    assert first.next_in_ms is not None
    assert 0 < first.next_in_ms <= APART_MS


async def test_a_key_that_is_kept_is_not_abandoned_and_only_its_taker_can_keep_it(
    due: DueSet,
) -> None:
    """R-LSE-3, R-LSE-4: for the due set."""
    await due.add(Lane.NOW, [due_key(1), due_key(2)])
    first, second = (await due.take(Lane.NOW, 10, visible_ms=0)).keys

    await due.keep(Lane.NOW, [first], visible_ms=VISIBLE_MS)
    swept = await due.sweep(Lane.NOW)
    await due.keep(Lane.NOW, [second], visible_ms=VISIBLE_MS)

    taken = await take_one(due)
    assert swept.abandoned == 1
    assert taken.member == second.member
    await due.keep(Lane.NOW, [second], visible_ms=0)
    assert (await due.sweep(Lane.NOW)).abandoned == 0


async def test_a_kept_key_that_is_asked_for_again_is_due_when_its_work_is_done(
    due: DueSet,
) -> None:
    """ARQ-1: also where it was put off before it was kept."""
    await due.add(Lane.NOW, [due_key(1)])
    (working,) = (await due.take(Lane.NOW, 1, visible_ms=5_000)).keys
    await due.add(Lane.NOW, [due_key(1, version=2)])
    put_off = await take(due)
    await due.keep(Lane.NOW, [working], visible_ms=VISIBLE_MS)

    await due.done(Lane.NOW, [working])

    assert put_off.keys == ()
    assert (await take_one(due)).wanted["shop-db/product:1"].parts() == (2,)


async def test_a_worker_that_comes_back_late_cannot_finish_what_another_works_on(
    due: DueSet,
) -> None:
    """R-LSE-4, for the due set: a late report changes nothing."""
    await due.add(Lane.NOW, [due_key(1, version=1)])
    (late,) = (await due.take(Lane.NOW, 10, visible_ms=0)).keys
    await due.sweep(Lane.NOW)
    await due.add(Lane.NOW, [due_key(1, version=2)])
    await due.take(Lane.NOW, 10, visible_ms=0)

    await due.done(Lane.NOW, [late])
    await due.retry(Lane.NOW, [Unfinished(late, delay_ms=0, failed=True)])

    await due.sweep(Lane.NOW)
    key = await take_one(due)
    assert key.wanted["shop-db/product:1"].parts() == (2,)
    assert key.attempts == 2, "abandoned twice; what the late one reports adds nothing"


async def test_a_failed_key_comes_back_after_its_delay_and_remembers_the_failure(
    due: DueSet,
) -> None:
    """R-ADM-4: back-off per key, and attempts that can be bounded."""
    await due.add(Lane.NOW, [due_key(1, version=1)])
    await due.retry(Lane.NOW, [Unfinished(await take_one(due), 60, failed=True)])
    at_once = await take(due)

    (key,) = (await take_when_due(due)).keys

    assert at_once.keys == ()
    assert at_once.next_in_ms is not None
    assert 0 < at_once.next_in_ms <= 60
    assert key.attempts == 1
    await due.retry(Lane.NOW, [Unfinished(key, 0, failed=False)])
    assert (await take_one(due)).attempts == 1


async def test_finished_and_asked_for_again_counts_its_failures_anew(
    due: DueSet,
) -> None:
    """R-ADM-4: a key that succeeds between failures is not given up."""
    await due.add(Lane.NOW, [due_key(1)])
    await due.retry(Lane.NOW, [Unfinished(await take_one(due), 0, failed=True)])
    failed_once = await take_one(due)
    await due.add(Lane.NOW, [due_key(1)])
    await due.done(Lane.NOW, [failed_once])

    again = await take_one(due)

    assert (failed_once.attempts, again.attempts) == (1, 0)


async def test_a_key_to_be_warmed_moves_up_when_an_event_wants_it_now(
    due: DueSet,
) -> None:
    """R-WRM-2: lanes; a key stands in one of them."""
    await due.add(Lane.WARM, [due_key(1), due_key(2)])
    await due.add(Lane.NOW, [due_key(1, version=4)])
    await due.add(Lane.WARM, [due_key(1)])

    now, warm = await take(due, Lane.NOW), await take(due, Lane.WARM)

    assert [key.member for key in now.keys] == [member_of(due_key(1).key)]
    assert [key.member for key in warm.keys] == [member_of(due_key(2).key)]


async def test_an_event_during_a_warm_up_of_its_key_waits_for_that_refresh(
    due: DueSet,
) -> None:
    """R-WRM-3: two lanes do not work on one key at once."""
    await due.add(Lane.WARM, [due_key(1)])
    warming = await take_one(due, Lane.WARM)
    await due.add(Lane.NOW, [due_key(1, version=4)])
    assert (await take(due, Lane.NOW)).keys == ()

    await due.done(Lane.WARM, [warming])

    assert (await take_one(due)).wanted["shop-db/product:1"].parts() == (4,)


async def test_a_key_that_is_due_keeps_its_earlier_instant(due: DueSet) -> None:
    """R-WRM-2: a campaign's later pace does not hold back what is due now."""
    await due.add(Lane.WARM, [due_key(1)], due_in_ms=0)
    await due.add(Lane.WARM, [due_key(1), due_key(2)], due_in_ms=60_000)

    taken = await take(due, Lane.WARM)

    assert [key.member for key in taken.keys] == [member_of(due_key(1).key)]
    assert taken.next_in_ms is not None
    assert 50_000 < taken.next_in_ms <= 60_000


async def test_a_burst_of_due_keys_queues_one_drain_job(
    due: DueSet, server: ServerProcess
) -> None:
    """ARQ-1: the job only says "drain"; keys are never job ids."""
    for id_ in range(10):
        await due.add(Lane.NOW, [due_key(id_)])

    (job_id,) = queued_jobs(server)

    payload = orjson.loads(server.command("GET", b"arq:job:" + job_id))
    assert (payload["t"], payload["f"], payload["a"], payload["k"]) == (
        None,
        "refresh_due",
        ["now"],
        {},
    )
    assert server.command("PTTL", b"arq:job:" + job_id) > 3_000_000
    assert server.command("PTTL", "warmer:wake:now") > 0


async def test_a_key_that_becomes_due_while_a_drain_begins_is_seen_by_it_or_the_next(
    due: DueSet, server: ServerProcess
) -> None:
    """ARQ-1: the wake flag is cleared before the keys are taken."""
    await due.add(Lane.NOW, [due_key(1)])
    await due.begin_drain(Lane.NOW)
    await due.add(Lane.NOW, [due_key(2)])

    taken = await take(due)

    assert len(taken.keys) == 2
    assert len(queued_jobs(server)) == 2


async def test_a_key_due_later_queues_no_job_before_its_time(
    due: DueSet, server: ServerProcess
) -> None:
    """R-WRM-2: a paced campaign does not fill the queue."""
    await due.add(Lane.WARM, [due_key(1)], due_in_ms=60_000)

    swept = await due.sweep(Lane.WARM)

    assert queued_jobs(server) == []
    assert not swept.woken


@pytest.mark.parametrize("lost", ["payload_and_queue", "queue"])
async def test_lost_arq_jobs_are_noticed_and_queued_anew(
    due: DueSet, server: ServerProcess, lost: str
) -> None:
    """MEMORY-5: the due set is the truth; arq's keys may be evicted."""
    await due.add(Lane.NOW, [due_key(1)])
    (job_id,) = queued_jobs(server)
    server.command("ZREM", "warmer:queue", job_id)
    if lost == "payload_and_queue":
        server.command("DEL", b"arq:job:" + job_id)

    first, second = await due.sweep(Lane.NOW), await due.sweep(Lane.NOW)

    (queued,) = queued_jobs(server)
    assert queued != job_id
    assert (first.woken, second.woken) == (True, False)
    assert len((await take(due)).keys) == 1


async def test_one_script_handles_a_bounded_number_of_keys(
    due: DueSet, server: ServerProcess
) -> None:
    """BULK-3: a large batch does not block the server for others."""
    added = await due.add(Lane.WARM, [due_key(id_) for id_ in range(450)])
    taken = await take(due, Lane.WARM, limit=10_000)

    calls = server.command("INFO", "commandstats")["cmdstat_evalsha"]["calls"]

    assert (added, len(taken.keys), taken.next_in_ms) == (450, 200, 0)
    assert calls >= 4


async def test_the_depth_of_a_lane_is_counted(due: DueSet) -> None:
    """ARQ-8, R-OBS-1: reading it never disturbs the work."""
    await due.add(Lane.NOW, [due_key(1), due_key(2)])
    await due.add(Lane.NOW, [due_key(3)], due_in_ms=60_000)
    await take(due, limit=1)

    depth = await due.depth(Lane.NOW)

    assert (depth.due, depth.ready, depth.doing) == (2, 1, 1)
    assert 0 <= depth.oldest_ms < 10_000


async def test_parts_of_any_bytes_come_back_as_the_same_key(due: DueSet) -> None:
    """KEYS-8: what stands in the due set is the key's own canonical form."""
    ids = ["a b", "a:b", "%3A", "é", "\r\n\x00", '"', "{x}"]
    keys = [due_key(1).key, *(PRODUCT.key({"id": id_}) for id_ in ids)]
    keys.append(PRODUCT.key({"id": b"\xff\xfe"}))
    await due.add(Lane.NOW, [type(due_key(1))(key) for key in keys])

    taken = await take(due)

    found = {key_of(key.member, {"product": PRODUCT}) for key in taken.keys}
    assert found == set(keys)


async def test_scripts_flushed_in_the_middle_are_loaded_again(
    due: DueSet, server: ServerProcess
) -> None:
    """SCRIPT-1."""
    await due.add(Lane.NOW, [due_key(1)])
    server.command("SCRIPT FLUSH")

    assert len((await take(due)).keys) == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"not json",
        b"[]",
        b"{}",
        b'{"versions":";@","fence":"-1","attempts":{}}',
        b"\xff",
    ],
)
async def test_one_corrupt_record_does_not_hold_up_its_lane(
    server: ServerProcess, due: DueSet, garbage: bytes
) -> None:
    """SERIAL-3, STREAM-6: it counts as a key of which nothing is known."""
    spoilt, sound = due_key(1, version=7, fence=3), due_key(2, version=7, fence=3)
    await due.add(Lane.NOW, [spoilt, sound])
    server.command("HSET", "warmer:wanted", member_of(spoilt.key), garbage)

    taken = await due.take(Lane.NOW, 100, visible_ms=1)
    await due.sweep(Lane.NOW)
    server.command("HSET", "warmer:wanted", member_of(spoilt.key), garbage)
    await due.add(Lane.NOW, [spoilt, sound])
    again = await take_when_due(due)
    await due.done(Lane.NOW, again.keys)

    assert [key.wanted_fence for key in taken.keys] == [0, 3]
    assert {key.member for key in again.keys} >= {member_of(spoilt.key)}
    assert all(key.wanted for key in again.keys)


async def test_a_member_that_is_no_text_goes_and_holds_up_nothing(
    server: ServerProcess, due: DueSet, caplog: pytest.LogCaptureFixture
) -> None:
    """SERIAL-3: nobody could say what to refresh."""
    await due.add(Lane.NOW, [due_key(1)])
    server.command("ZADD", "warmer:due:now", 1, b"\xff\xfe")

    key = await take_one(due)
    await due.done(Lane.NOW, [key])

    assert "due_member_refused" in caplog.text
    depth = await due.depth(Lane.NOW)
    assert (depth.due, depth.doing) == (0, 0)
