"""A worker while its server is restarted, emptied, paused, or not there yet."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from tests.control import due_key
from tests.fleet import CLOCK, Shop, shop_on, until
from tests.processes import Children
from tests.servers import ServerProcess
from warmer.dispatch import Jobs, enqueue_invalidate
from warmer.model.due import Lane

MANY = range(200)


@pytest.fixture
async def kept(aof_server: ServerProcess, tmp_path: Path) -> AsyncIterator[Shop]:
    """A shop on a server that keeps every write through SIGKILL."""
    async with shop_on(aof_server.url, tmp_path, delay_s=0.01) as opened:
        yield opened


@pytest.fixture
async def shop(valkey: ServerProcess, tmp_path: Path) -> AsyncIterator[Shop]:
    valkey.renew()
    async with shop_on(valkey.url, tmp_path) as opened:
        yield opened


async def test_a_restart_under_load_ends_with_every_changed_key_fresh(
    kept: Shop, aof_server: ServerProcess, children: Children
) -> None:
    """STREAM-9, SCRIPT-1, R-INV-3: killed twice, with its append-only file."""
    workers = [await kept.worker(children, concurrency="8") for _ in range(2)]
    for start in (0, 100):
        await kept.change(*range(start, start + 100))
        await kept.origin.until(lambda: len(kept.origin.requests) > start)  # noqa: B023
        await asyncio.to_thread(aof_server.restart)

    await kept.fresh(*MANY)
    await kept.settled()

    assert [worker.exit_status for worker in workers] == [None, None]


@pytest.mark.parametrize("loss", ["FLUSHALL", "XGROUP DESTROY"])
async def test_a_worker_goes_on_after_its_group_was_lost(
    shop: Shop, valkey: ServerProcess, children: Children, loss: str
) -> None:
    """STREAM-1: the group is made anew, and new events are handled."""
    worker = await shop.worker(children)
    await shop.change(1)
    await shop.fresh(1)
    valkey.command(loss, *(("warmer:events", "workers") if "GROUP" in loss else ()))

    await shop.change(2)

    await shop.fresh(2, within_s=5)
    assert worker.exit_status is None


async def test_a_server_that_hangs_is_outlived(
    shop: Shop, valkey: ServerProcess, children: Children
) -> None:
    """R-FT-2, FAILOVER-5: longer than every timeout of the worker."""
    worker = await shop.worker(children)
    await shop.change(1)
    await shop.fresh(1)
    valkey.pause()
    await CLOCK.sleep(6)
    valkey.resume()

    await shop.change(1, 2)

    await shop.fresh(1, 2)
    await shop.settled()
    assert worker.exit_status is None


async def test_a_worker_waits_for_a_server_that_is_not_there_yet(
    shop: Shop, valkey: ServerProcess, children: Children
) -> None:
    """FAILOVER-4, SYSTEMD-14: not ready meanwhile, and no crash."""
    await asyncio.to_thread(valkey.kill)
    worker = shop.start_worker(children)
    await worker.line("control_server_away", within_s=20)

    await asyncio.to_thread(valkey.start)

    await worker.line("worker_ready", within_s=20)
    await shop.change(1)
    await shop.fresh(1)
    assert worker.exit_status is None


async def test_a_worker_told_to_stop_while_it_waits_stops(
    shop: Shop, valkey: ServerProcess, children: Children
) -> None:
    """SYSTEMD-5: SIGTERM is obeyed before the first round trip, too."""
    await asyncio.to_thread(valkey.kill)
    worker = shop.start_worker(children)
    await worker.line("control_server_away", within_s=20)

    worker.terminate()

    assert await worker.exited(within_s=10) == 0


async def test_a_worker_outlives_what_kills_arq(
    shop: Shop, valkey: ServerProcess, children: Children
) -> None:
    """ARQ-8, MEMORY-5: arq's worker is made anew, and what was lost meanwhile is found."""
    worker = await shop.worker(children)
    valkey.command("SET", "warmer:queue", "not a queue")
    await worker.line("arq_worker_died", within_s=20)
    valkey.command("DEL", "warmer:queue")
    shop.write(1)

    await shop.control.due.add(Lane.NOW, [due_key(1, version=1)])

    await shop.fresh(1)
    assert worker.exit_status is None


GARBAGE = {
    "pickle": b"\x80\x04garbage",
    "empty": b"{}",
    "list": b"[]",
    "unknown": b'{"t":null,"f":"drop_table","a":[],"k":{},"et":1}',
    "named": b'{"t":null,"f":"invalidate","a":[],"k":{"events":[]},"et":1}',
    "many": b'{"t":null,"f":"refresh_due","a":["now","now"],"k":{},"et":1}',
    "no_time": b'{"t":null,"f":"refresh_due","a":["now"],"k":{},"et":"x"}',
    "no_arguments": b'{"t":null,"f":"refresh_due","a":null,"k":null,"et":1}',
    "late": b'{"t":null,"f":"refresh_due","a":["now"],"k":{},"et":1e300}',
}


async def test_garbage_in_arqs_queue_stops_nobody(
    shop: Shop, valkey: ServerProcess, children: Children
) -> None:
    """ARQ-8: whoever may write there can ask for work; the rest becomes dead letters."""
    worker = await shop.worker(children)
    for name, payload in GARBAGE.items():
        valkey.command("SET", f"arq:job:{name}", payload)
        valkey.command("ZADD", "warmer:queue", 1, name)
    event = orjson.loads(shop.event(1, shop.write(1)))
    await enqueue_invalidate(shop.redis, [event], jobs=Jobs(CLOCK))

    async def all_parked() -> bool:
        return await shop.control.parked_count() == len(GARBAGE)

    await shop.fresh(1)
    await until(all_parked, within_s=10, what=lambda: "not all set aside")
    letters = await shop.control.parked()

    assert sorted(letter.fields["payload"].encode() for letter in letters) == sorted(
        text.decode(errors="backslashreplace").encode() for text in GARBAGE.values()
    )
    assert not await shop.redis.exists(*(f"arq:job:{name}" for name in GARBAGE))
    assert "Traceback" not in worker.output
    assert worker.exit_status is None


async def test_an_entry_that_kills_arq_is_met_once(
    shop: Shop, children: Children
) -> None:
    """ARQ-8: an id that is no text, a job that is no string, and a score that never comes."""
    worker = await shop.worker(children)
    job = Jobs(CLOCK).invalidate([orjson.loads(shop.event(2, shop.write(2)))])
    async with shop.redis.pipeline(transaction=True) as at_once:
        at_once.rpush("arq:job:pile", "x")
        at_once.set(job.key, job.payload)
        at_once.zadd("warmer:queue", {b"\xff\xfe": 1, b"pile": 1, job.id.encode(): 0})
        await at_once.execute()
    event = orjson.loads(shop.event(1, shop.write(1)))
    await enqueue_invalidate(shop.redis, [event], jobs=Jobs(CLOCK))

    await shop.fresh(1, 2)
    letters = await shop.control.parked()
    assert {letter.fields["payload"] for letter in letters} == {"\\xff\\xfe", "pile"}
    assert worker.output.count("arq_worker_died") <= 1
    assert worker.exit_status is None


async def test_what_killed_arq_is_named_in_the_log(
    shop: Shop, valkey: ServerProcess, children: Children
) -> None:
    """OBS-6: by the server's word for it."""
    worker = await shop.worker(children)
    valkey.command("SET", "warmer:queue", "not a queue")

    await worker.line("arq_worker_died WRONGTYPE", within_s=20)
