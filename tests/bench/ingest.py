"""How fast events come in, and how soon a purge is seen; beside one arq job per event.

    make bench-ingest

One worker process that loads nothing, one `warmer serve`, one Valkey server, and for HTTP a
producer in a process of its own. Every event names one key, and each has an entry. From the
log: events are put there by a script, and timed until all are acknowledged.
"""

import asyncio
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from arq.jobs import serialize_job
from redis.asyncio import Redis

from tests.bench.job_per_event import QUEUE
from tests.control import PRODUCT
from tests.door import ENVIRONMENT
from tests.fleet import until
from tests.processes import ChildProcess, Children
from tests.servers import ServerProcess, ValkeyProcess, running
from warmer.ingest.event_log import encode
from warmer.model.entry import Entry, encode_entry
from warmer.model.event import Event
from warmer.model.version import SourceVersion, encode_vector
from warmer.store.keyspace import EVENT_LOG

ROUNDS = 3
KEYS = 20_000
EVENTS, JOBS = 20_000, 1_000
PER_BATCH = 100
SOURCE = "shop-db"
STAGED = "bench:staged"

CONFIG = """
[cache]
url = "{url}"

[worker]
lanes = ["warm"]

[sources.shop-db]
format = "plain"
signature = "standard-webhooks"
secrets = ["env:WHSEC"]

[origins.shop]
base_url = "http://127.0.0.1:9"

[datasets.product]
key = "product:v{{schema}}:{{id}}"
schema_version = 3
entities = ["shop-db/product:{{id}}"]
origin = "shop"
path = "/products/{{id}}"
fresh_for = "1h"
stale_for = "1h"
"""

POURED = 2_000
# So many of a list's entries into the stream: no producer beside what is measured, and the
# server is not away for longer than calls wait.
POUR = """
for _, event in ipairs(redis.call("LPOP", KEYS[1], ARGV[1])) do
    redis.call("XADD", KEYS[2], "*", "event", event)
end
"""


