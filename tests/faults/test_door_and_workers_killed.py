"""20,000 events through two doors and two workers, all of which are killed meanwhile."""

import asyncio
import base64
import hmac
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import cycle
from pathlib import Path
from random import Random

import aiohttp
import orjson
import pytest

from tests.door import ENVIRONMENT, KEY
from tests.fleet import CLOCK, SOURCE, Shop, shop_on, until
from tests.processes import ChildProcess, Children
from tests.servers import ServerProcess
from warmer.errors import BadEvent
from warmer.model.entry import EntryRefused, decode_entry
from warmer.model.version import SourceVersion
from warmer.store.keyspace import EVENT_LOG, Keyspace

IDS = range(200)
VERSIONS = range(1, 101)
EVENTS = len(IDS) * len(VERSIONS)
SHUFFLED_WITHIN = 2_000
"""Events that may overtake each other before they are sent: ten versions of a row."""
SINGLES, BATCH = 12, 40
"""So many POSTs of one event each, then one of so many."""
CONNECTIONS = 16
STAGES = 7
SECRETS = {"WHSEC": ENVIRONMENT["WHSEC"]}

SETTINGS = """
[control]
url = "{url}"
timeout = "500ms"

[sources.shop-db]
format = "plain"
signature = "standard-webhooks"
secrets = ["env:WHSEC"]
"""

Change = tuple[int, int]
"""A row, and the version that it got."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One POST, the same however often it is sent."""

    id: str
    changes: tuple[Change, ...]

    def body(self) -> bytes:
        events = [
            {"entity": f"product:{id_}", "version": version}
            for id_, version in self.changes
        ]
        return orjson.dumps(events if len(events) > 1 else events[0])


def deliveries(random: Random) -> Iterator[Delivery]:
    """Every version of every row, out of order, some alone and some together."""
    changes = [(id_, version) for version in VERSIONS for id_ in IDS]
    for at in range(0, EVENTS, SHUFFLED_WITHIN):
        some = changes[at : at + SHUFFLED_WITHIN]
        random.shuffle(some)
        changes[at : at + SHUFFLED_WITHIN] = some
    at = 0
    for number, size in enumerate(cycle([*[1] * SINGLES, BATCH])):
        if at >= EVENTS:
            return
        yield Delivery(f"msg_{number}", tuple(changes[at : at + size]))
        at += size


@dataclass(slots=True)
class Doors:
    """The `warmer serve` processes, and where they listen now."""

    children: Children
    config: Path
    processes: list[ChildProcess] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    async def open(self, count: int) -> None:
        for _ in range(count):
            process, port = await self._opened()
            self.processes.append(process)
            self.ports.append(port)

    async def replace(self, number: int) -> None:
        """Kill one, and open another in its place."""
        await asyncio.to_thread(self.processes[number].kill)
        self.processes[number], self.ports[number] = await self._opened()

    async def _opened(self) -> tuple[ChildProcess, int]:
        process = self.children.warmer(
            *("serve", "--config", str(self.config), "--listen", "127.0.0.1:0"),
            env=SECRETS,
        )
        ready = await process.line(r"server_ready listen=\S+:(\d+)", within_s=20)
        return process, int(ready[1])


@dataclass(slots=True)
class Producer:
    """Sends each delivery until it is acknowledged, over many connections.

    What was not acknowledged goes behind all others, so that it comes late.
    `allowed` is how many events may be acknowledged before the senders wait.
    """

    shop: Shop
    doors: Doors
    left: deque[Delivery]
    allowed: int = 0
    acknowledged: list[Change] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)
    unanswered: int = 0
    under_way: int = 0

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=10)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(CONNECTIONS):
                tasks.create_task(self._send_all(session, number))
            yield

    async def reaches(self, count: int) -> None:
        async def reached() -> bool:
            return len(self.acknowledged) >= count

        await until(reached, within_s=60, what=lambda: f"{len(self.acknowledged)} acks")

    async def _send_all(self, session: aiohttp.ClientSession, number: int) -> None:
        while len(self.acknowledged) < EVENTS:
            if not self.left or len(self.acknowledged) >= self.allowed:
                await CLOCK.sleep(0.005)
                continue
            delivery = self.left.popleft()
            for id_, version in delivery.changes:
                while self.shop.versions.get(id_, 0) < version:
                    self.shop.write(id_)
            self.under_way += 1
            taken = await self._post(session, self.doors.ports[number % 2], delivery)
            self.under_way -= 1
            if taken:
                self.acknowledged += delivery.changes
                continue
            self.left.append(delivery)
            number += 1
            await CLOCK.sleep(0.02)

    async def _post(
        self, session: aiohttp.ClientSession, port: int, delivery: Delivery
    ) -> bool:
        url, body = f"http://127.0.0.1:{port}/v1/events/{SOURCE}", delivery.body()
        headers = signed(delivery.id, body)
        try:
            async with session.post(url, data=body, headers=headers) as answer:
                await answer.read()
                self.answers[answer.status] += 1
                return answer.status == HTTPStatus.ACCEPTED
        except (aiohttp.ClientError, TimeoutError):
            self.unanswered += 1
            return False


