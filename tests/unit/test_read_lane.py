"""The read lane against a server whose every reply the test gives."""

import asyncio
from typing import Any, cast

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from warmer.clock import SystemClock
from warmer.store.read_lane import (
    BATCH,
    IN_FLIGHT,
    SMALL_BATCH,
    SMALL_BYTES,
    ReadLane,
)

CLOCK = SystemClock()


class Exchange:
    """One command that was sent, and the reply it waits for."""

    def __init__(self, command: bytes) -> None:
        words = command.split(b"\r\n")
        assert words[2] == b"MGET"
        self.keys = [word.decode() for word in words[4::2]]
        self.reply: asyncio.Future[list[bytes]] = asyncio.Future()

    def answer(self, body: bytes | None = None) -> None:
        self.reply.set_result(
            [f"body of {key}".encode() if body is None else body for key in self.keys]
        )


class Connection:
    def __init__(self, server: "ScriptedServer") -> None:
        self._server = server
        self._exchange: Exchange | None = None
        self.is_connected = False

    async def send_packed_command(self, command: bytes) -> None:
        if self._server.refuses:
            raise RedisConnectionError("refused")
        self.is_connected = True
        self._exchange = Exchange(command)
        self._server.exchanges.append(self._exchange)

    async def read_response(self) -> list[bytes]:
        assert self._exchange is not None
        return await asyncio.shield(self._exchange.reply)

    async def disconnect(self, *, nowait: bool = False) -> None:
        del nowait
        if self.is_connected:
            self._server.closed.append(self._exchange)
        self.is_connected = False


class ScriptedServer:
    """Stands where a redis client and its pool stand."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.closed: list[Exchange | None] = []
        self.lent = 0
        self.refuses = False
        self.connection_pool = self

    async def get_connection(self) -> Connection:
        self.lent += 1
        return Connection(self)

    async def release(self, connection: Connection) -> None:
        del connection
        self.lent -= 1

    def lane(self, *, timeout_ms: int = 10_000, **settings: Any) -> ReadLane:
        return ReadLane(cast("Any", self), timeout_ms=timeout_ms, **settings)

    async def sent(self) -> list[list[str]]:
        """The keys of every exchange, once nothing more happens by itself."""
        for _ in range(20):
            await CLOCK.sleep(0)
        return [exchange.keys for exchange in self.exchanges]

    async def answer_all(self, body: bytes | None = None) -> None:
        """Answer until nothing is asked any more."""
        await self.sent()
        while pending := [each for each in self.exchanges if not each.reply.done()]:
            for exchange in pending:
                exchange.answer(body)
            await self.sent()


@pytest.fixture
def server() -> ScriptedServer:
    return ScriptedServer()


def reading(lane: ReadLane, *keys: str) -> list["asyncio.Task[bytes | None]"]:
    return [asyncio.create_task(lane.get(key)) for key in keys]


async def test_a_read_on_an_idle_lane_leaves_at_once(server: ScriptedServer) -> None:
    """R-POL-2: no caller pays for batching when there is nothing to batch."""
    (read,) = reading(server.lane(), "a")
    await CLOCK.sleep(0)

    assert [exchange.keys for exchange in server.exchanges] == [["a"]]
    await server.answer_all()
    assert await read == b"body of a"


async def test_reads_that_meet_leave_together_in_bounded_batches(
    server: ScriptedServer,
) -> None:
    """R-OBS-2: 100 reads are 6 exchanges, 32 small entries in each, 4 of them under way."""
    keys = [f"k{number}" for number in range(100)]
    reads = reading(server.lane(), *keys)

    sizes = [len(batch) for batch in await server.sent()]
    assert sizes == [1, BATCH, BATCH, BATCH]
    while not all(read.done() for read in reads):
        under_way = [each for each in server.exchanges if not each.reply.done()]
        assert 0 < len(under_way) <= IN_FLIGHT
        under_way[0].answer()
        await server.sent()
    assert max(len(each.keys) for each in server.exchanges) <= SMALL_BATCH
    assert len(server.exchanges) <= 7
    assert [await read for read in reads] == [f"body of {key}".encode() for key in keys]
    assert server.lent == IN_FLIGHT


async def test_large_entries_leave_in_smaller_batches(server: ScriptedServer) -> None:
    """R-FT-2: a batch's reply must fit into its timeout on a real network."""
    lane = server.lane()
    for body, most in ((b"x", SMALL_BATCH), (b"x" * (SMALL_BYTES + 1), BATCH)):
        for _ in range(2):
            server.exchanges.clear()
            reads = reading(lane, *(f"k{number}" for number in range(100)))
            await server.answer_all(body)
            await asyncio.gather(*reads)

        assert max(len(each.keys) for each in server.exchanges) == most


