"""A producer as fast as it can be, in a process of its own: signed requests over raw sockets.

    python -m tests.bench.door_load MODE PORT REDIS_URL SEED

Requests are signed and laid out before the clock starts, so that the door is measured.
Prints one JSON line.
"""

import asyncio
import base64
import hmac
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator

from redis.asyncio import Redis
from typing_extensions import override

from tests.door import KEY

SINGLES, BATCHES, PER_BATCH = 6_000, 400, 100
RATE, PACED = 500, 3_000
CONNECTIONS = {"single": 64, "batch": 16, "paced": 64}
HEADER_BYTES = 64
KEYS = 20_000


def request(body: bytes, id_: str) -> bytes:
    """One POST with a signature of standard-webhooks over its body."""
    at = str(int(time.time()))
    mac = hmac.digest(KEY, f"{id_}.{at}.".encode() + body, "sha256")
    signature = base64.b64encode(mac).decode()
    head = (
        "POST /v1/events/shop-db HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        "content-type: application/json\r\n"
        f"webhook-id: {id_}\r\nwebhook-timestamp: {at}\r\n"
        f"webhook-signature: v1,{signature}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def event(number: int, version: int) -> dict[str, object]:
    """Row `number` has that version now."""
    return {"entity": f"product:{number % KEYS}", "version": version}


def requests(mode: str, seed: int) -> list[bytes]:
    """All requests of this run; the next seed's versions are newer."""
    events = (event(number, seed * 10_000_000 + number) for number in itertools.count())
    if mode == "batch":
        bodies = [
            json.dumps(list(itertools.islice(events, PER_BATCH))).encode()
            for _ in range(BATCHES)
        ]
    else:
        count = SINGLES if mode == "single" else PACED
        bodies = [json.dumps(each).encode() for each in itertools.islice(events, count)]
    return [request(body, f"m-{seed}-{at}") for at, body in enumerate(bodies)]


class Connection(asyncio.Protocol):
    """A connection that is kept; one request at a time."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[None] | None = None
        self._received = b""
        self._transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or self._answer is None:
            return
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        if len(body) < length:
            return
        assert head.startswith(b"HTTP/1.1 202"), self._received
        self._received = b""
        self._answer.set_result(None)

    async def post(self, raw: bytes) -> None:
        """Send one request; return once it was answered 202."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(raw)
        await self._answer


async def flat_out(connections: list[Connection], raws: Iterator[bytes]) -> None:
    """Keep every connection busy."""

    async def one(connection: Connection) -> None:
        for raw in raws:
            await connection.post(raw)

    await asyncio.gather(*map(one, connections))


class Watch:
    """When the entries of answered events became stale."""

    def __init__(self, redis: Redis, before: dict[int, bytes]) -> None:
        self._redis = redis
        self._before = before
        self._answered: dict[int, float] = {}
        self.waits_ms: list[float] = []

    def answered(self, number: int) -> None:
        self._answered[number] = time.perf_counter()

    async def until(self, count: int) -> None:
        """Look all the time at what is not stale yet."""
        while len(self.waits_ms) < count:
            waiting = list(self._answered)
            if not waiting:
                await asyncio.sleep(0.0005)
                continue
            for number, header in zip(
                waiting, await headers(self._redis, waiting), strict=True
            ):
                if header != self._before[number]:
                    took_s = time.perf_counter() - self._answered.pop(number)
                    self.waits_ms.append(took_s * 1000)


async def headers(redis: Redis, numbers: list[int]) -> list[bytes]:
    """The headers of these rows' entries."""
    pipe = redis.pipeline(transaction=False)
    for number in numbers:
        pipe.getrange(f"product:v3:{number}", 0, HEADER_BYTES - 1)
    found: list[bytes] = await pipe.execute()
    return found


async def paced(
    connections: list[Connection], raws: list[bytes], redis: Redis
) -> list[float]:
    """Milliseconds from each answer to the entry being stale, at a steady rate."""
    numbers = list(range(len(raws)))
    watch = Watch(redis, dict(zip(numbers, await headers(redis, numbers), strict=True)))
    free = asyncio.Queue[Connection]()
    for connection in connections:
        free.put_nowait(connection)

    async def one(number: int, connection: Connection) -> None:
        await connection.post(raws[number])
        watch.answered(number)
        free.put_nowait(connection)

    watching = asyncio.create_task(watch.until(len(raws)))
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in numbers:
            await asyncio.sleep(max(0, began + number / RATE - time.perf_counter()))
            group.create_task(one(number, await free.get()))
    async with asyncio.timeout(30):
        await watching
    return sorted(watch.waits_ms)


async def main(mode: str, port: int, url: str, seed: int) -> None:
    loop = asyncio.get_running_loop()
    raws = requests(mode, seed)
    made = [
        await loop.create_connection(Connection, "127.0.0.1", port)
        for _ in range(CONNECTIONS[mode])
    ]
    connections = [connection for _, connection in made]
    if mode == "paced":
        redis = Redis.from_url(url)
        waits = await paced(connections, raws, redis)
        await redis.aclose()
        quantiles = statistics.quantiles(waits, n=100)
        told = {"p50_ms": quantiles[49], "p99_ms": quantiles[98], "max_ms": waits[-1]}
    else:
        began, cpu_began = time.perf_counter(), time.process_time()
        await flat_out(connections, iter(raws))
        took_s = time.perf_counter() - began
        cpu_s = time.process_time() - cpu_began
        told = {"requests_per_s": len(raws) / took_s, "own_cpu": cpu_s / took_s}
    for transport, _ in made:
        transport.close()
    print("result", json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