@dataclass(slots=True)
class Bench:
    """The processes, and what was measured so far."""

    server: ServerProcess
    redis: Redis
    children: Children
    config: Path
    versions: Iterator[int] = field(default_factory=lambda: itertools.count(2))

    # --- the log ---------------------------------------------------------------------

    def events(self, count: int) -> list[bytes]:
        version = next(self.versions)
        return [
            encode(
                Event(
                    id=f"e-{version}-{number}",
                    source=SOURCE,
                    entities=(f"product:{number % KEYS}",),
                    version=SourceVersion.of(SOURCE, version * 100 + number // KEYS),
                )
            )
            for number in range(count)
        ]

    async def log(self) -> float:
        """Events of the log applied and acknowledged, per second."""
        await self.redis.rpush(STAGED, *self.events(EVENTS))  # type: ignore[misc]  # redis-py: either kind of client
        began = time.perf_counter()
        for _ in range(EVENTS // POURED):
            await self.redis.eval(POUR, 2, STAGED, EVENT_LOG, POURED)  # type: ignore[misc,arg-type]
        await self.drained()
        took_s = time.perf_counter() - began
        await self.redis.xtrim(EVENT_LOG, maxlen=0, approximate=False)
        return EVENTS / took_s

    async def drained(self) -> None:
        async def empty() -> bool:
            (group,) = await self.redis.xinfo_groups(EVENT_LOG)
            return not group["lag"] and not group["pending"]

        await until(empty, within_s=120, what=lambda: "the log is not read")

    async def jobs(self) -> float:
        """Events that are an arq job each, per second."""
        pipe = self.redis.pipeline(transaction=False)
        now_ms = int(time.time() * 1000)
        for number, event in enumerate(self.events(JOBS)):
            job = serialize_job("purge", (event,), {}, None, now_ms)
            pipe.set(f"arq:job:{now_ms}-{number}", job, px=600_000)
            pipe.zadd(STAGED, {f"{now_ms}-{number}": now_ms})
        await pipe.execute()
        began = time.perf_counter()
        await self.redis.rename(STAGED, QUEUE)

        async def empty() -> bool:
            return not await self.redis.zcard(QUEUE)

        await until(empty, within_s=120, what=lambda: "the jobs are not done")
        return JOBS / (time.perf_counter() - began)

    # --- the door --------------------------------------------------------------------

    async def http(self, mode: str, port: int) -> dict[str, float]:
        seed = str(next(self.versions))
        load = self.children.python(
            "tests.bench.door_load", mode, str(port), self.server.url, seed
        )
        found = await load.line(r"^result (.*)", within_s=120)
        told: dict[str, float] = json.loads(found[1])
        return told

    async def singles(self, port: int) -> float:
        told = await self.http("single", port)
        await self.redis.xtrim(EVENT_LOG, maxlen=0, approximate=False)
        return told["requests_per_s"]

    async def batches(self, port: int) -> float:
        told = await self.http("batch", port)
        await self.redis.xtrim(EVENT_LOG, maxlen=0, approximate=False)
        return told["requests_per_s"] * PER_BATCH

    async def purges(self, port: int) -> float:
        await self.publish()
        return (await self.http("paced", port))["p99_ms"]

    # --- what there is -----------------------------------------------------------------

    async def publish(self) -> None:
        """A fresh entry for each key; guards go, so that no floor is above it."""
        await self.redis.delete("warmer:due:now", "warmer:wanted")
        now_ms = int(time.time() * 1000)
        pipe = self.redis.pipeline(transaction=False)
        for number in range(KEYS):
            key = PRODUCT.key({"id": number})
            scope = f"{SOURCE}/product:{number}"
            entry = Entry(
                flags=0,
                schema_version=3,
                created_at=now_ms,
                fresh_until=now_ms + 3_600_000,
                stale_until=now_ms + 7_200_000,
                error_until=now_ms + 7_200_000,
                fence=1,
                load_ms=5,
                vector=encode_vector({scope: SourceVersion.of(SOURCE, 1)}).encode(),
                body=b"x" * 512,
            )
            stored = encode_entry(entry, key.digest())
            pipe.set(key.text, stored, px=7_200_000)
        await pipe.execute()

    def start(self, command: str, *arguments: str) -> ChildProcess:
        return self.children.warmer(
            command, "--config", str(self.config), *arguments, env=ENVIRONMENT
        )


async def measured(bench: Bench) -> dict[str, list[float]]:
    """Every figure, a round at a time."""
    await bench.publish()
    results: dict[str, list[float]] = {}

    async def turn(name: str, measure: Callable[[], Awaitable[float]]) -> None:
        found = await measure()
        print(f"{name:26} {found:10,.1f}", flush=True)
        results.setdefault(name, []).append(found)

    worker = bench.start("worker")
    await worker.line("worker_ready", within_s=20)
    peer = bench.children.python(
        "tests.bench.job_per_event",
        str(bench.config),
        bench.server.url,
        env=ENVIRONMENT,
    )
    await peer.line("peer_ready", within_s=20)
    for _ in range(ROUNDS):
        await turn("log_events_per_s", bench.log)
        await turn("arq_jobs_per_s", bench.jobs)
    peer.kill()
    door = bench.start("serve", "--listen", "127.0.0.1:0")
    ready = await door.line(r"server_ready listen=\S+:(\d+)", within_s=20)
    port = int(ready[1])
    await turn("purge_p99_ms", lambda: bench.purges(port))
    await turn("purge_p99_ms", lambda: bench.purges(port))
    await turn("purge_p99_ms", lambda: bench.purges(port))
    worker.terminate()
    await worker.exited(within_s=30)
    for _ in range(ROUNDS):
        await turn("http_single_per_s", lambda: bench.singles(port))
        await turn("http_batch_events_per_s", lambda: bench.batches(port))
    return results


async def main() -> None:
    children = Children()
    with running(ValkeyProcess()) as server, tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "warmer.toml"
        config.write_text(CONFIG.format(url=server.url))
        redis = Redis.from_url(server.url)
        try:
            results = await measured(Bench(server, redis, children, config))
        finally:
            await redis.aclose()
            children.kill_all()
    told = {name: statistics.median(found) for name, found in results.items()}
    for name, found in results.items():
        runs = " ".join(f"{each:10,.1f}" for each in found)
        print(f"{name:26} {told[name]:10,.1f}   {runs}")
    ratios = [
        mine / other
        for mine, other in zip(
            results["log_events_per_s"], results["arq_jobs_per_s"], strict=True
        )
    ]
    told["vs_one_arq_job_per_event"] = statistics.median(ratios)
    print(json.dumps({name: round(value, 1) for name, value in told.items()}))


if __name__ == "__main__":
    asyncio.run(main())
