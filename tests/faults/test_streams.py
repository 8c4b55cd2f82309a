"""Sources' Redis streams, read by workers that die and servers that forget."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import orjson
import pytest
from redis.asyncio import Redis
from typing_extensions import override

from jobs.pulse import Pulse
from jobs.streams import StreamReader
from tests.control import control_of
from tests.fleet import Shop, shop_on, until
from tests.processes import Children
from tests.servers import ServerProcess, Servers
from warmer.clock import SystemClock
from warmer.ingest.event_log import decode
from warmer.ingest.formats import Message
from warmer.ingest.intake import Intake, Taken
from warmer.model.source import Source, StreamIn
from warmer.signals import Counters
from warmer.store.consumer_group import ConsumerGroup
from warmer.store.control import ControlServer
from warmer.store.control_link import ControlLink

CLOCK = SystemClock()
STREAM = "shop.public.product"
GROUP = "warmer"
PENDING = "return redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 10)"
SOURCE = Source(
    "shop-db",
    "debezium",
    version_fields=("version",),
    stream=StreamIn((STREAM,), GROUP, trim=True),
)


def key_json(id_: int) -> bytes:
    return orjson.dumps({"id": id_})


def change(id_: int, version: int, *, op: str = "u") -> bytes:
    """What Debezium says of a changed row, or of one that it only read."""
    return orjson.dumps(
        {
            "before": None,
            "after": {"id": id_, "version": version},
            "source": origin_of(version),
            "op": op,
            "ts_ms": 1_790_000_000_100,
        }
    )


def truncation() -> bytes:
    """What Debezium says of an emptied table."""
    return orjson.dumps(
        {"source": origin_of(99), "op": "t", "ts_ms": 1_790_000_000_100}
    )


def origin_of(number: int) -> dict[str, object]:
    return {
        "connector": "postgresql",
        "name": "shop",
        "db": "shop",
        "schema": "public",
        "table": "product",
        "ts_ms": 1_790_000_000_000,
        "txId": 700 + number,
        "lsn": 1_000 + number,
        "snapshot": "false",
    }


def compact(id_: int, version: int) -> tuple[bytes, ...]:
    return key_json(id_), change(id_, version)


def extended(id_: int, version: int) -> tuple[bytes, ...]:
    return b"key", key_json(id_), b"value", change(id_, version), b"__OP", b"u"


class Deadly(Intake):
    """An intake whose process dies of a message: its reader is cancelled at once."""

    poison = 13

    @override
    async def take(
        self, source: Source, messages: Sequence[Message], *, delivery_id: str = ""
    ) -> Taken:
        if any(message.key == {"id": self.poison} for message in messages):
            raise asyncio.CancelledError
        return await super().take(source, messages, delivery_id=delivery_id)


@dataclass(slots=True)
class Bench:
    """A source's server, a control server, and readers between them."""

    server: ServerProcess
    control: ControlServer
    group: ConsumerGroup
    signals: Counters = field(default_factory=Counters)
    errors: list[BaseException | None] = field(default_factory=list)

    def add(self, *fields: bytes) -> str:
        id_: bytes = self.server.command("XADD", STREAM, "*", *fields)
        return id_.decode()

    def reader(
        self, *, kind: type[Intake] = Intake, abandoned_ms: int = 10_000
    ) -> StreamReader:
        return StreamReader(
            SOURCE,
            self.group,
            intake=kind(
                log=self.control.events,
                letters=self.control,
                clock=CLOCK,
                signals=self.signals,
                report=self._report,
            ),
            letters=self.control,
            batch=100,
            clock=CLOCK,
            random=Random(1),
            signals=self.signals,
            report=self._report,
            pulse=Pulse(CLOCK, within_s=20),
            abandoned_ms=abandoned_ms,
        )

    @asynccontextmanager
    async def reading(self, *, abandoned_ms: int = 10_000) -> AsyncIterator[None]:
        reader = self.reader(abandoned_ms=abandoned_ms)
        serving = asyncio.create_task(reader.serve())
        try:
            yield
        finally:
            reader.stop()
            await serving

    def _report(
        self, name: str, *labels: str, error: BaseException | None = None
    ) -> None:
        del name, labels
        self.errors.append(error)

    async def acknowledged(self) -> None:
        """Return when the group has done with all there is."""

        async def all_of_it() -> bool:
            groups = await self.group.groups(STREAM)
            ours = [each for each in groups if each["name"] == GROUP.encode()]
            return any(not each["pending"] and not each["lag"] for each in ours)

        await until(all_of_it, within_s=20, what=lambda: f"unread: {self.errors}")

    async def log(self) -> list[tuple[str, int | None]]:
        """Entity and version of every event in the log, oldest first."""
        logged = await self.control.events.newest(count=1_000)
        events = [decode(entry.event or b"") for entry in reversed(logged)]
        return [
            (event.entities[0], event.version.parts()[0] if event.version else None)
            for event in events
        ]


@pytest.fixture
async def control_process(start_server: Servers) -> ServerProcess:
    return start_server("valkey9", appendonly=True)


