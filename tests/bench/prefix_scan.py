"""A truncated table on a server full of other names: how long, and what others wait.

    make bench-prefix-scan

One worker process that loads nothing, and a PING every 2 ms beside it.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from tests.fleet import Shop, shop_on
from tests.processes import Children
from tests.servers import ValkeyProcess, running
from warmer.ingest.event_log import encode
from warmer.model.event import Event

OTHERS, REACHED = 1_000_000, 20_000


async def pings(shop: Shop) -> list[float]:
    """Milliseconds each PING took until the scan was done."""
    waits: list[float] = []
    scanning = False
    while not scanning or await shop.control.scans.asked():
        scanning = scanning or bool(await shop.control.scans.asked())
        began = time.monotonic()
        await shop.redis.ping()
        waits.append((time.monotonic() - began) * 1000)
        await asyncio.sleep(0.002)
    return waits


async def main() -> None:
    children = Children()
    with running(ValkeyProcess()) as server, tempfile.TemporaryDirectory() as folder:
        server.command("DEBUG", "POPULATE", OTHERS, "other", 10)
        server.command("DEBUG", "POPULATE", REACHED, "product:v3", 10)
        try:
            async with shop_on(server.url, Path(folder)) as shop:
                await shop.worker(children, lanes='["now"]')
                began = time.monotonic()
                truncated = Event("t1", "shop-db", (), prefixes=("product:",))
                await shop.control.events.append([encode(truncated)])
                waits = await pings(shop)
                took_s = time.monotonic() - began
        finally:
            children.kill_all()
    quantiles = statistics.quantiles(waits, n=100)
    print(f"{OTHERS} other names, {REACHED} keys reached: {took_s:.1f} s")
    print(f"PING p50 {quantiles[49]:.2f} ms, p99 {quantiles[98]:.2f} ms")


if __name__ == "__main__":
    asyncio.run(main())