async def test_equal_keys_share_one_reply(server: ScriptedServer) -> None:
    """R-OBS-2: a thousand readers of one hot key ask for it once or twice."""
    reads = reading(server.lane(), *["hot"] * 1_000)

    assert await server.sent() == [["hot"], ["hot"]]
    await server.answer_all()
    assert {await read for read in reads} == {b"body of hot"}


async def test_a_read_does_not_share_a_reply_that_was_asked_for_before_it(
    server: ScriptedServer,
) -> None:
    """R-FLT-4: what was published in between is seen by whoever asks after it."""
    lane = server.lane()
    (early,) = reading(lane, "a")
    await server.sent()
    (late,) = reading(lane, "a")

    assert await server.sent() == [["a"], ["a"]]
    server.exchanges[1].reply.set_result([b"newer"])
    server.exchanges[0].reply.set_result([b"older"])
    assert (await early, await late) == (b"older", b"newer")


async def test_a_caller_that_leaves_takes_no_reply_from_the_others(
    server: ScriptedServer,
) -> None:
    """RPOOL-1: every second caller is cancelled; each other one gets its own value."""
    keys = [f"k{number}" for number in range(40)]
    reads = reading(server.lane(), *keys)
    await server.sent()

    for read in reads[1::2]:
        read.cancel()
    await server.sent()
    await server.answer_all()

    for key, read in list(zip(keys, reads, strict=True))[::2]:
        assert await read == f"body of {key}".encode()
    assert all(read.cancelled() for read in reads[1::2])


async def test_the_reply_of_a_cancelled_lone_read_is_read_by_nobody(
    server: ScriptedServer,
) -> None:
    """RPOOL-1: its connection is closed, and the next read gets its own value."""
    lane = server.lane()
    (first,) = reading(lane, "foo")
    await server.sent()
    first.cancel()
    await server.sent()

    assert server.closed == [server.exchanges[0]]
    (second,) = reading(lane, "bar")
    await server.answer_all()
    assert await second == b"body of bar"


async def test_reads_past_the_bound_fail_at_once(server: ScriptedServer) -> None:
    """RPOOL-6 R-FLT-3: the queue has an end, and an error that names it."""
    lane = server.lane(max_waiting=10)
    reads = reading(lane, *(f"k{number}" for number in range(15)))
    await CLOCK.sleep(0)

    failed = [read for read in reads if read.done()]
    assert len(failed) == 4
    with pytest.raises(RedisConnectionError, match="read_lane_full"):
        failed[0].result()
    for read in failed[1:]:
        assert read.exception()
    await server.answer_all()
    await asyncio.gather(*(read for read in reads if read not in failed))


async def test_a_hanging_server_costs_each_read_one_timeout(
    server: ScriptedServer,
) -> None:
    """R-FT-2: what queued behind a hanging batch fails with it, not a timeout later."""
    reads = reading(server.lane(timeout_ms=40), *(f"k{at}" for at in range(500)))
    began = CLOCK.monotonic()

    await asyncio.wait(reads, timeout=5)

    assert all(isinstance(read.exception(), RedisTimeoutError) for read in reads)
    assert CLOCK.monotonic() - began < 1
    assert len(server.closed) == len(server.exchanges)


async def test_a_connection_that_the_server_closed_while_idle_is_no_failure(
    server: ScriptedServer,
) -> None:
    """RPOOL-10: a read is repeated once, on a new connection."""
    lane = server.lane()
    (first,) = reading(lane, "a")
    await server.answer_all()
    await first
    (second,) = reading(lane, "b")
    await server.sent()

    server.exchanges[1].reply.set_exception(RedisConnectionError("closed by server"))
    await server.answer_all()

    assert await second == b"body of b"
    assert await server.sent() == [["a"], ["b"], ["b"]]


async def test_a_server_that_refuses_fails_what_waits_for_it(
    server: ScriptedServer,
) -> None:
    """R-FT-2: nobody waits in line to be refused one after the other."""
    server.refuses = True
    reads = reading(server.lane(), *(f"k{at}" for at in range(100)))

    await asyncio.wait(reads, timeout=5)

    assert all(isinstance(read.exception(), RedisConnectionError) for read in reads)


async def test_a_closed_lane_leaves_no_reader_waiting(server: ScriptedServer) -> None:
    """SWR-7: connections are given back, readers get an error, late ones too."""
    lane = server.lane()
    reads = reading(lane, *(f"k{at}" for at in range(60)))
    await server.sent()
    server.exchanges[0].answer()

    await lane.aclose()

    assert await reads[0] == b"body of k0"
    assert all(isinstance(read.exception(), RedisConnectionError) for read in reads[1:])
    assert server.lent == 0
    with pytest.raises(RedisConnectionError, match="closed"):
        await lane.get("late")