@pytest.fixture
async def bench(
    server: ServerProcess, control_process: ServerProcess
) -> AsyncIterator[Bench]:
    redis = Redis.from_url(server.url)
    link = ControlLink(redis, timeout_ms=2_000)
    try:
        async with control_of(control_process) as control:
            group = ConsumerGroup(link, streams=[STREAM], name=GROUP)
            yield Bench(server, control, group)
    finally:
        await redis.aclose()


async def test_both_layouts_of_the_sink_become_events(bench: Bench) -> None:
    """R-INV-1: also what was there before the first worker."""
    bench.add(*compact(1, 5))
    async with bench.reading():
        bench.add(*extended(2, 6))
        bench.add(key_json(1), b"default")
        await bench.acknowledged()

    assert (await bench.log())[:2] == [("product:1", 5), ("product:2", 6)]
    assert await bench.control.parked_count() == 0
    assert bench.signals.total("messages_read", "shop-db") == 3


async def test_what_is_no_message_is_set_aside_with_its_bytes(bench: Bench) -> None:
    """CDC-SHAPE-1: and holds up nobody."""
    bench.add(*compact(1, 5))
    bench.add(key_json(7), b"no JSON")
    bench.add(*compact(2, 6))

    async with bench.reading():
        await bench.acknowledged()

    (letter,) = await bench.control.parked()
    assert letter.fields["payload"] == "no JSON"
    assert letter.fields["key"] == '{"id":7}'
    assert await bench.log() == [("product:1", 5), ("product:2", 6)]


@pytest.mark.parametrize("loss", ["FLUSHALL", "XGROUP DESTROY", "DEL"])
async def test_a_source_that_lost_its_group_is_read_on(bench: Bench, loss: str) -> None:
    """STREAM-1: within the pause of one error."""
    arguments = {
        "FLUSHALL": (),
        "XGROUP DESTROY": (STREAM, GROUP),
        "DEL": (STREAM,),
    }[loss]
    async with bench.reading():
        bench.add(*compact(1, 5))
        await bench.acknowledged()
        bench.server.command(loss, *arguments)
        bench.add(*compact(2, 6))
        await bench.acknowledged()

    assert (await bench.log())[-1] == ("product:2", 6)
    assert len(bench.errors) <= 1


async def test_nothing_is_acknowledged_while_the_control_server_is_away(
    bench: Bench, control_process: ServerProcess
) -> None:
    """R-INV-3: an entry is not lost, and its waiting is not held against it."""
    await asyncio.to_thread(control_process.stop)
    bench.add(*compact(1, 5))

    async with bench.reading(abandoned_ms=300), bench.reading(abandoned_ms=300):
        await until(lambda: _several(bench), within_s=20, what=lambda: "no failures")
        ((_, _, _, delivered),) = bench.server.command(
            "EVAL", PENDING, 1, STREAM, GROUP
        )
        await asyncio.to_thread(control_process.start)
        await bench.acknowledged()

    assert delivered == 1
    assert ("product:1", 5) in await bench.log()
    assert await bench.control.parked_count() == 0


async def _several(bench: Bench) -> bool:
    return len(bench.errors) >= 6


async def test_what_a_crashed_reader_held_is_read_by_another(bench: Bench) -> None:
    """STREAM-6."""
    bench.add(*compact(1, 5))
    await bench.group.read("crashed", count=10, block_ms=1_000)

    async with bench.reading(abandoned_ms=200):
        await bench.acknowledged()

    assert await bench.log() == [("product:1", 5)]
    assert bench.signals.total("messages_taken_over", "shop-db") == 1


async def test_an_entry_that_ends_its_readers_is_set_aside_and_those_beside_it_are_not(
    bench: Bench,
) -> None:
    """STREAM-6, R-CARD-3: several deaths, then it is a dead letter."""
    for id_ in (11, 12, 13, 14, 15):
        bench.add(*compact(id_, 5))

    deaths = 0
    while not await bench.control.parked_count():
        reader = bench.reader(kind=Deadly, abandoned_ms=50)
        serving = asyncio.create_task(reader.serve())

        async def ended(serving: "asyncio.Task[None]" = serving) -> bool:
            return serving.done() or bool(await bench.control.parked_count())

        await until(ended, within_s=20, what=lambda: "neither dead nor parked")
        if serving.done():
            deaths += 1
            with suppress(asyncio.CancelledError):
                await serving
            continue
        await bench.acknowledged()
        reader.stop()
        await serving

    (letter,) = await bench.control.parked()
    taken = {entity for entity, _ in await bench.log()}
    assert (letter.fields["key"], letter.fields["reason"]) == ('{"id":13}', "abandoned")
    assert taken == {"product:11", "product:12", "product:14", "product:15"}
    assert 3 <= deaths <= 8


