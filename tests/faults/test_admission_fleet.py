"""The origin survives: eight request paths and four workers before one origin with a limit.

The origin counts what runs at once by itself, at each start of a request, so that no peak is
missed. What processes do with what they get is in their own words, at their ends.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typing_extensions import override

from tests.control import due_key
from tests.fleet import CLOCK, until
from tests.origin_server import OriginServer, json_answer
from tests.processes import ChildProcess, Children
from tests.servers import ServerProcess, Servers
from warmer.dispatch import Jobs
from warmer.model.due import Lane
from warmer.store.connections import Endpoint, connect
from warmer.store.control import ControlServer

log = logging.getLogger("tests.admission")

LIMIT, RESERVE = 16, 4
CLIENTS, WORKERS = 8, 4
KEYS = 50_000
ORIGIN_S = 0.02

CONFIG = """
[cache]
url = "{cache}"
timeout = "2s"

[control]
url = "{control}"

[origins.shop]
base_url = "{origin}"
headers = {{ X-From = "{sender}" }}
limit = {limit}
reserve = "20%"
local_limit = 1
local_queue = 1000
adaptive = {adaptive}

[worker]
retry_base = "100ms"
retry_cap = "1s"

[client]
deadline = "2s"

[datasets.product]
key = "product:v{{schema}}:{{id}}"
schema_version = 3
entities = ["shop-db/product:{{id}}"]
origin = "shop"
path = "/products/{{id}}"
fresh_for = "{fresh}"
stale_for = "{stale}"
stale_if_error_for = "{stale}"
lease_for = "4s"
load_timeout = "3s"
"""


class Fleet:
    """The processes of one test, their servers and their origin."""

    def __init__(
        self,
        children: Children,
        cache: ServerProcess,
        control: ServerProcess,
        origin: OriginServer,
        directory: Path,
    ) -> None:
        self.children = children
        self.cache = cache
        self.control = control
        self.origin = origin
        self.directory = directory
        self.clients: list[ChildProcess] = []
        self.workers: list[ChildProcess] = []

    def configure(self, **changes: str) -> None:
        """Write what the processes go by."""
        settings = {"fresh": "1h", "stale": "0s", "adaptive": "false"} | changes
        for sender in ("client", "worker"):
            self.config(sender).write_text(
                CONFIG.format(
                    cache=self.cache.url,
                    control=self.control.url,
                    origin=self.origin.url,
                    sender=sender,
                    limit=LIMIT,
                    **settings,
                )
            )

    def config(self, sender: str) -> Path:
        return self.directory / f"{sender}.toml"

    async def start(self, *, clients: int, workers: int, readers: int) -> None:
        """Start processes, and return when all are ready."""
        for seed in range(clients):
            arguments = (str(self.config("client")), str(KEYS), str(seed), str(readers))
            self.clients.append(self.children.python("tests.flooding", *arguments))
        for _ in range(workers):
            self.workers.append(
                self.children.warmer("worker", "--config", str(self.config("worker")))
            )
        for client in self.clients:
            await client.line("ready", within_s=60)
        for worker in self.workers:
            await worker.line("worker_ready", within_s=60)

    async def campaign(self) -> None:
        """Have every key warmed."""
        redis = connect(Endpoint(self.control.url, timeout_ms=5_000))
        control = ControlServer(
            redis, drain_job=Jobs(CLOCK).refresh_due, timeout_ms=5_000
        )
        try:
            await control.due.add(Lane.WARM, [due_key(id_) for id_ in range(KEYS)])
        finally:
            await redis.aclose()

    async def loads(self, count: int, *, within_s: float = 60) -> None:
        """Return after so many more loads."""
        enough = len(self.origin.requests) + count

        async def seen() -> bool:
            return len(self.origin.requests) >= enough

        await until(seen, within_s=within_s, what=lambda: "too few loads")

    async def served_without(self, sender: str, running: int) -> None:
        """Return once the others have the whole limit."""

        async def seen() -> bool:
            others = self.origin.running - self.origin.running_from[sender]
            return others == running

        await until(seen, within_s=30, what=lambda: "its share did not come back")

    async def ends(self) -> "Given":
        """Stop the clients; return what they were given, together."""
        given = Given({}, [])
        for client in self.clients:
            client.terminate()
        for client in self.clients:
            said = json.loads((await client.line("^done (.*)", within_s=30))[1])
            given.loaded_ms += said["loaded_ms"]
            for word, count in said["given"].items():
                given.counts[word] = given.counts.get(word, 0) + count
        return given


@dataclass(slots=True)
class Given:
    """Answers by state, and refusals by reason; how long a load's own reader waited."""

    counts: dict[str, int]
    loaded_ms: list[int]

    @override
    def __str__(self) -> str:
        waits = f"p50 {self.wait_ms(0.5)} p99 {self.wait_ms(0.99)} ms"
        return f"{self.counts}, uncached {waits}"

    def wait_ms(self, share: float) -> int:
        return sorted(self.loaded_ms)[int(share * len(self.loaded_ms))]


