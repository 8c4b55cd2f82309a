"""From an event in the log to the refreshed entry: how long, at a steady rate.

    make bench-event-to-fresh

One worker process, an origin of 20 ms, an event every 2 ms, each for a key of its own
until they come round again. Measured from the append to the entry's `created_at`.
"""

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from tests.fleet import Shop, shop_on
from tests.processes import Children
from tests.servers import ValkeyProcess, running

RATE, SECONDS, KEYS = 500, 10, 2_000
ORIGIN_S = 0.020


async def measure(shop: Shop) -> list[float]:
    """Milliseconds from append to publish, one for each event that was the key's last."""
    appended: dict[int, float] = {}
    started = time.monotonic()
    for number in range(RATE * SECONDS):
        id_ = number % KEYS
        await asyncio.sleep(max(0, started + number / RATE - time.monotonic()))
        version = shop.write(id_)
        appended[id_] = time.time() * 1000
        await shop.control.events.append([shop.event(id_, version)])
    print(f"sent {RATE * SECONDS / (time.monotonic() - started):.0f} events/s")
    await shop.fresh(*range(KEYS), within_s=30)
    waits: list[float] = []
    for id_, at in appended.items():
        entry = await shop.entry(id_)
        assert entry is not None
        waits.append(entry.created_at - at)
    return waits


def cpu_seconds(pid: int) -> float:
    """CPU time a process has used, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main() -> None:
    children = Children()
    with running(ValkeyProcess()) as server, tempfile.TemporaryDirectory() as folder:
        try:
            async with shop_on(server.url, Path(folder), delay_s=ORIGIN_S) as shop:
                worker = await shop.worker(children, concurrency="64")
                waits = sorted(await measure(shop))
                cpu_s = cpu_seconds(worker.pid)
        finally:
            children.kill_all()
    quantiles = statistics.quantiles(waits, n=100)
    print(f"{RATE} events/s, origin {ORIGIN_S * 1000:.0f} ms, {len(waits)} keys")
    for name, at in (("p50", 49), ("p90", 89), ("p99", 98)):
        print(f"{name} {quantiles[at]:7.1f} ms")
    print(f"max {waits[-1]:7.1f} ms")
    print(f"worker: {cpu_s / RATE / SECONDS * 1000:.2f} ms CPU an event")
    print(f"producer and origin: {time.process_time() / RATE / SECONDS * 1000:.2f} ms")


if __name__ == "__main__":
    asyncio.run(main())