async def test_what_all_have_read_is_trimmed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STREAM-10: the sink never trims; a group that has not read yet keeps its entries."""
    monkeypatch.setattr("jobs.streams.TIDY_EVERY_S", 0.05)
    for number in range(500):
        bench.add(*compact(number, 5))

    async with bench.reading():
        await until(lambda: _shorter(bench), within_s=20, what=lambda: "not trimmed")
        bench.server.command("XGROUP", "CREATE", STREAM, "audit", "$")
        ids = {bench.add(*compact(number, 6)) for number in range(500)}
        await bench.acknowledged()
        await CLOCK.sleep(0.3)

    kept = {id_.decode() for id_, _ in bench.server.command("XRANGE", STREAM, "-", "+")}
    assert ids <= kept


async def _shorter(bench: Bench) -> bool:
    length: int = bench.server.command("XLEN", STREAM)
    return length <= 150


# --- whole workers ------------------------------------------------------------------


SOURCES = """
[sources.shop-db]
format = "debezium"
version_fields = ["version"]

[sources.shop-db.stream]
url = "{url}"
names = ["{stream}"]
"""


@pytest.fixture
async def shop(valkey: ServerProcess, tmp_path: Path) -> AsyncIterator[Shop]:
    valkey.renew()
    async with shop_on(valkey.url, tmp_path) as opened:
        yield opened


def sources(server: ServerProcess) -> str:
    return SOURCES.format(url=server.url, stream=STREAM)


async def drained(source: Redis) -> None:
    async def all_of_it() -> bool:
        groups = await source.xinfo_groups(STREAM)
        return not any(group["pending"] or group["lag"] for group in groups)

    await until(all_of_it, within_s=25, what=lambda: "unread")


@asynccontextmanager
async def client_of(server: ServerProcess) -> AsyncIterator[Redis]:
    redis = Redis.from_url(server.url)
    try:
        yield redis
    finally:
        await redis.aclose()


@pytest.mark.timeout(60)
async def test_batches_sent_again_and_out_of_order_end_right(
    shop: Shop, children: Children, redis7: ServerProcess
) -> None:
    """CDC-ORDER-1, R-INV-2: versions decide, not the place in the stream."""
    redis7.renew()
    ids = range(20)
    entries = [(id_, shop.write(id_)) for _ in range(25) for id_ in ids]
    resent = [entry for entry in entries for _ in range(2)]
    Random(3).shuffle(resent)
    async with client_of(redis7) as source:
        await shop.worker(children, sources=sources(redis7))
        async with source.pipeline(transaction=False) as pipe:
            for at, (id_, version) in enumerate(resent):
                fields = (compact if at % 2 else extended)(id_, version)
                pipe.xadd(STREAM, dict(zip(fields[::2], fields[1::2], strict=True)))
            await pipe.execute()
        await drained(source)
        await shop.fresh(*ids)
        await shop.settled()
        loads = shop.loads(ids)
        for id_, version in entries[:200]:
            await source.xadd(STREAM, {key_json(id_): change(id_, version)})
        await drained(source)
        await shop.settled()

    assert shop.loads(ids) == loads
    for id_ in ids:
        assert await shop.is_fresh(id_)


@pytest.mark.timeout(90)
async def test_of_two_readers_one_may_be_killed(
    shop: Shop, children: Children, redis7: ServerProcess
) -> None:
    """R-FT-4, STREAM-6: what it held is read by the other."""
    redis7.renew()
    ids = range(1_000)
    async with client_of(redis7) as source:
        doomed = await shop.worker(children, sources=sources(redis7))
        await shop.worker(children, sources=sources(redis7))
        async with source.pipeline(transaction=False) as pipe:
            for id_ in ids:
                pipe.xadd(STREAM, {key_json(id_): change(id_, shop.write(id_))})
            await pipe.execute()
        doomed.kill()
        await drained(source)
    await shop.fresh(*ids, within_s=40)
    await shop.settled()
    assert await shop.control.parked_count() == 0


@pytest.mark.timeout(60)
async def test_rows_that_were_only_read_are_loaded_where_they_are_not_fresh(
    shop: Shop, children: Children, redis7: ServerProcess
) -> None:
    """CDC-ORDER-1, R-CARD-3: a snapshot warms the cache, and makes nothing stale."""
    redis7.renew()
    known, new = range(10), range(10, 20)
    async with client_of(redis7) as source:
        await shop.worker(children, sources=sources(redis7))
        for id_ in (*known, *new):
            shop.write(id_)
        for id_ in known:
            await source.xadd(STREAM, {key_json(id_): change(id_, 1)})
        await shop.fresh(*known)
        for id_ in (*known, *new):
            await source.xadd(STREAM, {key_json(id_): change(id_, 1, op="r")})
        await shop.fresh(*new)
        await drained(source)
        await shop.settled()

    assert shop.loads((*known, *new)) == dict.fromkeys((*known, *new), 1)


@pytest.mark.timeout(60)
async def test_a_truncated_table_is_loaded_anew_as_a_whole(
    shop: Shop, children: Children, redis7: ServerProcess
) -> None:
    """R-INV-4: from the stream by the log to every key, with a row that is new since."""
    redis7.renew()
    ids = range(50)
    async with client_of(redis7) as source:
        await shop.worker(children, sources=sources(redis7))
        await shop.change(*ids)
        await shop.fresh(*ids)
        for id_ in ids:
            shop.write(id_)
        await source.xadd(STREAM, {b"default": truncation()})
        await drained(source)
        await shop.fresh(*ids)

    assert await shop.control.parked_count() == 0
