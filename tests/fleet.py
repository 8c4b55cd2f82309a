"""A shop whose rows change, an origin that serves them, and real worker processes.

async with shop_on(server.url, tmp_path) as shop:
    worker = await shop.worker(children)
    await shop.change(42)                 # the row, and its event in the log
    await shop.fresh(42)                  # the entry has the row's version
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from redis.asyncio import Redis

from tests.control import PRODUCT
from tests.origin_server import OriginServer, json_answer
from tests.processes import ChildProcess, Children
from warmer.clock import SystemClock
from warmer.dispatch import Jobs
from warmer.ingest.event_log import encode
from warmer.model.entry import Entry, EntryRefused, decode_entry
from warmer.model.event import Event
from warmer.model.key import Key
from warmer.model.version import SourceVersion
from warmer.store.control import ControlServer

CLOCK = SystemClock()
SOURCE = "shop-db"

CONFIG = """
[cache]
url = "{url}"
timeout = "2s"

[origins.shop]
base_url = "{origin}"
local_limit = 64

[worker]
concurrency = {concurrency}
batch = 50
drain_timeout = "{drain}"
retry_base = "100ms"
retry_cap = "1s"
max_tries = {max_tries}
lanes = {lanes}

[datasets.product]
key = "product:v{{schema}}:{{id}}"
schema_version = 3
entities = ["shop-db/product:{{id}}"]
origin = "shop"
path = "/products/{{id}}"
fresh_for = "1h"
stale_for = "1h"
stale_if_error_for = "1h"
jitter = "0%"
lease_for = "{lease}"
load_timeout = "{load_timeout}"
refresh_on = "all"

[datasets.product.version]
means = "entity"
source = "shop-db"
entity = "product:{{id}}"
header = "X-Version"

{sources}
"""


DEFAULTS = {
    "concurrency": "32",
    "max_tries": "10",
    "load_timeout": "2s",
    "lease": "4s",
    "drain": "10s",
    "lanes": '["now", "warm"]',
    "sources": "",
}


@dataclass(slots=True)
class Shop:
    """Rows and their versions; everything around them is real."""

    url: str
    directory: Path
    origin: OriginServer
    redis: Redis
    control: ControlServer
    delay_s: float = 0.0
    versions: dict[int, int] = field(default_factory=dict)

    async def worker(
        self, children: Children, *, env: dict[str, str] | None = None, **changes: str
    ) -> ChildProcess:
        """A worker process that is ready."""
        child = self.start_worker(children, env=env, **changes)
        await child.line("worker_ready", within_s=20)
        return child

    def start_worker(
        self, children: Children, *, env: dict[str, str] | None = None, **changes: str
    ) -> ChildProcess:
        """A worker process that may not be ready yet; `changes` are those of `DEFAULTS`."""
        number = len(list(self.directory.glob("*.toml")))
        file = self.directory / f"worker-{number}.toml"
        places = {"url": self.url, "origin": self.origin.url}
        file.write_text(CONFIG.format(**places, **(DEFAULTS | changes)))
        return children.warmer("worker", "--config", str(file), env=env)

    def write(self, id_: int) -> int:
        """Change row `id_`; return its new version."""
        version = self.versions[id_] = self.versions.get(id_, 0) + 1
        answer = json_answer({"id": id_, "version": version}, version=version)
        self.origin.on(f"/products/{id_}", replace(answer, delay_s=self.delay_s))
        return version

    def event(self, id_: int, version: int) -> bytes:
        return encode(
            Event(
                id=f"e-{id_}-{version}",
                source=SOURCE,
                entities=(f"product:{id_}",),
                version=SourceVersion.of(SOURCE, version),
            )
        )

    async def change(self, *ids: int) -> None:
        """Change rows, and append their events to the log."""
        await self.control.events.append(
            [self.event(id_, self.write(id_)) for id_ in ids]
        )

    async def entry(self, id_: int) -> Entry | None:
        key = self.key(id_)
        stored = await self.redis.get(key.text)
        try:
            return decode_entry(stored, key.digest()) if stored else None
        except EntryRefused:
            return None

    async def is_fresh(self, id_: int) -> bool:
        """The entry is fresh, and of the row as it is now."""
        entry = await self.entry(id_)
        return (
            entry is not None
            and entry.fresh_until > CLOCK.now_ms()
            and entry.versions()[f"{SOURCE}/product:{id_}"].parts()[0]
            == self.versions[id_]
        )

    async def fresh(self, *ids: int, within_s: float = 20) -> None:
        """Return once all these are."""
        left = list(ids)

        async def all_fresh() -> bool:
            while left and await self.is_fresh(left[-1]):
                left.pop()
            return not left

        await until(all_fresh, within_s=within_s, what=lambda: f"not fresh: {left[:9]}")

    async def settled(self, *, within_s: float = 20) -> None:
        """Return once nothing is due, worked on, or unacknowledged."""

        async def empty() -> bool:
            names = ("due:now", "due:warm", "doing:now", "doing:warm")
            counts = [await self.redis.zcard(f"warmer:{name}") for name in names]
            state = await self.control.events.state()
            return not any(counts) and not state.pending and not state.lag

        await until(empty, within_s=within_s, what=lambda: "still at work")

    def key(self, id_: int) -> Key:
        return PRODUCT.key({"id": id_})

    def loads(self, ids: Iterable[int]) -> dict[int, int]:
        return {id_: self.origin.loads(f"/products/{id_}") for id_ in ids}


@asynccontextmanager
async def shop_on(
    url: str, directory: Path, *, delay_s: float = 0.0
) -> AsyncIterator[Shop]:
    """A shop whose cache and control server is at `url`."""
    redis = Redis.from_url(url)
    control = ControlServer(redis, drain_job=Jobs(CLOCK).refresh_due)
    try:
        async with OriginServer() as origin:
            yield Shop(url, directory, origin, redis, control, delay_s)
    finally:
        await redis.aclose()


async def until(
    happened: Callable[[], Awaitable[bool]],
    *,
    within_s: float,
    what: Callable[[], str],
) -> None:
    """Return as soon as it has happened."""
    try:
        async with asyncio.timeout(within_s):
            while not await happened():
                await CLOCK.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {within_s} s: {what()}") from None