def signed(id_: str, body: bytes) -> dict[str, str]:
    at = str(CLOCK.now_ms() // 1000)
    mac = hmac.digest(KEY, f"{id_}.{at}.".encode() + body, "sha256")
    return {
        "webhook-id": id_,
        "webhook-timestamp": at,
        "webhook-signature": "v1," + base64.b64encode(mac).decode(),
    }


@dataclass(slots=True)
class Watch:
    """What the cache holds over time: versions of entries, and floors of guards."""

    shop: Shop
    entries: dict[int, int] = field(default_factory=dict)
    floors: dict[int, SourceVersion] = field(default_factory=dict)
    went_back: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await self.look()
            await CLOCK.sleep(0.05)

    async def look(self) -> None:
        keys = [self.shop.key(id_) for id_ in IDS]
        async with self.shop.redis.pipeline(transaction=False) as pipe:
            for id_, key in zip(IDS, keys, strict=True):
                pipe.get(key.text)
                pipe.hget(Keyspace().guard(key.text), f"floor.{SOURCE}/product:{id_}")
            found = await pipe.execute()
        for id_, stored, floor in zip(IDS, found[::2], found[1::2], strict=True):
            self._note_entry(id_, stored)
            self._note_floor(id_, floor)

    def _note_entry(self, id_: int, stored: bytes | None) -> None:
        if stored is None:
            return
        try:
            entry = decode_entry(stored, self.shop.key(id_).digest())
        except EntryRefused as exc:
            self.went_back.append(f"product:{id_} {exc}")
            return
        (version,) = entry.versions()[f"{SOURCE}/product:{id_}"].parts()
        before = self.entries.get(id_, 0)
        if version < before:
            self.went_back.append(f"product:{id_} from {before} to {version}")
        self.entries[id_] = version

    def _note_floor(self, id_: int, stored: bytes | None) -> None:
        before = self.floors.get(id_)
        try:
            floor = SourceVersion.decode(SOURCE, (stored or b"").decode())
        except BadEvent:
            if before is not None:
                self.went_back.append(f"the floor of product:{id_} is gone")
            return
        if before is not None and floor.digits < before.digits:
            self.went_back.append(f"the floor of product:{id_}")
        self.floors[id_] = floor


@pytest.fixture
async def shop(valkey: ServerProcess, tmp_path: Path) -> AsyncIterator[Shop]:
    valkey.renew()
    async with shop_on(valkey.url, tmp_path) as opened:
        yield opened


@pytest.mark.timeout(180)
async def test_every_acknowledged_event_is_applied_whoever_is_killed_meanwhile(
    shop: Shop, valkey: ServerProcess, children: Children
) -> None:
    """R-FT-4, R-INV-2, R-INV-3: and no key goes back, nor does the door say 2xx in vain."""
    settings = {"sources": SETTINGS.format(url=valkey.url)}
    workers = [await shop.worker(children, env=SECRETS, **settings) for _ in range(2)]
    doors = Doors(children, shop.directory / "worker-0.toml")
    await doors.open(2)
    producer = Producer(shop, doors, deque(deliveries(Random(4))))
    watch = Watch(shop)

    async def kill_worker(number: int) -> None:
        await asyncio.to_thread(workers[number].kill)
        workers[number] = await shop.worker(children, env=SECRETS, **settings)

    async def hang() -> None:
        await asyncio.to_thread(valkey.pause)
        await CLOCK.sleep(3)
        await asyncio.to_thread(valkey.resume)

    async def kill_both() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(doors.replace(0))
            tasks.create_task(kill_worker(0))

    faults = [
        lambda: doors.replace(0),
        lambda: kill_worker(0),
        hang,
        lambda: doors.replace(1),
        lambda: kill_worker(1),
        kill_both,
    ]
    async with watch.watching(), producer.sending():
        for stage, fault in enumerate(faults):
            producer.allowed = EVENTS * (stage + 1) // STAGES
            await producer.reaches(EVENTS * (2 * stage + 1) // (2 * STAGES))
            assert producer.under_way
            await fault()
        producer.allowed = EVENTS
    await shop.settled(within_s=60)
    await shop.fresh(*IDS, within_s=60)
    await watch.look()

    assert producer.unanswered
    assert producer.answers[HTTPStatus.SERVICE_UNAVAILABLE]
    assert set(producer.answers) == {
        HTTPStatus.ACCEPTED,
        HTTPStatus.SERVICE_UNAVAILABLE,
    }
    assert await logged(shop) == Counter(producer.acknowledged)
    assert watch.went_back == []
    newest = newest_of(producer.acknowledged)
    assert watch.entries == newest
    assert {id_: floor.parts()[0] for id_, floor in watch.floors.items()} == newest
    assert await shop.control.parked_count() == 0


async def logged(shop: Shop) -> Counter[Change]:
    """How often each change is in the log."""
    found: Counter[Change] = Counter()
    for _, fields in await shop.redis.xrange(EVENT_LOG):
        event = orjson.loads(fields[b"event"])
        (entity,), (version,) = event["entities"], event["version"]["parts"]
        found[int(entity.removeprefix("product:")), int(version)] += 1
    return found


def newest_of(changes: Sequence[Change]) -> dict[int, int]:
    newest: dict[int, int] = {}
    for id_, version in changes:
        newest[id_] = max(version, newest.get(id_, 0))
    return newest