@pytest.fixture
async def fleet(
    children: Children, start_server: Servers, tmp_path: Path
) -> AsyncIterator[Fleet]:
    cache = start_server("valkey9")
    control = start_server("redis7", appendonly=True)
    async with OriginServer() as origin:
        for id_ in range(KEYS):
            answer = json_answer({"id": id_}, version=1, delay_s=ORIGIN_S)
            origin.on(f"/products/{id_}", answer)
        yield Fleet(children, cache, control, origin, tmp_path)


@pytest.mark.timeout(180)
async def test_a_flush_under_load_with_a_third_killed_never_passes_the_limit(
    fleet: Fleet,
) -> None:
    """R-FT-4 R-FT-6 R-ADM-1 R-ADM-3 FLUSH-1.

    Nor with one stopped past its permits, nor through a restart of the control server.
    """
    fleet.configure()
    await fleet.start(clients=CLIENTS, workers=WORKERS, readers=1)
    await fleet.loads(300)
    await asyncio.to_thread(fleet.cache.command, "FLUSHALL")
    await fleet.campaign()
    await fleet.loads(300)
    for victim in (*fleet.clients[:3], fleet.workers[0]):
        victim.kill()
    del fleet.clients[:3], fleet.workers[0]
    await fleet.loads(300)
    stopped = fleet.clients[0]
    stopped.pause()
    await CLOCK.sleep(3.0)
    stopped.resume()
    await fleet.loads(300)
    await asyncio.to_thread(fleet.control.restart)
    await fleet.loads(600)
    given, origin = await fleet.ends(), fleet.origin
    log.info("at once %s, %s", dict(origin.max_running_from), given)

    assert origin.max_running <= LIMIT
    assert 0 < origin.max_running_from["worker"] <= LIMIT - RESERVE
    assert origin.max_running_from["client"] >= RESERVE
    assert given.counts["loaded"] > 0


@pytest.mark.timeout(120)
async def test_a_limit_that_all_want_holds_while_one_is_stopped_and_one_is_killed(
    fleet: Fleet,
) -> None:
    """R-FT-4 R-ADM-1: nothing above it, but for what the stopped one was about to send.

    Each of the four wants four times the limit; the control server restarts in between.
    """
    origin = fleet.origin
    shared = {"control": fleet.control.url, "origin": origin.url, "limit": LIMIT}
    processes = [
        fleet.children.python("tests.loading", json.dumps({**shared, "name": name}))
        for name in ("stopped", "killed", "one", "other")
    ]
    stopped, killed = processes[:2]
    for process in processes:
        await process.line("ready", within_s=60)
    await fleet.loads(500)
    assert origin.max_running == LIMIT
    origin.max_running = 0
    held = origin.max_running_from["stopped"]
    stopped.pause()
    await fleet.served_without("stopped", LIMIT)
    stopped.resume()
    await fleet.loads(300)
    assert origin.max_running <= LIMIT + held
    origin.max_running = 0
    killed.kill()
    await fleet.served_without("killed", LIMIT)
    await asyncio.to_thread(fleet.control.restart)
    await fleet.loads(500)

    assert origin.max_running == LIMIT


@pytest.mark.timeout(120)
async def test_a_tenant_that_asks_a_hundred_times_as_much_delays_another_by_a_turn(
    fleet: Fleet,
) -> None:
    """R-ADM-1: a guest's load waits for a load of the host, and not for its hundred.

    In two processes, each with two permits and a hundred of the host's loads in line.
    """
    orders = {
        "control": fleet.control.url,
        "origin": fleet.origin.url,
        "limit": 4,
        "reserve_ratio": 0,
        "tasks": 100,
        "guests": 1,
        "settles_s": 3.0,
        "for_s": 10.0,
    }
    processes = [
        fleet.children.python("tests.loading", json.dumps({**orders, "name": name}))
        for name in ("one", "other")
    ]
    for process in processes:
        found = await process.line(r"^done (.*)", within_s=60)
        done = json.loads(found[1])
        hosts, guests = sorted(done["waits_ms"]), sorted(done["guests_ms"])
        assert len(guests) > 20
        # A hundred in line at two permits wait for fifty loads; a guest for one or two.
        assert guests[len(guests) // 2] * 8 < hosts[len(hosts) // 2]
    assert fleet.origin.max_running <= 4
